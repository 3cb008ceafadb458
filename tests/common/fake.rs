//! What both sides of a scenario share in one process: a device made of memory, or pipes.
//!
//! The device lacks what its mask says (`ibex_transport`'s `provider::fake::Mask`), and its
//! completions are polled in one way. What the kernel would count of a port it counts itself.

use std::{
    net::Ipv4Addr,
    panic::{self, AssertUnwindSafe},
    sync::{atomic::Ordering, mpsc},
    thread,
};

use ibex::rdma::{CompletionPolling, RdmaSettings, Tuning};
use ibex_transport::{
    rdma::{SiteSettings, settings_of},
    wire::pipe::{CARRIES_TCP, MADE},
};
use ibex_verbs::provider::fake::{FakeDevice, FakeProvider, Mask};

use super::{
    line::Line,
    scenario::{Cell, Side},
    stage::Stage,
    supervisor::GRACE,
};

/// What is between the sides of a cell that is played in one process.
#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// An RDMA device.
    Device(FakeUse),
    /// Pipes, which carry the data of tcp.
    Pipes,
}

impl Between {
    /// As cells are called.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Device(fake) => fake.name(),
            Self::Pipes => "pipe".to_owned(),
        }
    }
}

/// What the device of a cell lacks, and how it is polled.
#[derive(Clone, Copy)]
pub(crate) struct FakeUse {
    mask: &'static Mask,
    polling: CompletionPolling,
}

/// The device of a cell; clones are the same one.
#[derive(Clone)]
pub(crate) struct Fake {
    of: FakeUse,
    provider: FakeProvider,
}

impl FakeUse {
    /// Each mask, polled in each way.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Mask::ALL.iter().flat_map(|mask| {
            let pollings = mask.pollings().iter();
            pollings.map(move |&polling| Self { mask, polling })
        })
    }

    /// As cells are called.
    pub(crate) fn name(self) -> String {
        let polling = match self.polling {
            CompletionPolling::Plain => "plain",
            CompletionPolling::Extended => "extended",
            CompletionPolling::ExtendedOneByOne => "one-by-one",
        };
        format!("{}/{polling}", self.mask.name)
    }

    /// Whether a node has places for many sessions on it.
    pub(crate) fn has_many_places(self) -> bool {
        let mut settings = SiteSettings::default();
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
    /// Has a node use it, as its mask and way of polling want it.
    pub(crate) fn is_used(&self, settings: RdmaSettings) -> RdmaSettings {
        let tuning = Tuning::new().completion_polling(self.of.polling);
        let settings = settings.device(DEVICE).tuning(tuning);
        settings.on_fake(&self.provider, settings_of(self.of.mask))
    }

    /// Panics unless it was used as it should be: no send found its receive queue empty, and
    /// completions came as they were to be polled.
    fn check(&self) {
        assert_eq!(self.provider.rnr_naks(), 0, "a message found no receive");
        assert!(!self.provider.posted().is_empty(), "nothing was sent");
        let is_plain = self.of.polling == CompletionPolling::Plain;
        assert_eq!(self.provider.batches().0 == 0, is_plain);
    }
}

/// Plays both sides of a cell, each in a thread. Panics unless both are played to their ends
/// and what is between them was used as it should be.
pub(crate) fn play_both(cell: Cell, between: Between) {
    let fake = match between {
        Between::Device(used) => Some(used.device()),
        Between::Pipes => {
            CARRIES_TCP.store(true, Ordering::Relaxed);
            None
        }
    };
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
            // Nobody listens any more where the other side has failed long ago.
            let _ = tell.send(played.is_ok());
        });
        spawned.expect("a thread");
    }
    let is_well = told.recv().expect("a side ends");
    if !is_well {
        // The other may be about to find out.
        let _ = told.recv_timeout(GRACE);
    }
    assert!(
        is_well && told.recv().expect("the other ends"),
        "a side has failed"
    );
    match fake {
        Some(fake) => fake.check(),
        None => assert!(MADE.load(Ordering::Relaxed) >= 2, "pipes carried nothing"),
    }
}

/// As its address is written in a GID table.
pub(crate) const GID: [u8; 16] = ADDRESS.to_ipv6_mapped().octets();
const DEVICE: &str = "fake0";
/// Sixteen dialed sessions take twice as many.
const MANY_PLACES: u32 = 32;
/// Of a network for documentation (RFC 5737).
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
