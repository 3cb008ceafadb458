//! Polling an extended completion queue, in batches that begin and end.
//!
//! The rules of [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html):
//!
//! 1. Between a start that succeeded and its end, and only there, the queue stands at a
//!    completion: [`Batch`] is that stretch. A start that failed is not ended.
//! 2. `ENOENT` of start or next says that there is no completion, and the queue is as it
//!    was. After a next that failed the batch still has to be ended.
//! 3. `EBUSY` of start passes. Only clocks that are not requested here cause it.
//! 4. Only the fields that the queue was made with are read of a completion, and of a failed
//!    completion only those that mean something.

use std::ffi::c_int;
use std::hint;

use rustix::io::Errno;

use crate::abi::{PollAttributes, Wc, wc_flags, wc_opcode};
use crate::provider::{BatchCalls, CompletionHandle};
use crate::{WorkCompletion, device::clock::DeviceClock};

/// The calls and fields by which an extended completion queue is polled.
#[derive(Debug)]
pub(crate) struct BatchPolling {
    handle: CompletionHandle,
    calls: BatchCalls,
    /// An error that came behind completions; the caller gets the completions first.
    failed: Option<PollFailure>,
    /// The clock that converts the completions' times into the system's, if they have times.
    clock: Option<DeviceClock>,
}

/// The call that failed, and its errno.
pub(crate) type PollFailure = (&'static str, c_int);

/// The number of starts in a row that may find the queue busy before it counts as lost. A queue
/// is busy for as long as the kernel writes its clock.
const BUSY_STARTS: u32 = 1 << 16;

/// The flags that say that there is immediate data, or an invalidated key in its place.
const WITH_DATA: u32 = wc_flags::WITH_IMM | wc_flags::WITH_INV | wc_flags::IP_CSUM_OK;

const EMPTY: c_int = Errno::NOENT.raw_os_error();
const BUSY: c_int = Errno::BUSY.raw_os_error();

impl BatchPolling {
    pub(crate) fn new(
        handle: CompletionHandle,
        calls: BatchCalls,
        clock: Option<DeviceClock>,
    ) -> Self {
        Self {
            handle,
            calls,
            failed: None,
            clock,
        }
    }

    pub(crate) fn has_times(&self) -> bool {
        self.clock.is_some()
    }

    /// Takes the completions that are there, as far as they fit. Returns how many, or the call that
    /// failed.
    ///
    /// # Safety
    /// The queue is alive.
    pub(crate) unsafe fn poll(
        &mut self,
        into: &mut [WorkCompletion],
    ) -> Result<usize, PollFailure> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if into.is_empty() {
            return Ok(0);
        }
        // SAFETY: the caller's contract.
        let Some(mut batch) = (unsafe { self.begin() })? else {
            return Ok(0);
        };
        let mut found = 0;
        let ended = loop {
            batch.read(&mut into[found].0);
            found += 1;
            if found == into.len() {
                break EMPTY;
            }
            match batch.next() {
                0 => {}
                errno => break errno,
            }
        };
        drop(batch);
        if ended != EMPTY {
            self.failed = Some(("ibv_next_poll", ended));
        }
        Ok(found)
    }

    /// # Safety
    /// The queue is alive.
    unsafe fn begin(&mut self) -> Result<Option<Batch<'_>>, PollFailure> {
        const CALL: &str = "ibv_start_poll";
        let mut attributes = PollAttributes::default();
        for _ in 0..BUSY_STARTS {
            // SAFETY: the caller's contract; no batch has begun, since it would borrow `self`.
            let status = unsafe { (self.calls.start)(self.handle.as_ptr(), &raw mut attributes) };
            match status {
                0 => return Ok(Some(Batch { polling: self })),
                EMPTY => return Ok(None),
                BUSY => hint::spin_loop(),
                errno => return Err((CALL, errno)),
            }
        }
        Err((CALL, BUSY))
    }
}

/// A batch that has begun, standing at a completion. Dropping it ends it.
struct Batch<'queue> {
    polling: &'queue mut BatchPolling,
}

impl Batch<'_> {
    fn next(&mut self) -> c_int {
        // SAFETY: the queue is alive and a batch has begun (rule 1).
        unsafe { (self.polling.calls.next)(self.polling.handle.as_ptr()) }
    }

    /// Copies the completion that the batch stands at.
    #[inline]
    fn read(&mut self, into: &mut Wc) {
        let (calls, queue) = (&self.polling.calls, self.polling.handle.as_ptr());
        // SAFETY: the batch stands at a completion (rule 1); rule 4 says which fields are read.
        unsafe {
            into.wr_id = calls.wr_id.read();
            into.status = calls.status.read();
            into.qp_num = (calls.qp_num)(queue);
            (into.byte_len, into.wc_flags) = (0, 0);
            if into.status != 0 {
                into.vendor_err = (calls.vendor_err)(queue);
                return;
            }
            into.opcode = (calls.opcode)(queue);
            if into.opcode & wc_opcode::RECV == 0 {
                return;
            }
            into.byte_len = (calls.byte_len)(queue);
            into.wc_flags = (calls.flags)(queue);
            if into.wc_flags & WITH_DATA != 0 {
                into.imm_data = (calls.imm_data)(queue);
            }
        }
        if let (Some(time), Some(clock)) = (calls.time, &mut self.polling.clock) {
            // SAFETY: as above; the queue was made with times.
            let ticks = unsafe { time(queue) };
            WorkCompletion::set_time(into, clock.nanoseconds(ticks));
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // SAFETY: the queue is alive and this batch has begun and not ended (rule 1).
        unsafe { (self.polling.calls.end)(self.polling.handle.as_ptr()) }
    }
}
