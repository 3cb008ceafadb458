//! The goodbye: what goes out ahead of it.

use super::peer::*;
use crate::session::*;

use crate::format::{
    control::{CloseReason, Control, Role},
    frame::FrameKind,
};

#[test]
fn a_goodbye_waits_for_the_records_that_were_published() {
    let mut session = sending();
    let mut ring = Ring::default();
    ring.0.push_back(16);
    session.ends.mark_ready(1);
    session.outgoing.say_goodbye(None);
    session.ends.close_sender(1, 1, CloseReason::Dropped);
    let mut bodies = Vec::new();
    let mut head = Vec::new();
    while let Some(body) = session.poll_transmit(&mut ring, 0, &mut head) {
        bodies.push((body, std::mem::take(&mut head)));
    }
    let [
        (Body::Records { .. }, _),
        (Body::Inline, close),
        (Body::Inline, goodbye),
    ] = &bodies[..]
    else {
        panic!("{bodies:?}");
    };
    assert!(matches!(
        control_of(close),
        Some(Control::Close {
            final_sequence: 1,
            ..
        })
    ));
    assert_eq!(control_of(goodbye), Some(Control::Goodbye { reason: None }));
    assert!(session.outgoing.sent_goodbye());
    assert_eq!(
        deliver(&mut session, &control(&Control::Goodbye { reason: None })),
        Ok(Arrival::Nothing)
    );
    assert_eq!(
        drain(&mut session).0,
        [SessionEvent::Goodbye { reason: None }]
    );
}

/// A node that closes at the same time as its peer can ask nothing more: what has arrived here is
/// reported ahead of the goodbye, and with it.
#[test]
fn everything_that_arrived_is_told_before_the_goodbye() {
    let mut session = Session::new(config());
    let names = ["wal", "news", "empty"];
    for (end, name) in (PEER..).zip(names) {
        session.open(Role::Receiver, name, spec()).unwrap();
        deliver(&mut session, &open_with(end, Role::Sender, name, spec())).unwrap();
        drain(&mut session);
    }
    deliver(&mut session, &records(1, &[b"one", b"two"])).unwrap();
    let message = frame(FrameKind::Records, PEER + 1, 1, None, &record(1, b"one"));
    deliver(&mut session, &message).unwrap();
    assert_eq!(notified(&mut session), None, "nobody asked");
    session.outgoing.say_goodbye(None);
    let (events, sent) = drain(&mut session);
    let notified = events.into_iter().map(|event| match event {
        SessionEvent::Notified { end, counters } => (end, counters.received),
        other => panic!("{other:?}"),
    });
    let mut notified: Vec<_> = notified.collect();
    notified.sort_unstable();
    assert_eq!(notified, [(1, 2), (2, 1)]);
    assert_eq!(sent, [Control::Goodbye { reason: None }]);
    assert!(session.outgoing.sent_goodbye());
}
