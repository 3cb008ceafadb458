//! Publishers: one sender for all peers that subscribe.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, MutexGuard, Weak},
    task::Waker,
    thread,
    time::Duration,
};

use ibex_base::fork::{self, UsedAfterFork};
use ibex_codec::Codec;
use ibex_ring::parking::{self, Claimed, Patience};
use ibex_transport::{
    channel::{SendGroup, WaitingTask, WhenFull},
    node::TakenName,
    runtime::Gathering,
};

use self::subscriptions::Subscriptions;
use crate::{
    ChannelBuilder, CloseReason, Node, OpenError, SendError, Sender, WaitError,
    error::OpenFailure,
    handles::message::DefaultCodec,
    many::group::{GroupMember, MemberLost},
    peer::channel_builder::{PUBLISHER, message_version},
};

mod futures;
mod subscriptions;

/// Sends each message to every peer that subscribes: whose receiver of the same name is open.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::{Node, Peer, Publisher};
///
/// type Error = Box<dyn std::error::Error>;
///
/// #[ibex::message]
/// struct Price {
///     cents: u64,
/// }
///
/// /// Publishes to whoever subscribes, now or later.
/// fn publish(node: &Node) -> Result<(), Error> {
///     let mut prices = node.publisher::<Price>("prices")?;
///     for cents in 100..200 {
///         prices.send(&Price { cents })?; // returns at once if nobody subscribes
///     }
///     Ok(())
/// }
///
/// /// Subscribes. The connection may come from either side.
/// fn watch(peer: &Peer) -> Result<(), Error> {
///     let mut prices = peer.receiver::<Price>("prices")?;
///     while let Some(price) = prices.next()? {
///         println!("{}", price.cents);
///     }
///     Ok(())
/// }
/// # }
/// ```
///
/// [`Node::publisher`] opens one with the default settings, and [`Node::channel`] one with settings.
/// Peers need not be accepted.
///
/// - **Subscribing.** A subscriber is a [`Receiver`](crate::Receiver) of the publisher's name, or a
///   [`FanIn`](crate::FanIn), which receives from all publishers of that name that its node meets.
///   Nothing is called here for it. It gets everything that is sent after
///   [`Receiver::opened`](crate::Receiver::opened) has returned there, or the fan-in has returned
///   [`Joined`](crate::FanInEvent::Joined), in order and without a gap; its own count of
///   [sequences](crate::Message::sequence) begins with 1. It may be dropped, and opened again, at any
///   time.
/// - **Slow subscribers.** A subscriber may be behind by its window. Sending waits for room there for
///   up to 100 ms, and then drops the subscriber; [`when_full`](Self::when_full) changes that. Its
///   receiver gets what was sent to it, and then
///   [`Disconnected`](crate::RecvErrorKind::Disconnected) with
///   [`CloseReason::NoRoom`](crate::CloseReason). The peer may open another one at once, and is a
///   subscriber again when it has waited twenty times as long as it was waited for, which is two
///   seconds by default.
/// - **Others cannot hinder.** A subscriber of another message type gets an error at its own end. One
///   whose [`max_message_bytes`](ChannelBuilder::max_message_bytes) is below a message's length is
///   dropped as a slow one is.
/// - **One publisher for a name.** Another publisher of that name on this node is refused, and so is a
///   [`Peer::sender`](crate::Peer::sender). A peer with which this node has such a sender already
///   subscribes when that is dropped and it opens another receiver. With as many ends as a session
///   may have, a peer cannot subscribe; a warning in the log says so.
/// - **The end.** Dropping the publisher ends all channels in order: each subscriber gets everything
///   that was sent to it, then `None`. After [`abort`](Self::abort), or if a panic drops the publisher,
///   each gets an error instead. A peer that subscribes afterwards waits for the next publisher of the
///   name.
///
/// A [`Group`](crate::group::Group) sends to peers that the program chooses, and waits for a quorum of their
/// acknowledgements.
pub struct Publisher<T: ?Sized, C = DefaultCodec> {
    topic: Arc<Topic>,
    /// The name, which is given back after the ends of the channels.
    _name: TakenName,
    _types: PhantomData<fn(&T) -> C>,
}

/// The state that a publisher shares with its waker. Peers come and go while the program does not
/// call the publisher, so the waker takes them in.
struct Topic {
    subscriptions: Claimed<Subscriptions>,
    /// The task that waits for the subscribers.
    waiting: Arc<WaitingTask>,
    waker: Waker,
}

impl Topic {
    fn new(subscriptions: Subscriptions) -> Arc<Self> {
        Arc::new_cyclic(|topic: &Weak<Self>| Self {
            waiting: Arc::clone(subscriptions.group.waiting()),
            subscriptions: Claimed::new(subscriptions),
            waker: parking::waker_of(topic.clone(), |topic| topic.run_claimed()),
        })
    }

