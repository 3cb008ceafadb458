//! Sessions whose queue pairs break, and that continue over connections or other queue pairs.

mod over_tcp;
mod over_verbs;
mod stream;

use std::{
    io::Write,
    net::Shutdown,
    sync::Mutex,
    time::{Duration, Instant},
};

use ibex_verbs::provider::RawEvent;

use super::*;
use crate::{
    clock::{self, StoppedClock},
    connection::{Attempt, NewWire, ReconnectTerms, Redial, RedialError, Redialed},
    session::FailoverPolicy,
    wire::WireParts,
};

/// Watchdog: no step that a test waits for takes this long on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// Step of the clock when time passes.
pub(super) const TICK: Duration = Duration::from_millis(1);
const SESSION: [u8; 16] = [7; 16];

/// The way from the first node to the second.
#[derive(Debug, Default)]
struct Way {
    /// Wires that the second node has not got yet.
    arriving: Mutex<Vec<NewWire>>,
    is_cut: Mutex<bool>,
    /// Redials of the first node that have no outcome yet.
    begun: Mutex<Vec<(u64, Attempt)>>,
    /// The second node says that it has no such session.
    is_forgotten: Mutex<bool>,
    /// The RDMA ports on which queue pairs are made, if any can be made.
    rdma_ports: Mutex<Option<[Arc<RdmaPort>; 2]>>,
    /// The two ends' newest queue pairs.
    newest: Mutex<Option<[u32; 2]>>,
    /// The newest connection.
    connection: Mutex<Option<TcpStream>>,
    /// The fabrics that were asked for.
    asked: Mutex<Vec<Fabric>>,
}

/// Returns both ends of the next connection, with queue pairs if these are given.
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
    /// Breaks the newest connection; at the beginning that is `first`.
    fn cut(&self, first: &TcpStream) {
        let newest = self.connection.lock().unwrap();
        let _ = newest.as_ref().unwrap_or(first).shutdown(Shutdown::Both);
    }

    fn pairs(&self) -> Result<[PreparedPair; 2], String> {
        let rdma_ports = self.rdma_ports.lock().unwrap();
        let [here, there] = rdma_ports.as_ref().ok_or("there is no device")?;
        let pairs = pairs([here, there]).map_err(|error| error.to_string())?;
        let numbers = [0, 1].map(|end: usize| pairs[end].endpoint().pair.queue_pair);
        *self.newest.lock().unwrap() = Some(numbers);
        Ok(pairs)
    }
}

impl Way {
    fn reach(&self, attempt: Attempt) -> Result<NewWire, RedialError> {
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
}

/// Two nodes whose session can continue, and channels between them in both directions.
pub(super) struct Resuming {
    pub(super) stage: Stage,
    /// The stopped clock. It moves only if a test moves it, or if an end waits to dial again, so
    /// that no time-out of an engine passes because the machine was busy.
    pub(super) clock: StoppedClock,
    /// The device does not report queue pairs that end.
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
    /// Regions that were provided, and messages that came in one.
    provided: u64,
    in_regions: u64,
    /// Every fifth message, held until the end.
    held: Vec<(u64, RawMessage)>,
}

/// Returns the length of message `number`: most are short, some of medium size, and a few large.
/// Some are sent from memory of the program's own.
fn length(number: u64) -> usize {
    match number % 16 {
        3 | 4 | 9 => 10_000 + number as usize % 40_000,
        7 => 300_000,
        _ => number as usize * 37 % 900,
    }
}

impl Resuming {
    fn new(settings: PortSettings) -> Self {
        Self::on(one_device(), settings)
    }

    fn on(fake: FakeProvider, settings: PortSettings) -> Self {
        Self::by(FailoverPolicy::Only(Fabric::Tcp), fake, settings)
    }

    pub(super) fn by(ways: FailoverPolicy, fake: FakeProvider, settings: PortSettings) -> Self {
        Self::between(Some(ways), fake, settings)
    }

