//! One log for several far ends, which come, end and come back at different times.
#![forbid(unsafe_code)]

#[path = "common/numbers.rs"]
mod numbers;
#[path = "common/over.rs"]
mod over;

use std::{
    error::Error,
    future::poll_fn,
    net::SocketAddr,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{Arc, Barrier, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Driver, Fabric, Node, NodeBuilder, Peer, Pod, Raw, Receiver, SendError, SendErrorKind,
    log::{
        LogAnswer, LogErrorKind, LogGroup, LogMember, LogMemberState, LogSender, LogSent,
        LogSource, LogTurn,
    },
};
use numbers::{Disk, Numbers, SourceResult, answered, await_next, free_address, numbers};
use over::Over;

/// The last message; each message is the number of its place.
const END: u64 = 3_000;
/// A time-out of calls that are to time out.
const SOON: Duration = Duration::from_millis(20);
/// The time after which a test that waits for an event fails.
const WATCHDOG: Duration = Duration::from_secs(120);

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

// ---- The far ends ----------------------------------------------------------------------

/// Takes what comes until the far end has the numbers up to `until`, or the channel ends.
fn follow(peer: &Peer, disk: &Disk, until: u64) {
    follow_after(peer, disk, until, || ());
}

/// Does the same, and calls `before` when it has told its position.
fn follow_after(peer: &Peer, disk: &Disk, until: u64, before: impl FnOnce()) {
    let channel = peer.channel("numbers").codec::<Pod>();
    let mut numbers: Receiver<u64, Pod> = channel.receiver().expect("a receiver");
    let positions = peer.channel("position").codec::<Pod>().sender::<u64>();
    let mut positions = positions.expect("a sender");
    positions.send(&disk.position()).expect("it is sent");
    before();
    while disk.position() < until
        && let Ok(Some(number)) = numbers.next()
    {
        disk.apply(*number);
        number.ack();
    }
    if until == END {
        // The group sees that everything is acknowledged, and ends the channel.
        assert!(numbers.next().expect("an orderly end").is_none());
    }
}

/// Runs a far end that listens at `address`, for one session.
fn replica(over: &Over, address: SocketAddr, disk: &Disk, until: u64) {
    replica_after(over, address, disk, until, || ());
}

/// Does the same, and calls `before` when it has told its position.
fn replica_after(over: &Over, address: SocketAddr, disk: &Disk, until: u64, before: impl FnOnce()) {
    let node = over.builder(Driver::Threads).listen(address).build();
    let node = node.expect("a node");
    let peer = node.accept().expect("the group connects");
    follow_after(&peer, disk, until, before);
    let _ = node.close(Duration::MAX);
}

fn cells() -> impl Iterator<Item = (Over, Driver)> {
    let drivers = [Driver::Threads, Driver::Caller];
    let overs = Over::each().into_iter();
    overs.flat_map(move |over| drivers.map(|driver| (over.clone(), driver)))
}

/// A group's node, and nodes that have connected to it.
struct Star {
    node: Node,
    fars: Vec<Node>,
    /// The sessions at the group's node, and the same ones at the others.
    here: Vec<Peer>,
    there: Vec<Peer>,
}

impl Star {
    fn over(over: &Over, driver: Driver, count: usize) -> Star {
        Star::around(over, over.builder(driver), count)
    }

    fn around(over: &Over, builder: NodeBuilder, count: usize) -> Star {
        let node = builder.listen("127.0.0.1:0").build().expect("a node");
        let address = node.local_addr().expect("it listens");
        let mut star = Star {
            node,
            fars: Vec::new(),
            here: Vec::new(),
            there: Vec::new(),
        };
        for _ in 0..count {
            let far = over.builder(Driver::Threads).build().expect("a node");
            thread::scope(|scope| {
                let there = scope.spawn(|| far.connect(address).expect("it listens"));
                star.here.push(star.node.accept().expect("it connects"));
                star.there.push(there.join().expect("no panic"));
            });
            star.fars.push(far);
        }
        star
    }

    fn group(&self) -> LogGroup<u64, Pod> {
        let mut group = LogGroup::new();
        for peer in &self.here {
            group.join(peer.clone());
        }
        group
    }
}

fn in_state(group: &LogGroup<u64, Pod>, index: usize) -> LogMemberState {
    let LogMember { state, .. } = &group.members()[index];
    state.clone()
}

// ---- Members that come late or again ------------------------------------------------------

#[test]
fn two_of_three_are_enough_and_the_third_catches_up_while_writes_go_on() -> Outcome {
    for (over, driver) in cells() {
        let disks: [Disk; 3] = Default::default();
        // The third one has a part of the log from before.
        (1..=10).for_each(|number| disks[2].apply(number));
        let addresses = [(); 3].map(|()| free_address());
        let node = over.builder(driver).build()?;
        let peers = node.keep_connected(addresses.map(|address| address.to_string()))?;
        let mut group = LogGroup::new();
        let ids = addresses.map(|address| group.join_at(&peers, address));
        let mut log = Numbers { end: 0 };
        thread::scope(|scope| -> Outcome {
            let start = |index: usize| {
                let (over, disk) = (&over, &disks[index]);
                scope.spawn(move || replica(over, addresses[index], disk, END));
            };
            start(0);
            start(1);
            for end in (100..=END).step_by(100) {
                log.end = end;
                group.wait_acked(&mut log, end, 2)?;
                assert!(group.acked(2) >= log.end && group.acked(1) >= group.acked(2));
                if log.end == END / 3 {
                    assert_eq!(group.acked_of(ids[2]), Some(0), "nobody listens there");
                    start(2);
                }
            }
            group.wait_acked(&mut log, END, 3)?;
            assert_eq!((group.acked(3), group.acked(4)), (END, 0));
            assert!(group.next_lost().is_none());
            drop(group);
            // Where callers turn the engine, this tells the far ends.
            let _ = node.close(Duration::MAX);
            Ok(())
        })?;
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
    Ok(())
}

#[test]
fn tasks_wait_for_two_of_three_and_the_third_catches_up() -> Outcome {
    for over in Over::each() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let disks: [Disk; 3] = Default::default();
        let addresses = [(); 3].map(|()| free_address());
        let start = |index: usize| {
            let (over, disk) = (over.clone(), disks[index].clone());
            thread::spawn(move || replica(&over, addresses[index], &disk, END))
        };
        let mut threads = vec![start(0), start(1)];
        runtime.block_on(async {
            let node = over.builder(Driver::Tasks).build()?;
            let peers = node.keep_connected(addresses.map(|address| address.to_string()))?;
            let mut group = LogGroup::new();
            let ids = addresses.map(|address| group.join_at(&peers, address));
            let mut log = Numbers { end: 0 };
            for end in (100..=END).step_by(100) {
                log.end = end;
                group.wait_acked_async(&mut log, end, 2).await?;
                if log.end == END / 3 {
                    assert_eq!(group.acked_of(ids[2]), Some(0), "nobody listens there");
                    threads.push(start(2));
                }
            }
            group.wait_acked_async(&mut log, END, 3).await?;
            drop(group);
            let _ = node.close_async(Duration::MAX).await;
            Outcome::Ok(())
        })?;
        for thread in threads {
            thread.join().expect("no panic");
        }
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
    Ok(())
}

#[test]
fn a_member_that_restarts_with_less_is_sent_the_rest_again() -> Outcome {
    for (over, driver) in cells() {
        let disks: [Disk; 2] = Default::default();
        let addresses = [(); 2].map(|()| free_address());
        let node = over.builder(driver).build()?;
        let peers = node.keep_connected(addresses.map(|address| address.to_string()))?;
        let mut group = LogGroup::new();
        let ids = addresses.map(|address| group.join_at(&peers, address));
        let mut log = Numbers { end: 1_000 };
        thread::scope(|scope| -> Outcome {
            let (told, goes_on) = mpsc::channel();
            scope.spawn(|| replica(&over, addresses[0], &disks[0], END));
            let (over, disk) = (&over, &disks[1]);
            scope.spawn(move || {
                replica(over, addresses[1], disk, 1_000);
                disk.cut(400);
                replica_after(over, addresses[1], disk, END, || {
                    goes_on.recv().expect("it is told");
                });
            });
            group.wait_acked(&mut log, 1_000, 2)?;
            assert_eq!(group.acked_of(ids[1]), Some(1_000));
            let began = Instant::now();
            while group.acked_of(ids[1]) != Some(400) {
                assert!(began.elapsed() < WATCHDOG, "{:?}", group.members());
                group.wait_acked_timeout(&mut log, 1_000, 1, SOON)?;
                node.poll();
            }
            assert_eq!((group.acked(1), group.acked(2)), (1_000, 400));
            told.send(()).expect("it waits");
            log.end = END;
            group.wait_acked(&mut log, END, 2)?;
            drop(group);
            // Where callers turn the engine, this tells the far ends.
            let _ = node.close(Duration::MAX);
            Ok(())
        })?;
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
    Ok(())
}

#[test]
fn what_a_member_has_lost_is_acknowledged_no_more() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let mut group = LogGroup::new();
        let id = group.join(star.here[0].clone());
        let mut answers = [0, 1].into_iter();
        let mut log = answered(2, || Ok(answers.next().expect("two questions")));
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver().expect("a receiver");
        thread::scope(|scope| {
            scope.spawn(|| (0..2).for_each(|_| await_next(&mut receiver).ack()));
            group.wait_acked(&mut log, 2, 1).expect("it has all");
        });
        assert_eq!(group.acked_of(id), Some(2));
        assert!(group.go_on_with(id, star.here[1].clone()));
        assert_eq!(in_state(&group, 0), LogMemberState::NotAsked);
        assert_eq!(group.acked_of(id), Some(2), "it was not asked again");
        let late = group.wait_acked_timeout(&mut log, 2, 1, SOON);
        let late = late.expect_err("it does not receive");
        assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
        assert_eq!(late.position(), Some(1), "it has less now: {late}");
        assert_eq!(in_state(&group, 0), LogMemberState::NotOpened);
        assert!(
            late.to_string().contains("has not opened its end"),
            "{late}"
        );
        assert_eq!(group.acked_of(id), Some(1));
    }
}

/// The session of a member that has everything ends, and the next call notices.
#[test]
fn a_member_that_has_all_is_asked_again_in_its_next_session() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let mut group = LogGroup::new();
        let id = group.join(star.here[0].clone());
        let mut log = answered(2, || Ok(2));
        group.wait_acked(&mut log, 2, 1).expect("it has all");
        let _ = star.fars[0].close(Duration::ZERO);
        while !star.here[0].is_gone() {
            star.node.poll();
        }
        group.try_send(&mut log).expect("nothing is too long");
        let state = in_state(&group, 0);
        assert!(
            matches!(state, LogMemberState::NoSession { .. }),
            "{state:?}"
        );
        assert!(group.next_lost().is_none(), "another session may follow");
        log.numbers.end = 3;
        let none = group.wait_acked(&mut log, 3, 1).expect_err("no session");
        assert_eq!(none.kind(), LogErrorKind::NoSession, "{none}");
        assert!(none.to_string().contains("`go_on_with`"), "{none}");
        assert!(group.go_on_with(id, star.here[1].clone()));
        let channel = star.there[1].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver().expect("a receiver");
        thread::scope(|scope| {
            scope.spawn(move || await_next(&mut receiver).ack());
            group.wait_acked(&mut log, 3, 1).expect("it goes on");
        });
    }
}

