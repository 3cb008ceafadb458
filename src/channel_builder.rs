//! Settings of channels, checked when an end is opened.

use std::{marker::PhantomData, time::Duration};

use ibex_base::fork;
use ibex_protocol::format::{
    control::{ChannelSpec, MAX_NAME_BYTES, Role},
    message_version::MessageVersion,
};
use ibex_transport::{
    channel::{ReceiveHandle, SendHandle},
    session::Interface,
};

#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Node;
use crate::{
    Codec, OpenError, Peer, Receiver, Sender, VersionsBuilder,
    error::{OpenFailure, Refusal},
    message::DefaultCodec,
    template::ChannelTemplate,
};

/// Settings of a channel: its codec, its limits and its waiting.
///
/// [`Peer::channel`] begins one for a channel with one peer, which ends in
/// [`sender`](Self::sender), [`receiver`](Self::receiver) or [`versions`](Self::versions).
/// [`Node::channel`] begins one for a channel with many, which ends in
/// [`fan_in`](ChannelBuilder::fan_in) or [`group`](ChannelBuilder::group).
///
/// ```
/// use ibex::{Node, Peer, Raw};
///
/// # fn open(node: &Node, peer: &Peer) -> Result<(), Box<dyn std::error::Error>> {
/// let mut blobs = peer.channel("blobs").codec::<Raw>().window_bytes(1 << 20).sender::<[u8]>()?;
/// blobs.send(b"anything")?;
///
/// let requests = node.channel("requests").codec::<Raw>().ack_every(64).fan_in::<[u8]>()?;
/// # Ok(())
/// # }
/// ```
///
/// | purpose | settings |
/// |---|---|
/// | encoding | [`codec`](Self::codec) |
/// | memory | [`window_bytes`](Self::window_bytes), [`window_messages`](Self::window_messages), [`max_unreleased_bytes`](Self::max_unreleased_bytes), [`max_message_bytes`](Self::max_message_bytes) |
/// | waiting | [`open_timeout`](Self::open_timeout) |
/// | acknowledgements | [`ack_every`](Self::ack_every) |
///
/// Both ends may be set differently: the smaller window and limit holds for both. A setting that
/// is out of its range is an error of the call that opens the end.
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
    /// How messages are encoded. Default: `Rkyv` (without the feature `rkyv`: `Raw`).
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
    /// A struct of one's own goes by `Pod` if it derives `Pod` and `Zeroable` of the crate
    /// bytemuck (its feature `derive`) and [`Schema`](derive@crate::Schema). One with serde's
    /// derives goes by `Serde`, or by `SerdeBorrowed` if it borrows:
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

    /// Messages that may be sent and not yet released. Default: 16384, range 1 to 2^20.
    /// More lets a sender run further ahead of its receiver, whose end keeps 4 bytes for
    /// each, and on tcp and verbs 48 more once used.
    pub fn window_messages(mut self, messages: u64) -> Self {
        self.template = self.template.window_messages(messages);
        self
    }

    /// Bytes that may be sent and not yet released, and the size of the ring: a power of
    /// two from 64 KiB to 4 MiB; range 1 byte to 4 MiB, others are rounded up. Default:
    /// 2 MiB. Messages longer than half of it get memory of their own, and count in
    /// [`max_unreleased_bytes`](Self::max_unreleased_bytes) beside it. More is more
    /// [memory](crate::NodeBuilder#memory) at both ends, once used.
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.window_bytes(bytes);
        self
    }

    /// The most bytes of one message. Default: 16 MiB, range 1 byte to 1 GiB; of both ends' the
    /// smaller holds. `max_message_bytes` of a receiving end is lowered to its node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit); a longer message is
    /// [`SendErrorKind::TooLong`](crate::SendErrorKind::TooLong). More lets more be sent and not released, where
    /// [`max_unreleased_bytes`](Self::max_unreleased_bytes) is not set.
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.max_message_bytes(bytes);
        self
    }

    /// Payload bytes that may be sent and not yet released by the receiving application.
    /// Default: `window_bytes` and twice `max_message_bytes`; range 1 byte to 1 TiB. Of both
    /// ends' the smaller holds.
    ///
    /// It has two parts. Messages that lie in the ring have `window_bytes`. Messages with memory
    /// of their own have the rest, which is never less than `window_bytes`; one of them may
    /// always be out. So the most is twice `window_bytes`, or `window_bytes` and one message,
    /// where that is more than what is set.
    ///
    /// A message longer than half of `window_bytes` has memory of its own over every fabric, so
    /// as many of those may be out over each. A shorter one has it over tcp above 128 KiB and
    /// over verbs above a receive buffer. A setting below `window_bytes` lowers that, to a power
    /// of two and no further than to 64 KiB. Over shared memory 64 messages with memory of their
    /// own may be out at most, whatever is set. A higher setting lets a receiver that takes
    /// nothing hold more memory.
    pub fn max_unreleased_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.max_unreleased_bytes(bytes);
        self
    }

    /// How long a blocking call waits for the peer to open its end. Default: 10 s, for each
    /// call anew, until the peer has opened it; range from 0 ([`Duration::MAX`]: for ever). A
    /// call with a shorter time-out of its own waits no longer than that. The end stays open
    /// when the time is up. Longer bears with slower peers, and tells later of a name that
    /// nobody opens.
    pub fn open_timeout(mut self, timeout: Duration) -> Self {
        self.template = self.template.open_timeout(timeout);
        self
    }

    /// For a receiving end: its sender hears at latest of every so many messages that are
    /// acknowledged or released. Default: of each half window, and whenever the sender waits;
    /// range 1 to 2^20, and half the window is the most. Fewer serve a sender that looks at
    /// [`acked`](crate::Sender::acked) without waiting, or has several receivers to wait for.
    /// Each time costs a small frame where there is none in that direction, on both sides some
    /// 2 µs over tcp; over shared memory it costs the receiver a look at what was acknowledged.
    ///
    /// What is acknowledged is counted, and told, when the receiver is next asked for a message.
    pub fn ack_every(mut self, messages: u64) -> Self {
        self.template = self.template.ack_every(messages);
        self
    }

    /// Tells errors in the words of this interface.
    pub(crate) fn told_as(mut self, interface: Interface) -> Self {
        self.template = self.template.told_as(interface);
        self
    }
}

