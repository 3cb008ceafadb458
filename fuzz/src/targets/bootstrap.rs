//! Seeds for the handshake: the two halves of real ones, recorded, and their
//! messages one by one. The parsers are fed by `ibex_bootstrap::fuzz`.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use ibex_bootstrap::handshake::{
    AcceptorEntropy, AcceptorEvent, AcceptorHandshake, DialerEvent, DialerHandshake,
};
use ibex_bootstrap::message::MAGIC;
use ibex_bootstrap::{HostHint, Local, NodeIdentity, Secret};

use crate::Seed;

/// One message of each kind that a handshake over shared memory and one that
/// falls back from it have.
pub(crate) fn message_seeds() -> Vec<Seed> {
    let over_shm = Recording::of_one_host();
    let fall_back = Recording::of_one_host_without_unix_sockets();
    vec![
        Seed {
            name: "hello",
            bytes: over_shm.message_from_dialer(0),
        },
        Seed {
            name: "offer",
            bytes: over_shm.message_from_dialer(1),
        },
        Seed {
            name: "choice",
            bytes: over_shm.message_from_dialer(2),
        },
        Seed {
            name: "endpoint",
            bytes: over_shm.message_from_acceptor(2),
        },
        Seed {
            name: "ready",
            bytes: over_shm.message_from_acceptor(3),
        },
        Seed {
            name: "unavailable",
            bytes: fall_back.message_from_acceptor(3),
        },
    ]
}

/// What a dialer sends in all.
pub(crate) fn acceptor_seeds() -> Vec<Seed> {
    vec![
        Seed {
            name: "shm",
            bytes: Recording::of_one_host().from_dialer,
        },
        Seed {
            name: "fall_back",
            bytes: Recording::of_one_host_without_unix_sockets().from_dialer,
        },
        Seed {
            name: "tcp",
            bytes: Recording::of_two_hosts().from_dialer,
        },
    ]
}

/// What an acceptor sends in all. The dialer that is fuzzed reaches no Unix
/// socket, so what it hears over shared memory alone is no whole handshake.
pub(crate) fn dialer_seeds() -> Vec<Seed> {
    vec![
        Seed {
            name: "fall_back",
            bytes: Recording::of_one_host_without_unix_sockets().from_acceptor,
        },
        Seed {
            name: "tcp",
            bytes: Recording::of_two_hosts().from_acceptor,
        },
    ]
}

/// All that was said in one handshake.
#[derive(Debug, Default)]
struct Recording {
    from_dialer: Vec<u8>,
    from_acceptor: Vec<u8>,
}

impl Recording {
    fn of_one_host() -> Self {
        Self::new(host(9), host(9), true)
    }

    fn of_one_host_without_unix_sockets() -> Self {
        Self::new(host(9), host(9), false)
    }

    fn of_two_hosts() -> Self {
        Self::new(host(8), host(9), true)
    }

    /// Lets a dialer and an acceptor talk until neither has more to say.
    fn new(dialer_host: HostHint, acceptor_host: HostHint, has_unix_sockets: bool) -> Self {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(5);
        let entropy = AcceptorEntropy {
            nonce: [0xa0; 16],
            unix_name: [0xa1; 16],
            token: TOKEN,
            session_id: [0xa3; 16],
            resume_secret: Secret::new([0xa4; 32]),
        };
        let mut dialer = DialerHandshake::new(&node(1), dialer_host, [0xd0; 16], now, deadline);
        let mut acceptor = AcceptorHandshake::new(&node(2), acceptor_host, entropy, now, deadline);
        let mut recording = Self::default();
        loop {
            let said = recording.from_dialer.len() + recording.from_acceptor.len();
            while let Some(bytes) = dialer.poll_transmit() {
                recording.from_dialer.extend(&bytes);
                acceptor.handle_bytes(&bytes);
            }
            while let Some(event) = acceptor.poll_event() {
                if let AcceptorEvent::ListenUnix { .. } = event {
                    acceptor.handle_listening(Ok(()));
                }
            }
            while let Some(bytes) = acceptor.poll_transmit() {
                recording.from_acceptor.extend(&bytes);
                dialer.handle_bytes(&bytes);
            }
            while let Some(event) = dialer.poll_event() {
                if let DialerEvent::ConnectUnix { token, .. } = event {
                    let is_there = has_unix_sockets && acceptor.handle_token(token.expose());
                    let refused = || "connection refused".to_string();
                    dialer.handle_unix(is_there.then_some(()).ok_or_else(refused));
                }
            }
            if recording.from_dialer.len() + recording.from_acceptor.len() == said {
                return recording;
            }
        }
    }

    fn message_from_dialer(&self, index: usize) -> Vec<u8> {
        message(&self.from_dialer, index)
    }

    fn message_from_acceptor(&self, index: usize) -> Vec<u8> {
        message(&self.from_acceptor, index)
    }
}

/// One message of a half, without its length prefix.
fn message(half: &[u8], index: usize) -> Vec<u8> {
    let mut rest = &half[MAGIC.len()..];
    for left in (0..=index).rev() {
        let (length, behind) = rest.split_first_chunk().expect("the half has this message");
        let (message, behind) = behind.split_at(usize::from(u16::from_le_bytes(*length)));
        if left == 0 {
            return message.to_vec();
        }
        rest = behind;
    }
    unreachable!("the last round returns")
}

fn node(identity: u8) -> Local {
    Local::new(NodeIdentity([identity; 16]), u64::from(identity))
}

fn host(boot: u8) -> HostHint {
    HostHint {
        boot_id: [boot; 16],
        pid: 4242,
        uid: 1000,
    }
}

/// What the acceptor asks to be presented.
const TOKEN: Secret = Secret::new([0xa2; 32]);
