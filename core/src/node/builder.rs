//! Settings of nodes, checked when they are used.

mod settings;

use std::{io, net::TcpListener, sync::Arc, time::Duration};

use ibex_bootstrap::{Policy, own_address, resolve};
#[allow(unused_imports, reason = "the documentation speaks of it")]
use ibex_transport::runtime::Driver;

pub(crate) use self::settings::{LimitSettings, ThreadSettings, TimeSettings};
use crate::{
    ChannelBuilder, Fabric, ListenError, Node,
    error::ListenFailure,
    handles::message::DefaultCodec,
    node::{Listening, environment, settings::NodeSettings},
    peer::template::ChannelTemplate,
    setting::{SettingError, SettingRow},
};

/// Settings of a node, from [`Node::builder`] to [`build`](Self::build).
///
/// ```
/// use std::time::Duration;
/// use ibex::{Driver, Fabric, Node, Policy};
///
/// # fn main() -> Result<(), ibex::ListenError> {
/// let node = Node::builder()
///     .name("primary")
///     .listen("127.0.0.1:0")
///     .driver(Driver::Threads)
///     .fabric(Fabric::Shm, Policy::Forbid)
///     .memory_limit(256 << 20)
///     .session_timeout(Duration::from_secs(60))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// Every setting has a default, and no program needs to set them all.
///
/// | purpose | settings |
/// |---|---|
/// | address and identity | [`listen`](Self::listen), [`listen_on`](Self::listen_on), [`insecure_network`](Self::insecure_network), `security` (feature `tls`), [`name`](Self::name), [`identity`](Self::identity) |
/// | waiting | [`driver`](Self::driver), [`wait`](Self::wait), [`io_threads`](Self::io_threads), [`place_accepted`](Self::place_accepted), [`cores`](Self::cores) |
/// | memory | [`memory_limit`](Self::memory_limit), [`session_credit_bytes`](Self::session_credit_bytes), [`node_credit_bytes`](Self::node_credit_bytes), [`max_channels`](Self::max_channels), [`max_peer_sessions`](Self::max_peer_sessions), [`max_node_sessions`](Self::max_node_sessions) |
/// | time | [`connect_timeout`](Self::connect_timeout), [`handshake_timeout`](Self::handshake_timeout), [`notice_timeout`](Self::notice_timeout), [`session_timeout`](Self::session_timeout), [`peer_gone_after`](Self::peer_gone_after), [`linger`](Self::linger) |
/// | fabrics | [`fabric`](Self::fabric), [`share_memory_with`](Self::share_memory_with), [`shared_memory_directory`](Self::shared_memory_directory), [`integrity`](Self::integrity), [`fail_over_after`](Self::fail_over_after) |
/// | RDMA | `rdma`, which takes the settings of `ibex::rdma` (feature `verbs`) |
/// | defaults of this node's channels | [`window_messages`](Self::window_messages), [`window_bytes`](Self::window_bytes), [`max_message_bytes`](Self::max_message_bytes), [`max_unreleased_bytes`](Self::max_unreleased_bytes), [`open_timeout`](Self::open_timeout) |
/// | tracing | [`trace_context`](Self::trace_context) |
/// | statistics | [`histograms`](Self::histograms) |
/// | variables | [`environment`](Self::environment) |
/// | inspection from outside | `inspect`, `inspect_at` (`ibex::prelude`) |
///
/// # Variables
///
/// The variables below override a program from outside. A node reads them once, when it is made. Each
/// replaces the program's setting, or the default. [`Node::environment`] tells which ones did.
///
/// | variable | value | overrides |
/// |---|---|---|
#[doc = environment::table!()]
///
/// A value that cannot be used is an error of [`build`](Self::build), and so is a misspelt name, with
/// the name that is probably meant. Any other name that begins with `IBEX_` is a warning; names of ibex's
/// own tests and tools (`IBEX_TEST_` and others) are not. A process that runs with more rights than the
/// user who started it (setuid, setgid, file capabilities) ignores all variables. A build without `verbs` reads the RDMA variables too, and
/// warns that they have no effect.
///
/// # Memory
///
/// The most that a node takes is the sum of two lines, in bytes:
///
/// - Short messages: [`node_credit_bytes`](Self::node_credit_bytes) + 80 MiB kept + 1.25 MiB for each
///   session + (52 *n* + 16 *W*) for each receiving end + *W* for each sending end that was used. Of
///   the first, no more than `session_credit_bytes` for each session counts.
/// - Long messages, 0 if there are none: [`memory_limit`](Self::memory_limit) + at most 512 MiB that were sent and are kept + 4 MiB for
///   each session + 1.5 *U* for each sending end that was used.
///
/// *W* is `window_bytes`, rounded up to a power of two from 64 KiB on. *n* is `window_messages`, rounded
/// up to a power of two. *U* is what `max_unreleased_bytes` leaves beside *W*. Of each, the smaller of
/// both ends' values holds. A message is long if it takes more than half of *W*, over TCP also if it is
/// longer than 128 KiB, and over verbs if it is longer than a receive buffer.
///
/// For example, one session with one channel each way over TCP takes by default up to 119 MiB for short
/// messages (2 + 80 + 1.25 + 1 + 32 + 2). For long ones it takes up to 564 MiB (512 + 4 + 48) and
/// `memory_limit`.
///
/// The formula differs in these cases:
///
/// - Over shared memory there is no credit, a receiving end takes 4 *n*, and shared memory is counted at
///   its sender.
/// - Over verbs, receive buffers take the place of the credit. With `trust_peers` each of
///   `eager_blocks` takes 68 KiB more.
/// - Over TCP and verbs, three of the longest messages take the place of 1.5 *U* if that is less.
/// - 16 *W* is the worst case: a channel that holds messages of 64 to 128 KiB for long while others of
///   its session flow. With shorter messages, or alone in its session, it takes 2 *W*.
///
/// Channels that peers open and the program does not take 64 KiB for each session and 64 MiB more for
/// all of them at most.
///
/// The memory kept for later use is 64 MiB of rings, 16 MiB of blocks, and two long messages of 512
/// MiB together at most.
///
/// Silence gives memory back. After one to two seconds without a message, and with no message that is
/// unreleased, a session frees its rings, its arrival blocks and its ends' lists. The pools free their
/// memory two seconds later. A silent session keeps some 15 KiB in both processes together, and some 4
/// KiB for each further channel; its next message allocates again. Under [`Driver::Caller`] this happens
/// in turns.
///
/// The formula counts ends that this node opened. An end that a peer opens and this node does not costs
/// its name and its type's description, a few KiB for each of [`max_channels`](Self::max_channels).
///
/// # Errors
///
/// Each setting is checked when it is set, and settings that exclude each other when the node is made.
/// [`build`](Self::build) returns the first error, with the value and its range, or with both values.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct NodeBuilder {
    pub(crate) settings: NodeSettings,
    listen: Option<Listen>,
    insecure_network: bool,
    #[cfg(feature = "tls")]
    security: Option<crate::Security>,
    /// The first setting that was out of its range.
    error: Option<SettingError>,
    /// The first fabric that is required and not compiled in.
    absent: Option<Fabric>,
    /// In place of the process's variables.
    variables: Option<Vec<(String, String)>>,
}

