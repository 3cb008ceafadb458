//! The error of making a node.

use std::{fmt, io};

use ibex_base::{Address, fork::UsedAfterFork};

use super::{
    VariableError,
    failure::{kinds, shell},
};
use crate::{
    Fabric,
    setting::{SettingConflict, SettingError},
};

/// The error of [`Node::listen`](crate::Node::listen), [`Node::client`](crate::Node::client) and
/// [`NodeBuilder::build`](crate::NodeBuilder::build): no node was made.
///
/// Its text names the setting, the address or the lack, and the next step. [`kind`](Self::kind) is
/// for programs that decide by it.
///
/// ```
/// use ibex::{ListenError, ListenErrorKind, Node};
///
/// /// Listens on the port of the configuration, or on any if that port is in use.
/// fn listen(port: u16) -> Result<Node, ListenError> {
///     match Node::listen(("127.0.0.1", port)) {
///         Err(error) if error.kind() == ListenErrorKind::Address => Node::listen("127.0.0.1:0"),
///         listening => listening,
///     }
/// }
/// ```
///
/// | kind | what helps |
/// |---|---|
/// | [`InsecureAddress`](ListenErrorKind::InsecureAddress) | security, a loopback IP address, or `insecure_network()` if the network keeps strangers out |
/// | [`Address`](ListenErrorKind::Address) | another address or port |
/// | [`Setting`](ListenErrorKind::Setting) | another value of the [setting](ListenError::setting) |
/// | [`Variable`](ListenErrorKind::Variable) | another value in the environment |
/// | [`Security`](ListenErrorKind::Security) | other certificates or another secret |
/// | [`NotCompiledIn`](ListenErrorKind::NotCompiledIn) | a cargo feature, or another fabric |
/// | [`Rdma`](ListenErrorKind::Rdma) | a device that can be used, or another fabric |
/// | [`Part`](ListenErrorKind::Part) | what its text says, or a node without that part |
/// | [`NoRuntime`](ListenErrorKind::NoRuntime) | a tokio runtime, or another driver |
/// | [`Resources`](ListenErrorKind::Resources) | higher limits of the process, or a later attempt |
/// | [`UsedAfterFork`](ListenErrorKind::UsedAfterFork) | a process that is no fork |
pub struct ListenError(Box<ListenFailure>);

kinds! {
    /// The kinds of a [`ListenError`].
    pub enum ListenErrorKind {
        /// The address is reachable from other hosts, or is one of vsock, and nothing protects it.
        InsecureAddress => PermissionDenied,
        /// The address cannot be resolved or bound.
        Address => AddrNotAvailable,
        /// A setting is out of its range, or two settings do not go together.
        Setting => InvalidInput,
        /// A variable of the environment has a value that it cannot have.
        Variable => InvalidInput,
        /// The certificates or the secret cannot be used.
        Security => InvalidInput,
        /// A fabric is required that this build does not have.
        NotCompiledIn => Unsupported,
        /// RDMA is required, or all that the policies leave, and no device can be used.
        Rdma => Unsupported,
        /// A part that another crate adds to the node cannot start, such as the socket at which the
        /// node is to be inspected.
        Part => Other,
        /// The node is to be driven by tasks, and there is no runtime for them.
        NoRuntime => Other,
        /// The process lacks threads, descriptors or memory.
        Resources => Other,
        /// The process is a fork of one that has made a node.
        UsedAfterFork => Other,
    }
}

/// Who requires a fabric: the program, or the variable `IBEX_FABRICS` with a value, which overrides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Required(pub(crate) Option<String>);

impl fmt::Display for Required {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("required"),
            Some(value) => write!(f, "required by IBEX_FABRICS=\"{value}\" in the environment"),
        }
    }
}