    fn run_claimed(&self) {
        let subscriptions = &self.subscriptions;
        subscriptions.run_claimed(|subscriptions| subscriptions.take_changes(&self.waker));
        self.waiting.wake_if_lost();
    }

    /// Returns the subscriptions; `None` in a fork of the process, if a thread that does not exist
    /// there holds them.
    fn hold(&self) -> Option<MutexGuard<'_, Subscriptions>> {
        match fork::is_child() {
            false => Some(self.subscriptions.hold()),
            true => self.subscriptions.try_hold(),
        }
    }

    /// Runs `act` on the subscriptions, and then takes in what came meanwhile. `None` as for
    /// [`hold`](Self::hold).
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut Subscriptions) -> R) -> Option<R> {
        let mut subscriptions = self.hold()?;
        // A peer whose end is open by now is a subscriber, also if its waker was not called yet.
        if subscriptions.has_changes() && !fork::is_child() {
            subscriptions.take_changes(&self.waker);
        }
        let done = act(&mut subscriptions);
        if !fork::is_child() {
            subscriptions.renew_lost();
            let act = |subscriptions: &mut Subscriptions| subscriptions.take_changes(&self.waker);
            self.subscriptions.leave(subscriptions, act);
            self.waiting.wake_if_lost();
        }
        Some(done)
    }
}

impl Node {
    /// Opens a publisher on the channel `name`, for all present and future peers, with the default
    /// settings and codec.
    ///
    /// # Errors
    ///
    /// [`OpenErrorKind::AlreadyOpen`](crate::OpenErrorKind::AlreadyOpen): this node has a publisher
    /// of this name. Other kinds: the name or type is not valid, or the process is a fork.
    #[cfg(feature = "rkyv")]
    pub fn publisher<T: ?Sized>(&self, name: &str) -> Result<Publisher<T>, OpenError>
    where
        crate::Rkyv: Codec<T>,
    {
        self.channel(name).publisher()
    }
}

impl<C> ChannelBuilder<C, &Node> {
    /// Opens a publisher for all present and future peers.
    ///
    /// # Errors
    ///
    /// [`OpenErrorKind::AlreadyOpen`](crate::OpenErrorKind::AlreadyOpen): this node has a publisher
    /// of this name. Other kinds: a setting is out of its range, the name or type is not valid, or
    /// the process is a fork.
    pub fn publisher<T: ?Sized>(self) -> Result<Publisher<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        self.at.check_fork()?;
        let template = self.template.check()?;
        let refuse = |reason| OpenError::of_publisher(template.name(), &reason);
        template.check_name().map_err(refuse)?;
        let version = message_version::<T, C>().map_err(refuse)?;
        let runtime = self.at.runtime();
        let name = runtime.state().take_name(PUBLISHER, template.name());
        let name = name.ok_or_else(|| refuse(OpenFailure::AlreadyOpen))?;
        let mut group = SendGroup::new(runtime);
        group.open_to_peers();
        group.set_when_full(WhenFull::DropAfter(PATIENCE));
        let gathering = Gathering::of_subscribers(runtime, template.name());
        let topic = Topic::new(Subscriptions::new(template, version, gathering, group));
        topic.run_claimed();
        Ok(Publisher {
            topic,
            _name: name,
            _types: PhantomData,
        })
    }
}

/// How long a publisher waits for a full subscriber by default. Long enough for a subscriber that
/// the kernel did not let run for a moment, and short enough for the others not to notice.
const PATIENCE: Duration = Duration::from_millis(100);

