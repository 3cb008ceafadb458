//! Handles of one sender that wait for each other: none waits longer than its time-out, and the end
//! of the node ends every wait.

use ibex_harness::wait_until;
use std::{mem, sync::mpsc, thread, time::Duration};

use ibex::{EndCause, Raw, SendError, SendErrorKind, Sender};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side},
    stage::{LONG, Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("clones_give_up_in_time", give_up_in_time),
    Scenario::new("clones_interrupted", interrupted),
    Scenario::new("clone_and_reservation_leaked", both_leaked),
    Scenario::new(
        "reservation_leaked_before_the_first_clone",
        leaked_before_cloning,
    ),
];

type Bytes = Sender<[u8], Raw>;

/// A handle waits for room. Meanwhile the others learn, at once or in time, that there is none.
fn give_up_in_time(stage: &mut Stage) {
    const WINDOW: u64 = 2;
    let (node, peer) = stage.meet();
    let channel = peer.channel("full").codec::<Raw>().window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            sender.opened(LONG).expect("the peer opens");
            for sequence in 1..=WINDOW {
                sender.send(&payload::numbered(sequence, 8)).expect("room");
            }
            let mut clone = sender.clone();
            let waiting = thread::spawn(move || {
                clone.send(&payload::numbered(WINDOW + 1, 8)).expect("sent");
            });
            wait_until(|| is_inside(&mut sender));
            assert!(
                matches!(sender.try_loan(8), Err(error) if error.kind() == SendErrorKind::Full)
            );
            match sender.loan_timeout(8, Duration::from_millis(20)) {
                Err(error) if error.kind() == SendErrorKind::Timeout => {}
                other => panic!("the window is full: {other:?}"),
            }
            let in_time = sender.send_timeout(b"", Duration::from_millis(20));
            assert!(
                matches!(&in_time, Err(error) if error.kind() == SendErrorKind::Timeout),
                "{in_time:?}"
            );
            stage.tell("read");
            waiting.join().expect("sent");
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            stage.hear("read", &node);
            for sequence in 1..=WINDOW + 1 {
                payload::check(sequence, &receiver.recv().expect("a message"));
            }
            stage.tell("done");
        }
    }
}

/// Returns true when the channel is full. Repeated attempts meet the handle that waits inside.
fn is_inside(sender: &mut Bytes) -> bool {
    match sender.try_send(b"") {
        Err(error) if error.kind() == SendErrorKind::Full => true,
        other => panic!("the window is full: {other:?}"),
    }
}

/// `Node::close` ends the wait for another handle's turn, and a reservation that is sent afterwards
/// is refused.
fn interrupted(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "held");
            sender.opened(LONG).expect("the peer opens");
            let mut clone = sender.clone();
            let reserved = sender.loan(8).expect("room");
            thread::scope(|scope| {
                let (entering, entered) = mpsc::channel();
                let waiting = scope.spawn(move || {
                    entering.send(kernel::this_thread()).expect("heard");
                    clone.send(b"after the reservation")
                });
                kernel::wait_until_asleep(entered.recv().expect("said"));
                let _ = node.close(Duration::ZERO);
                let refused = waiting.join().expect("no panic").expect_err("closed");
                assert!(is_closed(&refused), "{refused}");
            });
            let refused = reserved.send().expect_err("closed");
            assert!(is_closed(&refused), "{refused}");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "held");
            // The end is in order or not, depending on the race of closing and reading; but no
            // message came.
            assert!(!matches!(receiver.next(), Ok(Some(_))));
        }
    }
}

fn is_closed(error: &SendError) -> bool {
    error.cause() == Some(&EndCause::NodeClosed)
}

/// A handle that is leaked with its reservation keeps its turn forever: others do not get it, and
/// their waits can be ended.
fn both_leaked(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "leaked");
            sender.opened(LONG).expect("the peer opens");
            let mut clone = sender.clone();
            let leaking = thread::spawn(move || {
                mem::forget(clone.loan(8).expect("room"));
                mem::forget(clone);
            });
            leaking.join().expect("leaked");
            assert!(
                matches!(sender.try_send(b""), Err(error) if error.kind() == SendErrorKind::Full)
            );
            thread::scope(|scope| {
                let waiting = scope.spawn(|| sender.send(b""));
                thread::sleep(Duration::from_millis(50));
                let _ = node.close(Duration::ZERO);
                let refused = waiting.join().expect("no panic").expect_err("closed");
                assert!(is_closed(&refused), "{refused}");
            });
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "leaked");
            assert!(!matches!(receiver.next(), Ok(Some(_))));
        }
    }
}

/// A leak is noticed at the leaking handle's next use, and does not release a turn that another
/// handle has taken since.
fn leaked_before_cloning(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "leaked");
            sender.opened(LONG).expect("the peer opens");
            mem::forget(sender.loan(8).expect("room"));
            let mut clone = sender.clone();
            let reserved = clone.loan(8).expect("room");
            let leaked = thread::scope(|scope| scope.spawn(|| sender.send(b"")).join())
                .expect("no panic")
                .expect_err("a slot was leaked");
            assert_eq!(leaked.cause(), Some(&EndCause::SlotLeaked), "{leaked}");
            assert!(reserved.send().is_err(), "the channel is over");
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "leaked");
            assert!(receiver.recv().is_err());
            stage.tell("done");
        }
    }
}
