//! Waits for a quorum beside other ends, in a `Select` and in tasks.

use ibex_harness::wait_until;
use std::{thread, time::Duration};

use ibex::{
    Driver, Fabric, FanIn, FanInEvent, Peer, Pod, Select, Selectable,
    log::{LogError, LogErrorKind, LogGroup, LogSource},
};
use smol::future;

use crate::{
    END, Outcome, SOON, Star, cells, follow,
    numbers::{Disk, Numbers, answered, await_next},
    over::Over,
};

/// Waits alone by a `Select`, until a quorum has the log up to `position`.
pub(crate) fn wait_in_select<L: LogSource<u64, Pod>>(
    group: &mut LogGroup<u64, Pod>,
    log: &mut L,
    position: u64,
    quorum: usize,
) -> Result<(), LogError> {
    let mut select = Select::new();
    while !group.try_acked(log, position, quorum)? {
        let mut acked = group.until_acked(position, quorum).expect("a session");
        select.ready(&mut [&mut acked]);
    }
    Ok(())
}

fn tell(peer: &Peer, channel: &str, numbers: impl Iterator<Item = u64>) {
    let sender = peer.channel(channel).codec::<Pod>().sender::<u64>();
    let mut sender = sender.expect("a sender");
    numbers.for_each(|number| {
        sender.send(&number).expect("it is sent");
    });
    sender.close().expect("all is taken");
}

/// Takes the messages that are there.
fn take(ends: &mut FanIn<u64, Pod>) -> Vec<(Peer, u64)> {
    let mut taken = Vec::new();
    while let Some(event) = ends.try_next().unwrap_or_default() {
        if let FanInEvent::Message(who, number) = event {
            taken.push((ends.peer(who).expect("it lasts"), *number));
            number.ack();
        }
    }
    taken
}

#[test]
fn one_thread_waits_for_a_request_a_joining_member_and_a_quorum() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 3);
        let fan_in = |name: &str| star.node.channel(name).codec::<Pod>().fan_in::<u64>();
        let mut requests = fan_in("requests").expect("a fan-in");
        let mut joins = fan_in("joins").expect("a fan-in");
        let disks: [Disk; 2] = Default::default();
        thread::scope(|scope| {
            for (place, (peer, disk)) in star.there.iter().zip(&disks).enumerate() {
                scope.spawn(move || {
                    tell(peer, "joins", [place as u64].into_iter());
                    follow(peer, disk, END);
                });
            }
            scope.spawn(|| tell(&star.there[2], "requests", 1..=END));

            let (mut group, mut log) = (LogGroup::new(), Numbers { end: 0 });
            let (mut committed, mut ids) = (0, Vec::new());
            let mut select = Select::new();
            while committed < END {
                let end = log.end;
                match group.try_acked(&mut log, end, 2) {
                    Ok(true) => committed = end,
                    Ok(false) => {}
                    Err(few) => assert_eq!(few.kind(), LogErrorKind::NoQuorum, "{few}"),
                }
                let waits = committed < end;
                let mut acked = group.until_acked(end, 2).filter(|_| waits);
                let mut ends: Vec<&mut dyn Selectable> = vec![&mut requests, &mut joins];
                ends.extend(acked.as_mut().map(|acked| acked as &mut dyn Selectable));
                if committed < END {
                    select.ready(&mut ends);
                }
                drop(acked);
                for (_, number) in take(&mut requests) {
                    assert_eq!(number, log.end + 1);
                    log.end = number;
                }
                for (peer, _) in take(&mut joins) {
                    ids.push(group.join(peer));
                }
            }
            assert_eq!((log.end, group.acked(2), group.acked(3)), (END, END, 0));
            let mut answers: Vec<_> = std::iter::from_fn(|| group.next_answered()).collect();
            answers.sort_by_key(|member| member.id);
            let answered: Vec<_> = answers.iter().map(|one| (one.id, one.position)).collect();
            assert_eq!(answered, [(ids[0], 0), (ids[1], 0)], "{answers:?}");
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
}

#[test]
fn a_task_waits_while_the_log_is_free_and_may_drop_the_wait() {
    let star = Star::over(&Over::new(Fabric::Tcp), Driver::Threads, 2);
    let mut group = star.group();
    let disks: [Disk; 2] = Default::default();
    thread::scope(|scope| {
        for (peer, disk) in star.there.iter().zip(&disks) {
            scope.spawn(move || follow(peer, disk, END));
        }
        smol::block_on(async {
            let mut log = Numbers { end: 0 };
            for end in (1_000..=END).step_by(1_000) {
                log.end = end;
                while !group.try_acked(&mut log, end, 2).expect("both are there") {
                    let dropped = group.until_acked(end, 2).expect("two sessions");
                    future::poll_once(dropped).await;
                    let waiting = group.until_acked(end, 2).expect("two sessions");
                    log = Numbers { end: log.end };
                    waiting.await;
                }
            }
        });
        assert_eq!(group.acked(2), END);
        drop(group);
    });
    disks.iter().for_each(|disk| disk.assert_has_each_once(END));
}

/// Far ends tell of acknowledgements when they are asked, which calls that never wait do too.
#[test]
fn calls_that_never_wait_are_told_in_time() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let disks: [Disk; 2] = Default::default();
        let mut group = star.group();
        thread::scope(|scope| {
            for (peer, disk) in star.there.iter().zip(&disks) {
                scope.spawn(move || follow(peer, disk, END));
            }
            let mut log = Numbers { end: END / 2 };
            wait_until(|| {
                group
                    .try_acked(&mut log, END / 2, 2)
                    .expect("both are there")
            });
            log.end = END;
            while let Err(late) = group.wait_acked_timeout(&mut log, END, 2, Duration::ZERO) {
                assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
                thread::yield_now();
            }
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
}

#[test]
fn a_quorum_larger_than_the_members_is_not_reached_until_others_join() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 2);
        let disks: [Disk; 2] = Default::default();
        let mut group = LogGroup::<u64, Pod>::new();
        assert!(group.until_acked(1, 1).is_none(), "there is no member");
        thread::scope(|scope| {
            for (peer, disk) in star.there.iter().zip(&disks) {
                scope.spawn(move || follow(peer, disk, END));
            }
            let mut log = Numbers { end: END };
            group.join(star.here[0].clone());
            wait_in_select(&mut group, &mut log, END, 1).expect("one is there");
            let few = group.try_acked(&mut log, END, 2).expect_err("one member");
            assert_eq!(few.kind(), LogErrorKind::NoQuorum, "{few}");
            let mut acked = group.until_acked(END, 2).expect("a session");
            assert_eq!(Select::new().ready_timeout(&mut [&mut acked], SOON), None);
            drop(acked);
            group.join(star.here[1].clone());
            wait_in_select(&mut group, &mut log, END, 2).expect("two are there");
            drop(group);
            let _ = star.node.close(Duration::MAX);
        });
        disks.iter().for_each(|disk| disk.assert_has_each_once(END));
    }
}

