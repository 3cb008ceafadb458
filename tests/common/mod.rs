//! What tests between real processes share.
//!
//! A [`Scenario`](scenario::Scenario) is one function that two processes play, each its
//! side of it. The [supervisor](supervisor) starts both, watches over them and judges how
//! they ended; a [`Stage`](stage::Stage) is what a side sees: its node's settings, and a
//! [line](line) to the other side for what has to happen in a certain order. Nothing
//! waits for a time to pass.

pub(crate) mod device;
#[cfg(feature = "fake-device")]
pub(crate) mod fake;
pub(crate) mod kernel;
pub(crate) mod line;
pub(crate) mod log;
#[cfg(feature = "verbs")]
pub(crate) mod mask;
pub(crate) mod part;
pub(crate) mod payload;
pub(crate) mod scenario;
pub(crate) mod seats;
pub(crate) mod secured;
pub(crate) mod stage;
pub(crate) mod stream;
pub(crate) mod supervisor;
pub(crate) mod task;
