//! Memory that a device may touch, and the domain that it belongs to.

pub(crate) mod anonymous;
pub(crate) mod protection_domain;
pub mod region;
