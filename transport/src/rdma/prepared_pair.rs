//! A queue pair that is prepared for a session: made, announced to the peer, connected, admitted.
//!
//! It takes receives from the start, so a peer may send as soon as both ends are connected.
//! Dropping it before it is admitted destroys it and frees its place in the RDMA port.

use std::{array, mem, sync::Arc};

use ibex_protocol::{framing::Carriage, signal_cadence::INTERVAL};
use ibex_ring::memory::{Mapping, MemoryUse};
use ibex_verbs::{
    FirstSequence, LocalPort, MemoryRegion, ProtectionDomain, QueuePair, ReadLimits, RegionAccess,
    VerbsError,
};

use super::{
    arrival_buffers::ArrivalBuffers,
    device_memory::DeviceMapping,
    offer_windows::OfferWindows,
    pair_endpoint::PairEndpoint,
    pending_pairs::ListedPair,
    port_settings::PortSettings,
    prepared_rail::{MOST_RAILS, PreparedRail, RailEndpoint},
    rdma_port::{RdmaPort, SEND_ENTRIES, SessionPermit},
};

/// A queue pair that has no session yet.
#[derive(Debug)]
pub struct PreparedPair {
    // Fields in drop order.
    pub(crate) pair: QueuePair,
    /// The windows through which the peer may read large messages.
    pub(crate) windows: OfferWindows,
    /// The rails that were prepared, and once the pair is connected those that are connected, by
    /// number.
    pub(crate) rails: Vec<Option<PreparedRail>>,
    pub(crate) own: Option<ArrivalBuffers>,
    pub(crate) heads: MemoryRegion<DeviceMapping>,
    pub(crate) permit: SessionPermit,
    ticket: ListedPair,

    // The connection.
    first: FirstSequence,
    local: LocalPort,
    theirs: Option<PairEndpoint>,
    /// True if this side dialed.
    dialed: bool,
    /// The peer may be granted memory to write to.
    pub(super) grants_memory: bool,
    /// The peer is notified of rails, whether or not they can be connected.
    has_rails: bool,
}

/// Memory of each session for the heads of frames that are not inline: enough for a full send queue
/// of the usual 64 to 128 bytes each, and for some control messages of up to 4 KiB.
const HEADS_BYTES: usize = 32 << 10;
/// Number of frames for which there is room on a device that takes so few pieces that frames are
/// copied. It covers twice the frames between two completions, and the room that must be free
/// before another frame is taken. With fewer, the session would wait for the room of frames for
/// which it has requested no completion.
const COPIED_FRAMES: usize = 2 * INTERVAL as usize + 2;

impl PreparedPair {
    pub(super) fn new(
        permit: SessionPermit,
        domain: &ProtectionDomain,
        mut pair: QueuePair,
        ticket: ListedPair,
        first: FirstSequence,
        local: LocalPort,
        dialed: bool,
    ) -> Result<Self, VerbsError> {
        let rdma_port = &permit.rdma_port;
        let settings = rdma_port.settings();
        let heads_bytes = match pieces(&pair, settings) {
            SEND_ENTRIES.. => HEADS_BYTES,
            _ => COPIED_FRAMES * settings.buffer_bytes as usize,
        };
        let heads = Mapping::anonymous(MemoryUse::FrameHeads, heads_bytes)
            .map_err(|error| VerbsError::Other(error.into()))?;
        let heads = MemoryRegion::register(domain, DeviceMapping(heads), RegionAccess::SEND)?;
        let own = match pair.receive_queue() {
            None => None,
            Some(queue) => {
                let posted = settings.own_buffers();
                // The share of buffers that messages can hold is the same as on a shared queue.
                let held = u64::from(settings.held_buffers) * u64::from(posted)
                    / u64::from(settings.receive_buffers);
                let mut buffers = ArrivalBuffers::register(
                    domain,
                    posted,
                    0,
                    held as u32,
                    settings.buffer_bytes as usize,
                )?;
                buffers
                    .refill(queue)
                    .map_err(|error| rdma_port.refused(&error))?;
                Some(buffers)
            }
        };
        Ok(Self {
            pair,
            windows: OfferWindows::default(),
            rails: Vec::new(),
            own,
            heads,
            permit,
            ticket,
            first,
            local,
            theirs: None,
            dialed,
            grants_memory: false,
            has_rails: false,
        })
    }

    /// Returns the description to send to the peer.
    #[must_use]
    pub fn endpoint(&self) -> PairEndpoint {
        let settings = self.permit.rdma_port.settings();
        PairEndpoint {
            pair: self.pair.endpoint(self.first, &self.local),
            buffer_bytes: settings.buffer_bytes,
            credit: self.own.as_ref().map_or(0, |_| settings.session_credit),
            max_inline_bytes: self.pair.max_inline_bytes(),
            max_send_entries: pieces(&self.pair, settings) as u16,
            max_receive_entries: 1,
            // A write with immediate data has two pieces: the head of the block and the message.
            immediate: self.permit.rdma_port.has_immediate() && pieces(&self.pair, settings) > 1,
            reads: self.own_reads(),
            rails: array::from_fn(|at| Some(self.rails.get(at)?.as_ref()?.endpoint())),
        }
    }

