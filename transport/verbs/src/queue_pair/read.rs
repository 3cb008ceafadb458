//! RDMA reads, and how many of them a connection carries at a time.
//!
//! A read takes bytes out of memory that the peer has granted
//! ([`RegionAccess::REMOTE_READ`](crate::RegionAccess::REMOTE_READ), or a memory window), into a
//! [target](crate::MemoryRegion::target) of this end. The peer is not notified. The bytes are there when
//! the request has completed: until then the device writes the target, and its region keeps it
//! mapped (rule 1 of the memory region).
//!
//! Each end of a connection does so many reads and atomics at a time, and serves so many of the
//! peer's. A request beyond the first number waits in the send queue. More than the peer serves would
//! break the connection, so the ends tell each other their numbers: [`ReadLimits`].
#![forbid(unsafe_code)]

use super::work_request::flag_methods;
use crate::{PushError, RemoteAddress, SendBatch, TargetEntry, WorkId, abi::wr_opcode};

/// A request that reads memory of the peer.
///
/// The batch borrows the target until it is posted; afterwards the region keeps it:
///
/// ```compile_fail,E0505
/// # use ibex_verbs::*;
/// # type Region = MemoryRegion<AnonymousMemory>;
/// fn late(pair: &mut QueuePair, region: Region, id: WorkId, from: RemoteAddress) {
///     let targets = [region.target(0..8)];
///     let mut batch = pair.send_batch();
///     batch.push_read(&ReadRequest::new(id, &targets, from)).unwrap();
///     drop(region);
///     batch.post().unwrap();
/// }
/// ```
///
/// The verb is
/// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html) with
/// `IBV_WR_RDMA_READ`.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest<'entries, 'memory> {
    id: WorkId,
    flags: u32,
    remote: RemoteAddress,
    entries: &'entries [TargetEntry<'memory>],
}

impl<'entries, 'memory> ReadRequest<'entries, 'memory> {
    /// Reads as many bytes as `entries` hold, one after the other, from memory that the peer has
    /// granted.
    #[must_use]
    pub fn new(
        id: WorkId,
        entries: &'entries [TargetEntry<'memory>],
        remote: RemoteAddress,
    ) -> Self {
        Self {
            id,
            flags: 0,
            remote,
            entries,
        }
    }

    flag_methods! {
        /// Makes a completion.
        pub fn signaled(self) |= SIGNALED;
        /// Waits for earlier RDMA reads and atomics of this queue pair.
        pub fn fenced(self) |= FENCE;
    }
}

impl<'memory> SendBatch<'_, 'memory> {
    /// Adds a read.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was. [`PushError::NoReads`] if the connection carries none.
    pub fn push_read(&mut self, request: &ReadRequest<'_, 'memory>) -> Result<(), PushError> {
        self.add_read(request)
    }
}

impl<'memory, K> SendBatch<'_, 'memory, K> {
    pub(super) fn add_read(&mut self, request: &ReadRequest<'_, 'memory>) -> Result<(), PushError> {
        let table = self.table_of_reads()?;
        let place = table.push_other(request.id, request.flags, request.entries)?;
        place.opcode = wr_opcode::RDMA_READ;
        place.remote_addr = request.remote.address;
        place.rkey = request.remote.rkey;
        Ok(())
    }
}

/// The numbers of reads and atomics that one end of a connection allows at a time.
///
/// The ends tell each other [`QueuePair::read_limits`](crate::QueuePair::read_limits) beside their
/// endpoints, and each gives the other's to
/// [`QueuePair::set_peer_read_limits`](crate::QueuePair::set_peer_read_limits) before it connects.
/// Then neither does more than the other serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// The reads and atomics that the end has outstanding (`max_rd_atomic`).
    pub depth: u8,
    /// The peer's reads and atomics that the end serves (`max_dest_rd_atomic`).
    pub resources: u8,
}

impl ReadLimits {
    /// Returns what is left of these limits with a peer of those.
    #[must_use]
    pub fn with_peer(self, peer: Self) -> Self {
        Self {
            depth: self.depth.min(peer.resources),
            resources: self.resources.min(peer.depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_end_reads_more_than_the_other_serves() {
        let limits = |depth, resources| ReadLimits { depth, resources };
        let (ours, theirs) = (limits(16, 4), limits(8, 2));
        assert_eq!(ours.with_peer(theirs), limits(2, 4));
        assert_eq!(theirs.with_peer(ours), limits(4, 2));
    }
}
