//! Settings of channels, checked when an end is opened.

use std::{marker::PhantomData, time::Duration};

use ibex_base::fork;
use ibex_protocol::format::{
    control::{ChannelSpec, Role},
    message_version::MessageVersion,
};
use ibex_transport::{
    channel::{EndLabel, ReceiveHandle, SendHandle},
    runtime::Runtime,
};

use crate::{
    Codec, OpenError, Peer, Receiver, Sender,
    error::{OpenFailure, Refusal},
    handles::message::DefaultCodec,
    peer::template::ChannelTemplate,
    setting::SettingError,
};

/// Settings of a channel: its codec, its limits and its waiting.
///
/// ```
/// use ibex::{Node, Peer, Raw};
///
/// # fn open(node: &Node, peer: &Peer) -> Result<(), Box<dyn std::error::Error>> {
/// // With one peer.
/// let mut blobs = peer.channel("blobs").codec::<Raw>().window_bytes(1 << 20).sender::<[u8]>()?;
/// blobs.send(b"anything")?;
///
/// // With all peers of a node.
/// let requests = node.channel("requests").codec::<Raw>().ack_every(64).fan_in::<[u8]>()?;
/// # Ok(())
/// # }
/// ```
///
/// [`Peer::channel`] begins the settings of a channel with one peer, and [`Node::channel`](crate::Node::channel) of one with
/// many. A channel opens by one of these calls:
///
/// | with | call | opens |
/// |---|---|---|
/// | one peer | [`sender`](Self::sender) | a [`Sender`] |
/// | one peer | [`receiver`](Self::receiver) | a [`Receiver`] |
/// | one peer | [`versioned_sender`](Self::versioned_sender), [`versioned_receiver`](Self::versioned_receiver) | an end that knows two [versions](crate::Versions) of the message type |
/// | one peer | `caller` (`ibex::prelude`) | a `Caller` of its service |
/// | one peer, or all peers of a node | `service` (`ibex::prelude`) | a `Service` for calls |
/// | all peers of a node | [`fan_in`](ChannelBuilder::fan_in) | a [`FanIn`](crate::FanIn), which receives from all of them |
/// | all peers of a node | [`publisher`](ChannelBuilder::publisher) | a [`Publisher`](crate::Publisher), which sends to those that subscribe |
/// | chosen peers | [`group`](ChannelBuilder::group) | a [`Group`](crate::group::Group), which sends to each of them |
///
/// Each setting has a default, which [`NodeBuilder`](crate::NodeBuilder) can change for all channels of
/// a node:
///
/// | purpose | setting |
/// |---|---|
/// | encoding | [`codec`](Self::codec) |
/// | memory | [`window_bytes`](Self::window_bytes): bytes that are sent and not released |
/// | memory | [`window_messages`](Self::window_messages): the same in messages |
/// | memory | [`max_message_bytes`](Self::max_message_bytes): the longest message |
/// | memory | [`max_unreleased_bytes`](Self::max_unreleased_bytes): the window and long messages together |
/// | time | [`open_timeout`](Self::open_timeout): the wait for the peer's end |
/// | acknowledgements | [`ack_every`](Self::ack_every): how often a receiver tells its sender |
/// | calls | [`max_in_flight`](Self::max_in_flight): calls of one caller that are under way |
/// | tracing | [`trace_context`](Self::trace_context): messages carry the sender's trace context |
///
/// RDMA has no settings of its own for a channel; [`NodeBuilder`](crate::NodeBuilder) has those of a
/// node. The two ends may have different settings. Of limits and windows, the smaller value holds for
/// both.
///
/// # Errors
///
/// A setting that is out of its range is an error of the call that opens the end.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it opens an end"]
pub struct ChannelBuilder<C = DefaultCodec, At = Peer> {
    pub(crate) at: At,
    pub(crate) template: ChannelTemplate,
    _codec: PhantomData<fn() -> C>,
}

impl<At> ChannelBuilder<DefaultCodec, At> {
    pub(crate) fn new(at: At, template: ChannelTemplate) -> Self {
        Self {
            at,
            template,
            _codec: PhantomData,
        }
    }
}

