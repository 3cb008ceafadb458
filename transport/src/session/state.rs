//! The state of one session that handles and engine share.

use std::sync::atomic::Ordering;
use std::{
    fmt, iter, mem,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::{
    fork::{self, UsedAfterFork},
    sync::{Asymmetry, AtomicBool},
};
use ibex_protocol::{
    format::{
        control::{Ask, CloseReason, Role},
        record::Layout,
    },
    transfer::{
        eager_write::{LANDING_BYTES, LANDINGS_PER_CHANNEL, LandingId, lands},
        rendezvous::RemoteMemory,
    },
};
use ibex_ring::{
    Released,
    memory::{LargeLease, LargePool, MemoryError, RingArena, RingLease},
    parking::{Condition, TimedOut, WaitSlot},
};

use super::{Ending, EngineId, PeerDescription, SessionCounters, SessionStats, route::Route};
use crate::{
    endpoint::{receive_end::ReceiveEnd, send_end::SendEnd},
    engine::Mark,
    rdma::{LandingBlock, LandingPlace, PreparedPair, Site},
    runtime::{Driver, EventLoop, PeerDraining, Runtime, waiting::Looks},
    session::{Fabric, Interface},
    shared_memory::Bells,
};

/// One session as its handles see it.
pub struct SessionShared {
    pub(crate) runtime: Arc<Runtime>,
    /// Its engine, from its beginning to its end.
    pub(crate) event_loop: Arc<EventLoop>,
    pub(crate) id: u64,
    peer: PeerDescription,
    /// The address of ours that the peer connected to, if it did.
    accepted_on: Option<SocketAddr>,
    /// Where data goes through memory that both processes map.
    bells: Option<Arc<Bells>>,
    /// What the data goes over now.
    pub(crate) carrier: Route,
    /// It goes on over another connection when its own breaks.
    pub(crate) resumes: bool,
    payload_checksums: bool,
    /// Either side cannot use membarrier, or does not want to, so both use fences.
    fences: AtomicBool,
    is_over: AtomicBool,
    pub(crate) ending: Ending,
    /// What the peer has said about calls that it serves.
    pub(crate) draining: PeerDraining,
    pub(crate) counters: SessionCounters,
}

/// A peer, for the log. One that connected comes from a port that says nothing.
pub(crate) struct PeerInLog<'a> {
    pub(crate) peer: &'a PeerDescription,
    pub(crate) accepted_on: Option<SocketAddr>,
}

impl fmt::Display for PeerInLog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)?;
        if let Some(ours) = self.accepted_on {
            write!(f, ", accepted on {ours}")?;
        }
        match &self.peer.known_to {
            Some(node) => write!(f, ", a peer of node {node}"),
            None => Ok(()),
        }
    }
}

/// What a session's data goes over.
pub(crate) enum Over<'a> {
    /// The connection.
    Stream,
    /// Memory that both processes map; the engines wake each other by these.
    Shm(Arc<Bells>),
    /// A queue pair.
    Pair(&'a PreparedPair),
}

