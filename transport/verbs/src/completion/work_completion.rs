//! The completion of a work request.
//!
//! Only four fields of a failed completion mean anything
//! ([`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html)): the id, the
//! status, the queue pair and the vendor's code. So [`WorkCompletion::outcome`] is the one way to
//! look at either kind, and [`CompletionFailure`] has exactly these four.
#![forbid(unsafe_code)]

use crate::abi::{Wc, wc_flags, wc_opcode};
use crate::{CompletionStatus, Fault, Operation, RemoteKey, WorkId};

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct WorkCompletion(pub(crate) Wc);

impl WorkCompletion {
    /// An empty entry, from which arrays for [`poll`](crate::CompletionQueue::poll) are made.
    pub const EMPTY: Self = Self(Wc {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    });

    /// Returns the request's identity.
    #[inline]
    #[must_use]
    pub fn id(&self) -> WorkId {
        WorkId::from_raw(self.0.wr_id)
    }

    /// Returns the local queue pair that the request belonged to.
    #[inline]
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// Returns the number of bytes that arrived, if the request was the receive of a message and
    /// succeeded.
    #[inline]
    #[must_use]
    pub fn received(&self) -> Option<u32> {
        (self.0.status == 0 && self.0.opcode == wc_opcode::RECV).then_some(self.0.byte_len)
    }

    /// Returns the time of a receive, in nanoseconds since 1970, if its queue has times; for other
    /// queues the value means nothing.
    #[inline]
    #[must_use]
    pub fn time(&self) -> u64 {
        let low = u64::from(self.0.src_qp);
        low | u64::from(self.0.pkey_index) << 32 | u64::from(self.0.slid) << 48
    }

    /// Writes the time into fields that only datagrams use, so that an entry is no longer than the
    /// provider's.
    pub(crate) fn set_time(wc: &mut Wc, nanoseconds: u64) {
        wc.src_qp = nanoseconds as u32;
        wc.pkey_index = (nanoseconds >> 32) as u16;
        wc.slid = (nanoseconds >> 48) as u16;
    }

    /// Returns the key of this end that the message has invalidated
    /// ([`MemoryWindow::note_invalidated`](crate::MemoryWindow::note_invalidated)), if the request was
    /// a receive of a reliable connection and succeeded; for datagrams the value means nothing.
    #[must_use]
    pub fn invalidated(&self) -> Option<RemoteKey> {
        let flags = self.0.wc_flags;
        // Soft-RoCE sets the other bit, which connections have no use for.
        let is_marked = flags & (wc_flags::WITH_INV | wc_flags::IP_CSUM_OK) != 0;
        let is_receive = self.0.status == 0 && self.0.opcode == wc_opcode::RECV;
        (is_receive && is_marked && flags & wc_flags::WITH_IMM == 0)
            .then_some(RemoteKey(self.0.imm_data))
    }

    /// Returns the outcome of the request.
    ///
    /// # Errors
    /// [`CompletionFailure`] if the request failed; the queue pair is dead then.
    #[inline]
    pub fn outcome(&self) -> Result<Completed, CompletionFailure> {
        if self.0.status == 0 {
            return Ok(Completed {
                kind: CompletionKind::from_raw(self.0.opcode),
                bytes: self.0.byte_len,
                immediate: (self.0.wc_flags & wc_flags::WITH_IMM != 0)
                    .then(|| u32::from_be(self.0.imm_data)),
            });
        }
        Err(CompletionFailure {
            id: self.id(),
            status: CompletionStatus::from_raw(self.0.status),
            queue_pair: self.0.qp_num,
            vendor_error: self.0.vendor_err,
        })
    }
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The kind of the completed request.
    pub kind: CompletionKind,
    /// Bytes that arrived, for receives.
    pub bytes: u32,
    /// The peer's immediate data, for receives.
    pub immediate: Option<u32>,
}