impl<C, At> ChannelBuilder<C, At> {
    /// Chooses how messages are encoded. Default: `Rkyv` (without the feature `rkyv`: `Raw`).
    ///
    /// ```
    /// use ibex::{Peer, Pod, Raw};
    ///
    /// # fn channels(peer: &Peer) -> Result<(), Box<dyn std::error::Error>> {
    /// // Plain old data, sent as it lies in memory and read as it lies there: `Pod`.
    /// let mut samples = peer.channel("samples").codec::<Pod>().sender::<[f64]>()?;
    /// samples.send(&[0.5, 1.0, 1.5])?;
    ///
    /// // Bytes and nothing else: `Raw`.
    /// let mut blobs = peer.channel("blobs").codec::<Raw>().sender::<[u8]>()?;
    /// blobs.send(b"anything")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A struct of your own works with `Pod` if it derives `Pod` and `Zeroable` of the crate
    /// bytemuck (its feature `derive`), and [`Schema`](derive@crate::Schema). A struct with serde's
    /// derives works with `Serde`, or with `SerdeBorrowed` if it borrows:
    ///
    /// ```
    /// # #[cfg(feature = "serde")]
    /// # mod example {
    /// use ibex::{Peer, Serde, serde_bytes};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
    /// struct Entry {
    ///     offset: u64,
    ///     #[serde(with = "serde_bytes")] // without it, each byte is decoded by itself
    ///     data: Vec<u8>,
    /// }
    ///
    /// fn entries(peer: &Peer) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut log = peer.channel("wal").codec::<Serde>().receiver::<Entry>()?;
    ///     while let Some(entry) = log.next()? {
    ///         println!("{} bytes at {}", entry.data.len(), entry.offset);
    ///         entry.ack();
    ///     }
    ///     Ok(())
    /// }
    /// # }
    /// ```
    ///
    /// Any other format is an implementation of [`Codec`]: see the example `custom_codec`.
    pub fn codec<D>(self) -> ChannelBuilder<D, At> {
        ChannelBuilder {
            at: self.at,
            template: self.template,
            _codec: PhantomData,
        }
    }

    /// Keeps the first error for the call that opens the end.
    pub(crate) fn note(&mut self, checked: Result<(), SettingError>) {
        self.template.note(checked);
    }

    /// Says what the end is in errors.
    pub(crate) fn labeled(mut self, label: &'static EndLabel) -> Self {
        self.template = self.template.labeled(label);
        self
    }
}

/// The kind of names that publishers of a node take.
pub(crate) const PUBLISHER: &str = "publisher";

