//! Sessions whose queue pairs break, and that go on over connections, or over others.

use std::{
    io::{self, Write},
    net::Shutdown,
    sync::Mutex,
    time::{Duration, Instant},
};

use ibex_verbs::provider::RawEvent;

use super::*;
use crate::{
    clock::{self, StoppedClock},
    connection::{Attempt, NewWire, ReconnectTerms, Redial, RedialError},
    session::FailoverPolicy,
    wire::WireParts,
};

/// A watchdog's time: nothing that a test waits for takes so long on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// Step of the clock where time passes.
pub(super) const TICK: Duration = Duration::from_millis(1);
const SESSION: [u8; 16] = [7; 16];

/// The way from the first node to the second.
#[derive(Debug, Default)]
struct Way {
    /// Wires that the second node has not heard of.
    arriving: Mutex<Vec<NewWire>>,
    is_cut: Mutex<bool>,
    /// The second says that it has no such session.
    is_forgotten: Mutex<bool>,
    /// The sites where queue pairs are made, if any can be had.
    sites: Mutex<Option<[Arc<Site>; 2]>>,
    /// The two ends' newest ones.
    newest: Mutex<Option<[u32; 2]>>,
    /// The newest connection.
    connection: Mutex<Option<TcpStream>>,
    /// The fabrics that were asked for.
    asked: Mutex<Vec<Fabric>>,
}

/// The next connection, with queue pairs if these are given.
fn reconnections(epoch: u64, pairs: Option<[PreparedPair; 2]>) -> [NewWire; 2] {
    let mut pairs = pairs.into_iter().flatten();
    connection().map(|stream| NewWire {
        session: SESSION,
        epoch,
        parts: WireParts {
            stream,
            leftover: Vec::new(),
            tls: None,
            rdma: pairs.next(),
        },
    })
}

impl Way {
    /// Breaks the newest connection, which was this in the beginning.
    fn cut(&self, first: &TcpStream) {
        let newest = self.connection.lock().unwrap();
        let _ = newest.as_ref().unwrap_or(first).shutdown(Shutdown::Both);
    }

    fn pairs(&self) -> Result<[PreparedPair; 2], String> {
        let sites = self.sites.lock().unwrap();
        let [here, there] = sites.as_ref().ok_or("there is no device")?;
        let pairs = pairs([here, there]).map_err(|error| error.to_string())?;
        let numbers = [0, 1].map(|end: usize| pairs[end].endpoint().pair.queue_pair);
        *self.newest.lock().unwrap() = Some(numbers);
        Ok(pairs)
    }
}

impl Redial for Way {
    fn redial(&self, attempt: Attempt, _: &dyn Fn() -> bool) -> Result<NewWire, RedialError> {
        if *self.is_cut.lock().unwrap() {
            return Err(RedialError::NotYet("it is cut".to_owned()));
        }
        if *self.is_forgotten.lock().unwrap() {
            return Err(RedialError::NoSession("it has no such session".to_owned()));
        }
        self.asked.lock().unwrap().push(attempt.fabric);
        let pairs = match attempt.fabric {
            Fabric::Verbs => Some(self.pairs().map_err(RedialError::NotYet)?),
            _ => None,
        };
        let [here, there] = reconnections(attempt.epoch, pairs);
        *self.connection.lock().unwrap() = Some(here.parts.stream.try_clone().unwrap());
        self.arriving.lock().unwrap().push(there);
        Ok(here)
    }

    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        job();
        Ok(())
    }
}

/// Two nodes whose session goes on, and channels between them in both directions.
pub(super) struct Resuming {
    pub(super) stage: Stage,
    /// Stands, unless a test moves it or somebody waits to dial again: what engines wait for
    /// until some time never comes because the machine was busy.
    pub(super) clock: StoppedClock,
    /// The device says nothing of queue pairs that end.
    is_mute: bool,
    way: Arc<Way>,
    pub(super) channels: [Stream; 2],
}

/// Numbered messages of one channel.
pub(super) struct Stream {
    pub(super) sender: SendHandle,
    pub(super) receiver: ReceiveHandle,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Every fifth message, until the end.
    held: Vec<(u64, RawMessage)>,
}

/// Short ones, some of medium size, and a few large ones.
fn length(number: u64) -> usize {
    match number % 16 {
        3 | 4 | 9 => 10_000 + number as usize % 40_000,
        7 => 300_000,
        _ => number as usize * 37 % 900,
    }
}

