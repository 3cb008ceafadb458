//! Members that are lost, logs that were cut, and messages that cannot be sent.

use std::{future, mem, pin::pin, thread, time::Duration};

use ibex::prelude::*;
use ibex::{
    Driver, Fabric, Peer, Pod, Raw, SendError, SendErrorKind,
    log::{LogAnswer, LogErrorKind, LogGroup, LogMemberState, LogSent, LogSource, LogTurn},
};

use crate::{
    ByPeer, Outcome, SOON, Star, cells, in_state,
    log_lines::Log,
    numbers::{Numbers, SourceResult, answered, await_next, free_address, numbers},
    over::Over,
    take_to_the_end,
};

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
        let receiver = channel.receiver().expect("a receiver");
        let few = thread::scope(|scope| {
            scope.spawn(move || take_to_the_end(receiver, 3));
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
        let receiver = channel.receiver::<u64>().expect("a receiver");
        group.try_send(&mut log).expect("no member is at fault");
        match in_state(&group, 0) {
            LogMemberState::Unanswered { why } => assert!(why.contains("taken"), "{why}"),
            state => panic!("{state:?}"),
        }
        thread::scope(|scope| {
            scope.spawn(move || take_to_the_end(receiver, 3));
            group.wait_acked(&mut log, 3, 1).expect("it is asked again");
            assert!(group.next_lost().is_none());
            drop(group);
            drop(star.node.close(Duration::MAX));
        });
        assert_eq!(log.1, 2);
    }
}

/// The time-out says why a member is asked again: its far end is at fault.
#[test]
fn a_member_that_drops_a_message_and_answers_no_more_is_said_to_have_dropped_it() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver::<u64>().expect("a receiver");
        let mut log = Once(Numbers { end: 1 }, false);
        thread::scope(|scope| {
            scope.spawn(move || drop(await_next(&mut receiver)));
            let said = loop {
                let late = group.wait_acked_timeout(&mut log, 1, 1, Duration::from_millis(20));
                let late = late.expect_err("it acknowledges nothing");
                assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
                if matches!(
                    in_state(&group, 0),
                    LogMemberState::Asked { after: Some(_) }
                ) {
                    break late.to_string();
                }
            };
            assert!(
                said.contains("dropped message 1 without acknowledging it"),
                "{said}"
            );
        });
    }
}

/// A log whose far end answers once.
struct Once(Numbers, bool);

impl LogSource<u64, Pod> for Once {
    fn end(&self) -> u64 {
        self.0.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        match mem::replace(&mut self.1, true) {
            false => Box::pin(async move { Ok((numbers(&peer)?, 0)) }),
            true => Box::pin(future::pending()),
        }
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        self.0.send_next(position, turn)
    }
}

/// The pause of a failed question is one of its session, and not of its peer: in the next session
/// with the same process the member is asked at once.
#[test]
fn a_member_is_asked_at_once_in_its_next_session_with_the_same_process() {
    for (over, driver) in cells() {
        let star = Star::over(&over, driver, 1);
        let mut group = star.group();
        let id = group.members()[0].id;
        let mut log = Late(Numbers { end: 3 }, 0);
        group.try_send(&mut log).expect("no member is at fault");
        let state = in_state(&group, 0);
        assert!(
            matches!(state, LogMemberState::Unanswered { .. }),
            "{state:?}"
        );
        let address = star.node.local_addr().expect("it listens");
        let (here, there) = thread::scope(|scope| {
            let there = scope.spawn(|| star.fars[0].connect(address).expect("it listens"));
            let here = star.node.accept().expect("it connects");
            (here, there.join().expect("no panic"))
        });
        assert_eq!(here.id(), star.here[0].id());
        assert!(group.go_on_with(id, here));
        assert_eq!(in_state(&group, 0), LogMemberState::NotAsked);
        let channel = there.channel("numbers").codec::<Pod>();
        let receiver = channel.receiver::<u64>().expect("a receiver");
        group.try_send(&mut log).expect("no member is at fault");
        assert_eq!(log.1, 2, "it was asked in the new session");
        thread::scope(|scope| {
            scope.spawn(move || take_to_the_end(receiver, 3));
            group.wait_acked(&mut log, 3, 1).expect("it is sent all");
            drop(group);
            drop(star.node.close(Duration::MAX));
        });
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

/// A quorum that a lost member leaves to one which nobody reaches is waited for; the wait says why.
#[test]
fn a_wait_for_a_member_that_nobody_reaches_names_the_one_that_was_lost() -> Outcome {
    let log_lines = Log::of_process();
    for (cell, (over, driver)) in cells().enumerate() {
        // One wait is so long that the call itself says so.
        let (time, notices) = if cell == 0 {
            (LONGER_THAN_A_NOTICE, 1)
        } else {
            (SOON, 0)
        };
        let star = Star::over(&over, driver, 2);
        let mut group = star.group();
        let absent = free_address();
        let peers = star.node.keep_connected([absent])?;
        group.join_at(&peers, absent);
        let mut log = ByPeer {
            numbers: Numbers { end: 3 },
            peers: star.here.clone(),
            answer: |place| Ok([0, 9][place]),
        };
        let channel = star.there[0].channel("numbers").codec::<Pod>();
        let receiver = channel.receiver().expect("a receiver");
        thread::scope(|scope| {
            scope.spawn(move || take_to_the_end(receiver, 3));
            let late = group.wait_acked_timeout(&mut log, 3, 2, time);
            let late = late.expect_err("nobody listens there");
            assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}");
            let ahead = star.here[1].at().to_string();
            let text = late.to_string();
            assert!(text.contains(&format!("; lost last: {ahead}")), "{text}");
            assert!(text.contains(&absent.to_string()), "{text}");
            let lost = format!("has lost a member: {ahead}");
            // Beyond five in ten seconds, warnings of the process are debug messages.
            assert_eq!(log_lines.lines_with(&[&lost]).len(), 1);
            let waited = ["is waited for", &ahead, &absent.to_string()];
            assert_eq!(log_lines.lines_with(&waited).len(), notices);
            // A program that must know at once waits between calls.
            assert!(!group.try_acked(&mut log, 3, 2).expect("one may still come"));
            let lost = group.next_lost().expect("one is lost");
            assert_eq!(lost.reason.kind(), LogErrorKind::Ahead, "{lost}");
            drop(group);
        });
    }
    Ok(())
}

/// Nothing wakes the task meanwhile but the notice.
#[test]
fn a_task_that_waits_for_a_member_that_nobody_reaches_logs_that_once() -> Outcome {
    let log_lines = Log::of_process();
    let star = Star::over(&Over::new(Fabric::Tcp), Driver::Threads, 1);
    let mut group = star.group();
    let absent = free_address();
    let peers = star.node.keep_connected([absent])?;
    group.join_at(&peers, absent);
    let mut log = answered(1, || Ok(0));
    let receiver = star.there[0].channel("numbers").codec::<Pod>().receiver()?;
    thread::scope(|scope| {
        scope.spawn(move || take_to_the_end(receiver, 1));
        let waited = ["is waited for", &absent.to_string()];
        let logged = async {
            while log_lines.lines_with(&waited).is_empty() {
                smol::Timer::after(SOON).await;
            }
            Ok(())
        };
        let waiting = group.wait_acked_async(&mut log, 1, 2);
        smol::block_on(smol::future::or(waiting, logged)).expect("nobody else answers");
        assert_eq!(log_lines.lines_with(&waited).len(), 1);
        drop(group);
    });
    Ok(())
}

/// A call logs that it waits for a quorum after five seconds.
const LONGER_THAN_A_NOTICE: Duration = Duration::from_secs(6);
