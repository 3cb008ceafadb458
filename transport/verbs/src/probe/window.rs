//! The self-test for memory windows: a queue pair reads its own memory through one, and fails to once
//! the window is invalidated.

use std::sync::atomic::Ordering;

use super::polling::TestQueue;
use crate::{
    BindRequest, CompletionPolling, Device, LocalPort, MemoryWindow, Operation, ProbeFailure,
    ProtectionDomain, ReadRequest, RegionAccess, RemoteAddress, VerbsError, WindowError,
    WindowKind, WorkId,
};

/// The length of the window, and of the read.
const BYTES: usize = 48;
/// The offsets of the window and of the read's target.
const FROM: usize = 1024;
const TO: usize = 2048;

/// Tests whether peers can read through a memory window of type 2 of a device, and no longer once
/// it is invalidated: a queue pair at the port that `local` gives is connected to itself, over a
/// completion queue that is polled in the way `polling`. The test takes milliseconds, or a second if
/// a completion does not come.
///
/// # Errors
/// [`ProbeFailure`], with the reason why they cannot, or can for too long, as far as the test can
/// tell.
pub fn reads_by_window(
    domain: &ProtectionDomain,
    device: &Device,
    polling: CompletionPolling,
    local: impl Fn() -> Result<LocalPort, VerbsError>,
) -> Result<(), ProbeFailure> {
    let local = local()?;
    let access = [
        RegionAccess::RECEIVE.and(RegionAccess::WINDOWS),
        RegionAccess::REMOTE_READ,
    ];
    let mut test = TestQueue::make(domain, device, &local, polling, false, access)?;
    test.connect(local)?;
    let mut window = MemoryWindow::new(domain, WindowKind::Two)?;
    test.byte(FROM + BYTES - 1).store(7, Ordering::Relaxed);
    let id = |slot| WorkId::new(Operation::Window, slot, 0);
    let bind = BindRequest::new(id(0), FROM..FROM + BYTES, RegionAccess::REMOTE_READ);
    let place = test
        .pair
        .bind_window(&mut window, &test.region, &bind)
        .map_err(refused)?;
    post_read(&mut test, place)?;
    if !succeed(&mut test, &mut window, 2)? {
        return Err(ProbeFailure::wrong("a read through a window failed"));
    }
    if test.byte(TO + BYTES - 1).load(Ordering::Relaxed) != 7 {
        return Err(ProbeFailure::wrong(
            "a read through a window brought other bytes",
        ));
    }
    test.pair
        .invalidate_window(&mut window, id(1))
        .map_err(refused)?;
    if !succeed(&mut test, &mut window, 1)? {
        return Err(ProbeFailure::wrong("a window could not be invalidated"));
    }
    post_read(&mut test, place)?;
    match succeed(&mut test, &mut window, 1)? {
        false => Ok(()),
        true => Err(ProbeFailure::wrong("a window was read that is invalidated")),
    }
}

fn post_read(test: &mut TestQueue, place: RemoteAddress) -> Result<(), ProbeFailure> {
    let targets = [test.region.target(TO..TO + BYTES)];
    let id = WorkId::new(Operation::Read, 0, 0);
    let mut batch = test.pair.send_batch();
    batch
        .push_read(&ReadRequest::new(id, &targets, place).signaled())
        .map_err(|_| ProbeFailure::wrong("its connections carry no reads"))?;
    batch.post().map_err(|_| ProbeFailure::refused())?;
    Ok(())
}

/// Waits for this many completions. Returns whether all requests succeeded.
fn succeed(
    test: &mut TestQueue,
    window: &mut MemoryWindow,
    count: usize,
) -> Result<bool, ProbeFailure> {
    let late = |_| "a completion of a window did not come".to_owned();
    let seen = test.completions(count, late)?;
    let all = seen.iter().fold(true, |all, one| {
        all & window.take(one).is_ok() & one.outcome().is_ok()
    });
    test.pair.retire_sends(count as u32);
    Ok(all)
}

fn refused(error: WindowError) -> ProbeFailure {
    ProbeFailure::wrong(error.to_string())
}
