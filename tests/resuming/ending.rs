//! One session is ended while it has no connection.

use std::{thread, time::Duration};

use ibex::{EndCause, Event, Fabric};

use super::{FOR_EVER, LONG, builder, is_out_of_reach, join, pair, wait_until};

/// Returns the cause of the next session's end that a node reports.
fn cause_of_end(events: &mut ibex::Events) -> EndCause {
    loop {
        if let Event::Gone { cause, .. } = events.next_timeout(LONG).expect("an event") {
            return cause;
        }
    }
}

/// The end that closes waits for the connection, delivers its messages and says why.
#[test]
fn a_suspended_session_that_is_closed_ends_once_it_has_resumed() {
    for dialer_closes in [true, false] {
        let (here, peer, proxy, there, other) = pair();
        let (closes, stays) = match dialer_closes {
            true => ((&here, peer), (&there, other)),
            false => ((&there, other), (&here, peer)),
        };
        let mut events = stays.0.events();
        let mut sender = closes.1.sender::<u64>("numbers").unwrap();
        let mut receiver = stays.1.receiver::<u64>("numbers").unwrap();
        sender.send(&0).unwrap();
        assert_eq!(*receiver.recv().unwrap(), 0);
        proxy.cut_off();
        for number in 1..=1000 {
            sender.send(&number).unwrap();
        }
        let mut tells = closes.1.receiver::<u64>("tells").unwrap();
        let closing = thread::spawn({
            let peer = closes.1.clone();
            move || peer.close_because("it moves to another place", FOR_EVER)
        });
        // Every end of a closing session is over.
        let over = tells.recv_timeout(LONG);
        assert!(over.is_err_and(|error| !error.is_transient()));
        proxy.mend();
        for number in 1..=1000 {
            assert_eq!(*receiver.recv().unwrap(), number);
        }
        let report = closing.join().unwrap();
        assert_eq!(report.undelivered, []);
        let reason = "it moves to another place".to_owned();
        assert_eq!(cause_of_end(&mut events), EndCause::EndedByPeer { reason });
        assert!(stays.1.is_gone() && closes.1.is_gone());
        wait_until(|| closes.0.stats().sessions.is_empty());
    }
}

/// No time is given: the session is over here at once. The peer learns so when it comes back.
#[test]
fn a_suspended_session_that_is_closed_at_once_is_refused_when_its_peer_comes_back() {
    let (here, peer, proxy, there, other) = pair();
    let mut events = here.events();
    let mut sender = other.sender::<u64>("numbers").unwrap();
    let _receiver = peer.receiver::<u64>("numbers").unwrap();
    sender.opened(LONG).unwrap();
    proxy.cut_off();
    wait_until(|| other.is_suspended());
    sender.send(&1).unwrap();
    let report = other.close_because("it is not needed", Duration::ZERO);
    assert_eq!(report.undelivered.len(), 1, "{report}");
    assert!(other.is_gone());
    wait_until(|| there.stats().sessions.is_empty());
    proxy.mend();
    let cause = cause_of_end(&mut events);
    assert!(
        matches!(cause, EndCause::PeerGone { certain: true, .. }),
        "{cause}"
    );
}

/// The end that dials is the one that closes, so nobody comes back.
#[test]
fn a_session_whose_dialer_has_closed_it_while_out_of_reach_is_given_up() {
    let patient = builder(Fabric::Tcp);
    let hasty = builder(Fabric::Tcp).session_timeout(Duration::from_millis(500));
    let (here, peer, proxy, there, _other) = join(patient, hasty);
    let mut events = there.events();
    proxy.cut_off();
    wait_until(|| peer.is_suspended());
    let report = peer.close(Duration::ZERO);
    assert_eq!(report.undelivered, []);
    wait_until(|| here.stats().sessions.is_empty());
    is_out_of_reach(Some(&cause_of_end(&mut events)), "did not come back");
}
