//! What the clones of a node share, and the close of a node with its last clone.

use std::{any::Any, mem, sync::Arc, thread, time::Instant};

use ibex_base::{Address, fork};
use ibex_bootstrap::Local;
use ibex_transport::runtime::Runtime;

#[cfg(feature = "verbs")]
use crate::rdma::NodeDevices;
use crate::{
    CloseReason, PeerId,
    meeting::{listener::FailureCounts, resuming::Resuming},
    node::{
        driving_tasks::Tasks, environment::Environment, part::NodeView, settings::NodeSettings,
    },
};

/// The parts of a node, which its clones share. Dropping them closes the node.
pub(crate) struct NodeParts {
    pub(super) runtime: Arc<Runtime>,
    pub(super) resuming: Resuming,
    pub(super) local: Local,
    #[cfg(feature = "verbs")]
    pub(super) devices: Arc<NodeDevices>,
    pub(super) local_addr: Option<Address>,
    /// The connections of the listener that became no sessions.
    pub(super) failures: Arc<FailureCounts>,
    pub(super) settings: NodeSettings,
    pub(super) environment: Environment,
    /// The time at which the node was made.
    pub(super) began: Instant,
    /// The parts of other crates, dropped once the node is closed.
    pub(crate) added: Vec<Box<dyn Any + Send + Sync>>,
}

impl NodeParts {
    /// Returns the node's identity, as its peers see it.
    pub(super) fn id(&self) -> PeerId {
        PeerId::new(self.local.identity.0, self.local.incarnation)
    }

    /// Returns what a part of another crate sees of the node.
    pub(super) fn view(&self) -> NodeView {
        NodeView {
            name: self.settings.name.clone(),
            id: self.id(),
            address: self.local_addr,
            failures: self.failures.clone(),
            driver: self.settings.threads.driver,
            credentials: self.local.credentials.clone(),
            runtime: self.runtime.clone(),
            environment: self.environment.overrides.clone(),
            began: self.began,
        }
    }
}

impl Drop for NodeParts {
    fn drop(&mut self) {
        if fork::is_child() {
            // A forked child does not drop what these fields hold.
            let Self {
                runtime,
                resuming,
                local,
                ..
            } = self;
            mem::forget((runtime.clone(), resuming.clone(), local.clone()));
            return;
        }
        if thread::panicking() {
            self.runtime.break_off(CloseReason::Aborted);
        }
        // No caller is left to be told what was not delivered.
        match Tasks::are_here() {
            true => self.runtime.close_in_passing(self.settings.time.linger),
            false => drop(self.runtime.close(self.settings.time.linger)),
        }
    }
}
