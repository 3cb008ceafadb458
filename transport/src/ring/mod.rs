//! The ring algorithms, generic over the memory they run on.
//!
//! One message's way through them: [`Producer`] publishes a record, the
//! [`Doorbell`] says whether the reader sleeps, [`Consumer`] (or, behind a
//! network fabric, the [`arrivals`] ring) hands the record out, a release cell
//! in a [`CellBlock`] says when its guard is gone, and [`Advance`] turns cells
//! into the counters that give the space back. None of these steps takes a
//! lock, a fence, a system call or an allocation per message.
//!
//! Each synchronisation has a name in capitals that stands at both of its
//! ends, and a loom model (`loom_*` in the tests) with a planted bug that it finds.

pub mod arrivals;
pub mod barrier;
pub mod bell;
pub mod biased_lock;
pub mod cells;
pub mod consumer;
pub mod doorbell;
pub mod memory;
mod pages;
pub mod parker;
pub mod producer;
pub mod release;
pub mod returns;
pub mod rung;
pub mod waiter;
pub mod wakers;

#[cfg(test)]
mod words;

pub use arrivals::{ArrivalReader, ArrivalRetirer, ArrivalWriter, arrival_ring};
pub use barrier::Asymmetry;
pub use bell::{Bell, BellLease, Drive};
pub use biased_lock::BiasedLock;
pub use cells::{CellBlock, CellLease, CellState};
pub use consumer::{Consumer, Malformed, Record, Run};
pub use doorbell::{Arm, Doorbell};
pub use memory::{Mapped, RingBytes, RingMemory};
pub use parker::{Parker, thread_waker};
pub use producer::{Misbehaved, Producer, Released};
pub use release::{Advance, Prefix};
pub use returns::Returns;
pub use rung::Rung;
pub use waiter::{Ticket, WaitSlot};
pub use wakers::Wakers;
