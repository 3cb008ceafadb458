//! The two ways in which the sides of a cell authenticate each other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::OnceLock,
};

use ibex::{Peer, Security, SharedSecret};
use ibex_harness::authority::{Authority, NodeFiles, Request};

use super::scenario::Side;

/// A way to authenticate, which both sides of a cell use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secured {
    Certificates,
    SharedSecret,
}

impl Secured {
    pub(crate) const BOTH: [Self; 2] = [Secured::Certificates, Secured::SharedSecret];

    /// Returns the last part of the name of a cell that uses it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Secured::Certificates => "certificates",
            Secured::SharedSecret => "secret",
        }
    }

    /// Returns the settings of `side`. Over verbs, the listener lets the dialer write to its
    /// memory.
    pub(crate) fn security(self, side: Side) -> Security {
        let security = self.keys(side);
        match side {
            Side::Dialer => security,
            Side::Listener => security.trust_authenticated(),
        }
    }

    fn keys(self, side: Side) -> Security {
        match self {
            Secured::Certificates => {
                let folder = env::var_os(FOLDER).expect("the supervisor tells where the keys are");
                let files = files_of(side, Path::new(&folder));
                Security::certificates(files.chain, files.key, files.authorities)
                    .expect("the supervisor's certificates")
                    .authorize(move |peer| peer.uri() == Some(uri_of(side.other())))
            }
            Secured::SharedSecret => {
                let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(11));
                Security::shared_secret(SharedSecret::from_bytes(bytes).expect("a secret"))
            }
        }
    }

    /// Panics unless `peer` has proven to be the other side of `side`.
    pub(crate) fn check_peer(self, side: Side, peer: &Peer) {
        let proven = peer.authenticated_as().expect("an authenticated peer");
        match self {
            Secured::Certificates => assert_eq!(proven.uri(), Some(uri_of(side.other()))),
            Secured::SharedSecret => assert_eq!(proven.to_string(), "member"),
        }
    }
}

/// The folder with the certificates of both sides, removed on drop.
pub(crate) struct Keys;

impl Keys {
    /// Issues the certificates that the players of this run use.
    pub(crate) fn make() -> io::Result<Self> {
        let name = format!("ibex-conformance-{}", process::id());
        let folder = MADE.get_or_init(|| env::temp_dir().join(name));
        let authority = Authority::new("ca", folder)?;
        for side in Side::BOTH {
            authority.issue(&Request::new(file_of(side), &[uri_of(side)]))?;
        }
        Ok(Self)
    }

    /// Tells a player the folder of the certificates.
    pub(crate) fn tell(command: &mut Command) {
        if let Some(folder) = MADE.get() {
            command.env(FOLDER, folder);
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(folder) = MADE.get() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn files_of(side: Side, folder: &Path) -> NodeFiles {
    NodeFiles {
        chain: folder.join(format!("{}.pem", file_of(side))),
        key: folder.join(format!("{}.key", file_of(side))),
        authorities: folder.join("ca.pem"),
    }
}

fn file_of(side: Side) -> &'static str {
    match side {
        Side::Dialer => "dialer",
        Side::Listener => "listener",
    }
}

fn uri_of(side: Side) -> &'static str {
    match side {
        Side::Dialer => "spiffe://test/dialer",
        Side::Listener => "spiffe://test/listener",
    }
}

/// The variable that names the folder to a player.
const FOLDER: &str = "IBEX_CONFORMANCE_KEYS";
static MADE: OnceLock<PathBuf> = OnceLock::new();
