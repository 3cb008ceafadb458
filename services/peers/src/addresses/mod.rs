//! The sources of the addresses that a node stays connected to.
#![forbid(unsafe_code)]

mod dns;

use std::{error::Error, time::Duration};

use ibex_core::ToAddress;

pub use self::dns::Dns;

/// Returns the addresses that a node should be connected to, for
/// [`Node::keep_connected`](crate::KeepConnected::keep_connected).
///
/// [`Dns`] is a discovery, and a list of addresses (`Vec`, array) becomes one by itself. A registry
/// of services becomes one in a few lines; here the registry is a file:
///
/// ```
/// use std::{error::Error, fs, path::PathBuf, time::Duration};
/// use ibex::discovery::{Discovery, Found};
///
/// struct Listed(PathBuf);
///
/// impl Discovery for Listed {
///     fn find(&mut self) -> Result<Found, Box<dyn Error + Send + Sync>> {
///         let text = fs::read_to_string(&self.0)?;
///         Ok(Found::new(text.lines()).again_in(Duration::from_secs(10)))
///     }
/// }
/// ```
pub trait Discovery: Send + 'static {
    /// Returns all addresses of the present, and when to ask again.
    ///
    /// The method may block, for example in a request that the registry answers when something has
    /// changed. It has a thread of its own, which ends with its last answer, or when it returns
    /// after the [`Peers`](crate::Peers) were dropped.
    ///
    /// # Errors
    ///
    /// Any failure to get an answer. The last answer stays in force, and the first failure in a row
    /// is an event ([`DiscoveryFailed`](crate::discovery::PeersEvent::DiscoveryFailed)). The
    /// discovery is asked again, after pauses that grow to 5 s. A panic counts as a failure.
    fn find(&mut self) -> Result<Found, DiscoveryError>;
}

/// The reason why a [`Discovery`] has no answer.
pub(crate) type DiscoveryError = Box<dyn Error + Send + Sync>;

/// The answer of a [`Discovery`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Found {
    pub(crate) addresses: Vec<String>,
    pub(crate) again_in: Option<Duration>,
}

impl Found {
    /// Makes an answer that is final, unless [`again_in`](Self::again_in) says otherwise.
    pub fn new(addresses: impl IntoIterator<Item = impl ToAddress>) -> Self {
        let addresses = addresses.into_iter();
        Self {
            addresses: addresses.map(|one| one.to_text()).collect(),
            again_in: None,
        }
    }

    /// Has the discovery asked again after `pause`; zero for one that blocks until there is
    /// another answer.
    pub fn again_in(mut self, pause: Duration) -> Self {
        self.again_in = Some(pause);
        self
    }
}

impl<D: Discovery> From<D> for Box<dyn Discovery> {
    fn from(discovery: D) -> Self {
        Box::new(discovery)
    }
}

/// Makes a discovery whose only answer is the list.
impl<A: ToAddress> From<Vec<A>> for Box<dyn Discovery> {
    fn from(list: Vec<A>) -> Self {
        Box::new(FixedAddresses(Found::new(list)))
    }
}

/// Makes a discovery whose only answer is the list.
impl<A: ToAddress, const COUNT: usize> From<[A; COUNT]> for Box<dyn Discovery> {
    fn from(list: [A; COUNT]) -> Self {
        Box::new(FixedAddresses(Found::new(list)))
    }
}

/// Addresses that stay as they are.
struct FixedAddresses(Found);

impl Discovery for FixedAddresses {
    fn find(&mut self) -> Result<Found, DiscoveryError> {
        Ok(self.0.clone())
    }
}
