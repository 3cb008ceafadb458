//! The clock by which a device stamps completions, and the conversion of its ticks into the
//! system's time.
//!
//! Ticks are read raw and turned into time here, not by the provider: the provider's own conversion
//! may be busy while the kernel updates it, and costs each poll. Both clocks are read again, at one
//! moment, when a stamp is more than [`LASTS`] away from the last reading, so the clocks' drift
//! (some ppm) stays below a few microseconds.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::DeviceContext;
use crate::Device;

/// The clock of a device.
#[derive(Debug)]
pub(crate) struct DeviceClock {
    context: Arc<DeviceContext>,
    /// A reading of both clocks at one moment.
    ticks: u64,
    nanoseconds: u64,
}

/// The time for which two readings are good, in nanoseconds.
const LASTS: u64 = 1_000_000_000;

impl DeviceClock {
    /// Returns the device's clock, or the reason why it has none.
    pub(crate) fn of(device: &Device) -> Result<Self, Errno> {
        let context = device.context();
        let notified = &context.attributes;
        if notified.clock_kilohertz == 0 || notified.timestamp_mask == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut clock = Self {
            context: Arc::clone(context),
            ticks: 0,
            nanoseconds: 0,
        };
        clock.read()?;
        Ok(clock)
    }

    /// Converts a stamp into nanoseconds since 1970.
    pub(crate) fn nanoseconds(&mut self, ticks: u64) -> u64 {
        let mut since = self.since(ticks);
        if since.unsigned_abs() > LASTS && self.read().is_ok() {
            since = self.since(ticks);
        }
        self.nanoseconds.saturating_add_signed(since)
    }

    /// The ticks from the last reading to a stamp, which may lie before it.
    fn since(&self, ticks: u64) -> i64 {
        let mask = self.context.attributes.timestamp_mask;
        let ahead = ticks.wrapping_sub(self.ticks) & mask;
        let behind = self.ticks.wrapping_sub(ticks) & mask;
        match ahead <= behind {
            true => self.duration(ahead),
            false => -self.duration(behind),
        }
    }

    fn duration(&self, ticks: u64) -> i64 {
        let kilohertz = self.context.attributes.clock_kilohertz;
        let nanoseconds = u128::from(ticks) * 1_000_000 / u128::from(kilohertz);
        i64::try_from(nanoseconds).unwrap_or(i64::MAX)
    }

    fn read(&mut self) -> Result<(), Errno> {
        let before = now();
        let context = &self.context;
        // SAFETY: the context is open.
        let ticks = unsafe { context.provider().read_clock(context.opened.handle) }?;
        self.ticks = ticks & context.attributes.timestamp_mask;
        self.nanoseconds = before + (now().saturating_sub(before)) / 2;
        Ok(())
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
