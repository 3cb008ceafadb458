//! The calls that stand behind the feature `all`.

#[cfg(feature = "all")]
use super::{datagram::DatagramProvider, foreign::ForeignProvider, xrc::XrcProvider};

/// The calls behind the feature `all`; without it there are none.
#[cfg(feature = "all")]
pub trait AllProvider: DatagramProvider + ForeignProvider + XrcProvider {}

#[cfg(feature = "all")]
impl<P: DatagramProvider + ForeignProvider + XrcProvider> AllProvider for P {}

/// The calls behind the feature `all`; without it there are none.
#[cfg(not(feature = "all"))]
pub trait AllProvider {}

#[cfg(not(feature = "all"))]
impl<P> AllProvider for P {}