/// A message whose acknowledgement nobody waits for is missing when the session ends.
#[test]
fn the_end_of_a_session_is_noticed_whatever_is_acknowledged() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let mut log = answered(2, || Ok(0));
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver: Receiver<u64, Pod> = channel.receiver().expect("a receiver");
        let began = Instant::now();
        while !group.try_send(&mut log).expect("nothing is too long") {
            assert!(began.elapsed() < WATCHDOG, "{:?}", group.members());
            star.node.poll();
        }
        assert_eq!(group.members()[0].position, 2, "a turn has room for both");
        assert!(!group.try_send(&mut log).expect("there is nothing more"));
        thread::scope(|scope| {
            scope.spawn(|| await_next(&mut receiver).ack());
            group.wait_acked(&mut log, 1, 1).expect("it has the first");
        });
        let _ = star.fars[0].close(Duration::ZERO);
        while !star.here[0].is_gone() {
            star.node.poll();
        }
        group.wait_acked(&mut log, 1, 1).expect("it had the first");
        let state = in_state(&group, 0);
        assert!(
            matches!(state, LogMemberState::NoSession { .. }),
            "{state:?}"
        );
        assert_eq!(group.acked(1), 1);
    }
}

#[test]
fn members_of_a_node_with_several_engines_catch_up() -> Outcome {
    for over in Over::each() {
        let star = Star::around(&over, over.builder(Driver::Threads).io_threads(2), 4);
        let disks: [Disk; 4] = Default::default();
        thread::scope(|scope| {
            for (peer, disk) in star.there.iter().zip(&disks) {
                scope.spawn(move || follow(peer, disk, END));
            }
            let mut group = star.group();
            let mut log = Numbers { end: 0 };
            for end in (100..=END).step_by(100) {
                log.end = end;
                group.wait_acked(&mut log, end, 4)?;
            }
            drop(group);
            let _ = star.node.close(Duration::MAX);
            Outcome::Ok(())
        })?;
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
    Ok(())
}

#[test]
fn members_of_two_nodes_are_refused() {
    let over = Over::new(Fabric::Tcp);
    let stars = [(); 2].map(|()| Star::over(&over, Driver::Caller, 1));
    let mut group = stars[0].group();
    let join = AssertUnwindSafe(|| group.join(stars[1].here[0].clone()));
    let refused = panic::catch_unwind(join).expect_err("it is another node's");
    let text = refused.downcast_ref::<&str>().expect("a text");
    assert!(text.contains("another node"), "{text}");
    assert_eq!(group.members().len(), 1);
}

// ---- Members that are lost -------------------------------------------------------------

/// A log whose source answers by the place of the peer in a list.
struct ByPeer<A> {
    numbers: Numbers,
    peers: Vec<Peer>,
    answer: A,
}

impl<A: FnMut(usize) -> SourceResult<u64>> LogSource<u64, Pod> for ByPeer<A> {
    fn end(&self) -> u64 {
        self.numbers.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        let place = self.peers.iter().position(|one| one.id() == peer.id());
        let answer = (self.answer)(place.expect("it is listed"));
        Box::pin(async move {
            let position = answer?;
            Ok((numbers(&peer)?, position))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        self.numbers.send_next(position, turn)
    }
}

#[test]
fn members_whose_source_fails_or_that_are_ahead_are_lost_and_the_others_go_on() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 4);
        let mut group = star.group();
        let ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
        // The last one has another type.
        let channel = star.there[3].channel("numbers").codec::<Pod>();
        let _other = channel.receiver::<u32>().expect("a receiver");
        let mut log = ByPeer {
            numbers: Numbers { end: 3 },
            peers: star.here.clone(),
            answer: |place| match place {
                1 => Err("its log is another".into()),
                2 => Ok(9),
                _ => Ok(0),
            },
        };
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver().expect("a receiver");
        let few = thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=3 {
                    let message = await_next(&mut receiver);
                    assert_eq!(*message, number);
                    message.ack();
                }
                assert!(receiver.next().expect("an orderly end").is_none());
            });
            group.wait_acked(&mut log, 3, 1).expect("one is enough");
            let few = group.wait_acked(&mut log, 3, 2);
            drop(group.leave(ids[0]).expect("a member"));
            few
        });
        let few = few.expect_err("one is left");
        assert_eq!(few.kind(), LogErrorKind::NoQuorum, "{few}");
        assert_eq!(few.position(), Some(3), "{few}");
        let text = few.to_string();
        assert!(
            text.contains("there are 1: ") && text.contains("; lost last: "),
            "{text}"
        );
        let mut lost: Vec<_> = std::iter::from_fn(|| group.next_lost()).collect();
        lost.sort_by_key(|lost| lost.id);
        let kinds: Vec<_> = lost
            .iter()
            .map(|lost| (lost.id, lost.reason.kind()))
            .collect();
        let expected = [
            (ids[1], LogErrorKind::Source),
            (ids[2], LogErrorKind::Ahead),
            (ids[3], LogErrorKind::Send),
        ];
        assert_eq!(kinds, expected, "{lost:?}");
        assert!(lost[0].to_string().contains("its log is another"));
        assert!(group.members().is_empty());
        assert!(!group.go_on_with(ids[1], star.here[1].clone()));
    }
}

