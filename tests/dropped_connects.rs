//! Connects that are dropped before they return: the peer keeps no session of them.
#![forbid(unsafe_code)]

#[path = "common/over.rs"]
mod over;

use std::{
    future::Future,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use ibex::{Driver, EndCause, Event, NodeBuilder, Security, SharedSecret};
use over::Over;

/// A watchdog's time.
const LONG: Duration = Duration::from_secs(300);

/// The pause between two turns of a node that the test drives.
const GLANCE: Duration = Duration::from_millis(1);

/// The moment at which a connect is dropped, once the peer has a session.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    /// The answer may still be on its way.
    AtOnce,
    /// The session is up at this end too, and was not handed out.
    WithItsSession,
}

/// Reports that the task was woken.
struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Returns a builder of a node, which may have to authenticate its peer.
fn builder(over: &Over, driver: Driver, is_secured: bool) -> NodeBuilder {
    let builder = over.builder(driver);
    match is_secured {
        true => {
            let secret =
                SharedSecret::from_bytes(std::array::from_fn(|at| (at as u8).wrapping_mul(37)));
            builder.security(Security::shared_secret(secret.expect("a secret")))
        }
        false => builder,
    }
}

/// Drops a connect. A session that remained would make the peer wait for its other end. Returns
/// false if the connect was answered before it could be dropped.
fn leaves_no_session(over: &Over, drivers: [Driver; 2], is_secured: bool, when: Dropped) -> bool {
    let secured = if is_secured { "secured " } else { "" };
    let case = format!("{secured}{} of {drivers:?}, dropped {when:?}", over.fabric);
    let [here, there] = drivers.map(|driver| builder(over, driver, is_secured));
    let here = here.build().expect("a node");
    let there = there.listen("127.0.0.1:0").build().expect("a node");
    let address = there.local_addr().expect("it listens");
    let mut events = there.events();
    // Where callers drive the node, the attempt goes on in their turns.
    let is_turned = drivers[0] == Driver::Caller;
    let watchdog = Instant::now() + LONG;
    let mut next = || loop {
        let patience = match is_turned {
            true => GLANCE,
            false => LONG,
        };
        if let Some(event) = events.next_timeout(patience) {
            return event;
        }
        assert!(Instant::now() < watchdog, "{case}: nothing happens");
        here.poll();
    };
    let (tell, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Bell(tell)));
    let mut connecting = Box::pin(here.connect_async(address));
    let polled = connecting.as_mut().poll(&mut Context::from_waker(&waker));
    if let Poll::Ready(answered) = polled {
        answered.unwrap_or_else(|error| panic!("{case}: {error}"));
        return false;
    }
    let event = next();
    let is_up = matches!(event, Event::Connected { fabric, .. } if fabric == over.fabric);
    assert!(is_up, "{case}: {event:?}");
    if let Dropped::WithItsSession = when {
        while is_turned && woken.try_recv().is_err() {
            assert!(Instant::now() < watchdog, "{case}: no answer");
            here.poll();
        }
        if !is_turned {
            woken.recv_timeout(LONG).expect("an answer");
        }
    }
    drop(connecting);
    // The session is not even suspended in between.
    let event = next();
    let Event::Gone { cause, .. } = &event else {
        panic!("{case}: {event:?}");
    };
    let is_known = matches!(cause, EndCause::PeerGone { certain: true, .. });
    assert!(is_known, "{case}: {cause}");
    assert!(there.close(LONG).undelivered.is_empty(), "{case}");
    true
}

fn leave_no_session(drivers: &[Driver]) {
    for over in Over::each() {
        for &driver in drivers {
            for when in [Dropped::AtOnce, Dropped::WithItsSession] {
                for is_secured in [false, true] {
                    for drivers in [[driver, Driver::Threads], [Driver::Threads, driver]] {
                        while !leaves_no_session(&over, drivers, is_secured, when) {}
                    }
                }
            }
        }
    }
}

#[test]
fn a_dropped_connect_leaves_the_peer_no_session() {
    leave_no_session(&[Driver::Threads, Driver::Caller]);
}

#[test]
fn nor_where_a_runtime_drives_an_end() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    leave_no_session(&[Driver::Tasks]);
}
