//! The parts that other crates add to a node, and what such a part sees of its node.
#![forbid(unsafe_code)]

use std::{
    any::{Any, TypeId, type_name},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::Address;
use ibex_base::tls::TlsCredentials;
use ibex_transport::{
    node::NodeHistogram,
    runtime::{Driver, Runtime, has_membarrier},
};

use super::{NodeBuilder, environment::Environment};
use crate::{
    ListenError, PeerId,
    meeting::listener::FailureCounts,
    stats::{self, NodeStats, SlowMessage},
};

/// A part that a crate adds to a node. It starts last of the node, and is dropped once the node is
/// closed. [`extend::part`](crate::extend::part) finds it meanwhile.
///
/// A node has one part of each type. A child of `fork` that drops its copy of the node drops the
/// part too: [`fork::is_child`](crate::extend::fork::is_child) says so.
///
/// ```
/// use ibex_core::{Node, extend::{self, NodePart, NodeView}};
///
/// struct Watcher(NodeView);
///
/// # fn main() -> Result<(), ibex_core::ListenError> {
/// let part = NodePart::new(|view| Ok(Some(Watcher(view))));
/// let node = part.add_to(Node::builder().name("primary")).build()?;
/// let Watcher(view) = extend::part(&node).expect("it has started");
/// assert_eq!(view.stats().name.as_deref(), Some("primary"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct NodePart {
    kind: TypeId,
    name: &'static str,
    times_messages: bool,
    start: Arc<Start>,
}

type Start =
    dyn Fn(NodeView) -> Result<Option<Box<dyn Any + Send + Sync>>, ListenError> + Send + Sync;

impl NodePart {
    /// Makes a part of what starts it. A node whose part is `None` does without it; a node whose part
    /// fails is not made.
    pub fn new<T: Any + Send + Sync>(
        start: impl Fn(NodeView) -> Result<Option<T>, ListenError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind: TypeId::of::<T>(),
            name: type_name::<T>(),
            times_messages: false,
            start: Arc::new(move |view| Ok(start(view)?.map(|part| Box::new(part) as _))),
        }
    }

    /// Makes the node take times of messages, for [`NodeView::slow_messages`]. Each message costs it
    /// two to four readings of the clock.
    #[must_use]
    pub fn with_times_of_messages(self) -> Self {
        Self {
            times_messages: true,
            ..self
        }
    }

    /// Adds the part to a node, in place of an earlier one of its type.
    pub fn add_to(self, mut builder: NodeBuilder) -> NodeBuilder {
        let parts = &mut builder.settings.parts;
        parts.retain(|part| part.kind != self.kind);
        parts.push(self);
        builder
    }

    pub(super) fn times_messages(&self) -> bool {
        self.times_messages
    }

    /// Starts the part of a node.
    pub(super) fn start(
        &self,
        view: NodeView,
    ) -> Result<Option<Box<dyn Any + Send + Sync>>, ListenError> {
        (self.start)(view)
    }
}

impl fmt::Debug for NodePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a [`NodePart`] sees of its node, at any time and from any thread. It does not keep the node
/// open. It keeps the node's memory, so a part drops it when it is dropped itself.
#[derive(Clone)]
pub struct NodeView {
    pub(super) name: Option<Arc<str>>,
    pub(super) id: PeerId,
    pub(super) address: Option<Address>,
    /// The connections of the listener that became no sessions.
    pub(super) failures: Arc<FailureCounts>,
    pub(super) driver: Driver,
    pub(super) credentials: Option<Arc<dyn TlsCredentials>>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) environment: Arc<Environment>,
    /// The time at which the node was made.
    pub(super) began: Instant,
}

impl NodeView {
    /// Returns the node's name, as [`Node::name`](crate::Node::name) does.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the variables that replaced what the program said, as
    /// [`Node::environment`](crate::Node::environment) does.
    #[must_use]
    pub fn environment(&self) -> &[(&'static str, String)] {
        &self.environment.overrides
    }

    /// Returns how long ago the node was made.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns what turns the node's engines.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Returns what the node has counted, as [`Node::stats`](crate::Node::stats) does.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.stats_with(self.runtime.state().histograms())
    }

    /// Returns the same without histograms, which take the longest to read.
    #[must_use]
    pub fn stats_without_histograms(&self) -> NodeStats {
        self.stats_with(Vec::new())
    }

    fn stats_with(&self, histograms: Vec<NodeHistogram>) -> NodeStats {
        let (engines, sessions, totals) = stats::of_engines(self.runtime.stats(), &self.failures);
        NodeStats {
            name: self.name().map(str::to_owned),
            id: self.id,
            address: self.address,
            driver: self.driver,
            has_membarrier: has_membarrier(),
            security: self.credentials.as_ref().map(|keys| keys.stats()),
            turns: engines.iter().map(|engine| engine.turns).sum(),
            totals,
            engines,
            sessions,
            histograms,
        }
    }

    /// Returns the slowest messages of the last minute, as
    /// [`Node::slow_messages`](crate::Node::slow_messages) does.
    #[must_use]
    pub fn slow_messages(&self) -> Vec<SlowMessage> {
        let slowest = self.runtime.state().slow_messages().into_iter();
        slowest.map(SlowMessage::from).collect()
    }
}

ibex_base::debug_fields!([] NodeView: |view| name = view.name());