/// What was cut off is with the far ends, so they get no orderly end.
#[test]
fn a_log_that_was_cut_loses_the_members_that_were_sent_more() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let mut log = answered(2, || Ok(0));
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver().expect("a receiver");
        thread::scope(|scope| {
            let far = scope.spawn(|| {
                (0..2).for_each(|_| await_next(&mut receiver).ack());
                receiver.next().map(|next| next.is_some())
            });
            group.wait_acked(&mut log, 2, 1).expect("it has all");
            log.numbers.end = 1;
            group.try_send(&mut log).expect("nothing is too long");
            let lost = group.next_lost().expect("it has more");
            assert_eq!(lost.reason.kind(), LogErrorKind::Ahead, "{lost}");
            assert_eq!(
                (lost.reason.position(), lost.reason.end()),
                (Some(2), Some(1))
            );
            assert!(lost.to_string().contains("a log only grows"), "{lost}");
            let _ = star.node.close(Duration::MAX);
            let ended = far.join().expect("no panic");
            ended.expect_err("the log may not be complete");
        });
    }
}

/// A log of bytes whose second message may be too long.
struct Bytes {
    second: usize,
}

impl LogSource<[u8], Raw> for Bytes {
    fn end(&self) -> u64 {
        3
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        let channel = peer.channel("bytes").codec::<Raw>();
        Box::pin(async move { Ok((channel.max_message_bytes(64).sender()?, 0)) })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> SourceResult<LogSent> {
        let length = if position == 1 { self.second } else { 1 };
        Ok(turn.send(&vec![0; length], position + 1))
    }
}

#[test]
fn a_message_that_cannot_be_sent_loses_no_member() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let mut group = LogGroup::new();
        for peer in &star.here {
            group.join(peer.clone());
        }
        let mut log = Bytes { second: 65 };
        thread::scope(|scope| {
            for peer in &star.there {
                let channel = peer.channel("bytes").codec::<Raw>().max_message_bytes(64);
                let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
                scope.spawn(move || {
                    while let Some(bytes) = receiver.next().expect("an orderly end") {
                        bytes.ack();
                    }
                });
            }
            group
                .wait_acked(&mut log, 1, 2)
                .expect("the first is short");
            for _ in 0..2 {
                let long = group.wait_acked(&mut log, 3, 2);
                let long = long.expect_err("the second is too long");
                let kind = long.send_error().map(SendError::kind);
                assert_eq!(kind, Some(SendErrorKind::TooLong), "{long}");
            }
            let long = group.try_send(&mut log).expect_err("it is too long");
            assert_eq!(long.kind(), LogErrorKind::Send, "{long}");
            assert!(group.next_lost().is_none());
            log.second = 64;
            group.wait_acked(&mut log, 3, 2).expect("it is short now");
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
    }
}

/// A log whose source has no answer at first, because a call or channel of its own fails.
struct Late(Numbers, u32);

impl LogSource<u64, Pod> for Late {
    fn end(&self) -> u64 {
        self.0.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        self.1 += 1;
        let fails = self.1 == 1;
        Box::pin(async move {
            if fails {
                let _one = peer.sender::<u64>("taken")?;
                peer.sender::<u64>("taken")?;
            }
            Ok((numbers(&peer)?, 0))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        self.0.send_next(position, turn)
    }
}

#[test]
fn a_member_that_could_not_answer_is_asked_again() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let mut log = Late(Numbers { end: 3 }, 0);
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver::<u64>().expect("a receiver");
        group.try_send(&mut log).expect("no member is at fault");
        match in_state(&group, 0) {
            LogMemberState::Unanswered { why } => assert!(why.contains("taken"), "{why}"),
            state => panic!("{state:?}"),
        }
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=3 {
                    let message = await_next(&mut receiver);
                    assert_eq!(*message, number);
                    message.ack();
                }
                // The group is dropped, in order.
                assert!(receiver.next().expect("an orderly end").is_none());
            });
            group.wait_acked(&mut log, 3, 1).expect("it is asked again");
            assert!(group.next_lost().is_none());
            drop(group);
            drop(star.node.close(Duration::MAX));
        });
        assert_eq!(log.1, 2);
    }
}