/// `enum ibv_wc_opcode`, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send of this end: the peer's device has the message.
    Send,
    /// An RDMA write of this end: the peer's device has the bytes.
    Write,
    /// An RDMA read of this end: the bytes are in its memory.
    Read,
    /// A compare and swap of this end: the value before it is in its memory.
    CompareAndSwap,
    /// A fetch and add of this end: the value before it is in its memory.
    FetchAndAdd,
    /// A memory window of this end is bound.
    BindWindow,
    /// A key of this end is invalid.
    LocalInvalidate,
    /// A message arrived.
    Receive,
    /// An RDMA write with immediate data arrived; the bytes are where the peer put them.
    ReceiveWrite,
    /// A number that this version does not know.
    Unknown(u32),
}

impl CompletionKind {
    #[inline]
    fn from_raw(raw: u32) -> Self {
        match raw {
            wc_opcode::SEND => Self::Send,
            wc_opcode::RDMA_WRITE => Self::Write,
            wc_opcode::RDMA_READ => Self::Read,
            wc_opcode::COMPARE_AND_SWAP => Self::CompareAndSwap,
            wc_opcode::FETCH_AND_ADD => Self::FetchAndAdd,
            wc_opcode::BIND_WINDOW => Self::BindWindow,
            wc_opcode::LOCAL_INVALIDATE => Self::LocalInvalidate,
            wc_opcode::RECV => Self::Receive,
            wc_opcode::RECV_RDMA_WITH_IMM => Self::ReceiveWrite,
            other => Self::Unknown(other),
        }
    }
}

/// A request that failed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue pair {queue_pair:#x} failed in {id}: {status} (vendor {vendor_error:#x}); the queue \
     pair is dead and everything else on it is flushed"
)]
pub struct CompletionFailure {
    /// The request's identity.
    pub id: WorkId,
    /// The status that tells the reason.
    pub status: CompletionStatus,
    /// The local queue pair.
    pub queue_pair: u32,
    /// The device's own code for the failure.
    pub vendor_error: u32,
}

ibex_base::debug_as_display!(CompletionFailure);

impl CompletionFailure {
    /// Returns the party to blame for the failure.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match (self.id.operation(), self.status) {
            // A receive asks for nothing, so the peer has sent more than was agreed on. Devices
            // differ in which of the two statuses they report.
            (
                Operation::Receive,
                CompletionStatus::LocalLength | CompletionStatus::LocalOperation,
            ) => Fault::Protocol,
            (_, status) => status.fault(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_queue_pair_request_cause_and_consequence() {
        let failed = WorkCompletion(Wc {
            wr_id: WorkId::new(Operation::Send, 4, 1).to_raw(),
            status: 12,
            vendor_err: 0x81,
            qp_num: 0x2a,
            // The other fields, which a device fills, must not be read.
            opcode: 999,
            byte_len: 999,
            ..Wc::default()
        });
        let failure = failed.outcome().unwrap_err();
        assert_eq!(failure.fault(), Fault::Link);
        assert_eq!(
            failure.to_string(),
            "queue pair 0x2a failed in send 4.1: retries exceeded: the peer does not acknowledge \
             (status 12) (vendor 0x81); the queue pair is dead and everything else on it is flushed"
        );
    }

    #[test]
    fn a_message_that_is_too_long_is_the_senders_fault() {
        for status in [1, 2] {
            let fault = |operation| {
                let wr_id = WorkId::new(operation, 0, 0).to_raw();
                let failed = WorkCompletion(Wc {
                    wr_id,
                    status,
                    ..Wc::default()
                });
                failed.outcome().unwrap_err().fault()
            };
            assert_eq!(fault(Operation::Receive), Fault::Protocol);
            assert_eq!(fault(Operation::Send), Fault::Ours);
        }
    }

    #[test]
    fn immediate_data_is_there_only_where_the_flag_says_so() {
        let mut wc = Wc {
            opcode: wc_opcode::RECV,
            byte_len: 64,
            imm_data: 7_u32.to_be(),
            ..Wc::default()
        };
        assert_eq!(WorkCompletion(wc).outcome().unwrap().immediate, None);
        wc.wc_flags = wc_flags::WITH_IMM;
        let completed = WorkCompletion(wc).outcome().unwrap();
        assert_eq!(completed.immediate, Some(7));
        assert_eq!(completed.kind, CompletionKind::Receive);
        wc.opcode = 77;
        assert_eq!(
            WorkCompletion(wc).outcome().unwrap().kind,
            CompletionKind::Unknown(77)
        );
    }
}