/// The reason for which there is no node.
#[derive(thiserror::Error)]
pub(crate) enum ListenFailure {
    /// The address is reachable from other hosts or containers, and nothing protects it.
    #[error(
        "{address} is reachable from other hosts or containers, and whoever connects may open \
         channels: authenticate peers with .security(..) on the builder (the feature `tls`), listen \
         on a loopback IP address, or call .insecure_network() if the network itself keeps strangers out"
    )]
    InsecureAddress {
        /// The address that was asked for.
        address: Address,
    },
    /// The address cannot be resolved or bound.
    #[error(
        "cannot listen on {address}: {source}; {}",
        ibex_bootstrap::BindError::next_step(address, source)
    )]
    Address {
        /// The address as the program gave it.
        address: String,
        /// The error of the system.
        r#source: io::Error,
    },
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Two settings do not go together.
    #[error(transparent)]
    Conflict(#[from] SettingConflict),
    /// A variable of the environment has a value that it cannot have.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The certificates or the secret cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Security(#[from] crate::SecurityError),
    /// A fabric is required that this build does not have.
    #[error(
        "{fabric} is {required}, and {fabric} is not compiled in: enable the feature `{fabric}` of \
         the crate ibex, or do not require it"
    )]
    NotCompiledIn {
        /// The fabric, and the feature's name.
        fabric: Fabric,
        /// Who requires it.
        required: Required,
    },
    /// RDMA is required, or all that the policies leave, and no device can be used.
    #[cfg(feature = "verbs")]
    #[error("verbs is {required}, and this node cannot have it: {source}")]
    Rdma {
        /// Who requires it.
        required: Required,
        /// The obstacle to RDMA.
        r#source: crate::rdma::VerbsError,
    },
    /// A part that another crate adds cannot start, for this reason.
    #[error("{_0}")]
    Part(io::Error),
    /// The node is to be driven by tasks, and there is no runtime for them.
    #[error("Driver::Tasks cannot be used here: {why}")]
    NoRuntime {
        /// The obstacle, and the next step.
        why: &'static str,
    },
    /// The process is a fork of one that has made a node.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
    /// The process cannot have another node: threads, descriptors or memory are lacking.
    #[error("cannot start the node: {_0}{step}", step = ibex_bootstrap::shortage_step(_0))]
    Environment(io::Error),
}

impl ListenError {
    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ListenErrorKind {
        match &*self.0 {
            ListenFailure::InsecureAddress { .. } => ListenErrorKind::InsecureAddress,
            ListenFailure::Address { .. } => ListenErrorKind::Address,
            ListenFailure::Setting(_) | ListenFailure::Conflict(_) => ListenErrorKind::Setting,
            ListenFailure::Variable(_) => ListenErrorKind::Variable,
            #[cfg(feature = "tls")]
            ListenFailure::Security(_) => ListenErrorKind::Security,
            ListenFailure::NotCompiledIn { .. } => ListenErrorKind::NotCompiledIn,
            #[cfg(feature = "verbs")]
            ListenFailure::Rdma { .. } => ListenErrorKind::Rdma,
            ListenFailure::Part(_) => ListenErrorKind::Part,
            ListenFailure::NoRuntime { .. } => ListenErrorKind::NoRuntime,
            ListenFailure::Environment(_) => ListenErrorKind::Resources,
            ListenFailure::UsedAfterFork(_) => ListenErrorKind::UsedAfterFork,
        }
    }

    /// Returns whether a later attempt may succeed without a change of a setting or an address.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind() == ListenErrorKind::Resources
    }

    /// Returns the name of the setting that is out of its range, that of the builder's method, or
    /// of the first of two that do not go together.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        match &*self.0 {
            ListenFailure::Setting(error) => Some(error.setting),
            ListenFailure::Conflict(conflict) => Some(conflict.settings[0]),
            _ => None,
        }
    }

    /// Returns the kind of the system's error, if it refused an address, a socket or a resource.
    #[must_use]
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match &*self.0 {
            ListenFailure::Address { source, .. }
            | ListenFailure::Part(source)
            | ListenFailure::Environment(source) => Some(source.kind()),
            _ => None,
        }
    }

    /// Returns the fabric that is required and that this build does not have.
    #[must_use]
    pub fn fabric(&self) -> Option<Fabric> {
        match &*self.0 {
            ListenFailure::NotCompiledIn { fabric, .. } => Some(*fabric),
            _ => None,
        }
    }

    /// Returns the obstacle to RDMA that is required.
    #[cfg(feature = "verbs")]
    #[must_use]
    pub fn verbs_error(&self) -> Option<&crate::rdma::VerbsError> {
        match &*self.0 {
            ListenFailure::Rdma { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns the error of the certificates or the secret.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn security_error(&self) -> Option<&crate::SecurityError> {
        match &*self.0 {
            ListenFailure::Security(error) => Some(error),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($error:ty),+) => {
        $(impl From<$error> for ListenError {
            fn from(error: $error) -> Self {
                Self(Box::new(error.into()))
            }
        })+
    };
}

from!(
    ListenFailure,
    SettingError,
    SettingConflict,
    VariableError,
    UsedAfterFork,
    io::Error
);
#[cfg(feature = "tls")]
from!(crate::SecurityError);

impl From<io::Error> for ListenFailure {
    fn from(error: io::Error) -> Self {
        ListenFailure::Environment(error)
    }
}

shell!(ListenError, |error| error.kind().io());
ibex_base::debug_as_display!(ListenFailure);
