//! The state of an end (pending, open or over) and its reason. The engine sets it, handles read it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use ibex_base::sync::{AtomicU32, Mutex, lock};
use ibex_protocol::{format::control::ChannelSpec, session::Agreed};

use crate::session::EndCause;

/// The engine's account of an end, for its handle.
#[derive(Debug, Default)]
pub struct EndState {
    /// The phase, a constant from below; it only grows.
    phase: AtomicU32,
    agreed: OnceLock<Agreed>,
    end: Mutex<Option<EndReason>>,
}

/// The reason why an end is over.
#[derive(Clone, Debug)]
pub enum EndReason {
    /// The peer's end does not fit.
    Mismatch(Arc<ChannelSpec>),
    /// Something ended the channel.
    Cause(EndCause),
    /// This receiver was closed: it hands out what has arrived, and then the orderly end.
    Closed,
}

const PENDING: u32 = 0;
const OPEN: u32 = 1;
/// Open, and messages may carry trace context.
const TRACED: u32 = 2;
const OVER: u32 = 3;

impl EndState {
    /// Notes that both ends are open.
    pub fn open(&self, agreed: Agreed) {
        let phase = if agreed.is_traced { TRACED } else { OPEN };
        let _ = self.agreed.set(agreed);
        // OPEN, pairs with `is_pending` and `is_over_or_traced`: a thread that sees it sees what the engine set up before.
        let _ = self
            .phase
            .compare_exchange(PENDING, phase, Ordering::Release, Ordering::Relaxed);
    }

    /// Notes that the end is over. The first reason stays.
    pub fn end(&self, reason: EndReason) {
        let mut end = lock(&self.end);
        if end.is_none() {
            *end = Some(reason);
        }
        // OVER, pairs with `is_over` and `is_over_or_traced`: a handle that sees it sees all that
        // arrived before, and the reason.
        self.phase.store(OVER, Ordering::Release);
    }

    /// Returns whether the peer has not opened its end yet.
    pub fn is_pending(&self) -> bool {
        // OPEN, pairs with `open`.
        self.phase.load(Ordering::Acquire) == PENDING
    }

    /// Returns whether the end is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        // OVER, pairs with `end`.
        self.phase.load(Ordering::Acquire) == OVER
    }

    /// Returns whether the end is over, or its messages may carry trace context. All others find
    /// both by this check.
    #[inline]
    pub fn is_over_or_traced(&self) -> bool {
        // OPEN and OVER, pairs with `open` and `end`.
        self.phase.load(Ordering::Acquire) >= TRACED
    }

    /// Returns the terms that both ends agreed on, once they have.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// Returns the reason why the end is over.
    pub fn reason(&self) -> Option<EndReason> {
        if !self.is_over() {
            return None;
        }
        lock(&self.end).clone()
    }
}