    /// Returns the reads that this end makes and serves, as far as it knows: a peer that is granted
    /// memory writes its messages, unless they are to go over rails.
    fn own_reads(&self) -> ReadLimits {
        let limits = self.pair.read_limits();
        let is_read = !self.grants_memory || self.has_rails;
        let reads = self.permit.rdma_port.reads_large() && is_read;
        ReadLimits {
            depth: if reads { limits.depth } else { 0 },
            resources: match self.permit.rdma_port.windows() {
                0 => 0,
                _ => limits.resources,
            },
        }
    }

    /// Connects the queue pair to the peer's: RTR, RTS. The peer may send from now on. This end may
    /// send once the peer has reported that it has connected too.
    ///
    /// # Errors
    /// [`VerbsError`] if the ends do not fit, or if the device refuses. The queue pair is of no use
    /// then.
    pub fn connect(&mut self, theirs: &PairEndpoint) -> Result<(), VerbsError> {
        theirs.check()?;
        if self.permit.rdma_port.reads_large() {
            self.pair.set_peer_read_limits(theirs.reads);
        }
        self.pair.connect(self.first, self.local, theirs.pair)?;
        self.theirs = Some(*theirs);
        if self.reads().resources > 0 {
            self.windows = OfferWindows::make(&self.permit.rdma_port);
        }
        self.connect_rails(theirs);
        Ok(())
    }

    /// Adds a rail, before the pair is connected. Those beyond [`MOST_RAILS`] are dropped.
    pub fn add_rail(&mut self, rail: PreparedRail) {
        if self.rails.len() < MOST_RAILS {
            self.rails.push(Some(rail));
            self.has_rails = true;
        }
    }

    /// Connects the rails to those of the peer, as far as there are any. A rail that cannot be
    /// connected keeps its number, and is not used.
    fn connect_rails(&mut self, theirs: &PairEndpoint) {
        let mut prepared = mem::take(&mut self.rails);
        let ours: Vec<_> = prepared
            .iter()
            .flatten()
            .map(PreparedRail::endpoint)
            .collect();
        let theirs: Vec<_> = theirs.rails.iter().flatten().copied().collect();
        let pairs = match self.dialed {
            true => RailEndpoint::pair(&ours, &theirs),
            false => RailEndpoint::pair(&theirs, &ours),
        };
        for (dialer, acceptor) in pairs {
            let (our, their) = match self.dialed {
                true => (dialer, acceptor),
                false => (acceptor, dialer),
            };
            let mut rail = prepared[our].take();
            if let Some(connecting) = &mut rail
                && let Err(error) = connecting.connect(&theirs[their])
            {
                let device = connecting.rdma_port().device();
                tracing::debug!(device, %error, "a rail cannot be connected");
                rail = None;
            }
            self.rails.push(rail);
        }
    }

    /// Returns the pair's RDMA port.
    pub(crate) fn rdma_port(&self) -> &Arc<RdmaPort> {
        &self.permit.rdma_port
    }

    /// Returns the ticket by which the engine recognises arrivals for the queue pair from before
    /// its session was made.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket.get()
    }

    /// Returns the framing between the two ends.
    pub(crate) fn carriage(&self) -> Carriage {
        let ours = self.permit.rdma_port.settings().buffer_bytes;
        let theirs = self.theirs.map_or(ours, |theirs| theirs.buffer_bytes);
        Carriage::Buffers {
            bytes: ours.min(theirs) as usize,
        }
    }

    /// Returns whether this side dialed.
    pub(crate) fn dialed(&self) -> bool {
        self.dialed
    }

    /// Returns whether the peer may be granted memory to write to.
    pub(crate) fn grants_memory(&self) -> bool {
        self.grants_memory
    }

    /// Returns whether writes between the two ends carry immediate data.
    pub(crate) fn immediate(&self) -> bool {
        self.endpoint().immediate && self.theirs.is_some_and(|theirs| theirs.immediate)
    }

    /// Returns the reads of large messages that this end makes at a time, and those of the peer that
    /// it serves.
    pub(crate) fn reads(&self) -> ReadLimits {
        let none = ReadLimits {
            depth: 0,
            resources: 0,
        };
        let theirs = self.theirs.map_or(none, |theirs| theirs.reads);
        self.own_reads().with_peer(theirs)
    }

    /// Returns how many pieces of the peer's messages may be read and not handed on. Over rails pieces
    /// overtake each other, and each lane has its own limit.
    pub(crate) fn most_reads(&self) -> u32 {
        let depth = u32::from(self.reads().depth);
        let rails = self.rails.iter().flatten().map(PreparedRail::read_depth);
        match rails.sum() {
            0 => depth,
            rails if depth > 0 => 2 * (depth + rails),
            _ => 0,
        }
    }

    /// Returns the device ports of the rails.
    pub(crate) fn rail_ports(&self) -> Vec<Arc<RdmaPort>> {
        let rails = self.rails.iter().flatten();
        rails.map(|rail| rail.rdma_port().clone()).collect()
    }

    /// Returns the number of buffers that the peer lets this end fill; `None` before the queue pair
    /// is connected.
    pub(crate) fn peer_credit(&self) -> Option<u32> {
        self.theirs.map(|theirs| theirs.credit)
    }
}

/// Returns the most pieces of one send: at most the number that was asked for, although devices
/// round up.
fn pieces(pair: &QueuePair, settings: &PortSettings) -> u32 {
    pair.max_send_entries().min(settings.send_entries)
}
