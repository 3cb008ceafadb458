//! The engine, rings and fabrics below ibex's typed channels.

pub mod engine;
pub mod fabric;
pub mod memory;
pub mod ring;
pub mod sync;
