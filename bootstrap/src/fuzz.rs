//! Entry points that take any bytes, for fuzzing: they must return, whatever
//! the bytes are.
//!
//! Each tells whether the bytes reached the parser's accept state, so that a
//! corpus can be checked to get there.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::handshake::{
    AcceptorEntropy, AcceptorEvent, AcceptorHandshake, DialerEvent, DialerHandshake,
};
use crate::identity::{HostHint, NodeIdentity, Secret};
use crate::local::Local;
use crate::message::parse_message;

/// One message without its length prefix. Accepts what parses.
pub fn message(bytes: &[u8]) -> bool {
    parse_message(bytes).is_ok()
}

/// A dialer's whole half of the conversation, against an acceptor. Accepts a
/// finished handshake.
pub fn acceptor(bytes: &[u8]) -> bool {
    let (now, deadline) = clock();
    let entropy = AcceptorEntropy {
        nonce: [1; 16],
        unix_name: [2; 16],
        token: Secret::new([3; 32]),
        session_id: [4; 16],
        resume_secret: Secret::new([5; 32]),
    };
    let mut handshake = AcceptorHandshake::new(&local(), HOST, entropy, now, deadline);
    handshake.handle_bytes(bytes);
    loop {
        while handshake.poll_transmit().is_some() {}
        match handshake.poll_event() {
            Some(AcceptorEvent::ListenUnix { .. }) => {
                handshake.handle_listening(Ok(()));
                let _ = handshake.handle_token(&[3; 32]);
            }
            Some(AcceptorEvent::CloseUnix) => {}
            Some(AcceptorEvent::Agreed(_)) => return true,
            Some(AcceptorEvent::Failed(_)) => return false,
            None if handshake.deadline().is_none() => return false,
            None => handshake.handle_timeout(deadline),
        }
    }
}

/// An acceptor's whole half of the conversation, against a dialer that can
/// reach no Unix socket. Accepts a finished handshake.
pub fn dialer(bytes: &[u8]) -> bool {
    let (now, deadline) = clock();
    let mut handshake = DialerHandshake::new(&local(), HOST, [6; 16], now, deadline);
    handshake.handle_bytes(bytes);
    loop {
        while handshake.poll_transmit().is_some() {}
        match handshake.poll_event() {
            Some(DialerEvent::ConnectUnix { .. }) => {
                handshake.handle_unix(Err("refused".to_string()));
            }
            Some(DialerEvent::Agreed(_)) => return true,
            Some(DialerEvent::Failed(_)) => return false,
            None if handshake.deadline().is_none() => return false,
            None => handshake.handle_timeout(deadline),
        }
    }
}

fn local() -> Local {
    Local::new(NodeIdentity([7; 16]), 8)
}

fn clock() -> (Instant, Instant) {
    let now = Instant::now();
    (now, now + Duration::from_secs(5))
}

const HOST: HostHint = HostHint {
    boot_id: [9; 16],
    pid: 10,
    uid: 11,
};