impl<C> ChannelBuilder<C> {
    /// Opens the sending end: announces it and returns, without waiting for the peer.
    ///
    /// A name may be used once in each direction: the peer opens the
    /// [`receiver`](Self::receiver) of this channel, and this node may open a receiver of
    /// the same name as the end of another channel. Where both open a sender, both wait,
    /// and [`NotOpened`](crate::NotOpened) says so. Once both ends are gone, the name may
    /// be opened again as a new channel.
    ///
    /// # Errors
    ///
    /// [`OpenError`], whose kind says: the end is open already, the session has ended or
    /// is at its limit, memory was refused, or the name, the type or a setting cannot be
    /// had. A peer whose type differs is told of by the first call that waits for it.
    pub fn sender<T: ?Sized>(self) -> Result<Sender<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let offer = message_version::<T, C>().map(Offer::of_one);
        self.open_sender(offer).map(Sender::new)
    }

    /// Opens the receiving end: announces it and returns.
    ///
    /// # Errors
    ///
    /// As [`sender`](Self::sender).
    pub fn receiver<T: ?Sized>(self) -> Result<Receiver<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let offer = message_version::<T, C>().map(Offer::of_one);
        self.open_receiver(offer).map(Receiver::new)
    }

    /// Opens an end that knows two versions of the message type, newer and older, for
    /// programs that are updated one after the other: see [`Versions`](crate::Versions).
    pub fn versions<N: ?Sized, O: ?Sized>(self) -> VersionsBuilder<N, O, C>
    where
        C: Codec<N> + Codec<O>,
    {
        VersionsBuilder::new(self)
    }

    pub(crate) fn open_sender(
        &self,
        offer: Result<Offer, OpenFailure>,
    ) -> Result<SendHandle, OpenError> {
        let refuse = |reason| self.refused(Role::Sender, reason);
        let spec = self.spec(offer).map_err(refuse)?;
        let runtime = self.at.session().runtime();
        let timeout = self.template.defaults.open_timeout;
        let opened = runtime.open_sender(self.at.session(), self.template.name(), spec, timeout);
        let handle = opened.map_err(|error| refuse(error.into()))?;
        Ok(handle.told_as(self.template.interface))
    }

    /// A handle of the sending end that stays open as long as the session, for all who ask for
    /// it by this name.
    pub(crate) fn shared_sender<T: ?Sized>(&self) -> Result<Sender<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let refuse = |reason| self.refused(Role::Sender, reason);
        let offer = message_version::<T, C>().map(Offer::of_one);
        let spec = self.spec(offer).map_err(refuse)?;
        let runtime = self.at.session().runtime();
        let timeout = self.template.defaults.open_timeout;
        let opened = runtime.shared_sender(self.at.session(), self.template.name(), &spec, timeout);
        let handle = opened.map_err(|error| refuse(error.into()))?;
        Ok(Sender::new(handle.told_as(self.template.interface)))
    }

    /// How long a blocking call waits for the peer to open its end.
    pub(crate) fn timeout(&self) -> Duration {
        self.template.defaults.open_timeout
    }

    pub(crate) fn open_receiver(
        &self,
        offer: Result<Offer, OpenFailure>,
    ) -> Result<ReceiveHandle, OpenError> {
        let refuse = |reason| self.refused(Role::Receiver, reason);
        let mut spec = self.spec(offer).map_err(refuse)?;
        let runtime = self.at.session().runtime();
        // The sender hears of what can never be taken in before it sends.
        spec.max_message_bytes = spec.max_message_bytes.min(runtime.longest_message());
        let (timeout, every) = (
            self.template.defaults.open_timeout,
            self.template.defaults.ack_every,
        );
        let opened = runtime.open_receiver(
            self.at.session(),
            self.template.name(),
            spec,
            timeout,
            every,
        );
        let handle = opened.map_err(|error| refuse(error.into()))?;
        Ok(handle.told_as(self.template.interface))
    }

    pub(crate) fn refused(&self, end: Role, reason: OpenFailure) -> OpenError {
        let reason = match reason {
            OpenFailure::SessionOver if self.at.session().runtime().is_closed() => {
                OpenFailure::NodeClosed
            }
            reason => reason,
        };
        let is_taken = reason == OpenFailure::AlreadyOpen;
        let holder = is_taken.then(|| self.at.session().interface_of(self.template.name(), end));
        OpenError::from(Refusal {
            channel: self.template.name().to_owned(),
            peer: self.at.session().peer_name(),
            end,
            reason,
            interface: self.template.interface,
            holder: holder.flatten().unwrap_or(self.template.interface),
        })
    }

    fn spec(&self, offer: Result<Offer, OpenFailure>) -> Result<ChannelSpec, OpenFailure> {
        if fork::is_child() {
            return Err(self.at.session().used_after_fork().into());
        }
        let bytes = self.template.name().len();
        if !(1..=MAX_NAME_BYTES).contains(&bytes) {
            return Err(OpenFailure::Name { bytes });
        }
        if let Some(error) = self.template.refused {
            return Err(error.into());
        }
        let Offer { newest, older } = offer?;
        Ok(ChannelSpec {
            newest,
            older,
            window: self.template.defaults.ring_window(),
            max_message_bytes: self.template.defaults.max_message_bytes,
            max_unreleased_bytes: self.template.defaults.unreleased_bytes(),
        })
    }
}

/// The message types that an end knows.
pub(crate) struct Offer {
    pub(crate) newest: MessageVersion,
    pub(crate) older: Vec<MessageVersion>,
}

impl Offer {
    pub(crate) fn of_one(version: MessageVersion) -> Self {
        Self {
            newest: version,
            older: Vec::new(),
        }
    }
}

/// Messages of type `T` by codec `C`, as peers compare them.
pub(crate) fn message_version<T: ?Sized, C: Codec<T>>() -> Result<MessageVersion, OpenFailure> {
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
