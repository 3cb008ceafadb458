//! Bytes of a handshake that change, go missing, are doubled or change places on their way: the
//! dialer comes again, and there is a session.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::dialing::dial;
use common::secured::secured;
use common::{LONG, Listening, node};
use ibex_bootstrap::{DialError, HandshakeError, Local, Policy};
use ibex_harness::{
    draw::Draw,
    proxy::{DAMAGES, Proxy},
};

#[test]
fn a_dialer_gets_its_session_whichever_byte_of_a_handshake_is_garbled() {
    // All of the first bytes, and every fifth byte thereafter.
    let places = (0..HANDSHAKE_BYTES).filter(|at| *at < 20 || at % 5 == 0);
    assert_sessions_in_spite_of_damage_at(places, |local| local);
}

/// TLS covers all bytes but the Hellos, which it begins behind.
#[test]
fn an_authenticated_dialer_gets_its_session_whichever_byte_of_a_hello_is_garbled() {
    assert_sessions_in_spite_of_damage_at(0..HELLO_BYTES, secured);
}

fn assert_sessions_in_spite_of_damage_at(
    places: impl Iterator<Item = u64>,
    secure: impl Fn(Local) -> Local + Sync,
) {
    let mut listens = secure(node(2));
    listens.shm = Policy::Forbid;
    // An end waits this long for the rest of a message whose length has grown.
    listens.handshake_timeout = Duration::from_secs(3);
    let listening = Listening::with(listens);
    let there: SocketAddr = listening.address.parse().unwrap();
    let harms: Vec<_> = places
        .flat_map(|at| DAMAGES.map(|damage| [(damage, false, at), (damage, true, at)]))
        .flatten()
        .collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let mut dials = secure(node(1));
                dials.shm = Policy::Forbid;
                dials.handshake_timeout = Duration::from_secs(3);
                while let Some(&harm) = harms.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (damage, is_back, at) = harm;
                    let proxy = Proxy::start(there).unwrap();
                    // Later connections are not damaged.
                    proxy.damage(1, damage, is_back, at, &mut Draw::new(at));
                    let there = proxy.address().to_string();
                    let dialed = loop {
                        match dial(&there, &dials, LONG) {
                            Ok(dialed) => break dialed,
                            // A loaded machine may take longer for the second attempt, too.
                            Err(DialError::Handshake {
                                source: HandshakeError::Silent { .. },
                                ..
                            }) => {}
                            Err(error) => panic!("{harm:?}: {error}"),
                        }
                    };
                    assert_eq!(dialed.peer.identity.0, [2; 16], "{harm:?}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), harms.len());
}

/// An upper bound of the bytes that either end sends in a handshake over tcp.
const HANDSHAKE_BYTES: u64 = 200;
/// The bytes of a Hello.
const HELLO_BYTES: u64 = 44;
/// Handshakes at a time: most of them wait.
const AT_ONCE: usize = 48;