impl NodeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            settings: NodeSettings::default(),
            listen: None,
            insecure_network: false,
            #[cfg(feature = "tls")]
            security: None,
            error: None,
            absent: None,
            variables: None,
        }
    }

    /// Listens with a socket that is already bound and listening, in place of
    /// [`listen`](Self::listen). systemd or another supervisor hands over such a socket, or the
    /// process that this one replaces. The last of the two calls counts.
    ///
    /// Processes may share the socket. Each connection goes to one of them, and the socket listens
    /// as long as any of them has it, so peers that connect meanwhile are not turned away. A node
    /// that is closed leaves the socket to the others at once. A session is
    /// [gone](crate::EndCause::PeerGone) if it loses its connection after that, or if another
    /// process gets its new connection.
    ///
    /// The socket is set to non-blocking mode, for all processes that share it. As with `listen`,
    /// an address that other hosts can reach needs `security` or
    /// [`insecure_network`](Self::insecure_network).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let node = ibex::Node::builder().listen_on(socket).build()?;
    /// assert_eq!(node.local_addr(), Some(address.into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen_on(mut self, listener: TcpListener) -> Self {
        self.listen = Some(Listen::On(Arc::new(listener)));
        self
    }

    /// Allows listening where other hosts can connect, or at a vsock address. Anyone who can reach the address may then
    /// open channels and read what is sent, so use it only on networks that keep strangers out.
    pub fn insecure_network(mut self) -> Self {
        self.insecure_network = true;
        self
    }

    /// Sets the RDMA device and its settings. [`RdmaSettings`](crate::rdma::RdmaSettings) has the
    /// default of each.
    #[cfg(feature = "verbs")]
    pub fn rdma(mut self, settings: crate::rdma::RdmaSettings) -> Self {
        self.note(settings.error().map_or(Ok(()), Err));
        self.settings.rdma = settings;
        self
    }

    /// Returns the rows of the table of settings: a node's, and those of its channels and its RDMA
    /// device. For `ibex config explain`.
    #[doc(hidden)]
    #[must_use]
    pub fn settings() -> Vec<SettingRow> {
        let mut rows = [
            Self::TABLE,
            Self::THREADS,
            Self::TIME,
            Self::LIMITS,
            ChannelBuilder::<(), ()>::SETTINGS,
            #[cfg(feature = "verbs")]
            crate::rdma::RdmaSettings::TABLE,
            #[cfg(feature = "verbs")]
            crate::rdma::RdmaSettings::BUFFERS,
            #[cfg(feature = "verbs")]
            crate::rdma::Tuning::TABLE,
        ]
        .concat();
        for row in &mut rows {
            row.variable = environment::variable_of(row.builder, row.name);
        }
        rows
    }

    /// Takes [`IBEX_*` variables](Self#variables) from here instead of from the process. An empty
    /// list means no variables. It is meant for programs that read them from elsewhere, and for
    /// tests.
    pub fn environment<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        let owned = variables.map(|(name, value)| (name.into(), value.into()));
        self.variables = Some(owned.collect());
        self
    }

    /// Requires the only one of these fabrics, or prefers the first, and forbids all others.
    pub(crate) fn allow_only(&mut self, fabrics: &[Fabric]) {
        self.absent = None;
        for fabric in Fabric::FASTEST_FIRST {
            let place = fabrics.iter().position(|&named| named == fabric);
            self.set_policy(
                fabric,
                match place {
                    Some(0) if fabrics.len() == 1 => Policy::Require,
                    Some(0) => Policy::Prefer,
                    Some(_) => Policy::Auto,
                    None => Policy::Forbid,
                },
            );
        }
    }

    fn set_policy(&mut self, fabric: Fabric, policy: Policy) {
        let wish = match fabric {
            Fabric::Shm => &mut self.settings.shm,
            Fabric::Tcp => &mut self.settings.tcp,
            Fabric::Verbs => &mut self.settings.verbs,
        };
        if is_compiled_in(fabric) {
            *wish = policy;
        } else if policy == Policy::Require {
            self.absent = self.absent.or(Some(fabric));
        }
    }

    /// Sets defaults of channels as a channel's builder does.
    fn channel(
        mut self,
        set: impl FnOnce(ChannelBuilder<DefaultCodec, ()>) -> ChannelBuilder<DefaultCodec, ()>,
    ) -> Self {
        let template = ChannelTemplate::with(self.settings.channel, "");
        let template = set(ChannelBuilder::new((), template)).template;
        self.settings.channel = template.defaults;
        self.note(template.refused.map_or(Ok(()), Err));
        self
    }

    /// Keeps the first error for `build` to report.
    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }

    /// Reads the certificates or derives the keys.
    #[cfg(feature = "tls")]
    fn open_security(&mut self) -> Result<(), ListenError> {
        let Some(security) = self.security.take() else {
            return Ok(());
        };
        let credentials = Arc::new(security.open()?);
        #[cfg(feature = "verbs")]
        if credentials.trusts_authenticated() {
            self.settings.rdma = self.settings.rdma.clone().trust_peers(true);
        }
        self.settings.reloadable = Some(credentials.clone());
        self.settings.credentials = Some(credentials);
        Ok(())
    }

    /// Makes the node.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if
    ///
    /// - a setting is out of its range or does not go with another,
    /// - a [variable](Self#variables) has a value that it cannot have,
    /// - the address cannot be had or is open to strangers,
    /// - the socket of `inspect_at` cannot be made,
    /// - the process lacks threads, descriptors or memory, or
    /// - there is no runtime for [`Driver::Tasks`].
    ///
    /// # Panics
    ///
    /// Under [`Driver::Tasks`], in a tokio runtime without an I/O driver (`enable_io`).
    pub fn build(mut self) -> Result<Node, ListenError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        let variables = self
            .variables
            .take()
            .unwrap_or_else(environment::of_process);
        let environment = environment::apply(&variables, &mut self)?;
        for warning in &environment.warnings {
            warn_limited!(warning, %warning, "a variable has no effect");
        }
        if let Some(fabric) = self.absent {
            let required = environment.required();
            return Err(ListenFailure::NotCompiledIn { fabric, required }.into());
        }
        self.settings.check_relations()?;
        #[cfg(feature = "tls")]
        self.open_security()?;
        let listening = self.listen.as_ref().map(Listen::resolve).transpose()?;
        if let Some(Listening { address, .. }) = listening
            && address.is_open_to_strangers()
            && !self.insecure_network
            && self.settings.credentials.is_none()
        {
            return Err(ListenFailure::InsecureAddress { address }.into());
        }
        if self.insecure_network && self.settings.credentials.is_none() {
            tracing::info!("a node authenticates nobody, as insecure_network() allows");
        }
        Node::start(self.settings, environment, listening)
    }
}

