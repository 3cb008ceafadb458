//! The start of a node: its parts, and its socket if it listens.

use std::{
    net::TcpListener,
    path,
    sync::Arc,
    time::{Instant, SystemTime},
};

use ibex_base::Address;
use ibex_base::fork;
use ibex_bootstrap::{
    Acceptor, Dialer, Local, NodeIdentity, Places, SessionLimits, Text, UnixClosing, UnixSettings,
};
use ibex_transport::{
    runtime::{Runtime, RuntimeConfig},
    shared_memory,
};

use super::{Node, NodeParts};
#[cfg(feature = "verbs")]
use crate::rdma::NodeDevices;
use crate::{
    ListenError, PeerId,
    error::ListenFailure,
    meeting::{
        NewSessions,
        listener::{Failures, PeerListener},
        resuming::Resuming,
    },
    node::{
        builder::absent_fabrics,
        driving_tasks::Tasks,
        environment::Environment,
        part::{NodePart, NodeView},
        settings::NodeSettings,
    },
};

/// An address to listen at, and the socket for that if there is one already.
pub(crate) struct Listening {
    pub(crate) address: Address,
    /// The socket that the program gave.
    pub(crate) given: Option<TcpListener>,
}

impl Node {
    pub(crate) fn start(
        settings: NodeSettings,
        environment: Environment,
        listening: Option<Listening>,
    ) -> Result<Self, ListenError> {
        fork::check(|| "ibex, as it runs here,".to_owned())?;
        let mut random = [0; 24];
        ibex_base::random::fill(&mut random)?;
        let (identity, incarnation) = random.split_at(16);
        let random_identity = <[u8; 16]>::try_from(identity).unwrap_or_default();
        let incarnation = u64::from_le_bytes(incarnation.try_into().unwrap_or_default());
        let identity = NodeIdentity(settings.identity.unwrap_or(random_identity));

        let mut local = Local::new(identity, incarnation);
        local.name = Text::new(settings.name.as_deref().unwrap_or_default());
        local.shm = settings.shm;
        local.tcp = settings.tcp;
        local.verbs = settings.verbs;
        local.absent = absent_fabrics();
        local.is_shm_denied = settings.is_shm_denied();
        local.integrity = settings.integrity;
        local.credentials.clone_from(&settings.credentials);
        warn_of_credentials(&local, SystemTime::now());
        #[cfg(feature = "verbs")]
        let devices = Arc::new(NodeDevices::new(
            settings.rdma.clone(),
            settings.placement.clone(),
        ));
        #[cfg(feature = "verbs")]
        {
            local.verbs_devices = Some(devices.clone());
        }
        local.unix = UnixSettings {
            share_with: Arc::new(settings.share_memory_with.clone()),
            directory: settings.shared_memory_directory.as_ref().map(|directory| {
                // A path without a working directory fails where it is used.
                let absolute = path::absolute(directory);
                absolute.unwrap_or_else(|_| directory.clone()).into()
            }),
            closing: UnixClosing {
                close: shared_memory::close_unix,
                is_held_up: shared_memory::is_held_up,
            },
        };
        local.handshake_timeout = settings.time.handshake_timeout;
        local.limits.channels = settings.limits.max_channels;
        local.places = Places::new(SessionLimits {
            per_peer: settings.limits.max_peer_sessions,
            per_node: settings.limits.max_node_sessions,
        });
        local.limits.session_credit_bytes = settings.limits.session_credit_bytes;
        let dialer = Dialer::new(&local)?;
        let resuming = Resuming {
            desk: dialer.desk(),
            local: local.clone(),
            name: settings.name.clone(),
            fail_over_after: settings.time.fail_over_after,
        };

        let tasks = Tasks::of(settings.threads.driver)?;
        let (wait, wait_engine) = settings.waits();
        let runtime = Runtime::start(RuntimeConfig {
            driver: settings.threads.driver,
            engines: settings.threads.io_threads,
            wait,
            wait_engine,
            cores: settings.cores.clone(),
            session_credit_bytes: settings.limits.session_credit_bytes,
            node_credit_bytes: settings.limits.node_credit_bytes,
            memory_limit: settings.memory_limit(),
            notice_timeout: settings.time.notice_timeout,
            session_timeout: settings.time.session_timeout,
            peer_gone_after: settings.time.peer_gone_after,
            is_inspected: settings.parts.iter().any(NodePart::times_messages),
        })?;
        if let Some(current) = settings.trace_context {
            runtime.state().ask_for_trace_context(current);
        }
        if settings.histograms {
            runtime.state().keep_histograms();
        }
        #[cfg(feature = "verbs")]
        devices.entrust_to(&runtime);
        // If a later step fails, this value is dropped, which closes the node and ends its threads.
        let view = NodeView {
            name: settings.name.clone(),
            id: PeerId::new(identity.0, incarnation),
            address: None,
            failures: Arc::default(),
            driver: settings.threads.driver,
            credentials: local.credentials.clone(),
            runtime,
            environment: Arc::new(environment),
            began: Instant::now(),
        };
        let mut node = NodeParts {
            view,
            resuming,
            local,
            #[cfg(feature = "verbs")]
            devices,
            settings,
            added: Vec::new(),
        };
        #[cfg(feature = "verbs")]
        if node.settings.needs_verbs() {
            let listen = listening
                .as_ref()
                .and_then(|listening| listening.address.ip());
            let required = node.devices.require(listen);
            required.map_err(|source| {
                let required = node.view.environment.required();
                ListenFailure::Rdma { required, source }
            })?;
        }
        let meeting = NewSessions {
            listener: listening.map(|at| node.bind(at)).transpose()?,
            dialer,
            resuming: node.resuming.clone(),
            late: Vec::new(),
        };
        node.view.runtime.set_controls(Box::new(meeting))?;
        for part in &node.settings.parts {
            node.added.extend(part.start(node.view.clone())?);
        }
        tasks.spawn(node.view.runtime(), node.settings.time.linger)?;
        Ok(Self {
            parts: Arc::new(node),
        })
    }
}

/// Warns in the log of a certificate that expires soon, and of files that other users can read.
pub(super) fn warn_of_credentials(local: &Local, now: SystemTime) {
    if let Some(credentials) = &local.credentials {
        for warning in credentials.warnings(now) {
            warn_limited!(warning, "{warning}");
        }
    }
}

impl NodeParts {
    fn bind(&mut self, listening: Listening) -> Result<PeerListener, ListenError> {
        let Listening { address, given } = listening;
        let local = self.local.clone();
        let bound = match given {
            Some(listener) => Acceptor::listen_on(listener, local),
            None => Acceptor::bind(address, local),
        };
        let acceptor = bound.map_err(|error| ListenFailure::Address {
            address: address.to_string(),
            source: error.source,
        })?;
        self.view.address = Some(acceptor.local_addr());
        Ok(PeerListener {
            acceptor,
            failures: Failures::new(self.view.failures.clone()),
            placement: self.settings.placement.clone(),
            engines: self.settings.threads.io_threads,
        })
    }
}
