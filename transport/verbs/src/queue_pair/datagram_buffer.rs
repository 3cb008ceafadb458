//! The memory that a datagram arrives in: 40 bytes for the route, then the payload.

use std::ops::Range;

use crate::abi::{wc_flags, wc_opcode};
use crate::{DeviceMemory, GlobalHeader, MemoryRegion, TargetEntry, WorkCompletion};

/// A place in a memory region for one datagram.
///
/// ```
/// # use ibex_verbs::DatagramBuffer;
/// let buffer = DatagramBuffer::new(4096, 1000);
/// assert_eq!(buffer.range(), 4096..4096 + 40 + 1000);
/// assert_eq!(buffer.payload().start, 4096 + 40);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramBuffer {
    offset: usize,
    payload_bytes: usize,
}

/// A [`DatagramBuffer`] of a region, to post.
#[derive(Clone, Copy, Debug)]
pub struct DatagramEntry<'memory>(pub(super) TargetEntry<'memory>);

impl DatagramBuffer {
    /// Names the place at `offset` of a region for a datagram of at most `payload_bytes`.
    #[must_use]
    pub const fn new(offset: usize, payload_bytes: usize) -> Self {
        Self {
            offset,
            payload_bytes,
        }
    }

    /// Returns the length of the whole place.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        GlobalHeader::BYTES + self.payload_bytes
    }

    /// Returns the whole place.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes()
    }

    /// Returns the place of the payload, which is behind the route.
    #[must_use]
    pub const fn payload(&self) -> Range<usize> {
        let start = self.offset + GlobalHeader::BYTES;
        start..start + self.payload_bytes
    }

    /// Returns the place of the payload that has arrived, by its completion; `None` if that is not the
    /// completion of a datagram.
    #[must_use]
    pub fn received(&self, completion: &WorkCompletion) -> Option<Range<usize>> {
        let bytes = completion.received()? as usize;
        let payload = bytes.checked_sub(GlobalHeader::BYTES)?;
        let Range { start, .. } = self.payload();
        (payload <= self.payload_bytes).then(|| start..start + payload)
    }

    /// Returns the place, to post.
    ///
    /// # Panics
    /// The panics of [`MemoryRegion::target`].
    #[must_use]
    pub fn entry<'memory, M: DeviceMemory>(
        &self,
        region: &'memory MemoryRegion<M>,
    ) -> DatagramEntry<'memory> {
        DatagramEntry(region.target(self.range()))
    }

    /// Reads the 40 bytes in front of the payload.
    ///
    /// # Panics
    /// If the place leaves the region.
    ///
    /// # Safety
    /// The place is not posted: the datagram's completion has come, and no receive was posted with the
    /// place since.
    #[must_use]
    pub unsafe fn header<M: DeviceMemory>(&self, region: &MemoryRegion<M>) -> GlobalHeader {
        assert!(
            self.range().end <= region.bytes(),
            "{:?} leaves a region of {} bytes",
            self.range(),
            region.bytes()
        );
        // SAFETY: in bounds, as just seen; nobody writes to the place (the caller's contract). Any bytes
        // are a header.
        GlobalHeader(unsafe { region.base().add(self.offset).cast().read_unaligned() })
    }
}

impl<'memory> DatagramEntry<'memory> {
    /// Returns the place for a receive of a shared queue.
    #[must_use]
    pub fn target(self) -> TargetEntry<'memory> {
        self.0
    }
}

/// The sender of a datagram, as its completion tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// The queue pair that sent the datagram.
    pub queue_pair: u32,
    /// The LID of its port; on Ethernet without meaning.
    pub lid: u16,
    /// The service level.
    pub service_level: u8,
    /// The lowest bits of the LID of our port that the datagram was sent to.
    pub path_bits: u8,
    /// The place of the datagram's partition key in the table of our port.
    pub pkey_index: u16,
    /// The 40 bytes in front of the datagram are its route. They always are on Ethernet.
    pub has_header: bool,
}

impl WorkCompletion {
    /// Returns the sender of the datagram that has arrived; `None` for other requests and failures.
    /// Only the completions of a [`DatagramQueuePair`](crate::DatagramQueuePair) have one.
    #[must_use]
    pub fn datagram(&self) -> Option<DatagramSource> {
        let wc = &self.0;
        (wc.status == 0 && wc.opcode == wc_opcode::RECV).then_some(DatagramSource {
            queue_pair: wc.src_qp,
            lid: wc.slid,
            service_level: wc.sl,
            path_bits: wc.dlid_path_bits,
            pkey_index: wc.pkey_index,
            has_header: wc.wc_flags & wc_flags::GRH != 0,
        })
    }
}
