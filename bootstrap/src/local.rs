//! A node's part in every handshake: its identity, its wishes and its limits.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use ibex_base::Workers;
use ibex_base::tls::{Encryption, TlsCredentials};

use crate::fabric::{Fabric, FabricOffer, Policy};
use crate::identity::{Incarnation, NodeIdentity};
use crate::integrity::Integrity;
use crate::limits::Limits;
use crate::message::{Hello, HostTags, Offer, SecurityMode, Text, VersionRange};
use crate::places::{Places, SessionLimits};
use crate::resumption::ResumableSessions;
use crate::share_with::ShareWith;
use crate::unix_sockets::UnixSettings;
use crate::verbs::VerbsDevices;

/// This node as it presents itself to peers.
#[derive(Clone, Debug)]
pub struct Local {
    // The node.
    /// The node's identity.
    pub identity: NodeIdentity,
    /// The node's incarnation, which is this run of it.
    pub incarnation: Incarnation,
    /// The node's name for people, which peers show in their logs. Default: none.
    pub name: Text,

    // The node's wishes.
    /// Wish for shared memory. Default: [`Policy::Auto`].
    pub shm: Policy,
    /// Wish for TCP as the data path; the control connection is TCP always.
    /// Default: [`Policy::Auto`].
    pub tcp: Policy,
    /// Wish for RDMA. Default: [`Policy::Auto`].
    pub verbs: Policy,
    /// Fabrics that this build does not have. They are left out of the offer, so that a
    /// peer can tell them from forbidden ones. Default: none.
    pub absent: Vec<Fabric>,
    /// True if the kernel or a sandbox denies this node the memory files that shm needs.
    /// Default: false.
    pub is_shm_denied: bool,
    /// The node's RDMA devices. They are asked when a peer has sent Hello, and not at all where
    /// verbs is forbidden. Default: none.
    pub verbs_devices: Option<Arc<dyn VerbsDevices>>,
    /// The thread on which the node uses them, which clones share.
    pub device_thread: Arc<Workers>,

    /// The way in which the node meets others to share memory. Default: [`UnixSettings::default`].
    pub unix: UnixSettings,
    /// Wish for payload checksums. Default: [`Integrity::Auto`].
    pub integrity: Integrity,

    // The node's limits.
    /// The limits on what a peer may ask of this node.
    pub limits: Limits,
    /// The node's places for sessions, which clones share.
    pub places: Places,
    /// The node's sessions that can be resumed when their wires break, which clones share. A peer
    /// that asks for another is told that there is no such session. Default: none.
    pub resumable: ResumableSessions,

    // The protocol.
    /// The protocol versions that the node speaks. Default: [`VersionRange::SUPPORTED`]; anything
    /// else is for testing how versions meet.
    pub versions: VersionRange,
    /// Optional parts of the protocol that the node knows, one bit each. Default: none;
    /// anything else is for testing how versions meet.
    pub features: u64,
    /// Keys and trusted authorities of this node, where its sessions are authenticated; both ends
    /// must do it in the same way. Default: none, and then nothing is authenticated.
    pub credentials: Option<Arc<dyn TlsCredentials>>,

    /// The address that handshakes with this dial for a new session, as the program gave it. Set by
    /// [`Dialer`](crate::Dialer). Default: none.
    pub dialed: Option<Arc<str>>,

    // Time-outs and bounds of handshakes.
    /// Longest time for one handshake, from the connected socket to *Ready*. Default: 5 s. A longer
    /// time tolerates slower peers, and lets silent ones keep a place of `max_pending` for as long.
    pub handshake_timeout: Duration,
    /// Limit of the unfinished handshakes of a listener, half of which one address may have. Above
    /// it the oldest one that has sent nothing is dropped. Default: 256. Range: from 1. Each takes
    /// one descriptor and at most 64 KiB, or 96 KiB if nodes are authenticated.
    pub max_pending: usize,
}

impl Local {
    /// Creates a node with every other field at its default.
    pub fn new(identity: NodeIdentity, incarnation: Incarnation) -> Local {
        Local {
            identity,
            incarnation,
            name: Text::default(),
            shm: Policy::Auto,
            tcp: Policy::Auto,
            verbs: Policy::Auto,
            absent: Vec::new(),
            is_shm_denied: false,
            verbs_devices: None,
            device_thread: Arc::new(Workers::new("ibex-rdma", 1)),
            unix: UnixSettings::default(),
            integrity: Integrity::Auto,
            limits: Limits::default(),
            places: Places::new(SessionLimits::default()),
            resumable: ResumableSessions::default(),
            versions: VersionRange::SUPPORTED,
            features: 0,
            credentials: None,
            dialed: None,
            handshake_timeout: Duration::from_secs(5),
            max_pending: 256,
        }
    }

    /// Returns the node's RDMA devices, if one could serve.
    pub(crate) fn usable_devices(&self) -> Option<&Arc<dyn VerbsDevices>> {
        let usable = self.verbs != Policy::Forbid
            && !self.absent.contains(&Fabric::Verbs)
            && !self.requires_encryption();
        self.verbs_devices.as_ref().filter(|_| usable)
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

    /// Returns the node's Offer, which says nothing of the host yet.
    pub(crate) fn offer(&self) -> Offer {
        let mut fabrics = vec![
            FabricOffer::new(Fabric::Shm, self.shm),
            FabricOffer::new(Fabric::Tcp, self.tcp),
            FabricOffer::new(Fabric::Verbs, self.verbs),
        ];
        fabrics[0].is_denied = self.is_shm_denied;
        fabrics[0].crosses_users = *self.unix.share_with != ShareWith::Nobody;
        fabrics[0].has_directory = self.unix.directory.is_some();
        fabrics.retain(|fabric| !self.absent.contains(&fabric.kind));
        Offer {
            identity: self.identity,
            incarnation: self.incarnation,
            host: HostTags::NOTHING,
            limits: self.limits,
            integrity: self.integrity,
            fabrics,
            requires_encryption: self.requires_encryption(),
            name: self.name.clone(),
        }
    }
}
