//! Two ends face to face in memory, and their keys.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use ibex_base::tls::{
    AuthenticatedAs, AuthenticationError, RefusedBy, TlsConnection, TlsCredentials, TlsError,
};
use ibex_harness::authority::{Authority, NodeFiles};

use crate::*;

/// A folder that is removed after its test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ibex-tls-{}-{number}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    pub(super) fn authority(&self, name: &str) -> Authority {
        Authority::new(name, &self.0.join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The outcome of a handshake at one end.
pub(super) type End = Result<AuthenticatedAs, TlsError>;

/// Two ends and what they have received.
pub(super) struct Meeting {
    pub(super) ends: [Box<dyn TlsConnection>; 2],
    pub(super) received: [Vec<u8>; 2],
    pub(super) errors: [Option<TlsError>; 2],
}

pub(super) const DIALER: usize = 0;

pub(super) const ACCEPTOR: usize = 1;

impl Meeting {
    pub(super) fn new(dialer: &Credentials, acceptor: &Credentials) -> Meeting {
        Meeting {
            ends: [dialer.dialer(None).unwrap(), acceptor.acceptor().unwrap()],
            received: [Vec::new(), Vec::new()],
            errors: [None, None],
        }
    }

    /// Passes bytes on until nothing is left, each flight through `change`.
    pub(super) fn run_through(&mut self, mut change: impl FnMut(usize, &mut Vec<u8>)) {
        for end in [DIALER, ACCEPTOR] {
            self.process(end, &[]);
        }
        loop {
            let mut is_quiet = true;
            for from in [DIALER, ACCEPTOR] {
                let mut bytes = self.ends[from].outgoing().to_vec();
                self.ends[from].sent(bytes.len());
                if !bytes.is_empty() {
                    is_quiet = false;
                    change(from, &mut bytes);
                    self.process(1 - from, &bytes);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    pub(super) fn run(&mut self) {
        self.run_through(|_, _| {});
    }

    pub(super) fn process(&mut self, end: usize, bytes: &[u8]) {
        let received = &mut self.received[end];
        let outcome = self.ends[end].receive(bytes, &mut |plain| received.extend(plain));
        if let Err(error) = outcome {
            self.errors[end].get_or_insert(error);
        }
    }

    pub(super) fn end(&self, end: usize) -> End {
        match &self.errors[end] {
            Some(error) => Err(error.clone()),
            None => Ok(self.ends[end].authenticated_as().expect("it has ended")),
        }
    }
}

pub(super) fn meet(dialer: &Credentials, acceptor: &Credentials) -> (End, End) {
    let mut meeting = Meeting::new(dialer, acceptor);
    meeting.run();
    (meeting.end(DIALER), meeting.end(ACCEPTOR))
}

pub(super) fn files(files: &NodeFiles) -> Security {
    Security::certificates(&files.chain, &files.key, &files.authorities).unwrap()
}

pub(super) fn secret(seed: u8) -> Credentials {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(seed));
    let secret = SharedSecret::from_bytes(bytes).unwrap();
    Security::shared_secret(secret).open().unwrap()
}

/// The errors of both ends for a certificate that the acceptor does not take from the dialer.
pub(super) fn refused(
    dialer: Security,
    acceptor: Security,
) -> (AuthenticationError, AuthenticationError) {
    match meet(&dialer.open().unwrap(), &acceptor.open().unwrap()) {
        (Err(TlsError::Refused(dialer)), Err(TlsError::Refused(acceptor))) => {
            assert_eq!(dialer.by, RefusedBy::OtherNode, "{dialer}");
            assert_eq!(acceptor.by, RefusedBy::ThisNode, "{acceptor}");
            (dialer, acceptor)
        }
        other => panic!("not refused: {other:?}"),
    }
}
