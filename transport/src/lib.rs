//! The engine, rings and fabrics below ibex's typed channels.
//!
//! Dependencies point one way: [`channel`] handles and the [`driver`] know the
//! [`engine`]'s pure state and the [`ring`] algorithms; fabrics move bytes for them; the
//! engine state knows nobody.

pub mod channel;
mod clock;
pub mod driver;
pub mod fabric;
pub mod rdma;