impl Stream {
    /// Sends as many as go, up to so many.
    pub(super) fn send(&mut self, most: u64) {
        for _ in 0..most {
            let message = payload(self.sent + 1, length(self.sent + 1));
            match try_send(&mut self.sender, &message) {
                Ok(sequence) => assert_eq!(sequence, self.sent + 1),
                Err(SendFailure::Full) => return,
                Err(other) => panic!("{other:?}"),
            }
            self.sent += 1;
        }
    }

    fn receive(&mut self, most: u64) {
        for _ in 0..most {
            let Some(message) = self.receiver.poll().unwrap() else {
                return;
            };
            self.received += 1;
            let number = self.received;
            assert_eq!(message.sequence(), number);
            assert!(*message.bytes() == payload(number, length(number))[..]);
            if number.is_multiple_of(5) && self.held.len() < 20 {
                self.held.push((number, message));
            }
        }
    }

    /// Takes everything that is there, and says what is behind it.
    pub(super) fn take_all(&mut self) -> Result<(), RecvError> {
        while let Some(message) = self.receiver.poll()? {
            self.received += 1;
            assert_eq!(message.sequence(), self.received);
            let sent = payload(self.received, length(self.received));
            assert!(*message.bytes() == sent[..]);
        }
        Ok(())
    }

    fn release(&mut self) {
        for (number, message) in self.held.drain(..) {
            assert!(*message.bytes() == payload(number, length(number))[..]);
        }
    }
}

impl Resuming {
    fn new(settings: SiteSettings) -> Self {
        Self::on(one_device(), settings)
    }

    fn on(fake: FakeProvider, settings: SiteSettings) -> Self {
        Self::by(FailoverPolicy::Only(Fabric::Tcp), fake, settings)
    }

    pub(super) fn by(ways: FailoverPolicy, fake: FakeProvider, settings: SiteSettings) -> Self {
        Self::between(Some(ways), fake, settings)
    }

    /// Makes a stage; with no ways, the peer has an older version, whose sessions cannot go on.
    pub(super) fn between(
        ways: Option<FailoverPolicy>,
        fake: FakeProvider,
        settings: SiteSettings,
    ) -> Self {
        let clock = StoppedClock::stop();
        let way = Arc::<Way>::default();
        let stage = Stage::admitted(Driver::Caller, fake, settings, |end, admission| {
            let redial = (end == 0).then(|| way.clone() as Arc<dyn Redial>);
            admission.reconnect = ways.map(|ways| ReconnectTerms {
                session: SESSION,
                redial,
                ways,
                process: None,
                max_age: None,
            });
        });
        *way.sites.lock().unwrap() = Some([0, 1].map(|end| stage.nodes[end].site.clone()));
        stage.settle();
        let channels = [0, 1].map(|from| {
            let (sender, receiver) = stage.open(from, "stream", WINDOW);
            stage.settle();
            Stream {
                sender,
                receiver,
                sent: 0,
                received: 0,
                held: Vec::new(),
            }
        });
        Self {
            stage,
            clock,
            is_mute: false,
            way,
            channels,
        }
    }

    /// From now on the device says nothing of queue pairs that end.
    pub(super) fn fall_silent(&mut self) {
        self.stage.fake.fall_silent();
        self.is_mute = true;
    }

    pub(super) fn turn(&self, turns: usize) {
        for turn in 0..turns {
            self.stage.nodes[turn % 2].runtime.poll_ready();
        }
        let arriving = std::mem::take(&mut *self.way.arriving.lock().unwrap());
        for wires in arriving {
            self.stage.nodes[1].runtime.resume(wires);
        }
    }

    /// Lets time pass if somebody waits to dial again, or for a device that says nothing.
    pub(super) fn pass_time(&self) {
        let mut nodes = self.stage.nodes.iter();
        if self.is_mute || nodes.any(|node| node.session.is_suspended()) {
            self.clock.advance(TICK);
        }
    }

    fn each(&mut self, act: impl Fn(&mut Stream)) {
        self.channels.iter_mut().for_each(act);
    }

    /// Sends and receives, so many messages at most in each direction.
    pub(super) fn carry(&mut self, messages: u64) {
        for _ in 0..messages {
            self.each(|stream| stream.send(2));
            self.turn(3);
            self.each(|stream| stream.receive(1));
        }
    }

