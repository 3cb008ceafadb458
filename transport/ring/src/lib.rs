//! Rings, the memory they lie in, and how threads wait beside them.
//!
//! The ring algorithms are generic over the memory they run on. A message takes these steps:
//!
//! 1. [`Producer`] publishes a record.
//! 2. The [`Doorbell`] says whether the reader sleeps.
//! 3. [`Consumer`] (or, behind a network, the [`arrivals`] ring) hands the record out.
//! 4. A release cell in a [`CellBlock`] says when its guard is gone.
//! 5. [`Advance`] turns cells into the counters that give the space back.
//!
//! None of these steps takes a lock, a fence, a system call or an allocation per message.
//!
//! [`memory`] has the mappings and pools, [`parking`] the protocols of sleeping and waking.
//!
//! Each synchronisation has a name in capitals that stands at both of its ends, and a loom
//! model (`loom_*` in the tests) with a planted bug that it finds.

pub mod arrivals;
pub mod cells;
pub mod consumer;
pub mod doorbell;
#[cfg(not(loom))]
pub mod end_status;
#[cfg(not(loom))]
pub mod memory;
mod pages;
pub mod parking;
pub mod producer;
pub mod release;
pub mod return_stack;
pub mod ring_memory;

#[cfg(test)]
mod model_memory;

pub use arrivals::{ArrivalReader, ArrivalRetirer, ArrivalWriter, arrival_ring};
pub use cells::{CellBlock, CellLease, CellState, Orphan};
pub use consumer::{Consumer, MalformedHeader, Record, RecordRun};
pub use doorbell::{Arm, ArmedWord, Doorbell};
pub use producer::{Misbehaved, Producer, Released};
pub use release::{Advance, Prefix};
pub use return_stack::Returns;
pub use ring_memory::{Mapped, RingMemory};
