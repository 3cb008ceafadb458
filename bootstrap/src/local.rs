//! Settings that a node brings to every handshake: its name, its wishes and its limits.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use ibex_tls::{Credentials, Encryption};

use crate::fabric::{FabricKind, FabricOffer, Policy};
use crate::identity::{HostHint, Incarnation, NodeIdentity};
use crate::integrity::Integrity;
use crate::message::{Hello, Offer, SecurityMode, VersionRange};
use crate::places::{Places, SessionLimits};
use crate::resumption::ResumableSessions;
use crate::unix_sockets::UnixClosing;
use crate::verbs::VerbsSite;

/// The node, as it presents itself to peers.
#[derive(Clone, Debug)]
pub struct Local {
    // Who.
    /// The node's identity.
    pub identity: NodeIdentity,
    /// The run of that node.
    pub incarnation: Incarnation,

    // What it wants.
    /// Wish for shared memory. Default: [`Policy::Auto`].
    pub shm: Policy,
    /// Wish for TCP as the data path; the control connection is TCP always.
    /// Default: [`Policy::Auto`].
    pub tcp: Policy,
    /// Wish for RDMA. Default: [`Policy::Auto`].
    pub verbs: Policy,
    /// Fabrics that this build does not have. They are left out of the offer, so that a
    /// peer can tell them from forbidden ones. Default: none.
    pub absent: Vec<FabricKind>,
    /// The place to ask for its RDMA devices. It is asked when a peer has said Hello, and
    /// not at all where verbs is forbidden. Default: none.
    pub verbs_site: Option<Arc<dyn VerbsSite>>,

    /// How Unix sockets are closed that a peer has put something into. Default:
    /// [`UnixClosing::default`].
    pub unix_closing: UnixClosing,
    /// Wish for payload checksums. Default: [`Integrity::Auto`].
    pub integrity: Integrity,

    // What it can take.
    /// Limits of what a peer may ask of this node.
    pub limits: Limits,
    /// Places, of which each session takes one; shared by all clones of this.
    pub places: Places,
    /// The node's sessions, to be gone on with when their wires break. Without, whoever comes to
    /// go on with a session is told that there is no such session. Default: none.
    pub resumable: Option<Arc<dyn ResumableSessions>>,

    // How it talks.
    /// The protocol versions it speaks. Default: [`VersionRange::SUPPORTED`];
    /// anything else is for testing how versions meet.
    pub versions: VersionRange,
    /// Optional parts of the protocol that it knows, one bit each. Default: 0, as there are
    /// none; anything else is for testing how versions meet.
    pub features: u64,
    /// Keys and trusted authorities of this node, where its sessions are authenticated; both ends
    /// must do it in the same way. Default: none, and then nothing is authenticated.
    pub credentials: Option<Arc<Credentials>>,

    // How long it waits and for how many.
    /// Longest time for one handshake, from the connected socket to *Ready*.
    /// Default: 5 s. Longer bears with slower peers, and keeps a place of
    /// `max_pending` for as long with silent ones.
    pub handshake_timeout: Duration,
    /// Most handshakes that a listener keeps unfinished at a time, and half as many of one
    /// address; above it the oldest that has said nothing is dropped. Default: 256, range from 1;
    /// each takes one descriptor and at most 64 KiB, or 96 KiB where they are authenticated.
    pub max_pending: usize,
}

impl Local {
    /// A node with every other field at its default.
    pub fn new(identity: NodeIdentity, incarnation: Incarnation) -> Local {
        Local {
            identity,
            incarnation,
            shm: Policy::Auto,
            tcp: Policy::Auto,
            verbs: Policy::Auto,
            absent: Vec::new(),
            verbs_site: None,
            unix_closing: UnixClosing::default(),
            integrity: Integrity::Auto,
            limits: Limits::default(),
            places: Places::new(SessionLimits::default()),
            resumable: None,
            versions: VersionRange::SUPPORTED,
            features: 0,
            credentials: None,
            handshake_timeout: Duration::from_secs(5),
            max_pending: 256,
        }
    }

    /// Returns the place to ask for an RDMA device, if one could serve.
    pub(crate) fn usable_site(&self) -> Option<&Arc<dyn VerbsSite>> {
        let usable = self.verbs != Policy::Forbid
            && !self.absent.contains(&FabricKind::Verbs)
            && !self.requires_encryption();
        self.verbs_site.as_ref().filter(|_| usable)
    }

    fn requires_encryption(&self) -> bool {
        let credentials = self.credentials.as_ref();
        credentials.is_some_and(|with| with.encryption() == Encryption::Required)
    }

    pub(crate) fn hello(&self, nonce: [u8; 16]) -> Hello {
        Hello {
            versions: self.versions,
            features: self.features,
            security: SecurityMode::of(self.credentials.as_deref()),
            nonce,
        }
    }

    pub(crate) fn offer(&self, host: HostHint) -> Offer {
        let mut fabrics = vec![
            FabricOffer::new(FabricKind::Shm, self.shm),
            FabricOffer::new(FabricKind::Tcp, self.tcp),
            FabricOffer::new(FabricKind::Verbs, self.verbs),
        ];
        fabrics.retain(|fabric| !self.absent.contains(&fabric.kind));
        Offer {
            identity: self.identity,
            incarnation: self.incarnation,
            host,
            limits: self.limits,
            integrity: self.integrity,
            fabrics,
            requires_encryption: self.requires_encryption(),
        }
    }
}

/// Limits of what a peer may ask of a node.
///
/// A peer's limits are its word, unchecked beyond their encoding: take the
/// smaller of the two ends' before sizing anything by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Channels open at a time, both directions together. Default: 1024.
    pub channels: u32,
    /// Bytes that may be under way to this node, not yet taken by its engine.
    /// Default: 1 MiB.
    pub session_credit_bytes: u64,
    /// Longest frame that this node takes. Default: 64 KiB.
    pub max_frame_bytes: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            channels: 1024,
            session_credit_bytes: 1 << 20,
            max_frame_bytes: 64 << 10,
        }
    }
}
