//! The path of a session's frames: over a connection, or over a queue pair. The engine changes it
//! when wires break and others come; handles read it on any thread.
//!
//! Rules:
//!
//! 1. The longest record only grows: a ring may hold earlier records, which are sent over any later
//!    wire. So a session that continues over a connection, with which its records grow, gets no
//!    queue pair any more.
//! 2. Until then, all memory that the session sends from is registered with the RDMA port of its
//!    last queue pair.
#![forbid(unsafe_code)]

use std::{
    mem,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
};

use ibex_base::sync::{AtomicBool, AtomicUsize, Mutex, lock};
use ibex_protocol::{
    framing::Carriage,
    transfer::{eager_write::lands, rendezvous::WRITE_BYTES},
};

use crate::{
    rdma::{PreparedPair, RdmaPort},
    session::Fabric,
};

/// The path of a session's frames.
#[derive(Debug)]
pub(crate) struct FramePath {
    /// The session has a live queue pair.
    is_over_pair: AtomicBool,
    /// The queue pair has rails.
    has_rails: AtomicBool,
    /// The longest message that travels as a record.
    eager_bytes: AtomicUsize,
    carried: Mutex<Carried>,
}

#[derive(Debug)]
struct Carried {
    /// Verbs while the session has a queue pair, or may get another.
    fabric: Fabric,
    /// The RDMA port of the current or last queue pair.
    rdma_port: Option<Arc<RdmaPort>>,
    /// The RDMA ports of the queue pair's rails, with which long messages are registered too.
    rails: Vec<Arc<RdmaPort>>,
    /// The peer may be granted memory that is registered with that RDMA port.
    grants_memory: bool,
}

impl FramePath {
    /// Makes the path of a session that begins over `fabric`.
    pub(crate) fn new(fabric: Fabric, pair: Option<&PreparedPair>) -> Self {
        let carriage = pair.map_or(Carriage::Stream, PreparedPair::carriage);
        Self {
            is_over_pair: AtomicBool::new(pair.is_some()),
            has_rails: AtomicBool::new(pair.is_some_and(|pair| !pair.rail_ports().is_empty())),
            eager_bytes: AtomicUsize::new(carriage.eager_bytes()),
            carried: Mutex::new(Carried {
                fabric,
                rdma_port: pair.map(|pair| pair.rdma_port().clone()),
                rails: pair.map_or_else(Vec::new, PreparedPair::rail_ports),
                grants_memory: pair.is_some_and(PreparedPair::grants_memory),
            }),
        }
    }

    /// Notes that the queue pair is gone.
    pub(crate) fn lose_device(&self) {
        self.is_over_pair.store(false, Ordering::Relaxed);
        self.has_rails.store(false, Ordering::Relaxed);
    }

    /// Notes that the session continues over a connection.
    pub(crate) fn take_stream(&self) {
        let mut carried = self.carried();
        if carried.fabric == Fabric::Verbs {
            carried.fabric = Fabric::Tcp;
            let longest = Carriage::Stream.eager_bytes();
            self.eager_bytes.fetch_max(longest, Ordering::Relaxed);
        }
    }

    /// Returns whether all possible records of the session fit into the frames of `pair`.
    pub(crate) fn fits(&self, pair: &PreparedPair) -> bool {
        pair.carriage().eager_bytes() >= self.eager_bytes()
    }

    /// Notes that the session continues over this queue pair.
    pub(crate) fn take_pair(&self, pair: &PreparedPair) {
        debug_assert!(self.fits(pair));
        let rails = pair.rail_ports();
        self.has_rails.store(!rails.is_empty(), Ordering::Relaxed);
        *self.carried() = Carried {
            fabric: Fabric::Verbs,
            rdma_port: Some(pair.rdma_port().clone()),
            rails,
            grants_memory: pair.grants_memory(),
        };
        self.is_over_pair.store(true, Ordering::Relaxed);
    }

    /// Returns the fabric that carries the data, or carried it last.
    pub(crate) fn fabric(&self) -> Fabric {
        self.carried().fabric
    }

    /// Returns whether there is a queue pair. Relaxed: only the engine may rely on it, which
    /// changes it under its lock.
    #[inline]
    pub(crate) fn is_over_pair(&self) -> bool {
        self.is_over_pair.load(Ordering::Relaxed)
    }

    /// Returns whether a message of `bytes` may be written into a block that the peer has granted.
    pub(crate) fn may_land(&self, bytes: usize) -> bool {
        self.is_over_pair() && lands(bytes as u64)
    }

    /// Returns whether the session sends without `rdma_port`, with which its memory was to be
    /// registered: the port is lost, or there is no queue pair.
    pub(crate) fn has_left(&self, rdma_port: &RdmaPort) -> bool {
        rdma_port.is_lost() || !self.is_over_pair()
    }

    /// Returns the longest message that wires let travel as a record.
    pub(crate) fn eager_bytes(&self) -> usize {
        self.eager_bytes.load(Ordering::Relaxed)
    }

    /// Returns the RDMA port with which the memory to send from is registered.
    pub(crate) fn rdma_port(&self) -> Option<Arc<RdmaPort>> {
        let carried = self.carried();
        let gets_pairs = carried.fabric == Fabric::Verbs;
        carried.rdma_port.clone().filter(|_| gets_pairs)
    }

    /// Returns the RDMA port of the queue pair, if there is one.
    pub(crate) fn live_port(&self) -> Option<Arc<RdmaPort>> {
        self.rdma_port().filter(|_| self.is_over_pair())
    }

    /// Returns the RDMA ports of the queue pair's rails for messages of `bytes`, which are none if such
    /// messages are one piece.
    pub(crate) fn rails(&self, bytes: usize) -> Vec<Arc<RdmaPort>> {
        // Relaxed: whoever sees a rail late sends without it.
        match bytes > WRITE_BYTES && self.has_rails.load(Ordering::Relaxed) {
            true => self.carried().rails.clone(),
            false => Vec::new(),
        }
    }

    /// Registers nothing with the port of a rail any more, because it refuses.
    pub(crate) fn forget_rail(&self, refuses: &Arc<RdmaPort>) {
        let is_other = |rail: &Arc<RdmaPort>| !Arc::ptr_eq(rail, refuses);
        let mut carried = self.carried();
        carried.rails.retain(is_other);
        self.has_rails
            .store(!carried.rails.is_empty(), Ordering::Relaxed);
    }

    /// Returns the RDMA port of the current or last queue pair.
    pub(crate) fn last_port(&self) -> Option<Arc<RdmaPort>> {
        self.carried().rdma_port.clone()
    }

    /// Leaks the contents, for a fork of the process.
    pub(crate) fn forget(&mut self) {
        let carried = self.carried.get_mut();
        let carried = carried.unwrap_or_else(PoisonError::into_inner);
        mem::forget((carried.rdma_port.take(), mem::take(&mut carried.rails)));
    }

    /// Returns the RDMA port of the queue pair, if the peer is granted memory of this node.
    pub(crate) fn granting_port(&self) -> Option<Arc<RdmaPort>> {
        let carried = self.carried();
        let grants = self.is_over_pair() && carried.grants_memory;
        carried.rdma_port.clone().filter(|_| grants)
    }

    fn carried(&self) -> MutexGuard<'_, Carried> {
        lock(&self.carried)
    }
}
