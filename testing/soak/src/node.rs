//! A process with a node, and its end when the supervisor goes.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use ibex::{Driver, Node, NodeBuilder, Policy};
use ibex_harness::{network, process::stay_with_parent, resources};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{fact::Feed, options::NodeOptions};

/// State that all threads of the process share.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) feed: Arc<Feed>,
    is_over: Arc<AtomicBool>,
}

impl Life {
    /// Enters the process's namespace and limits. The process will end in order when its standard
    /// input closes.
    pub(crate) fn begin(options: &NodeOptions) -> io::Result<Self> {
        stay_with_parent()?;
        if let Some(path) = &options.namespace {
            network::enter(path)?;
        }
        resources::survive_full_files();
        if let Some(bytes) = options.locked_bytes {
            let limit = Rlimit {
                current: Some(bytes),
                maximum: Some(bytes),
            };
            setrlimit(Resource::Memlock, limit)?;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            told.store(true, Ordering::Relaxed);
        });
        let feed = Arc::new(Feed::of_this_process()?);
        Ok(Self { feed, is_over })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Returns a builder with the run's settings.
pub(crate) fn builder(options: &NodeOptions) -> NodeBuilder {
    let driver = if options.caller {
        Driver::Caller
    } else {
        Driver::Threads
    };
    let builder = Node::builder()
        .driver(driver)
        .fabric(options.fabric.fabric(), Policy::Require)
        .connect_timeout(options.patience())
        .handshake_timeout(options.patience())
        .window_messages(4096)
        .window_bytes(WINDOW_BYTES);
    #[cfg(feature = "verbs")]
    if let Some(device) = &options.device {
        let settings = ibex::rdma::RdmaSettings::new().device(device.clone());
        // Nodes are created often, and each registers all its buffers.
        let settings = settings.max_sessions(128);
        let settings = settings.receive_buffers(512).held_buffers(512);
        return builder.rdma(settings.trust_peers(true));
    }
    builder
}

/// Small, so that a thousand sessions fit and every stream fills its window.
const WINDOW_BYTES: u64 = 128 << 10;
