//! Tests of what a device really does: a queue pair is connected to itself and sends to itself.

pub(crate) mod immediate;
pub(crate) mod polling;
pub(crate) mod window;
