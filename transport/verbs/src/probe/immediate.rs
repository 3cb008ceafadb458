//! The self-test for immediate data: a queue pair writes to itself, and is to be notified of it.

use std::sync::atomic::Ordering;

use super::polling::{TestQueue, post_send};
use crate::{
    CompletionKind, CompletionPolling, Device, LocalPort, Operation, ProbeFailure,
    ProtectionDomain, RegionAccess, SendRequest, VerbsError, WorkId,
};

/// The word of the test write, and its length.
const WORD: u32 = 0x1234_5678;
const BYTES: usize = 48;
/// The offsets of the write's source and target.
const FROM: usize = 1024;
const TO: usize = 2048;

/// Tests whether writes of a device carry immediate data: a queue pair at the port that `local`
/// gives is connected to itself and writes, over a completion queue that is polled in the way
/// `polling`. The test takes milliseconds, or a second if no completion reports the write.
///
/// # Errors
/// [`ProbeFailure`], with the reason why writes carry none, as far as the test can tell.
pub fn carries_immediate(
    domain: &ProtectionDomain,
    device: &Device,
    polling: CompletionPolling,
    local: impl Fn() -> Result<LocalPort, VerbsError>,
) -> Result<(), ProbeFailure> {
    let local = local()?;
    let access = [RegionAccess::REMOTE_WRITE; 2];
    let mut test = TestQueue::make(domain, device, &local, polling, false, access)?;
    test.connect(local)?;
    test.post_receive(0, 0)?;
    test.byte(FROM + BYTES - 1).store(7, Ordering::Relaxed);
    let entries = [test.region.entry(FROM..FROM + BYTES)];
    let id = WorkId::new(Operation::Write, 0, 0);
    let write = SendRequest::write(id, &entries, test.region.remote(TO));
    post_send(&mut test.pair, &write.with_immediate(WORD).signaled())?;
    let mut is_notified = false;
    let silence = "nobody was told of such a write";
    for completion in test.completions(2, |_| silence.to_owned())? {
        let Ok(done) = completion.outcome() else {
            return Err(ProbeFailure::wrong("such a write failed"));
        };
        is_notified |= done.kind == CompletionKind::ReceiveWrite && done.immediate == Some(WORD);
    }
    if !is_notified {
        return Err(ProbeFailure::wrong(silence));
    }
    match test.byte(TO + BYTES - 1).load(Ordering::Relaxed) {
        7 => Ok(()),
        _ => Err(ProbeFailure::wrong("such a write was told of and not made")),
    }
}
