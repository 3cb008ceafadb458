//! The engine.
pub mod record;
