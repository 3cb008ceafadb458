//! A queue pair on its way to a session: made, told to the peer, connected, admitted.
//!
//! It takes receives from the start, so a peer may send as soon as both ends are
//! connected. Dropped on the way, it is destroyed, and its place in the site is free.

use std::sync::Arc;

use ibex_protocol::{framing::Carriage, signal_cadence::INTERVAL};
use ibex_ring::memory::{Mapping, MemoryUse};
use ibex_verbs::{
    FirstSequence, LocalPort, MemoryRegion, ProtectionDomain, QueuePair, RegionAccess, VerbsError,
};

use super::{
    arrival_buffers::ArrivalBuffers,
    device_memory::DeviceMapping,
    pair_endpoint::PairEndpoint,
    site::{SEND_ENTRIES, Seat, Site},
    site_settings::SiteSettings,
    unjoined::Ticket,
};

/// The queue pair.
#[derive(Debug)]
pub struct PreparedPair {
    // In the order in which they go.
    pub(crate) pair: QueuePair,
    pub(crate) own: Option<ArrivalBuffers>,
    pub(crate) heads: MemoryRegion<DeviceMapping>,
    pub(crate) seat: Seat,
    ticket: Ticket,

    // The connection.
    first: FirstSequence,
    local: LocalPort,
    theirs: Option<PairEndpoint>,
    /// True if this side dialed.
    dialed: bool,
    /// The peer may be granted memory to write to.
    pub(super) grants_memory: bool,
}

/// Memory for the heads of frames that are not inline, for each session: a send queue's
/// worth of the usual 64 to 128 bytes, and some control messages of up to 4 KiB.
const HEADS_BYTES: usize = 32 << 10;
/// Number of frames that have room there on a device that takes so few pieces that frames are
/// copied. It is twice the frames between two completions, because the room of the first would
/// otherwise be waited for while no completion was asked for, and the room that has to be free
/// before another frame is taken.
const COPIED_FRAMES: usize = 2 * INTERVAL as usize + 2;

impl PreparedPair {
    pub(super) fn new(
        seat: Seat,
        domain: &ProtectionDomain,
        mut pair: QueuePair,
        ticket: Ticket,
        first: FirstSequence,
        local: LocalPort,
        dialed: bool,
    ) -> Result<Self, VerbsError> {
        let site = &seat.site;
        let settings = site.settings();
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
                // As many can be held, in proportion, as on a shared queue.
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
                    .map_err(|error| site.refused(&error))?;
                Some(buffers)
            }
        };
        Ok(Self {
            pair,
            own,
            heads,
            seat,
            ticket,
            first,
            local,
            theirs: None,
            dialed,
            grants_memory: false,
        })
    }

    /// Returns the description that the peer has to be told.
    #[must_use]
    pub fn endpoint(&self) -> PairEndpoint {
        let settings = self.seat.site.settings();
        PairEndpoint {
            pair: self.pair.endpoint(self.first, &self.local),
            buffer_bytes: settings.buffer_bytes,
            credit: self.own.as_ref().map_or(0, |_| settings.session_credit),
            max_inline_bytes: self.pair.max_inline_bytes(),
            max_send_entries: pieces(&self.pair, settings) as u16,
            max_receive_entries: 1,
            // Before a message goes the head of its block.
            immediate: self.seat.site.has_immediate() && pieces(&self.pair, settings) > 1,
        }
    }

    /// Connects it to the peer's: RTR, RTS. The peer may send from now on, and we once it
    /// has said that it has connected too.
    ///
    /// # Errors
    /// [`VerbsError`]: the ends do not fit, or the device refuses. Drop it then.
    pub fn connect(&mut self, theirs: &PairEndpoint) -> Result<(), VerbsError> {
        theirs.check()?;
        self.pair.connect(self.first, self.local, theirs.pair)?;
        self.theirs = Some(*theirs);
        Ok(())
    }

    /// Returns the pair's site.
    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.seat.site
    }

    /// By which the engine knows what arrived for it before its session was made.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket.get()
    }

    /// Returns the framing between the two ends.
    pub(crate) fn carriage(&self) -> Carriage {
        let ours = self.seat.site.settings().buffer_bytes;
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

    /// Buffers that the peer lets us fill; `None` before it is connected.
    pub(crate) fn peer_credit(&self) -> Option<u32> {
        self.theirs.map(|theirs| theirs.credit)
    }
}

/// Pieces of one send: no more than were asked for, though devices round up.
fn pieces(pair: &QueuePair, settings: &SiteSettings) -> u32 {
    pair.max_send_entries().min(settings.send_entries)
}