impl<C> ChannelBuilder<C> {
    /// Opens the sending end. This announces the end and returns, without waiting for the peer.
    ///
    /// A name may be used once in each direction. The peer opens the [`receiver`](Self::receiver)
    /// of this channel. This node may also open a receiver of the same name, as the end of another
    /// channel. If both nodes open a sender, both wait, and [`NotOpened`](crate::NotOpened) says
    /// so. Once both ends are gone, the name may be opened again as a new channel.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: the end is open already, the session has ended or has as many ends as it may
    /// have, memory was refused, or the name, the type or a setting is not valid. If the peer has
    /// another type, the first call that waits for the peer's end fails.
    pub fn sender<T: ?Sized>(self) -> Result<Sender<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let offer = message_version::<T, C>().map(MessageVersions::of_one);
        self.open_sender(offer).map(Sender::new)
    }

    /// Opens the receiving end. This announces the end and returns.
    ///
    /// # Errors
    ///
    /// The errors of [`sender`](Self::sender).
    pub fn receiver<T: ?Sized>(self) -> Result<Receiver<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let offer = message_version::<T, C>().map(MessageVersions::of_one);
        self.open_receiver(offer).map(Receiver::new)
    }

    pub(crate) fn open_sender(
        &self,
        offer: Result<MessageVersions, OpenFailure>,
    ) -> Result<SendHandle, OpenError> {
        self.open(Role::Sender, |runtime, name, timeout| {
            let spec = self.spec(offer)?;
            if runtime.state().is_name_taken(PUBLISHER, name) {
                return Err(OpenFailure::AlreadyOpen);
            }
            let handle = runtime.open_sender(self.at.session(), name, spec, timeout)?;
            Ok(handle.labeled(self.template.label))
        })
    }

    /// Opens the sending end of a publisher.
    pub(crate) fn open_publishers_sender(
        &self,
        version: MessageVersion,
    ) -> Result<SendHandle, OpenError> {
        self.open(Role::Sender, |runtime, name, timeout| {
            let spec = self.spec(Ok(MessageVersions::of_one(version)))?;
            let handle = runtime.open_sender(self.at.session(), name, spec, timeout)?;
            Ok(handle.labeled(self.template.label))
        })
    }

    /// Opens an end by `open`, which gets the name and `open_timeout`.
    fn open<H>(
        &self,
        end: Role,
        open: impl FnOnce(&Runtime, &str, Duration) -> Result<H, OpenFailure>,
    ) -> Result<H, OpenError> {
        let (runtime, template) = (self.at.session().runtime(), &self.template);
        let opened = open(runtime, template.name(), template.defaults.open_timeout);
        opened.map_err(|reason| self.refused(end, reason))
    }

    /// Returns a handle of the shared sending end of this name, which stays open as long as the
    /// session.
    pub(crate) fn shared_sender<T: ?Sized>(&self) -> Result<Sender<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        self.open(Role::Sender, |runtime, name, timeout| {
            let spec = self.spec(message_version::<T, C>().map(MessageVersions::of_one))?;
            let handle = runtime.shared_sender(self.at.session(), name, &spec, timeout)?;
            Ok(Sender::new(handle.labeled(self.template.label)))
        })
    }

    pub(crate) fn open_receiver(
        &self,
        offer: Result<MessageVersions, OpenFailure>,
    ) -> Result<ReceiveHandle, OpenError> {
        self.open(Role::Receiver, |runtime, name, timeout| {
            let (mut spec, every) = (self.spec(offer)?, self.template.defaults.ack_every);
            // The sender learns, before it sends, which lengths this node can never take in.
            spec.max_message_bytes = spec.max_message_bytes.min(runtime.longest_message());
            let handle = runtime.open_receiver(self.at.session(), name, spec, timeout, every)?;
            Ok(handle.labeled(self.template.label))
        })
    }

    pub(crate) fn refused(&self, end: Role, reason: OpenFailure) -> OpenError {
        let reason = match reason {
            OpenFailure::SessionOver if self.at.session().runtime().is_closed() => {
                OpenFailure::NodeClosed
            }
            reason => reason,
        };
        let is_taken = reason == OpenFailure::AlreadyOpen;
        let holder = is_taken.then(|| {
            let requests = &self.at.session().requests;
            requests.label_of(self.template.name(), end)
        });
        OpenError::from(Refusal {
            channel: self.template.name().to_owned(),
            peer: self.at.session().peer_name(),
            end,
            reason,
            label: self.template.label,
            holder: holder.flatten().unwrap_or(self.template.label),
        })
    }

    fn spec(
        &self,
        offer: Result<MessageVersions, OpenFailure>,
    ) -> Result<ChannelSpec, OpenFailure> {
        if fork::is_child() {
            return Err(self.at.session().used_after_fork().into());
        }
        self.template.check_name()?;
        if let Some(error) = self.template.refused {
            return Err(error.into());
        }
        let MessageVersions { newest, older } = offer?;
        Ok(ChannelSpec {
            newest,
            older,
            window: self.template.defaults.ring_window(),
            max_message_bytes: self.template.defaults.max_message_bytes,
            max_unreleased_bytes: self.template.defaults.unreleased_bytes(),
            is_traced: self.template.defaults.trace_context,
        })
    }
}

/// The message types that an end knows.
pub struct MessageVersions {
    /// The type that the end prefers.
    pub newest: MessageVersion,
    /// Older types that it can read or write too.
    pub older: Vec<MessageVersion>,
}

impl MessageVersions {
    /// Makes the versions of an end that knows one type.
    #[must_use]
    pub fn of_one(version: MessageVersion) -> Self {
        Self {
            newest: version,
            older: Vec::new(),
        }
    }
}

/// Describes messages of type `T` by codec `C`, as peers compare them.
pub fn message_version<T: ?Sized, C: Codec<T>>() -> Result<MessageVersion, OpenFailure> {
    let alignment = C::alignment();
    if !alignment.is_power_of_two() || !(8..=64).contains(&alignment) {
        return Err(OpenFailure::Alignment { alignment });
    }
    let schema = C::schema();
    Ok(MessageVersion {
        fingerprint: schema.fingerprint.0,
        schema: schema.text,
        alignment: alignment as u32,
    })
}
