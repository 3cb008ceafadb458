//! The engine and fabrics below ibex's typed channels.
//!
//! Dependencies point one way: [`channel`] handles and the [`driver`] know the pure state of
//! sessions ([`ibex_protocol`]) and the ring algorithms ([`ibex_ring`]). Fabrics move bytes for
//! them; [`rdma`] does so by the objects of [`ibex_verbs`].

pub mod channel;
mod clock;
pub mod driver;
pub mod fabric;
pub mod rdma;