#[test]
fn a_member_that_takes_shorter_messages_delays_no_other_one() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let mut group = LogGroup::new();
        let ids: Vec<_> = star
            .here
            .iter()
            .map(|peer| group.join(peer.clone()))
            .collect();
        let mut log = Bytes { second: 40 };
        thread::scope(|scope| {
            for (peer, most) in star.there.iter().zip([64, 16]) {
                let channel = peer.channel("bytes").codec::<Raw>().max_message_bytes(most);
                let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
                scope.spawn(move || {
                    while let Ok(Some(bytes)) = receiver.next() {
                        bytes.ack();
                    }
                });
            }
            group.wait_acked(&mut log, 3, 1).expect("one takes all");
            let lost = loop {
                match group.next_lost() {
                    Some(lost) => break lost,
                    None => drop(group.wait_acked(&mut log, 3, 2)),
                }
            };
            assert_eq!(
                (lost.id, lost.reason.kind()),
                (ids[1], LogErrorKind::Send),
                "{lost}"
            );
            assert_eq!(group.acked_of(ids[0]), Some(3));
            drop(group);
            drop(star.node.close(Duration::MAX));
        });
    }
}

#[test]
fn members_at_addresses_that_are_not_kept_any_more_are_lost() -> Outcome {
    for (over, driver) in cells() {
        let address = free_address();
        for (ends, by_task) in [(true, false), (true, true), (false, false), (false, true)] {
            let node = over.builder(driver).build()?;
            let peers = node.keep_connected([address])?;
            let mut group = LogGroup::new();
            group.join_at(&peers, address);
            let mut log = answered(1, || Ok(0));
            let end = || match ends {
                true => drop(peers),
                false => drop(node.close(Duration::MAX)),
            };
            let few = match by_task {
                true => {
                    let mut waiting = pin!(group.wait_acked_async(&mut log, 1, 1));
                    let first = smol::block_on(smol::future::poll_once(&mut waiting));
                    assert!(first.is_none(), "nobody listens there");
                    end();
                    smol::block_on(waiting)
                }
                false => thread::scope(|scope| {
                    let waiting = scope.spawn(|| group.wait_acked(&mut log, 1, 1));
                    end();
                    waiting.join().expect("no panic")
                }),
            };
            let few = few.expect_err("nobody is left");
            assert_eq!(few.kind(), LogErrorKind::NoQuorum, "{few}");
            let lost = group.next_lost().expect("one is lost");
            assert_eq!(lost.reason.kind(), LogErrorKind::NoSession, "{lost}");
            assert_eq!(lost.address, address.to_string());
        }
    }
    Ok(())
}