    /// Takes what is there, so that there is room and credit.
    pub(super) fn calm_down(&mut self) {
        for _ in 0..3 {
            self.turn(20);
            self.each(|stream| stream.receive(100));
        }
        self.stage.settle();
    }

    /// Until everything that was sent is there.
    pub(super) fn finish(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.channels.iter().any(|one| one.received < one.sent) {
            let come = self.channels.each_ref().map(|one| (one.received, one.sent));
            assert!(Instant::now() < until, "{come:?}");
            self.turn(10);
            self.pass_time();
            self.each(|stream| stream.receive(100));
        }
        self.stage.settle();
    }

    pub(super) fn settle_over(&self, fabric: Fabric) {
        let until = Instant::now() + PATIENCE;
        let sessions = || self.stage.nodes.iter().map(|node| &node.session);
        while sessions().any(|session| session.is_suspended() || session.fabric() != fabric) {
            assert!(Instant::now() < until, "{:?}", self.stage.stats());
            self.turn(10);
            self.pass_time();
        }
        assert!(sessions().all(|session| !session.is_gone()));
    }

    /// Checks that the queue pairs' credit has gone back, and that later sessions have it.
    fn check_accounts(&mut self, receive_buffers: usize) {
        self.each(Stream::release);
        for stream in &mut self.channels {
            // What was released is counted.
            assert!(stream.receiver.receive(Patience::None).is_err());
        }
        self.stage.settle();
        let fake = &self.stage.fake;
        let (_, receive) = fake.tags();
        for (node, tag) in self.stage.nodes.iter().zip(receive) {
            // Less than a batch waits to be posted again.
            assert!(fake.shared_receives(tag).len() + 16 > receive_buffers);
            assert_eq!(node.runtime.lent_and_free(node.session.id).0, 0);
            assert_eq!(node.site.landings(), 0);
        }
        assert_eq!(fake.alive().get("queue pairs"), None, "{:?}", fake.alive());
    }
}

pub(super) fn trusting() -> SiteSettings {
    SiteSettings {
        grants_memory: true,
        ..settings()
    }
}

pub(super) fn posted_receives(stage: &Stage) -> usize {
    let (_, receive) = stage.fake.tags();
    stage.fake.shared_receives(receive[0]).len()
}

/// The event that breaks a session's wires at the first node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Breaks {
    Send(u32),
    Receive(u32),
    PairEvent(u32),
    Connection,
}

impl Resuming {
    /// The numbers of the two ends' queue pairs, or of those that they had last.
    pub(super) fn newest_pairs(&self) -> [u32; 2] {
        let newest = *self.way.newest.lock().unwrap();
        newest.unwrap_or(self.stage.queue_pairs())
    }

    /// Chooses the sites of the next queue pairs, and returns the sites so far.
    pub(super) fn move_to(&self, sites: [Arc<Site>; 2]) -> [Arc<Site>; 2] {
        let before = self.way.sites.lock().unwrap().replace(sites);
        before.expect("there is a device")
    }

    /// Blocks or opens the way to the second node.
    pub(super) fn block_way(&self, is_cut: bool) {
        *self.way.is_cut.lock().unwrap() = is_cut;
    }

    /// The second has no such session any more, as whoever dials it hears.
    pub(super) fn forget_session(&self) {
        *self.way.is_forgotten.lock().unwrap() = true;
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.way.cut(&self.stage.nodes[0].tcp);
    }

    pub(super) fn breaks(&self, how: Breaks) {
        let fake = &self.stage.fake;
        let [dies, _] = self.newest_pairs();
        match how {
            Breaks::Send(status) => fake.fail_send(dies, status, 0),
            Breaks::Receive(status) => fake.fail_receive(dies, status, 0),
            Breaks::PairEvent(event_type) => fake.raise(
                DEVICE,
                RawEvent {
                    event_type,
                    element: dies.into(),
                },
            ),
            Breaks::Connection => self.cut(),
        }
    }
}

const WAYS_TO_BREAK: [Breaks; 13] = [
    Breaks::Send(12),
    Breaks::Send(5),
    Breaks::Send(19),
    Breaks::Receive(5),
    Breaks::PairEvent(1),
    Breaks::Connection,
    // The device says that the peer is to blame, which a device may say that loses packets.
    Breaks::Send(9),
    Breaks::Send(10),
    Breaks::Send(11),
    Breaks::Receive(1),
    Breaks::Receive(2),
    Breaks::PairEvent(2),
    Breaks::PairEvent(3),
];

