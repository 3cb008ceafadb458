//! Memory that a device may touch, and the domain that it belongs to.

pub(crate) mod anonymous;
#[cfg(feature = "all")]
#[cfg_attr(docsrs, doc(cfg(feature = "all")))]
pub mod foreign;
pub(crate) mod protection_domain;
pub mod region;
pub mod scatter_entry;

pub use crate::abi::remote_address;
