//! Asynchronous events, which a device reports without being asked.
//!
//! A device has one reader, because each event is given to one reader only. The reader does not
//! block; its descriptor goes into the set that the owner sleeps on. An event is copied out and
//! acknowledged at once, so that no object's destruction waits for it.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DeviceContext, set_nonblocking};
use crate::{AsyncEvent, Device, VerbsError};

/// The one reader of a device's asynchronous events.
#[derive(Debug)]
pub struct AsyncEvents {
    context: Arc<DeviceContext>,
}

impl AsyncEvents {
    /// Takes the reader; `None` while another one of this device exists.
    ///
    /// # Errors
    /// [`VerbsError`] if reading cannot be made non-blocking.
    pub fn of(device: &Device) -> Result<Option<Self>, VerbsError> {
        let context = device.context();
        // READER, pairs with the drop: the reader before this one has read its last event.
        if context.events_taken.swap(true, Ordering::Acquire) {
            return Ok(None);
        }
        let events = Self {
            context: Arc::clone(context),
        };
        let failed = context.failed("fcntl", "reading events could block a turn");
        set_nonblocking(context.async_fd()).map_err(failed)?;
        Ok(Some(events))
    }

    /// Returns the next event; `None` when none waits.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    pub fn take(&mut self) -> Result<Option<AsyncEvent>, VerbsError> {
        let event = self.context.next_event()?;
        Ok(event.map(|raw| AsyncEvent::from_raw(raw.event_type, raw.element)))
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        // READER, pairs with `of`.
        self.context.events_taken.store(false, Ordering::Release);
    }
}