impl SessionShared {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        id: u64,
        peer: PeerDescription,
        accepted_on: Option<SocketAddr>,
        resumes: bool,
        payload_checksums: bool,
        over: Over<'_>,
    ) -> Self {
        let (bells, pair) = match over {
            Over::Stream => (None, None),
            Over::Shm(bells) => (Some(bells), None),
            Over::Pair(pair) => (None, Some(pair)),
        };
        let fences = runtime.driving.asymmetry() == Asymmetry::Fence;
        Self {
            event_loop: runtime.event_loop(EngineId::of_session(id)).clone(),
            runtime,
            id,
            carrier: Route::new(peer.fabric, pair),
            peer,
            accepted_on,
            bells,
            resumes,
            payload_checksums,
            fences: AtomicBool::new(fences),
            is_over: AtomicBool::new(false),
            ending: Ending::default(),
            draining: PeerDraining::default(),
            counters: SessionCounters::default(),
        }
    }

    /// The kind of doorbells between the two processes.
    #[inline]
    pub(crate) fn asymmetry(&self) -> Asymmetry {
        if self.fences.load(Ordering::Relaxed) {
            Asymmetry::Fence
        } else {
            Asymmetry::of_process()
        }
    }

    /// The kind of doorbells between the handles of this process and their engine.
    pub(crate) fn own_asymmetry(&self) -> Asymmetry {
        self.runtime.driving.asymmetry()
    }

    pub(crate) fn use_fences(&self) {
        self.fences.store(true, Ordering::Relaxed);
    }

    /// The node's runtime.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Returns the engine of the node that turns the session, which stays the same.
    #[must_use]
    pub fn engine(&self) -> EngineId {
        self.event_loop.id()
    }

    /// Who the peer is and how it is reached.
    #[must_use]
    pub fn peer(&self) -> &PeerDescription {
        &self.peer
    }

    /// The peer as the log names it: who, where, and whom it connected to.
    pub(crate) fn peer_in_log(&self) -> impl fmt::Display {
        PeerInLog {
            peer: &self.peer,
            accepted_on: self.accepted_on,
        }
    }

    /// What the session counted so far.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let site = self.carrier.last_site();
        let site = site.map(|site| site.counters.counts());
        self.counters.snapshot(site.unwrap_or_default())
    }

    /// How its completions are polled, and why so, if it has any.
    #[must_use]
    pub fn completion_polling(&self) -> Option<String> {
        let site = self.carrier.site().filter(|_| self.carrier.is_pair());
        site.map(|site| site.polling().to_string())
    }

    /// What a call answers in a fork of the process, about the session.
    #[cold]
    #[must_use]
    pub fn used_after_fork(&self) -> UsedAfterFork {
        UsedAfterFork::new(format!("the session with {}", self.peer.address))
    }

    /// Names of channels that the peer opened and we did not.
    #[must_use]
    pub fn incoming(&self) -> Vec<(String, Role)> {
        self.event_loop
            .on_link(self.id, |link, _| link.core.incoming())
            .unwrap_or_default()
    }

    /// The interface by which this node uses the end of this name and role, if it has one.
    #[must_use]
    pub fn interface_of(&self, name: &str, role: Role) -> Option<Interface> {
        self.event_loop
            .on_link(self.id, |link, _| link.core.interface_of(name, role))
            .flatten()
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.event_loop
            .on_link(self.id, |link, _| link.core.is_over())
            .unwrap_or(true)
    }

    /// Whether the session has lost its connection and waits for another.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.event_loop
            .on_link(self.id, |link, _| link.core.is_broken_off())
            .unwrap_or(false)
    }

    /// Returns whether the node was closed because the task that drove it was dropped.
    pub(crate) fn has_lost_driver(&self) -> bool {
        self.runtime.has_lost_driver()
    }

    /// Whether its channels lie in memory that the peer shares.
    #[must_use]
    pub fn is_shm(&self) -> bool {
        self.bells.is_some()
    }

    /// What carries its data now, or did last.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.carrier.fabric()
    }

    /// Tells whether payloads have a checksum where tcp carries them.
    #[must_use]
    pub fn payload_checksums(&self) -> bool {
        self.payload_checksums
    }

    /// A ring that the session can send from. Takes long: for a handle's thread.
    pub(crate) fn lease_ring(&self, min_bytes: usize) -> Result<RingLease, MemoryError> {
        let mut lease = self.ring_arena().lease(min_bytes)?;
        if let Some(site) = self.carrier.site() {
            let registered = site.register_ring(&mut lease);
            self.unless_lost(&site, registered)?;
        }
        Ok(lease)
    }

    /// Memory for a large message that the session can send from; likewise.
    pub(crate) fn lease_large(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        let mut lease = self.large_pool().take(bytes)?;
        if let Some(site) = self.carrier.site() {
            let registered = site.register_message(&mut lease, bytes);
            self.unless_lost(&site, registered)?;
        }
        Ok(lease)
    }

    /// Memory that is not registered is sent from over other wires, where there is no queue pair,
    /// or its site is lost, so that it takes nothing any more.
    fn unless_lost(
        &self,
        site: &Site,
        registered: Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        match registered {
            Err(_) if self.resumes && (site.is_lost() || !self.carrier.is_pair()) => Ok(()),
            result => result,
        }
    }

    /// Memory for a large message to come of `bytes`, if some is kept and there is room for it:
    /// charged, and registered where the peer may be granted it. Costs no system call.
    pub(crate) fn kept_for_arrival(&self, bytes: usize) -> Option<LargeLease> {
        let site = self.granting_site();
        let pool = match &site {
            Some(_) => &self.runtime.granted_pool,
            None => self.large_pool(),
        };
        let mut lease = pool.take_kept(bytes)?;
        if let Some(site) = site {
            site.granted_memory(&lease, bytes)?;
        }
        lease.charge_to(self.runtime.memory.claim(bytes as u64)?);
        Some(lease)
    }

    /// The same, mapped and registered now if it has to be. Memory that the peer's device may
    /// write to is there and charged as a whole, and takes half of what there may be at most;
    /// else there are addresses, which get memory as the message comes. Takes long: off the
    /// turn.
    pub(crate) fn lease_for_arrival(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        if let Some(site) = self.granting_site()
            && let Some(claim) = self.runtime.memory.half().claim(bytes as u64)
        {
            let mut lease = self.runtime.granted_pool.take(bytes)?;
            match site.register_grant(&mut lease, bytes) {
                Ok(()) => {
                    lease.charge_to(claim);
                    return Ok(lease);
                }
                Err(error) => tracing::debug!(
                    peer = %self.peer_in_log(),
                    %error,
                    "a large message comes in chunks: its memory cannot be granted"
                ),
            }
        }
        self.large_pool().reserve(bytes)
    }

    /// Whether a message of so much may go into a block of the peer's.
    pub(crate) fn may_land(&self, bytes: usize) -> bool {
        self.carrier.is_pair() && lands(bytes as u64)
    }

    /// Whether the peer is granted blocks.
    pub(crate) fn grants_landings(&self) -> bool {
        self.granting_site()
            .is_some_and(|site| site.has_landing_places())
    }

    /// Blocks for a channel's messages of medium size, as many as can be had. Takes long:
    /// off the turn.
    pub(crate) fn lease_landings(&self) -> Vec<(LandingBlock, RemoteMemory)> {
        let lease = |site: &Arc<Site>| {
            let place = LandingPlace::take(site)?;
            let lease = self.runtime.granted_pool.take(LANDING_BYTES);
            match lease.and_then(|lease| LandingBlock::register(place, lease)) {
                Ok(block) => Some(block),
                Err(error) => {
                    let peer = self.peer.address;
                    tracing::debug!(%peer, %error, "messages wait for their memory to be granted");
                    None
                }
            }
        };
        let Some(site) = self.granting_site() else {
            return Vec::new();
        };
        iter::repeat_with(|| lease(&site))
            .map_while(|block| block)
            .take(LANDINGS_PER_CHANNEL)
            .collect()
    }

    /// What the peer has to know of memory that it may write a message of `bytes` to; `None`
    /// if it may not.
    pub(crate) fn granted_memory(&self, lease: &LargeLease, bytes: usize) -> Option<RemoteMemory> {
        self.granting_site()?.granted_memory(lease, bytes)
    }

    /// The site, if the peer is granted memory of ours.
    fn granting_site(&self) -> Option<Arc<Site>> {
        self.carrier.granting_site()
    }

    /// The peer's address for errors, and the name of the node here if it has one.
    #[must_use]
    pub fn peer_name(&self) -> String {
        match &self.peer.known_to {
            Some(node) => format!("{} (a peer of node {node})", self.peer.address),
            None => self.peer.address.to_string(),
        }
    }

    /// The session is over, and the engine has forgotten it: it keeps no descriptor, however
    /// long handles are kept, or wait to be accepted.
    pub(crate) fn end(&self) {
        // Relaxed: who sees it late drops it with the next ones.
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(bells) = &self.bells {
            bells.close();
        }
    }

    /// Whether the session is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Wakes the peer's engine (shm).
    #[cold]
    pub(crate) fn ring_peer(&self) {
        if self.bells.as_ref().is_some_and(|bells| bells.ring()) {
            self.counters.bells.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The reader of a sending end's ring sleeps since its arming `generation`: wakes it.
    #[cold]
    pub(crate) fn ring_for(&self, end: &SendEnd, generation: u32) {
        match end.ours.get() {
            Some(ours) => ours.rung.ring(generation, || self.ring_peer()),
            None => self.event_loop.mark(Mark::Ready {
                session: self.id,
                end: end.id,
            }),
        }
    }

    /// The prefix of a receiving end moved; `urgent` if the sender must hear of it.
    pub(crate) fn mark_released(&self, end: u32, urgent: bool) {
        self.event_loop.mark_quietly(
            Mark::Released {
                session: self.id,
                end,
            },
            !urgent,
        );
    }

    /// Bytes that may be queued before `send` runs a turn itself.
    pub(crate) fn transmit_at(&self, window_bytes: usize) -> usize {
        match self.runtime.driver() {
            Driver::Caller | Driver::Tasks if !self.is_shm() => {
                CALLER_BATCH_BYTES.min(window_bytes / 2)
            }
            _ => usize::MAX,
        }
    }

    /// Enough is queued for a turn (`Driver::Caller`).
    #[cold]
    pub(crate) fn transmit(&self) {
        self.event_loop.poll_in_passing();
    }

    /// Runs a turn where callers do.
    pub(crate) fn poll(&self) {
        self.event_loop.poll_in_passing();
    }

    /// Lets out what was sent, where callers turn the engine and a device carries it.
    pub(crate) fn let_out(&self) {
        if self.runtime.driver() != Driver::Threads {
            self.event_loop.let_out(self.id);
        }
    }

    /// Whether calls that wait for the peer's memory look for a while before they sleep.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.runtime.spins()
    }

    pub(crate) fn wait<C: Condition>(
        &self,
        slot: &WaitSlot,
        deadline: Option<Instant>,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        self.event_loop
            .wait(slot, deadline, self.looks(), condition)
    }

    /// Looks for at most `moment` whether `condition` holds, where tasks drive the node and its
    /// calls look before they sleep.
    pub(crate) fn look_for<C: Condition>(
        &self,
        moment: Duration,
        mut condition: C,
    ) -> Option<C::Output> {
        let looks = self.looks();
        self.event_loop.look_for(moment, looks, &mut condition)
    }

    /// What calls look at that wait for this session.
    pub(crate) fn looks(&self) -> Looks {
        match self.bells {
            Some(_) => Looks::Memory,
            None if self.carrier.is_pair() => Looks::Queue,
            None => Looks::Socket,
        }
    }

    pub(crate) fn ring_arena(&self) -> &RingArena {
        &self.runtime.ring_arena
    }

    pub(crate) fn large_pool(&self) -> &LargePool {
        &self.runtime.large_pool
    }

    // ---- What handles tell the engine ----------------------------------------------

    /// `from` is what was released before.
    pub(crate) fn attach_ring(
        &self,
        end: u32,
        ring: Arc<RingLease>,
        layout: Layout,
        from: Released,
    ) {
        self.event_loop
            .on_link(self.id, |link, _| link.attach_ring(end, ring, layout, from));
    }

    pub(crate) fn pass_ring(&self, end: u32, capacity: usize, fd: OwnedFd) {
        self.event_loop.on_link(self.id, |link, _| {
            link.core.pass_ring(end, capacity as u64, fd);
        });
    }

    pub(crate) fn send_large(
        &self,
        end: u32,
        sequence: u64,
        length: usize,
        memory: LargeLease,
    ) -> Option<LandingId> {
        let landing = self.event_loop.on_link(self.id, |link, _| {
            link.send_large(end, sequence, length, memory)
        });
        landing.flatten()
    }

    pub(crate) fn pass_large(
        &self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: usize,
        capacity: usize,
        fd: Option<OwnedFd>,
    ) {
        let (length, capacity) = (length as u64, capacity as u64);
        self.event_loop.on_link(self.id, |link, _| {
            link.core
                .pass_large(end, sequence, slot, length, capacity, fd);
        });
    }

    pub(crate) fn pass_forget(&self, end: u32, slots: u64) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.pass_forget(end, slots));
    }

    pub(crate) fn ask(&self, end: u32, ask: Ask) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.ask(end, ask));
    }

    /// Asks for an acknowledgement that was perhaps asked for before.
    pub(crate) fn ask_once(&self, end: u32, sequence: u64) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.ask_once(end, sequence));
    }

    /// Lets another end of the name of `end` be opened, while that end has yet to be dropped.
    pub fn free_name(&self, end: u32) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.free_name(end));
    }

    pub(crate) fn close_sender(&self, end: u32, last: u64, reason: CloseReason) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.close_sender(end, last, reason));
    }

    pub(crate) fn close_receiver(&self, end: &ReceiveEnd, reason: CloseReason) {
        let counters = end.counters();
        self.event_loop.on_link(self.id, |link, _| {
            link.core.close_receiver(end.id, &counters, reason);
        });
    }

    /// A receiving end lacks memory for what has come: who waits for it is woken at `retry_at`.
    #[cold]
    pub(crate) fn receiver_retries(&self, end: u32, retry_at: Instant) {
        self.event_loop
            .on_link(self.id, |link, _| link.core.receiver_retries(end, retry_at));
    }

    /// The peer's words or bytes cannot be: the session ends.
    #[cold]
    pub(crate) fn misbehaved(&self, what: &str) {
        let why = format!("it broke the protocol: {what}");
        self.event_loop
            .on_link(self.id, |link, context| link.core.fail(&why, context));
    }
}

impl Drop for SessionShared {
    fn drop(&mut self) {
        if fork::is_child() {
            // What they hold stays.
            mem::forget(self.runtime.clone());
            self.carrier.forget();
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

/// What `send` queues before it runs a turn under `Driver::Caller`: writes of 5 KiB carry
/// 10–14 million records of 64 bytes per second, writes of 32 KiB 40–75 million.
const CALLER_BATCH_BYTES: usize = 32 << 10;