    /// Makes a stage. Without `ways`, the peer has an older version, whose sessions cannot
    /// continue.
    pub(super) fn between(
        ways: Option<FailoverPolicy>,
        fake: FakeProvider,
        settings: PortSettings,
    ) -> Self {
        let clock = StoppedClock::stop();
        let way = Arc::<Way>::default();
        let stage = Stage::admitted(Driver::Caller, fake, settings, |end, admission| {
            let begins = way.clone();
            let redial = (end == 0).then(|| {
                Redial::new(move |session, attempt| {
                    begins.begun.lock().unwrap().push((session, attempt));
                    Box::new(())
                })
            });
            admission.reconnect = ways.map(|ways| ReconnectTerms {
                session: SESSION,
                redial,
                ways,
                process: None,
                max_age: None,
            });
        });
        *way.rdma_ports.lock().unwrap() =
            Some([0, 1].map(|end| stage.nodes[end].rdma_port.clone()));
        stage.settle();
        let channels = [0, 1].map(|from| {
            let (sender, receiver) = stage.open(from, "stream", WINDOW);
            stage.settle();
            Stream {
                sender,
                receiver,
                sent: 0,
                received: 0,
                provided: 0,
                in_regions: 0,
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

    /// Makes the device stop reporting queue pairs that end.
    pub(super) fn fall_silent(&mut self) {
        self.stage.fake.fall_silent();
        self.is_mute = true;
    }

    pub(super) fn turn(&self, turns: usize) {
        for turn in 0..turns {
            self.stage.nodes[turn % 2].runtime.poll_ready();
        }
        self.end_attempts();
        let arriving = std::mem::take(&mut *self.way.arriving.lock().unwrap());
        for wires in arriving {
            self.stage.nodes[1].runtime.resume(wires);
        }
    }

    /// Gives the first node the outcome of each attempt that it has begun. The second node does not
    /// know of a new connection yet.
    pub(super) fn end_attempts(&self) {
        let begun = std::mem::take(&mut *self.way.begun.lock().unwrap());
        for (session, attempt) in begun {
            self.stage.nodes[0].runtime.redialed(Redialed {
                session,
                epoch: attempt.epoch,
                outcome: self.way.reach(attempt),
            });
        }
    }

    /// Lets time pass if an end waits to dial again, or for a device that reports nothing.
    pub(super) fn pass_time(&self) {
        let mut nodes = self.stage.nodes.iter();
        if self.is_mute || nodes.any(|node| node.session.is_suspended()) {
            self.clock.advance(TICK);
        }
    }

    fn each(&mut self, act: impl Fn(&mut Stream)) {
        self.channels.iter_mut().for_each(act);
    }

    /// Sends and receives at most `messages` messages in each direction.
    pub(super) fn carry(&mut self, messages: u64) {
        for _ in 0..messages {
            self.each(|stream| stream.send(2));
            self.turn(3);
            self.each(|stream| stream.receive(1));
        }
    }

    /// Takes the arrived messages, so that there is room and credit.
    pub(super) fn calm_down(&mut self) {
        for _ in 0..3 {
            self.turn(20);
            self.each(|stream| stream.receive(100));
        }
        self.stage.settle();
    }

    /// Turns the engines until every message that was sent has arrived.
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
        self.each(|stream| {
            let waiting = stream.receiver.take_regions().len() as u64;
            assert_eq!(
                stream.in_regions + waiting,
                stream.provided,
                "a region is lost"
            );
            stream.provided -= waiting;
        });
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
            // This look counts the released messages.
            assert!(stream.receiver.receive(Patience::None).is_err());
        }
        self.stage.settle();
        let fake = &self.stage.fake;
        let (_, receive) = fake.tags();
        for (node, tag) in self.stage.nodes.iter().zip(receive) {
            // Less than a batch of receives waits to be posted again.
            assert!(fake.shared_receives(tag).len() + 16 > receive_buffers);
            assert_eq!(node.runtime.lent_and_free(node.session.id).0, 0);
            assert_eq!(node.rdma_port.eager_blocks(), 0);
        }
        assert_eq!(fake.alive().get("queue pairs"), None, "{:?}", fake.alive());
    }
}

pub(super) fn trusting() -> PortSettings {
    PortSettings {
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
    /// Returns the numbers of the two ends' current or last queue pairs.
    pub(super) fn newest_pairs(&self) -> [u32; 2] {
        let newest = *self.way.newest.lock().unwrap();
        newest.unwrap_or(self.stage.queue_pairs())
    }

    /// Chooses the RDMA ports of the next queue pairs, and returns the RDMA ports so far.
    pub(super) fn move_to(&self, rdma_ports: [Arc<RdmaPort>; 2]) -> [Arc<RdmaPort>; 2] {
        let before = self.way.rdma_ports.lock().unwrap().replace(rdma_ports);
        before.expect("there is a device")
    }

    /// Blocks or opens the way to the second node.
    pub(super) fn block_way(&self, is_cut: bool) {
        *self.way.is_cut.lock().unwrap() = is_cut;
    }

    /// Makes the second node answer dials that it has no such session any more.
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

/// A policy that asks for queue pairs for far longer than any step here takes.
pub(super) const VERBS_FIRST: FailoverPolicy = FailoverPolicy::VerbsThenTcp { after: PATIENCE };

impl Resuming {
    /// Turns the engines until both ends have resumed `times` times.
    pub(super) fn settle_resumed(&self, times: u64) {
        let until = Instant::now() + PATIENCE;
        while self.stage.stats().iter().any(|end| end.resumes < times) {
            assert!(Instant::now() < until, "{:?}", self.stage.stats());
            self.turn(10);
            self.pass_time();
        }
    }

    /// Turns the engines until the first end knows that its wires broke, and has asked for others.
    fn settle_asking(&self) {
        let until = Instant::now() + PATIENCE;
        while self.way.asked.lock().unwrap().is_empty() {
            assert!(Instant::now() < until);
            self.turn(10);
            self.pass_time();
        }
    }

    fn written(&self) -> u64 {
        let written = |end: &SessionStats| end.rendezvous_sent + end.eager_blocks_sent;
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

const WAYS_TO_BREAK: [Breaks; 13] = [
    Breaks::Send(12),
    Breaks::Send(5),
    Breaks::Send(19),
    Breaks::Receive(5),
    Breaks::PairEvent(1),
    Breaks::Connection,
    // These statuses blame the peer, and a device that loses packets may report them too.
    Breaks::Send(9),
    Breaks::Send(10),
    Breaks::Send(11),
    Breaks::Receive(1),
    Breaks::Receive(2),
    Breaks::PairEvent(2),
    Breaks::PairEvent(3),
];