/// Breaks a session in the middle of a stream, `at` some point of it.
fn goes_on_behind(how: Breaks, at: u64, settings: SiteSettings) {
    let mut test = Resuming::new(settings);
    let receives = posted_receives(&test.stage);
    test.carry(at);
    test.calm_down();
    test.stage.fake.hold_sends(true);
    test.carry(1 + at % 5);
    test.breaks(how);
    test.stage.fake.hold_sends(false);
    test.carry(5);
    test.settle_over(Fabric::Tcp);
    test.carry(40);
    test.finish();
    test.check_accounts(receives);
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2], "{how:?}");
}

#[test]
fn a_stream_in_both_directions_goes_on_wherever_it_breaks() {
    for (at, how) in (3..).step_by(11).zip(WAYS_TO_BREAK) {
        goes_on_behind(how, at, trusting());
    }
}

#[test]
fn so_it_does_where_no_memory_is_granted() {
    for (at, how) in (9..).step_by(7).zip(WAYS_TO_BREAK.into_iter().step_by(2)) {
        goes_on_behind(how, at, settings());
    }
}

#[test]
fn so_it_does_where_each_session_has_its_own_receive_queue() {
    let settings = SiteSettings {
        shared_receives: false,
        ..trusting()
    };
    let mut test = Resuming::new(settings);
    test.carry(30);
    test.breaks(Breaks::PairEvent(1));
    test.carry(30);
    test.settle_over(Fabric::Tcp);
    test.finish();
    assert_eq!(test.stage.fake.alive().get("queue pairs"), None);
}

#[test]
fn a_device_that_fails_or_is_removed_is_closed_and_the_session_goes_on() {
    for is_removed in [true, false] {
        let mut test = Resuming::new(trusting());
        test.carry(30);
        let fake = &test.stage.fake;
        if is_removed {
            fake.change(DEVICE, |device| device.is_listed = false);
            for node in &test.stage.nodes {
                node.runtime.look_for_device(node.site.clone());
            }
        } else {
            let event = RawEvent {
                event_type: 8,
                element: 1,
            };
            fake.raise(DEVICE, event);
        }
        test.carry(10);
        test.settle_over(Fabric::Tcp);
        let alive = test.stage.fake.alive();
        assert!(alive.is_empty(), "{alive:?}");
        test.carry(40);
        test.finish();
        test.each(Stream::release);
    }
}

#[test]
fn who_breaks_the_protocol_is_not_heard_of_again() {
    let mut test = Resuming::new(trusting());
    test.carry(20);
    test.calm_down();
    let [_, breaks] = &test.stage.nodes;
    (&breaks.tcp)
        .write_all(b"over a queue pair's connection")
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while !test.stage.nodes[0].session.is_gone() {
        assert!(Instant::now() < until);
        test.turn(10);
        test.pass_time();
    }
    assert_eq!(test.stage.stats()[0].suspensions, 0);
}

#[test]
fn wires_that_come_early_wait_until_the_queue_pair_is_gone() {
    let mut test = Resuming::new(trusting());
    test.carry(20);
    test.calm_down();
    // The second hears of nothing but of the new connection.
    let [here, there] = reconnections(1, None);
    test.stage.fake.hold_sends(true);
    test.each(|stream| stream.send(2));
    test.turn(4);
    test.stage.nodes[1].runtime.resume(there);
    assert_eq!(test.stage.nodes[1].session.fabric(), Fabric::Verbs);
    test.stage.nodes[0].runtime.resume(here);
    assert_eq!(test.stage.nodes[0].session.fabric(), Fabric::Verbs);
    test.stage.fake.hold_sends(false);
    test.settle_over(Fabric::Tcp);
    test.carry(20);
    test.finish();
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2]);
}

#[test]
fn a_sender_is_told_of_messages_that_its_peer_holds_on_to() {
    let mut test = Resuming::new(trusting());
    let [stream, _] = &mut test.channels;
    let mut held = Vec::new();
    for number in 1..100 {
        let message = payload(number, if number % 3 == 0 { 100_000 } else { 20_000 });
        if let Err(failure) = try_send(&mut stream.sender, &message) {
            panic!("message {number} waits for those before, which are held: {failure:?}");
        }
        test.stage.settle();
        held.extend(take(&mut stream.receiver).unwrap());
    }
    assert_eq!(held.len(), 99);
}

// ---- Over verbs again ------------------------------------------------------------------

