//! Peers that live and do nothing for long: nodes wait for them and never consider them gone.

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex::{Fabric, NodeBuilder, Peer, SendErrorKind};

use crate::common::{
    payload,
    scenario::{Scenario, Span},
    stage::{BytesSender, LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("computes_for_a_minute", computes_for_a_minute)
        .on(Span::EachFabricByCallers)
        .waits(),
    Scenario::new("stopped_under_load", stopped_under_load).waits(),
];

/// With default time-outs, a peer is stopped, and then computes for a minute without a call, which
/// is longer than an unreachable peer is waited for.
fn computes_for_a_minute(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let minute = at_length(stage, 60);
    if stage.is_dialer() {
        press(stage, &peer, at_length(stage, 10));
    } else {
        take(&peer, minute);
    }
}

/// A peer is stopped, and then computes for long, where an unreachable peer would be waited for a
/// third of that.
fn stopped_under_load(stage: &mut Stage) {
    // A machine that stands still for as long is no subject of this test.
    let patience = match stage.fabric() {
        Fabric::Shm | Fabric::Tcp => Duration::from_secs(10),
        Fabric::Verbs => Duration::from_secs(4),
    };
    let settings =
        move |builder: NodeBuilder| builder.notice_timeout(patience).session_timeout(patience);
    let (_node, peer) = stage.meet_as(settings);
    if stage.is_dialer() {
        press(stage, &peer, 3 * patience);
    } else {
        take(&peer, 3 * patience);
    }
}

/// Sends to a peer that is stopped for `stopped_for` meanwhile, and continues until it has computed.
/// By then more was sent than the window holds.
fn press(stage: &Stage, peer: &Peer, stopped_for: Duration) {
    let mut out = sender(peer, "out");
    out.opened(LONG).expect("the peer opens");
    send_all(&mut out, 100, |_| LENGTH);
    // The peer's time-out for opening its own end equals the time for which it is stopped.
    out.wait_acked(1).expect("the peer is there");
    stage.stop_other();
    let until = Instant::now() + stopped_for;
    while Instant::now() < until {
        match out.send_timeout(&next(&out), MOMENT) {
            Ok(_) => {}
            Err(error) if error.kind() == SendErrorKind::Timeout => {}
            Err(error) => panic!("the peer is only stopped: {error}"),
        }
    }
    stage.resume_other();
    for _ in 0..MORE {
        out.send(&next(&out)).expect("it goes on");
    }
    let last = out.counts().sent;
    out.wait_acked(last).expect("everything arrives");
    assert_eq!(peer.stats().suspensions, 0);
    out.close().expect("in order");
}

fn next(out: &BytesSender) -> Vec<u8> {
    payload::numbered(out.counts().sent + 1, LENGTH)
}

/// Receives everything, and computes for `computes_for` before it takes the larger part.
fn take(peer: &Peer, computes_for: Duration) {
    let mut out = receiver(peer, "out");
    let mut last = 0;
    while let Some(message) = out.next().expect("the session lives") {
        last += 1;
        assert_eq!(message.sequence(), last);
        payload::check(last, &message);
        message.ack();
        if last == COMPUTES_AT {
            // No call is made, and the library sees nothing else of a computation.
            thread::sleep(computes_for);
        }
    }
    assert!(last >= MORE);
    assert_eq!(peer.stats().suspensions, 0);
}

/// Returns this many seconds, or fewer where time is slow: a guest with a software device pays for
/// each.
fn at_length(stage: &Stage, seconds: u64) -> Duration {
    Duration::from_secs(match stage.fabric() {
        Fabric::Shm | Fabric::Tcp => seconds,
        Fabric::Verbs => 3,
    })
}

const LENGTH: usize = 1000;
/// More messages than the stop and the window behind it hold.
const MORE: u64 = 10_000;
const COMPUTES_AT: u64 = 4000;