/// The wait ends, and what the quorum had before stays reached.
#[test]
fn a_member_whose_session_ends_while_it_is_waited_for() {
    for (over, driver) in cells() {
        let mut star = Star::over(&over, driver, 2);
        let mut group = star.group();
        let ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
        let receivers = [0, 1].map(|place| {
            let channel = star.there[place].channel("numbers").codec::<Pod>();
            channel.receiver::<u64>().expect("a receiver")
        });
        let far = star.fars.remove(1);
        thread::scope(|scope| {
            let [mut staying, mut going] = receivers;
            let staying = scope.spawn(move || {
                (0..2).for_each(|_| await_next(&mut staying).ack());
                staying
            });
            scope.spawn(move || {
                await_next(&mut going).ack();
                // Held, so that it is not given up before the session ends.
                let number = await_next(&mut going);
                let _ = far.close(Duration::MAX);
                drop(number);
            });
            let mut log = answered(1, || Ok(0));
            wait_in_select(&mut group, &mut log, 1, 2).expect("both acknowledge");
            log.numbers.end = 2;
            let gone = wait_in_select(&mut group, &mut log, 2, 2);
            let gone = gone.expect_err("the program has to give it a session");
            assert_eq!(gone.kind(), LogErrorKind::NoSession, "{gone}");
            wait_in_select(&mut group, &mut log, 2, 1).expect("one is there");
            assert_eq!((group.acked(1), group.acked(2)), (2, 1));
            ids.iter().for_each(|id| drop(group.leave(*id)));
            assert!(group.members().is_empty());
            assert_eq!((group.acked(1), group.acked(2)), (2, 1), "they had it");
            drop(staying.join().expect("no panic"));
        });
    }
}

#[test]
fn a_member_that_gives_a_message_up_is_sent_it_again() -> Outcome {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let open = || {
            let channel = star.there[0].channel("numbers").codec::<Pod>();
            channel.receiver::<u64>().expect("a receiver")
        };
        let mut first = open();
        thread::scope(|scope| {
            let far = scope.spawn(move || {
                drop(await_next(&mut first));
                first.next().expect_err("the group goes on elsewhere");
                drop(first);
                let mut second = open();
                await_next(&mut second).ack();
                second
            });
            let mut log = answered(1, || Ok(0));
            wait_in_select(&mut group, &mut log, 1, 1)?;
            assert_eq!(group.acked(1), 1);
            let answers = std::iter::from_fn(|| group.next_answered()).count();
            assert_eq!(answers, 2, "it was asked again");
            drop(far.join().expect("no panic"));
            Outcome::Ok(())
        })?;
    }
    Ok(())
}