/// Far longer than anything here takes.
pub(super) const VERBS_FIRST: FailoverPolicy = FailoverPolicy::VerbsThenTcp {
    after: PATIENCE,
    back: false,
};

impl Resuming {
    /// Until both ends have gone on so often.
    pub(super) fn settle_resumed(&self, times: u64) {
        let until = Instant::now() + PATIENCE;
        while self.stage.stats().iter().any(|end| end.resumes < times) {
            assert!(Instant::now() < until, "{:?}", self.stage.stats());
            self.turn(10);
            self.pass_time();
        }
    }

    /// Until the first knows that its wires broke, and has asked for others.
    fn settle_asking(&self) {
        let until = Instant::now() + PATIENCE;
        while self.way.asked.lock().unwrap().is_empty() {
            assert!(Instant::now() < until);
            self.turn(10);
            self.pass_time();
        }
    }

    fn written(&self) -> u64 {
        let written = |end: &SessionStats| end.rendezvous_sent + end.landings_sent;
        self.stage.stats().iter().map(written).sum()
    }

    /// Checks that the broken queue pairs' credit has gone back, so that the pairs in their places
    /// have all that is lent.
    fn check_accounts_over_verbs(&mut self, receive_buffers: usize) {
        self.each(Stream::release);
        for stream in &mut self.channels {
            assert!(stream.receiver.receive(Patience::None).is_err());
        }
        self.stage.settle();
        let fake = &self.stage.fake;
        assert_eq!(
            fake.alive().get("queue pairs"),
            Some(&2),
            "{:?}",
            fake.alive()
        );
        let (_, receive) = fake.tags();
        for tag in receive {
            assert!(fake.shared_receives(tag).len() + 16 > receive_buffers);
        }
    }
}

fn gets_another_pair_behind(how: Breaks, at: u64, settings: SiteSettings) {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), settings);
    let receives = match settings.shared_receives {
        true => posted_receives(&test.stage),
        false => 0,
    };
    // Again and again in one session.
    for times in 1..3 {
        test.carry(at);
        test.calm_down();
        test.stage.fake.hold_sends(true);
        test.carry(1 + (at + times) % 5);
        test.breaks(how);
        test.stage.fake.hold_sends(false);
        test.carry(5);
        test.settle_resumed(times);
        test.settle_over(Fabric::Verbs);
    }
    let written = test.written();
    test.carry(40);
    test.finish();
    if settings.grants_memory {
        assert!(
            test.written() > written,
            "large messages go by writes again"
        );
    }
    if settings.shared_receives {
        test.check_accounts_over_verbs(receives);
    }
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(2, 2); 2], "{how:?}");
}

#[test]
fn a_stream_goes_on_over_another_queue_pair_wherever_it_breaks() {
    for (at, how) in (3..).step_by(7).zip(WAYS_TO_BREAK) {
        gets_another_pair_behind(how, at, trusting());
    }
}

#[test]
fn another_queue_pair_is_as_good_where_no_memory_is_granted_or_no_queue_shared() {
    for (at, how) in [(9, Breaks::Send(5)), (16, Breaks::Connection)] {
        gets_another_pair_behind(how, at, settings());
    }
    let own = SiteSettings {
        shared_receives: false,
        ..trusting()
    };
    for (at, how) in [(5, Breaks::Receive(5)), (14, Breaks::Connection)] {
        gets_another_pair_behind(how, at, own);
    }
}

#[test]
fn where_no_queue_pair_is_to_be_had_it_goes_on_over_tcp_when_it_is_time() {
    for after in [Duration::ZERO, Duration::from_secs(1)] {
        let back = false;
        let ways = FailoverPolicy::VerbsThenTcp { after, back };
        let mut test = Resuming::by(ways, one_device(), trusting());
        test.carry(30);
        *test.way.sites.lock().unwrap() = None;
        let broken = clock::now();
        test.breaks(Breaks::PairEvent(1));
        test.settle_resumed(1);
        test.settle_over(Fabric::Tcp);
        assert!(clock::now() >= broken + after);
        let asked = test.way.asked.lock().unwrap().clone();
        let (last, before) = asked.split_last().unwrap();
        assert_eq!(*last, Fabric::Tcp);
        assert!(before.iter().all(|fabric| *fabric == Fabric::Verbs));
        assert_eq!(before.is_empty(), after.is_zero());
        test.carry(40);
        test.finish();
        test.each(Stream::release);

        // There it stays, whoever offers it a queue pair: its messages may be too long.
        let sites = test.stage.nodes.each_ref().map(|node| node.site.clone());
        let pairs = pairs([&sites[0], &sites[1]]).unwrap();
        let [_here, there] = reconnections(100, Some(pairs));
        test.stage.nodes[1].runtime.resume(there);
        test.settle_resumed(2);
        test.settle_over(Fabric::Tcp);
        test.carry(20);
        test.finish();
    }
}

