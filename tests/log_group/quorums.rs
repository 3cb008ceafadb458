//! Quorums that cannot be reached, members that delay nobody, and time-outs.

use std::{
    future::poll_fn,
    sync::{Arc, Barrier, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Driver, Fabric, Peer, Pod,
    log::{
        LogAnswer, LogErrorKind, LogGroup, LogMemberState, LogSender, LogSent, LogSource, LogTurn,
    },
};

use crate::{
    ByPeer, END, Outcome, SOON, Star, WATCHDOG, cells, follow, in_state,
    numbers::{Disk, Numbers, SourceResult, answered, free_address},
    over::Over,
};

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
            assert_eq!(in_state(&group, 0), LogMemberState::Asked { after: None });
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