// ---- Quorums and times -------------------------------------------------------------------

#[test]
fn a_quorum_that_cannot_be_reached_is_an_error_at_once() {
    let mut group = LogGroup::<u64, Pod>::new();
    let mut log = Numbers { end: 1 };
    group.wait_acked(&mut log, 1, 0).expect("nobody is needed");
    assert!(!group.try_send(&mut log).expect("nobody is sent anything"));
    let none = group.wait_acked(&mut log, 1, 1).expect_err("no member");
    assert_eq!(none.kind(), LogErrorKind::NoQuorum, "{none}");
    let id = group.join_sender(LogSender::new());
    let few = smol::block_on(group.wait_acked_async(&mut log, 1, 2));
    let few = few.expect_err("one member");
    assert_eq!(few.kind(), LogErrorKind::NoQuorum, "{few}");
    let without = group.wait_acked(&mut log, 1, 1).expect_err("no session");
    assert_eq!(without.kind(), LogErrorKind::NoSession, "{without}");
    let beyond = group.wait_acked(&mut log, 2, 1).expect_err("it ends at 1");
    assert_eq!(beyond.kind(), LogErrorKind::Beyond, "{beyond}");
    assert!(group.leave(id).is_some() && group.leave(id).is_none());
    assert_eq!(group.acked_of(id), None);
}

