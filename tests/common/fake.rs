//! The medium between both sides of a scenario in one process: a device made of memory.
//!
//! The device lacks the features that its mask removes (`ibex_verbs::provider::fake::Mask`),
//! and its completions are polled in one way. It keeps the counts that a kernel would keep for a
//! port.

use std::{
    net::Ipv4Addr,
    panic::{self, AssertUnwindSafe},
    sync::mpsc,
    thread,
};

use ibex::rdma::{CompletionPolling, RdmaSettings, Tuning};
use ibex_transport::rdma::{PortSettings, settings_of};
use ibex_verbs::provider::fake::{FakeDevice, FakeProvider, Mask};

use super::{
    line::Line,
    scenario::{Cell, Side},
    stage::Stage,
    supervisor::GRACE,
};

/// The mask of a cell's device, and the way of polling it.
#[derive(Clone, Copy)]
pub(crate) struct FakeUse {
    mask: &'static Mask,
    polling: CompletionPolling,
}

/// The device of a cell; clones share it.
#[derive(Clone)]
pub(crate) struct Fake {
    of: FakeUse,
    provider: FakeProvider,
}

impl FakeUse {
    /// Returns each mask with each of its ways of polling.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Mask::ALL.iter().flat_map(|mask| {
            let pollings = Mask::POLLINGS.iter();
            pollings.map(move |&polling| Self { mask, polling })
        })
    }

    /// Returns the name as it appears in the names of cells.
    pub(crate) fn name(self) -> String {
        let polling = match self.polling {
            CompletionPolling::Plain => "plain",
            CompletionPolling::Extended => "extended",
        };
        format!("{}/{polling}", self.mask.name)
    }

    /// Returns whether a node can have many sessions on the device.
    pub(crate) fn has_many_places(self) -> bool {
        let mut settings = PortSettings::default();
        settings_of(self.mask)(&mut settings);
        settings.max_sessions >= MANY_PLACES
    }

    fn device(self) -> Fake {
        let mut device = FakeDevice::soft_roce(DEVICE, 0, ADDRESS.octets());
        (self.mask.device)(&mut device);
        Fake {
            of: self,
            provider: FakeProvider::new(vec![device]),
        }
    }
}

impl Fake {
    /// Makes a node use the device, with its mask and way of polling.
    pub(crate) fn is_used(&self, settings: RdmaSettings) -> RdmaSettings {
        let tuning = Tuning::new().completion_polling(self.of.polling);
        let settings = settings.device(DEVICE).tuning(tuning);
        settings.on_devices(self.provider.provider(), settings_of(self.of.mask))
    }

    /// Panics unless the device was used properly: no send found the receive queue empty, and
    /// completions were polled in the intended way.
    fn check(&self) {
        assert_eq!(self.provider.rnr_naks(), 0, "a message found no receive");
        assert!(!self.provider.posted().is_empty(), "nothing was sent");
        let is_plain = self.of.polling == CompletionPolling::Plain;
        assert_eq!(self.provider.batches().0 == 0, is_plain);
    }
}

/// Plays both sides of a cell, each in a thread, over a device that is `used` so. Panics unless both
/// end well and the device was used properly.
pub(crate) fn play_both(cell: Cell, used: FakeUse) {
    let fake = used.device();
    let lines = Line::pair().expect("a socket pair");
    let (tell, told) = mpsc::channel();
    for (side, line) in Side::BOTH.into_iter().zip([lines.0, lines.1]) {
        let (fake, tell) = (fake.clone(), tell.clone());
        let play = move || {
            let line = Line::of(line);
            (cell.scenario.play)(&mut Stage::enter_beside(cell, side, line, fake));
        };
        let thread = thread::Builder::new().name(format!("{side:?}"));
        let spawned = thread.spawn(move || {
            let played = panic::catch_unwind(AssertUnwindSafe(play));
            // The receiver is gone if the other side failed long ago.
            let _ = tell.send(played.is_ok());
        });
        spawned.expect("a thread");
    }
    let is_well = told.recv().expect("a side ends");
    if !is_well {
        // The other side may be about to notice.
        let _ = told.recv_timeout(GRACE);
    }
    assert!(
        is_well && told.recv().expect("the other ends"),
        "a side has failed"
    );
    fake.check();
}

/// The device's address as an entry of a GID table.
pub(crate) const GID: [u8; 16] = ADDRESS.to_ipv6_mapped().octets();
const DEVICE: &str = "fake0";
/// Sixteen dialed sessions take twice as many.
const MANY_PLACES: u32 = 32;
/// An address of a network for documentation (RFC 5737).
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