impl<T: ?Sized, C> Publisher<T, C> {
    /// Sets the fate of a subscriber whose window is full. Default: [`WhenFull::DropAfter`] 100 ms.
    ///
    /// | value | for |
    /// |---|---|
    /// | `DropAfter(Duration::ZERO)` | publishers that must not wait: a burst longer than a window drops |
    /// | `DropAfter(time)` | subscribers that may pause for this time. Those that take messages steadily, but fewer than are sent, set the pace of all |
    /// | `Wait` | subscribers that must miss nothing: one that stops holds up all others |
    ///
    /// The time counts from the first send that finds no room at the subscriber.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.topic
            .with(|subscriptions| subscriptions.group.set_when_full(when_full));
        self
    }

    /// Returns the present subscribers, in the order of subscribing. Never waits.
    #[must_use]
    pub fn subscribers(&self) -> Vec<GroupMember> {
        let list = |subscriptions: &mut Subscriptions| {
            subscriptions.group.members().map(GroupMember::of).collect()
        };
        self.topic.with(list).unwrap_or_default()
    }

    /// Returns the earliest subscriber that left, or was dropped, and was not yet returned here, and
    /// why. Never waits. Only the last 64 are kept.
    pub fn next_lost(&mut self) -> Option<MemberLost> {
        let next = |subscriptions: &mut Subscriptions| subscriptions.group.next_lost();
        let (parted, reason) = self.topic.with(next).flatten()?;
        Some(MemberLost::of(parted, reason))
    }

    /// Returns the last message's sequence; 0 before the first.
    #[must_use]
    pub fn sent(&self) -> u64 {
        let last = |subscriptions: &mut Subscriptions| subscriptions.group.last_sequence();
        self.topic.with(last).unwrap_or_default()
    }

    /// Waits until every subscriber's engine holds everything that was sent to it. Subscribers that
    /// end before that are dropped. New subscribers wait meanwhile.
    pub fn flush(&mut self) {
        let flushed = self.flush_with(Patience::FOREVER);
        debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
    }

    /// Like [`flush`](Self::flush), for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`WaitErrorKind::Timeout`](crate::WaitErrorKind::Timeout) with a [member](WaitError::member)
    /// that is not that far.
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        self.flush_with(Patience::at_most(timeout))
    }

    fn flush_with(&mut self, patience: Patience) -> Result<(), WaitError> {
        let flushed = |subscriptions: &mut Subscriptions| subscriptions.group.flush(patience);
        let flushed = self.topic.with(flushed).unwrap_or(Ok(()));
        flushed.map_err(WaitError::of_flush)
    }

    /// Delivers everything that was sent to every subscriber's engine, then ends all channels.
    /// Returns the subscribers that left or were dropped and were not yet returned by
    /// [`next_lost`](Self::next_lost).
    pub fn close(mut self) -> Vec<MemberLost> {
        self.topic.with(|subscriptions| subscriptions.group.close());
        self.flush();
        std::iter::from_fn(|| self.next_lost()).collect()
    }

    /// Breaks off, so that no subscriber's channel ends in order, as
    /// [`Sender::abort`](crate::Sender::abort) does.
    pub fn abort(self) {
        self.end(Some(CloseReason::Aborted));
    }

    /// Ends all channels: in order, unless they are broken off with a reason.
    fn end(&self, broken_off: Option<CloseReason>) {
        if fork::is_child() {
            // The topic is leaked: a thread that does not exist here may hold its lock.
            std::mem::forget(Arc::clone(&self.topic));
            return;
        }
        self.topic.subscriptions.hold().close(broken_off);
    }
}

impl<T: ?Sized, C: Codec<T>> Publisher<T, C> {
    /// Sends a message to all subscribers, and returns its sequence. Without any it encodes nothing
    /// and returns at once. Waits while the window of a subscriber is full, for as long as
    /// [`when_full`](Self::when_full) says; peers that come meanwhile subscribe afterwards.
    ///
    /// The message is encoded once, and copied to the other subscribers' windows.
    ///
    /// # Errors
    ///
    /// [`SendError`]; the message was sent to nobody then: it is above this end's limit or cannot be
    /// encoded, memory was refused, or the node was closed
    /// ([`SendErrorKind::Disconnected`](crate::SendErrorKind::Disconnected)).
    #[inline]
    pub fn send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::FOREVER)
    }

    /// Sends a message if every subscriber has room for it now.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`](crate::SendErrorKind::Full) with the [member](SendError::member) that
    /// is in the way; else as [`send`](Self::send). The message was sent to nobody.
    #[inline]
    pub fn try_send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::None)
    }

    /// Sends a message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`try_send`](Self::try_send), when the time is up.
    pub fn send_timeout(&mut self, value: &T, timeout: Duration) -> Result<u64, SendError> {
        self.send_with(value, Patience::at_most(timeout))
    }

    #[inline]
    fn send_with(&mut self, value: &T, patience: Patience) -> Result<u64, SendError> {
        if fork::is_child() {
            return sent_after_fork();
        }
        let sent = self.topic.with(|subscriptions| {
            let message = Sender::<T, C>::group_message(value);
            let sent = subscriptions.group.send(message, patience);
            sent.map_err(|failure| SendError::of_publisher(subscriptions.template.name(), failure))
        });
        sent.unwrap_or_else(sent_after_fork)
    }
}

/// The outcome of sending in a fork of the process.
#[cold]
fn sent_after_fork() -> Result<u64, SendError> {
    Err(SendError::of_fork(UsedAfterFork::new(
        "a publisher".to_owned(),
    )))
}

impl<T: ?Sized, C> Drop for Publisher<T, C> {
    fn drop(&mut self) {
        self.end(thread::panicking().then_some(CloseReason::Aborted));
    }
}

impl<T: ?Sized, C> fmt::Debug for Publisher<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Publisher");
        self.topic.with(|subscriptions| {
            shown
                .field("channel", &subscriptions.template.name())
                .field("subscribers", &subscriptions.group.numbers().len())
                .field("sent", &subscriptions.group.last_sequence());
        });
        shown.finish_non_exhaustive()
    }
}