/// Writes the setters of the defaults of a node's channels.
macro_rules! defaults_of_channels {
    ($($name:ident($argument:ident: $type:ty);)+) => {
        impl NodeBuilder {
            $(
                #[doc = concat!(
                    "Sets the default of [`", stringify!($name), "`](crate::ChannelBuilder::",
                    stringify!($name), ") for the channels of this node."
                )]
                pub fn $name(self, $argument: $type) -> Self {
                    self.channel(|channel| channel.$name($argument))
                }
            )+
        }
    };
}

defaults_of_channels! {
    window_messages(messages: u64);
    window_bytes(bytes: u64);
    max_message_bytes(bytes: u64);
    max_unreleased_bytes(bytes: u64);
    open_timeout(timeout: Duration);
}

/// An address or a socket to listen with, as the program gave it.
#[derive(Clone, Debug)]
enum Listen {
    At(String),
    On(Arc<TcpListener>),
}

impl Listen {
    fn resolve(&self) -> Result<Listening, ListenError> {
        let failed = |address: &str| {
            let address = address.to_owned();
            move |source| ListenFailure::Address { address, source }
        };
        match self {
            Self::At(name) => {
                let addresses = resolve(name).map_err(failed(name))?;
                let address = addresses
                    .first()
                    .copied()
                    .ok_or_else(|| failed(name)(io::Error::other("the name has no address")))?;
                let given = None;
                Ok(Listening { address, given })
            }
            Self::On(listener) => {
                let failed = failed("the socket that was given");
                let address = own_address(listener).map_err(failed)?;
                let given = Some(listener.try_clone()?);
                Ok(Listening { address, given })
            }
        }
    }
}

/// The fabrics whose cargo features are off.
pub(crate) fn absent_fabrics() -> Vec<Fabric> {
    let mut absent = Fabric::FASTEST_FIRST.to_vec();
    absent.retain(|fabric| !is_compiled_in(*fabric));
    absent
}

/// Returns whether a fabric is compiled in: RDMA has a cargo feature.
pub(crate) fn is_compiled_in(fabric: Fabric) -> bool {
    fabric != Fabric::Verbs || cfg!(feature = "verbs")
}
