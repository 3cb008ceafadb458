//! Members that come late, come back, join and leave, and are sent what they lack.

use std::{
    error::Error,
    net::SocketAddr,
    panic::{self, AssertUnwindSafe},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Driver, Fabric, Node, Pod, Receiver,
    discovery::Peers,
    group::MemberId,
    log::{LogErrorKind, LogGroup, LogMemberState},
};

use crate::{
    END, Outcome, SOON, Star, WATCHDOG, cells, follow, in_state,
    numbers::{Disk, Numbers, answered, await_next, free_address},
    over::Over,
    replica, replica_after,
    until_acked::wait_in_select,
};

/// A node that keeps its peers connected, and a group of them.
type Kept<const COUNT: usize> = (Node, Peers, LogGroup<u64, Pod>, [MemberId; COUNT]);

fn kept<const COUNT: usize>(
    over: &Over,
    driver: Driver,
    addresses: [SocketAddr; COUNT],
) -> Result<Kept<COUNT>, Box<dyn Error + Send + Sync>> {
    let node = over.builder(driver).build()?;
    let peers = node.keep_connected(addresses)?;
    let mut group = LogGroup::new();
    let ids = addresses.map(|address| group.join_at(&peers, address));
    Ok((node, peers, group, ids))
}

#[test]
fn two_of_three_are_enough_and_the_third_catches_up_while_writes_go_on() -> Outcome {
    for (over, driver) in cells() {
        let disks: [Disk; 3] = Default::default();
        // The third one has a part of the log from before.
        (1..=10).for_each(|number| disks[2].apply(number));
        let addresses = [(); 3].map(|()| free_address());
        let (node, _peers, mut group, ids) = kept(&over, driver, addresses)?;
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
            let (node, _peers, mut group, ids) = kept(&over, Driver::Tasks, addresses)?;
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
        let (node, _peers, mut group, ids) = kept(&over, driver, addresses)?;
        let mut log = Numbers { end: END / 2 };
        thread::scope(|scope| -> Outcome {
            let (told, goes_on) = mpsc::channel();
            scope.spawn(|| replica(&over, addresses[0], &disks[0], END));
            let (over, disk) = (&over, &disks[1]);
            scope.spawn(move || {
                let is_told = || goes_on.recv().expect("it is told");
                replica(over, addresses[1], disk, 1_000);
                // The other one may come later than this one ends.
                is_told();
                disk.cut(400);
                replica_after(over, addresses[1], disk, END, is_told);
            });
            group.wait_acked(&mut log, 1_000, 2)?;
            assert_eq!(group.acked_of(ids[1]), Some(1_000));
            let mut turn_until = |is_so: &dyn Fn(&LogGroup<u64, Pod>) -> bool| {
                let began = Instant::now();
                while !is_so(&group) {
                    assert!(began.elapsed() < WATCHDOG, "{:?}", group.members());
                    group.try_send(&mut log).expect("nothing is too long");
                    node.poll();
                }
            };
            // It ends while there is more to send.
            turn_until(&|group| {
                let member = &group.members()[1];
                let is_away = matches!(member.state, LogMemberState::NoSession { .. });
                is_away && member.peer.is_none()
            });
            told.send(()).expect("it waits");
            turn_until(&|group| group.acked_of(ids[1]) == Some(400));
            assert!(group.acked(1) >= 1_000 && group.acked(2) == 400);
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

/// Members acknowledge also while the wait for them is being made.
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
            for end in (50..=END).step_by(50) {
                log.end = end;
                match end % 100 {
                    0 => group.wait_acked(&mut log, end, 4)?,
                    _ => wait_in_select(&mut group, &mut log, end, 4)?,
                }
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