#[test]
fn a_far_end_that_never_answers_delays_no_other_one() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 3);
        let mut group = star.group();
        let disks: [Disk; 2] = Default::default();
        thread::scope(|scope| {
            for (peer, disk) in star.there.iter().skip(1).zip(&disks) {
                scope.spawn(move || follow(peer, disk, END));
            }
            let mut log = Numbers { end: 0 };
            for end in (500..=END).step_by(500) {
                log.end = end;
                let by_task = driver == Driver::Threads && end % 1_000 == 0;
                let acked = match by_task {
                    true => smol::block_on(group.wait_acked_async(&mut log, end, 2)),
                    false => group.wait_acked(&mut log, end, 2),
                };
                acked.expect("two are enough");
            }
            let late = group.wait_acked_timeout(&mut log, END, 3, SOON);
            let late = late.expect_err("one does not answer");
            assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
            assert_eq!(late.position(), Some(0), "{late}");
            assert!(late.to_string().contains("has not answered yet"), "{late}");
            let waiting = group.wait_acked_async(&mut log, END, 3);
            assert!(smol::block_on(smol::future::poll_once(waiting)).is_none());
            assert_eq!(in_state(&group, 0), LogMemberState::Asked);
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
}

#[test]
fn a_member_that_does_not_read_delays_no_other_one() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let mut group = star.group();
        let ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
        let disk = Disk::default();
        let mut log = ByPeer {
            numbers: Numbers { end: END },
            peers: star.here.clone(),
            answer: |_| Ok(0),
        };
        let channel = |place: usize| star.there[place].channel("numbers").codec::<Pod>();
        let mut slow = channel(0).receiver::<u64>().expect("a receiver");
        let mut fast = channel(1).receiver::<u64>().expect("a receiver");
        thread::scope(|scope| {
            let (told, begins) = mpsc::channel();
            scope.spawn(|| {
                while let Some(number) = fast.next().expect("an orderly end") {
                    disk.apply(*number);
                    number.ack();
                }
            });
            scope.spawn(move || {
                begins.recv().expect("it is told");
                let mut last = 0;
                while let Some(number) = slow.next().expect("an orderly end") {
                    last += 1;
                    assert_eq!(*number, last);
                    number.ack();
                }
                assert_eq!(last, END);
            });
            group.wait_acked(&mut log, END, 1).expect("one is enough");
            assert_eq!(group.acked_of(ids[1]), Some(END));
            let [slow, fast] = &group.members()[..] else {
                panic!("two members")
            };
            assert!(slow.position <= 256, "its window is full: {slow}");
            assert_eq!(fast.position, END, "{fast}");
            told.send(()).expect("it waits");
            group.wait_acked(&mut log, END, 2).expect("it reads now");
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disk.assert_has_each_once(END);
    }
}

#[test]
fn members_that_are_away_are_waited_for_until_the_deadline() -> Outcome {
    for (over, driver) in cells() {
        let node = over.builder(driver).build()?;
        let address = free_address();
        let peers = node.keep_connected([address])?;
        let mut group = LogGroup::new();
        group.join_at(&peers, address);
        let mut log = answered(1, || Ok(0));
        let late = group.wait_acked_timeout(&mut log, 1, 1, SOON);
        let late = late.expect_err("nobody listens");
        assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
        assert!(late.to_string().contains(&address.to_string()), "{late}");
        let waiting = group.wait_acked_async(&mut log, 1, 1);
        assert!(smol::block_on(smol::future::poll_once(waiting)).is_none());
    }
    Ok(())
}

/// A log whose question never ends, and is never at rest.
struct Restless;

impl LogSource<u64, Pod> for Restless {
    fn end(&self) -> u64 {
        1
    }

    fn resume(&mut self, _: Peer) -> LogAnswer<u64, Pod> {
        Box::pin(poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        Ok(turn.send(&(position + 1), position + 1))
    }
}

#[test]
fn a_question_that_wakes_itself_does_not_outlast_the_deadline() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let late = group.wait_acked_timeout(&mut Restless, 1, 1, SOON);
        let late = late.expect_err("nobody answers");
        assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
        let id = group.members()[0].id;
        let mut alone = group.leave(id).expect("a member");
        let late = alone.send_timeout(&mut Restless, SOON);
        let late = late.expect_err("nobody answers");
        assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
    }
}

