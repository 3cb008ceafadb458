//! Common parts of the tests between real processes.
//!
//! A [`Scenario`](scenario::Scenario) is one function that two processes play, each on its side.
//! The [supervisor](supervisor) starts both, watches over them and judges how they end. A
//! [`Stage`](stage::Stage) is a side's view: its node's settings, and a [line](line) to the other
//! side for ordering events. Nothing waits for a time to pass.

pub(crate) mod device;
#[cfg(feature = "fake-device")]
pub(crate) mod fake;
pub(crate) mod kernel;
pub(crate) mod line;
pub(crate) mod log;
#[cfg(feature = "verbs")]
pub(crate) mod mask;
pub(crate) mod part;
pub(crate) mod scenario;
pub(crate) mod seats;
pub(crate) mod secured;
pub(crate) mod stage;
pub(crate) mod stream;
pub(crate) mod supervisor;
pub(crate) mod task;

pub(crate) use ibex_harness::payload;
