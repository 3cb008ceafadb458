//! The runtime in which tasks drive a node, if they do.
#![forbid(unsafe_code)]

use std::{io, sync::Arc, time::Duration};

use ibex_transport::runtime::Runtime;

use crate::{Driver, ListenError, error::ListenFailure};

/// The runtime of a node's tasks, if tasks drive it.
pub(crate) struct Tasks {
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

impl Tasks {
    /// Returns whether the calling thread is in a runtime, whose tasks it must not hold up.
    pub(crate) fn are_here() -> bool {
        #[cfg(feature = "tokio")]
        let is_here = tokio::runtime::Handle::try_current().is_ok();
        #[cfg(not(feature = "tokio"))]
        let is_here = false;
        is_here
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn of(driver: Driver) -> Result<Self, ListenError> {
        let runtime = match driver {
            Driver::Tasks => Some(tokio::runtime::Handle::try_current().map_err(|_| {
                ListenFailure::NoRuntime {
                    why: "the calling thread is in no tokio runtime: make the node in a task, or \
                          enter a runtime before",
                }
            })?),
            _ => None,
        };
        Ok(Self { runtime })
    }

    #[cfg(not(feature = "tokio"))]
    pub(crate) fn of(driver: Driver) -> Result<Self, ListenError> {
        match driver {
            Driver::Tasks => Err(ListenFailure::NoRuntime {
                why: "the feature `tokio` of the crate ibex is off: enable it, or use \
                      Driver::Caller with Node::as_fd in another reactor",
            }
            .into()),
            _ => Ok(Self {}),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn spawn(self, node: &Arc<Runtime>, linger: Duration) -> io::Result<()> {
        let spawn = |handle| crate::node::tasks::spawn(node, &handle, linger);
        self.runtime.map_or(Ok(()), spawn)
    }

    #[cfg(not(feature = "tokio"))]
    pub(crate) fn spawn(self, _: &Arc<Runtime>, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