// ---- Joining and leaving -------------------------------------------------------------------

#[test]
fn members_join_and_leave_in_the_middle() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 3);
        let disks: [Disk; 3] = Default::default();
        thread::scope(|scope| {
            for (peer, disk) in star.there.iter().zip(&disks) {
                scope.spawn(move || follow(peer, disk, END));
            }
            let mut group = LogGroup::new();
            let mut log = Numbers { end: END / 3 };
            let first = group.join(star.here[0].clone());
            let second = group.join(star.here[1].clone());
            group.wait_acked(&mut log, END / 3, 2).expect("both");
            let mut alone = group.leave(first).expect("a member");
            let third = group.join(star.here[2].clone());
            log.end = END / 3 * 2;
            group
                .wait_acked(&mut log, END / 3 * 2, 2)
                .expect("two are left");
            assert_eq!((alone.position(), alone.acked()), (END / 3, END / 3));
            alone.wait_acked(&mut log, END / 2).expect("it goes on");
            let again = group.join_sender(alone);
            assert!(first != again && group.acked_of(again) >= Some(END / 2));
            log.end = END;
            group.wait_acked(&mut log, END, 3).expect("all");
            let ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
            assert_eq!(ids, [second, third, again]);
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
}

fn may_move_to_another_thread<F: Send>(future: F) -> F {
    future
}

#[test]
fn a_dropped_future_leaves_what_was_sent() {
    let star = Star::over(&Over::new(Fabric::Tcp), Driver::Threads, 2);
    let mut group = star.group();
    let disks: [Disk; 2] = Default::default();
    let ends = Arc::new(Barrier::new(3));
    thread::scope(|scope| {
        for (peer, disk) in star.there.iter().zip(&disks) {
            let ends = ends.clone();
            scope.spawn(move || {
                follow(peer, disk, END);
                ends.wait();
            });
        }
        let mut log = Numbers { end: END };
        let began = Instant::now();
        while group.acked(2) < END {
            assert!(began.elapsed() < WATCHDOG, "{group:?}");
            let waiting = may_move_to_another_thread(group.wait_acked_async(&mut log, END, 2));
            if let Some(acked) = smol::block_on(smol::future::poll_once(waiting)) {
                acked.expect("both have it");
            }
        }
        drop(group);
        ends.wait();
    });
    disks.iter().for_each(|disk| disk.assert_has_each_once(END));
}
