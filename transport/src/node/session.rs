//! The state of one session that handles and engine share.

use std::sync::atomic::Ordering;

use ibex_base::Address;
use std::{any::Any, fmt, mem, sync::Arc};

use super::{
    NodeState, draining::PeerDraining, requests::EngineRequests, session_end::Ending,
    session_path::SessionPath,
};
use crate::{
    rdma::PreparedPair,
    session::{
        EngineId, Fabric, PeerDescription, SessionCounters, SessionStats, Suspension,
        SuspensionCell, frame_path::FramePath,
    },
};
use ibex_base::{
    fork::{self, UsedAfterFork},
    sync::{Asymmetry, AtomicBool},
};

/// The part of a session that handles and engine share.
pub struct SessionShared {
    pub(crate) node: Arc<NodeState>,
    /// The way of the session's handles to its engine.
    pub requests: EngineRequests,
    pub(crate) id: u64,
    peer: PeerDescription,
    /// The local address that the peer connected to, if the peer dialed.
    accepted_on: Option<Address>,
    /// The path of the data.
    pub(super) path: SessionPath,
    /// The wire that carries frames now.
    pub(crate) frame_path: FramePath,
    /// True if the session goes on over another connection when its own breaks.
    pub(crate) resumes: bool,
    payload_checksums: bool,
    /// True if either side cannot or will not use membarrier(2), so that both always use fences.
    fences: AtomicBool,
    is_over: AtomicBool,
    /// The account of the present suspension, if the session has no connection.
    pub(crate) suspension: SuspensionCell,
    /// The account of a connection over which the peer's host does not answer.
    pub(crate) silence: SuspensionCell,
    /// The session's end, for tasks that wait for it.
    pub ending: Ending,
    /// The peer's notices about calls that it serves.
    pub(crate) draining: PeerDraining,
    pub(crate) counters: SessionCounters,
}

/// A peer, for the log. The port of a peer that dialed says nothing, so the address that it
/// connected to is named as well.
pub(crate) struct PeerInLog<'a> {
    pub(crate) peer: &'a PeerDescription,
    pub(crate) accepted_on: Option<Address>,
}

impl fmt::Display for PeerInLog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)?;
        if let Some(ours) = self.accepted_on {
            write!(f, ", accepted on {ours}")?;
        }
        match &self.peer.known_to {
            Some(node) => write!(f, ", via node {node}"),
            None => Ok(()),
        }
    }
}

impl SessionShared {
    pub(crate) fn new(
        (node, runtime): (Arc<NodeState>, Arc<dyn Any + Send + Sync>),
        id: u64,
        peer: PeerDescription,
        accepted_on: Option<Address>,
        resumes: bool,
        payload_checksums: bool,
        (path, pair): (SessionPath, Option<&PreparedPair>),
    ) -> Self {
        Self {
            node,
            requests: EngineRequests {
                runtime,
                session: id,
            },
            id,
            frame_path: FramePath::new(peer.fabric, pair),
            peer,
            accepted_on,
            path,
            resumes,
            payload_checksums,
            fences: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            suspension: SuspensionCell::default(),
            silence: SuspensionCell::default(),
            ending: Ending::default(),
            draining: PeerDraining::default(),
            counters: SessionCounters::default(),
        }
    }

    /// Returns the kind of doorbells between the two processes.
    #[inline]
    pub(crate) fn asymmetry(&self) -> Asymmetry {
        if self.fences.load(Ordering::Relaxed) {
            Asymmetry::Fence
        } else {
            Asymmetry::of_process()
        }
    }

    pub(crate) fn use_fences(&self) {
        self.fences.store(true, Ordering::Relaxed);
    }

    /// Returns whether times of messages are kept.
    pub(crate) fn is_inspected(&self) -> bool {
        self.node.slow.is_some()
    }

    /// Returns the state that all sessions of the node share.
    #[must_use]
    pub fn node(&self) -> &Arc<NodeState> {
        &self.node
    }

    /// Returns the number of the session, which no other session of the node has had.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id
    }

    /// Returns the engine that turns the session, which never changes.
    #[must_use]
    pub fn engine(&self) -> EngineId {
        EngineId::of_session(self.id)
    }

    /// Returns the peer's identity, and the way it is reached.
    #[must_use]
    pub fn peer(&self) -> &PeerDescription {
        &self.peer
    }

    /// Names the peer for the log: its identity, its address, and the address that it connected to.
    pub(crate) fn peer_in_log(&self) -> impl fmt::Display {
        PeerInLog {
            peer: &self.peer,
            accepted_on: self.accepted_on,
        }
    }

    /// Returns the session's counts so far.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let rdma_port = self.frame_path.last_port();
        let rdma_port = rdma_port.map(|rdma_port| rdma_port.counts());
        self.counters.snapshot(rdma_port.unwrap_or_default())
    }

    /// Returns how the session's completions are polled, and the reason, if it has any.
    #[must_use]
    pub fn completion_polling(&self) -> Option<String> {
        let rdma_port = self.frame_path.live_port();
        rdma_port.map(|rdma_port| rdma_port.polling().to_string())
    }

    /// Returns the RDMA device and the port of it that carry the session's data now, if any do.
    #[must_use]
    pub fn rdma_port(&self) -> Option<(String, u8)> {
        let rdma_port = self.frame_path.live_port();
        rdma_port.map(|rdma_port| (rdma_port.device().to_owned(), rdma_port.port()))
    }

    /// Returns the error of calls in a fork of the process, about the session.
    #[cold]
    #[must_use]
    pub fn used_after_fork(&self) -> UsedAfterFork {
        UsedAfterFork::new(format!("the session with {}", self.peer.address))
    }

    /// Returns the fabric that carries the data now, or did last.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.frame_path.fabric()
    }

    /// Returns whether payloads have a checksum where tcp carries them.
    #[must_use]
    pub fn payload_checksums(&self) -> bool {
        self.payload_checksums
    }

    /// Returns the peer's address for errors, with the peer's names and that of the local node, as
    /// far as there are any.
    #[must_use]
    pub fn peer_name(&self) -> String {
        let PeerDescription {
            address,
            names,
            known_to,
            ..
        } = &self.peer;
        format!("{address}{}", names.text(known_to.as_deref()))
    }

    /// Returns whether the session has lost its connection and waits for another.
    #[inline]
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspension.is_suspended()
    }

    /// Returns since when the session has had no connection, why, and what this node does about
    /// it; `None` if the session has a connection or is over.
    #[must_use]
    pub fn suspension(&self) -> Option<Arc<Suspension>> {
        self.suspension.get()
    }

    /// Returns the account of the present suspension, or of a peer whose host is silent.
    #[cold]
    pub(crate) fn no_answer(&self) -> Option<Arc<Suspension>> {
        let silence = || {
            self.requests.note_answers();
            self.silence.get()
        };
        self.suspension.get().or_else(silence)
    }

    /// Notes that the session is over and its engine has forgotten it. From now on it keeps no
    /// descriptor, however long handles stay or the session waits to be accepted.
    pub(crate) fn end(&self) {
        // Relaxed: a queue that sees it late drops the session with later ones.
        self.is_over.store(true, Ordering::Relaxed);
        self.path.close();
    }

    /// Returns whether the session is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for SessionShared {
    fn drop(&mut self) {
        if fork::is_child() {
            // The node and the path are leaked, so that a fork of the process frees nothing that
            // they hold.
            mem::forget(self.node.clone());
            self.frame_path.forget();
        }
    }
}

impl fmt::Debug for SessionShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .finish()
    }
}
