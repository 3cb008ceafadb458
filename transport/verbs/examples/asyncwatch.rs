//! Prints the asynchronous events of a device as they come, until one says that the device is broken.
//!
//! ```text
//! cargo run -p ibex-verbs --features libibverbs --example asyncwatch -- rxe0
//! ```
//!
//! Without a name it watches the first device. Without the feature `libibverbs` that is one made of
//! memory, which breaks at once.

#[path = "common/mod.rs"]
mod common;

use std::env;

use common::Outcome;
use ibex_verbs::{AsyncEvent, AsyncEvents, Device};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Gives each event of a device to `tell`, until one says that the device is broken.
pub(crate) fn watch(device: &Device, mut tell: impl FnMut(&AsyncEvent)) -> Outcome {
    let events = AsyncEvents::of(device)?;
    let mut events = events.ok_or("another reader takes the events of the device")?;
    loop {
        while let Some(event) = events.take()? {
            tell(&event);
            if event == AsyncEvent::DeviceFatal {
                return Ok(());
            }
        }
        match poll(&mut [PollFd::new(&events, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(feature = "libibverbs")]
fn device() -> Outcome<Device> {
    common::open(&common::provider()?, env::args().nth(1).as_deref())
}

#[cfg(not(feature = "libibverbs"))]
fn device() -> Outcome<Device> {
    use ibex_verbs::provider::RawEvent;

    let fake = common::fake();
    let device = common::open(&fake.provider(), env::args().nth(1).as_deref())?;
    let fatal = RawEvent {
        event_type: 8,
        element: 0,
    };
    fake.raise(device.name(), fatal);
    Ok(device)
}

fn main() -> Outcome {
    let device = device()?;
    println!("watching the events of {}", device.name());
    watch(&device, |event| println!("  {event}"))
}
