//! Bytes of a handshake that change, go missing, are doubled or change places on their way: the
//! dialer comes again, and there is a session.

mod common;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{LONG, Listening, node};
use ibex_bootstrap::{Policy, dial};

/// Damage to a connection: its kind, its direction, and the byte.
#[derive(Clone, Copy, Debug)]
struct Harm {
    kind: Kind,
    is_back: bool,
    at: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Flip(u8),
    Drop,
    Double,
    Swap,
}

#[test]
fn a_dialer_gets_its_session_whichever_byte_of_a_handshake_is_garbled() {
    let mut listens = node(2);
    listens.shm = Policy::Forbid;
    // An end waits this long for the rest of a message whose length has grown.
    listens.handshake_timeout = Duration::from_secs(3);
    let listening = Listening::with(listens);
    let there: SocketAddr = listening.address.parse().unwrap();
    // Changes all bits of the first bytes and of every fifth byte thereafter.
    let harms: Vec<Harm> = (0..HANDSHAKE_BYTES)
        .filter(|at| *at < 20 || at % 5 == 0)
        .flat_map(|at| {
            let flip = Kind::Flip(1 << (at % 8));
            let kinds = [flip, Kind::Drop, Kind::Double, Kind::Swap];
            kinds
                .into_iter()
                .flat_map(move |kind| [false, true].map(|is_back| Harm { kind, is_back, at }))
        })
        .collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let mut dials = node(1);
                dials.shm = Policy::Forbid;
                dials.handshake_timeout = Duration::from_secs(3);
                while let Some(&harm) = harms.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let address = relay(there, harm).unwrap();
                    let dialed = dial(&address.to_string(), &dials, LONG, &|| false);
                    let dialed = dialed.unwrap_or_else(|error| panic!("{harm:?}: {error}"));
                    assert_eq!(dialed.peer.identity.0, [2; 16], "{harm:?}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), harms.len());
}

/// Returns an address that leads `there`, and damages the first connection but no later one.
fn relay(there: SocketAddr, harm: Harm) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        let mut harm = Some(harm);
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(there)?;
            for is_back in [false, true] {
                let (from, to) = match is_back {
                    false => (client.try_clone()?, server.try_clone()?),
                    true => (server.try_clone()?, client.try_clone()?),
                };
                let harm = harm.filter(|harm| harm.is_back == is_back);
                std::thread::spawn(move || pass_on(from, to, harm));
            }
            if harm.take().is_none() {
                break;
            }
        }
        Ok::<_, io::Error>(())
    });
    Ok(address)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, harm: Option<Harm>) -> io::Result<()> {
    if let Some(Harm { kind, at, .. }) = harm
        && io::copy(&mut (&from).take(at as u64), &mut to)? == at as u64
    {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        match kind {
            Kind::Flip(bits) => to.write_all(&[byte[0] ^ bits])?,
            Kind::Drop => {}
            Kind::Double => to.write_all(&[byte[0]; 2])?,
            Kind::Swap => {
                let mut next = [0];
                // The last byte that arrives at once has none to change places with.
                if from.read(&mut next)? == 1 {
                    to.write_all(&[next[0], byte[0]])?;
                }
            }
        }
    }
    let _ = io::copy(&mut from, &mut to);
    to.shutdown(Shutdown::Write)
}

/// An upper bound of the bytes that either end sends in a handshake over tcp.
const HANDSHAKE_BYTES: usize = 200;
/// Handshakes at a time: most of them wait.
const AT_ONCE: usize = 48;
