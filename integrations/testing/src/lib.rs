//! Two nodes of one process, joined over each fabric that there is, for the tests of the
//! integrations.

mod meeting;

pub use meeting::{Cell, DRIVERS, DriverName, Meeting, Over, fabrics};