#[test]
fn where_only_verbs_will_do_it_waits_for_it() {
    let only = FailoverPolicy::Only(Fabric::Verbs);
    let mut test = Resuming::by(only, one_device(), trusting());
    test.carry(30);
    let sites = test.way.sites.lock().unwrap().take();
    test.breaks(Breaks::PairEvent(1));
    test.carry(3);
    test.settle_asking();
    for _ in 0..1000 {
        test.carry(1);
        test.pass_time();
    }
    let sessions = || test.stage.nodes.iter().map(|node| &node.session);
    assert!(sessions().all(|session| session.is_suspended()));
    assert!(sessions().all(|session| session.fabric() == Fabric::Verbs));
    *test.way.sites.lock().unwrap() = sites;
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    test.carry(40);
    test.finish();
    let asked = test.way.asked.lock().unwrap();
    assert!(asked.iter().all(|fabric| *fabric == Fabric::Verbs));
}

#[test]
fn a_device_that_was_removed_and_is_back_is_used_again() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(30);
    *test.way.sites.lock().unwrap() = None;
    test.stage
        .fake
        .change(DEVICE, |device| device.is_listed = false);
    for node in &test.stage.nodes {
        node.runtime.look_for_device(node.site.clone());
    }
    test.carry(10);
    test.settle_asking();
    let alive = test.stage.fake.alive();
    assert!(alive.is_empty(), "{alive:?}");
    test.stage
        .fake
        .change(DEVICE, |device| device.is_listed = true);
    let sites = [0, 1].map(|_| open_site(&test.stage.fake, trusting()));
    *test.way.sites.lock().unwrap() = Some(sites);
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    let written = test.written();
    test.carry(40);
    test.finish();
    assert!(test.written() > written);
    test.each(Stream::release);
}

#[test]
fn queue_pairs_that_come_early_wait_until_the_one_before_is_gone() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(20);
    test.calm_down();
    let [here, there] = reconnections(1, Some(test.way.pairs().unwrap()));
    test.stage.fake.hold_sends(true);
    test.each(|stream| stream.send(2));
    test.turn(4);
    test.stage.nodes[1].runtime.resume(there);
    test.stage.nodes[0].runtime.resume(here);
    test.stage.fake.hold_sends(false);
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    test.carry(20);
    test.finish();
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2]);
}

// ---- And back --------------------------------------------------------------------------

#[test]
fn who_goes_back_gets_a_queue_pair_when_tcp_breaks_in_mid_stream() {
    for settings in [trusting(), settings()] {
        let ways = FailoverPolicy::VerbsThenTcp {
            after: Duration::ZERO,
            back: true,
        };
        let mut test = Resuming::by(ways, one_device(), settings);
        let receives = posted_receives(&test.stage);
        let mut resumed = 0;
        for at in [3, 14, 31] {
            test.carry(at);
            test.breaks(Breaks::PairEvent(1));
            test.carry(5);
            resumed += 1;
            test.settle_resumed(resumed);
            test.settle_over(Fabric::Tcp);
            test.carry(at + 20);
            let written = test.written();
            test.breaks(Breaks::Connection);
            test.carry(5);
            resumed += 1;
            test.settle_resumed(resumed);
            test.settle_over(Fabric::Verbs);
            test.carry(40);
            assert!(!settings.grants_memory || test.written() > written);
        }
        test.finish();
        test.check_accounts_over_verbs(receives);

        // Where there is none, it asks once.
        test.breaks(Breaks::PairEvent(1));
        test.carry(5);
        test.settle_resumed(resumed + 1);
        *test.way.sites.lock().unwrap() = None;
        test.way.asked.lock().unwrap().clear();
        test.breaks(Breaks::Connection);
        test.carry(5);
        test.settle_resumed(resumed + 2);
        test.settle_over(Fabric::Tcp);
        let asked = test.way.asked.lock().unwrap().clone();
        assert_eq!(asked, [Fabric::Verbs, Fabric::Tcp]);
        test.finish();
    }
}
