//! The engine, rings and fabrics below ibex's typed channels.
//!
//! Dependencies point one way: [`channel`] handles and the [`driver`] know the
//! [`engine`]'s pure state and the [`ring`] algorithms; fabrics move bytes for them; the
//! engine state knows nobody.

#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
mod clock;
mod debug_as_display;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
pub mod fabric;
pub mod fork;
#[cfg(not(loom))]
pub mod memory;
pub mod ring;
pub mod sleeping;
pub mod sync;
