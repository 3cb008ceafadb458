//! One channel name, all peers: what a server takes its requests from.

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    mem,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use ibex_base::fork;
use ibex_codec::Codec;
use ibex_ring::parking::Condition;
use ibex_transport::{
    channel::{FOUND_PER_TURN, GatheringWait, OfAnyPeer, RecvError},
    runtime::Gathering,
    session::{Interface, SessionShared},
};

use self::member::Member;
pub use self::{
    event::{FanInError, FanInEvent, NothingCame},
    member::FanInPeer,
};
use crate::{
    AndOlder, KnownVersions, Node, OneVersion, Peer, PeerAt, SettingError,
    channel_defaults::ChannelDefaults, message::DefaultCodec, template::ChannelTemplate,
};

mod event;
mod futures;
mod member;

/// Receives what present and future peers send on one channel, each on its own.
///
/// Made by [`Node::receiver`] or [`Node::fan_in`]. A peer joins when it opens its sender of that
/// name, and again when it has dropped that one and opens another. Peers that have messages get
/// their turns one after the other, and those that are idle cost nothing: who wakes up is told by
/// whom. There is no thread in between, and nothing is polled while it sleeps.
///
/// It opens the receiving end of the name with every peer, so a
/// [`Peer::receiver`](crate::Peer::receiver) of that name is refused, and the other way round.
/// Dropping it ends them all. It opens an end, and takes a peer in, when it is called and not
/// in between: a sender whose peer has a fan-in that nobody calls waits for its `open_timeout`.
/// Peers need not be accepted. A [`Select`](crate::Select) waits for it beside other receivers.
///
/// The parameter `V` is set by [`versions`](FanInBuilder::versions) and otherwise left
/// out.
///
/// ```
/// use ibex::{FanIn, FanInEvent, Raw, RecvError};
///
/// /// Counts the bytes of all peers until the node is closed.
/// fn count(requests: &mut FanIn<[u8], Raw>) -> u64 {
///     let mut bytes = 0;
///     while let Some(event) = requests.next() {
///         match event {
///             FanInEvent::Joined(peer) => println!("{peer} has come"),
///             FanInEvent::Message(_, message) => bytes += message.len() as u64,
///             FanInEvent::Ended(peer) => println!("{peer} is done"),
///             FanInEvent::Lost(peer, error) => println!("{peer} is gone: {error}"),
///         }
///     }
///     bytes
/// }
/// ```
pub struct FanIn<T: ?Sized, C = DefaultCodec, V: KnownVersions<T, C> = OneVersion> {
    template: ChannelTemplate,
    /// Of other channels with its peers.
    defaults: ChannelDefaults,
    gathering: Gathering,
    // The peers.
    members: Vec<Option<Member<V::Kept>>>,
    live: usize,
    /// All of them write this process's memory.
    in_memory: bool,
    /// Those that may have something, and whose turn it is.
    hot: Vec<usize>,
    turn: usize,
    /// How often one of them had something.
    found: u32,
    // What was told and not taken up yet.
    told: Vec<usize>,
    sessions: VecDeque<Arc<SessionShared>>,
    events: VecDeque<FanInEvent<T, C, V>>,
    /// What a task left that waits.
    task_wait: GatheringWait,
    _message: PhantomData<fn(&T)>,
    _codec: PhantomData<fn() -> C>,
}

/// Settings of a [`FanIn`]. Made by [`Node::fan_in`], ends in [`receiver`](Self::receiver).
#[derive(Debug)]
#[must_use = "a builder does nothing until `receiver`"]
pub struct FanInBuilder<'a, C = DefaultCodec> {
    node: &'a Node,
    template: ChannelTemplate,
    _codec: PhantomData<fn() -> C>,
}

/// A [`FanIn`] whose ends know two versions of the message type. Made by
/// [`FanInBuilder::versions`].
pub type VersionedFanIn<N, O, C = DefaultCodec> = FanIn<N, C, AndOlder<O>>;

/// What comes of a [`VersionedFanIn`].
pub type VersionedFanInEvent<N, O, C = DefaultCodec> = FanInEvent<N, C, AndOlder<O>>;

/// Opens a [`FanIn`] that knows two versions of its message type. Made by
/// [`FanInBuilder::versions`], behind its settings and codec.
#[must_use = "a builder does nothing until `receiver`"]
pub struct FanInVersionsBuilder<'a, N: ?Sized, O: ?Sized, C = DefaultCodec> {
    fan_in: FanInBuilder<'a, C>,
    _versions: PhantomData<fn(&N, &O)>,
}

/// Looks at a peer that has nothing before it is left alone until it tells.
const HOT_LOOKS: u32 = 64;

impl Node {
    /// The receiving ends of the channel `name` with all peers, present and future, with the
    /// default settings and codec. A name that cannot be had is told of each peer, as
    /// [`FanInEvent::Lost`].
    ///
    /// # Errors
    ///
    /// None: the settings are the node's, which were checked when it was made.
    #[cfg(feature = "rkyv")]
    pub fn receiver<T: ?Sized>(&self, name: &str) -> Result<FanIn<T>, SettingError>
    where
        crate::Rkyv: Codec<T>,
    {
        self.fan_in(name).receiver()
    }

    /// The same with settings.
    pub fn fan_in(&self, name: &str) -> FanInBuilder<'_> {
        FanInBuilder {
            node: self,
            template: ChannelTemplate::new(self, name),
            _codec: PhantomData,
        }
    }
}

impl Node {
    /// A fan-in of whatever `V` knows, with settings that were made elsewhere.
    pub(crate) fn fan_in_of<T: ?Sized, C, V: KnownVersions<T, C>>(
        &self,
        template: ChannelTemplate,
    ) -> Result<FanIn<T, C, V>, SettingError> {
        let builder = FanInBuilder {
            node: self,
            template,
            _codec: PhantomData,
        };
        builder.open()
    }
}

impl<'a, C> FanInBuilder<'a, C> {
    /// How messages are encoded. As
    /// [`ChannelBuilder::codec`](crate::ChannelBuilder::codec).
    pub fn codec<D>(self) -> FanInBuilder<'a, D> {
        FanInBuilder {
            node: self.node,
            template: self.template,
            _codec: PhantomData,
        }
    }

    /// Messages that each peer may have sent and this end not released. As
    /// [`ChannelBuilder::window_messages`](crate::ChannelBuilder::window_messages).
    pub fn window_messages(mut self, messages: u64) -> Self {
        self.template = self.template.window_messages(messages);
        self
    }

    /// The same in bytes. As
    /// [`ChannelBuilder::window_bytes`](crate::ChannelBuilder::window_bytes).
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.window_bytes(bytes);
        self
    }

    /// The longest message. As
    /// [`ChannelBuilder::max_message_bytes`](crate::ChannelBuilder::max_message_bytes).
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.max_message_bytes(bytes);
        self
    }

    /// See [`ChannelBuilder::max_unreleased_bytes`](crate::ChannelBuilder::max_unreleased_bytes).
    pub fn max_unreleased_bytes(mut self, bytes: u64) -> Self {
        self.template = self.template.max_unreleased_bytes(bytes);
        self
    }

    /// Of every so many messages each peer hears that they are acknowledged. As
    /// [`ChannelBuilder::ack_every`](crate::ChannelBuilder::ack_every).
    pub fn ack_every(mut self, messages: u64) -> Self {
        self.template = self.template.ack_every(messages);
        self
    }

    /// Errors are told in the words of this interface.
    pub(crate) fn told_as(mut self, interface: Interface) -> Self {
        self.template = self.template.told_as(interface);
        self
    }

    /// Opens the receiving end with every peer that is there, and with those that come.
    ///
    /// # Errors
    ///
    /// [`SettingError`]: a setting is out of its range.
    pub fn receiver<T: ?Sized>(self) -> Result<FanIn<T, C>, SettingError>
    where
        C: Codec<T>,
    {
        self.open()
    }

    /// For ends that know two versions of the message type, newer and older: peers are updated
    /// one after the other, and each sends its own. See [`Versions`](crate::Versions).
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{FanInEvent, Node, Versions};
    ///
    /// #[ibex::message]
    /// struct RequestV1 { key: u64 }
    ///
    /// #[ibex::message]
    /// struct RequestV2 { key: u64, limit: u32 }
    ///
    /// fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
    ///     let requests = node.fan_in("requests").versions::<RequestV2, RequestV1>();
    ///     let mut requests = requests.receiver()?;
    ///     while let Some(event) = requests.next() {
    ///         if let FanInEvent::Message(peer, request) = event {
    ///             match &request {
    ///                 Versions::Newer(one) => println!("{peer}: {}, {} at most", one.key, one.limit),
    ///                 Versions::Older(one) => println!("{peer}: {}", one.key),
    ///             }
    ///             request.ack();
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// # }
    /// ```
    pub fn versions<N: ?Sized, O: ?Sized>(self) -> FanInVersionsBuilder<'a, N, O, C>
    where
        C: Codec<N> + Codec<O>,
    {
        FanInVersionsBuilder {
            fan_in: self,
            _versions: PhantomData,
        }
    }

    fn open<T: ?Sized, V: KnownVersions<T, C>>(self) -> Result<FanIn<T, C, V>, SettingError> {
        Ok(FanIn {
            template: self.template.checked()?,
            defaults: self.node.channel_defaults(),
            gathering: Gathering::of(&self.node.runtime),
            members: Vec::new(),
            live: 0,
            in_memory: true,
            hot: Vec::new(),
            turn: 0,
            found: 0,
            told: Vec::new(),
            sessions: VecDeque::new(),
            events: VecDeque::new(),
            task_wait: GatheringWait::default(),
            _message: PhantomData,
            _codec: PhantomData,
        })
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> FanInVersionsBuilder<'_, N, O, C> {
    /// Opens the receiving end with every peer that is there, and with those that come.
    ///
    /// # Errors
    ///
    /// [`SettingError`]: a setting is out of its range. Two versions that do not differ are told
    /// of each peer, as [`FanInEvent::Lost`].
    pub fn receiver(self) -> Result<VersionedFanIn<N, O, C>, SettingError> {
        self.fan_in.open()
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> FanIn<T, C, V> {
    /// What comes next, of whichever peer; `None` when the node was closed and everything was
    /// received. Waits while nothing is there; a message, a peer that comes or goes, or
    /// [`Node::close`] wakes it.
    ///
    /// A peer's end or error ends nothing but that peer.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator could not be asked for counters between two events"
    )]
    pub fn next(&mut self) -> Option<FanInEvent<T, C, V>> {
        match self.find() {
            Some(event) => Some(event),
            None => self.wait(None).unwrap_or(None),
        }
    }

    /// The same, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`NothingCame`] when the time was up.
    pub fn next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<FanInEvent<T, C, V>>, NothingCame> {
        match self.find() {
            Some(event) => Ok(Some(event)),
            None => self.wait(Instant::now().checked_add(timeout)),
        }
    }

    /// What is there now, if anything is. Under [`Driver::Caller`](crate::Driver::Caller) it
    /// runs a turn when nothing is.
    ///
    /// # Errors
    ///
    /// [`NothingCame`] if nothing is there.
    pub fn try_next(&mut self) -> Result<Option<FanInEvent<T, C, V>>, NothingCame> {
        if let Some(event) = self.find() {
            return Ok(Some(event));
        }
        self.gathering.poll();
        match self.find() {
            Some(event) => Ok(Some(event)),
            None if self.is_over() => Ok(None),
            None => Err(NothingCame),
        }
    }

    /// The peers that have joined and are not gone, and how far each of their channels came;
    /// one with several sessions is listed once for each. Never waits.
    #[must_use]
    pub fn peers(&self) -> Vec<FanInPeer> {
        let members = self.members.iter().flatten();
        members.filter_map(FanInPeer::of).collect()
    }

    /// A peer that has joined and is not gone, to open other channels with, such as one to
    /// answer on, over the session that it was named for. A clone of it outlives the peer's end
    /// here.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use ibex::{FanIn, FanInEvent, PeerAt, Raw, Sender};
    ///
    /// /// Tells each peer how long its messages are.
    /// fn measure(requests: &mut FanIn<[u8], Raw>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut answers: HashMap<PeerAt, Sender<[u8], Raw>> = HashMap::new();
    ///     while let Some(event) = requests.next() {
    ///         match event {
    ///             FanInEvent::Joined(who) => {
    ///                 if let Some(peer) = requests.peer(who) {
    ///                     answers.insert(who, peer.channel("lengths").codec::<Raw>().sender()?);
    ///                 }
    ///             }
    ///             FanInEvent::Message(who, message) => {
    ///                 let length = (message.len() as u64).to_le_bytes();
    ///                 // Who does not take its answers is not waited for, and loses them.
    ///                 if answers.get_mut(&who).is_some_and(|to| to.try_send(&length).is_err()) {
    ///                     answers.remove(&who);
    ///                 }
    ///             }
    ///             FanInEvent::Ended(who) | FanInEvent::Lost(who, _) => _ = answers.remove(&who),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn peer(&self, who: PeerAt) -> Option<Peer> {
        let mut members = self.members.iter().flatten();
        let member = members.find(|member| member.has_joined && member.peer == who)?;
        let session = Arc::clone(member.handle.session());
        Some(Peer::new(session, self.defaults))
    }

    // ---- Looking ---------------------------------------------------------------------

    pub(crate) fn find(&mut self) -> Option<FanInEvent<T, C, V>> {
        if fork::is_child() {
            return self.find_after_fork();
        }
        if self.gathering.is_told() {
            self.take_told();
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        for _ in 0..self.hot.len() {
            if self.turn >= self.hot.len() {
                self.turn = 0;
            }
            let Some(&number) = self.hot.get(self.turn) else {
                break;
            };
            let found = self.look_at(number);
            if found.is_some() {
                self.found = self.found.wrapping_add(1);
                if self.found.is_multiple_of(FOUND_PER_TURN) {
                    self.gathering.look_around();
                }
                return found;
            }
        }
        None
    }

    /// One look at a hot member; the next one has its turn then.
    fn look_at(&mut self, number: usize) -> Option<FanInEvent<T, C, V>> {
        let Some(member) = self.members[number].as_mut() else {
            self.hot.swap_remove(self.turn);
            return None;
        };
        if let Some(peer) = member.joins() {
            return Some(FanInEvent::Joined(peer));
        }
        match member.handle.poll() {
            Ok(Some(raw)) => {
                self.turn += 1;
                Some(member.sent(raw))
            }
            Ok(None) => {
                member.silent += 1;
                if member.silent > HOT_LOOKS {
                    return self.cool(self.turn);
                }
                self.turn += 1;
                None
            }
            Err(error) => self.lose(number, error),
        }
    }

    /// Leaves a hot member alone until it tells, unless it has something after all.
    fn cool(&mut self, at: usize) -> Option<FanInEvent<T, C, V>> {
        let number = self.hot[at];
        let Some(member) = self.members[number].as_mut() else {
            self.hot.swap_remove(at);
            return None;
        };
        let waker = member.waker.clone();
        // A peer that has nothing to say on this channel never opens it.
        let handle = &mut member.handle;
        match handle.poll_receive_unwatched(&waker) {
            Poll::Pending => {
                member.is_hot = false;
                self.hot.swap_remove(at);
                // It may have opened before it had a waker to tell by.
                member.joins().map(FanInEvent::Joined)
            }
            Poll::Ready(Ok(raw)) => {
                if !mem::replace(&mut member.has_joined, true) {
                    self.events.push_back(FanInEvent::Joined(member.peer));
                }
                let event = member.sent(raw);
                self.events.push_back(event);
                self.events.pop_front()
            }
            Poll::Ready(Err(error)) => self.lose(number, error),
        }
    }

    fn take_told(&mut self) {
        self.gathering.take(&mut self.told, &mut self.sessions);
        let mut told = mem::take(&mut self.told);
        for number in told.drain(..) {
            if let Some(member) = self.members.get_mut(number).and_then(Option::as_mut) {
                member.handle.leave();
                member.silent = 0;
                if !mem::replace(&mut member.is_hot, true) {
                    self.hot.push(number);
                }
            }
        }
        // Its memory is used again.
        self.told = told;
        while let Some(session) = self.sessions.pop_front() {
            self.join(session);
        }
    }

    /// Opens the channel with a peer.
    fn join(&mut self, session: Arc<SessionShared>) {
        let peer = PeerAt::of(session.peer());
        let channel = self.template.over(&session);
        let offer = V::offer();
        let handle = match channel.open_receiver(offer) {
            Ok(handle) => handle,
            // It came and went without a message: nobody has joined.
            Err(error) if error.reason.is_end() => return,
            Err(error) => {
                self.events.push_back(FanInEvent::Lost(peer, error.into()));
                return;
            }
        };
        let free = self.members.iter().position(Option::is_none);
        let number = free.unwrap_or(self.members.len());
        let member = Member::new(peer, handle, V::keep(channel), self.gathering.waker(number));
        match free {
            Some(free) => self.members[free] = Some(member),
            None => self.members.push(Some(member)),
        }
        self.in_memory &= session.is_shm();
        self.live += 1;
        self.hot.push(number);
    }

    /// A member is at its end, unless it can be received from later. While its session lives the
    /// peer may open its sender again, and meets an end of its own again.
    fn lose(&mut self, number: usize, error: RecvError) -> Option<FanInEvent<T, C, V>> {
        if error.spares_channel() {
            self.turn += 1;
            let peer = self.members[number].as_ref()?.peer;
            return Some(FanInEvent::Lost(peer, error.into()));
        }
        let member = self.members[number].take()?;
        self.hot.retain(|hot| *hot != number);
        self.live -= 1;
        let came = member.has_joined || member.handle.is_open();
        let event = match error {
            RecvError::Ended => FanInEvent::Ended(member.peer),
            // Who never came is not missed, unless it came with another type.
            RecvError::Disconnected(_) if !came => return None,
            error => FanInEvent::Lost(member.peer, error.into()),
        };
        let (peer, has_joined) = (member.peer, member.has_joined);
        self.reopen(member);
        if came && !has_joined {
            // It opened, and ended or gave up, between two looks.
            self.events.push_front(event);
            return Some(FanInEvent::Joined(peer));
        }
        Some(event)
    }

    /// Drops a member's end, and opens another with its peer.
    fn reopen(&mut self, member: Member<V::Kept>) {
        let session = Arc::clone(member.handle.session());
        drop(member);
        if !session.is_over() && !self.gathering.is_closed() {
            self.join(session);
        }
    }

    /// In a fork of the process all peers are lost, and nothing else comes.
    #[cold]
    fn find_after_fork(&mut self) -> Option<FanInEvent<T, C, V>> {
        if self.live > 0 {
            self.live = 0;
            self.hot.clear();
            self.events.clear();
            for member in self.members.drain(..).flatten() {
                let lost = FanInEvent::Lost(member.peer, member.handle.used_after_fork().into());
                self.events.push_back(lost);
            }
        }
        self.events.pop_front()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.live == 0 && self.events.is_empty() && self.gathering.is_closed()
    }

    // ---- Waiting ---------------------------------------------------------------------

    fn wait(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<FanInEvent<T, C, V>>, NothingCame> {
        self.stop_waiting();
        let (gathering, in_memory) = (self.gathering.clone(), self.in_memory);
        gathering
            .wait(deadline, in_memory, Something::new(self))
            .map_err(|_| NothingCame)
    }

    /// What is there, or that nothing will be. Whoever is `about_to_sleep` leaves those that
    /// are looked at in vain with their wakers.
    fn look(&mut self, about_to_sleep: bool) -> Option<Option<FanInEvent<T, C, V>>> {
        loop {
            if let Some(event) = self.find() {
                return Some(Some(event));
            }
            if self.is_over() {
                return Some(None);
            }
            // One that told of itself for another reason is hot again, and would not tell.
            if !about_to_sleep || !self.cool_all() {
                return None;
            }
        }
    }

    fn keep_nothing_back(&self) {
        for &number in &self.hot {
            if let Some(member) = &self.members[number] {
                member.handle.keep_nothing_back();
            }
        }
    }

    /// Leaves all members alone until they tell. Returns whether one has something after all.
    fn cool_all(&mut self) -> bool {
        while !self.hot.is_empty() {
            if let Some(event) = self.cool(0) {
                self.events.push_front(event);
                return true;
            }
        }
        false
    }
}

/// The condition "something came, or nothing will".
struct Something<'a, T: ?Sized, C, V: KnownVersions<T, C>> {
    of: &'a mut FanIn<T, C, V>,
    about_to_sleep: bool,
}

impl<'a, T: ?Sized, C, V: KnownVersions<T, C>> Something<'a, T, C, V> {
    fn new(of: &'a mut FanIn<T, C, V>) -> Self {
        Self {
            of,
            about_to_sleep: false,
        }
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Condition for Something<'_, T, C, V> {
    type Output = Option<FanInEvent<T, C, V>>;

    fn look(&mut self) -> Option<Self::Output> {
        self.of.look(self.about_to_sleep)
    }

    fn keep_nothing_back(&mut self) {
        self.of.keep_nothing_back();
    }

    fn arm(&mut self) {
        self.about_to_sleep = true;
        self.of.cool_all();
    }

    fn disarm(&mut self) {
        self.about_to_sleep = false;
    }
}

/// For [`Select`](crate::Select).
#[doc(hidden)]
impl<T: ?Sized, C, V: KnownVersions<T, C>> OfAnyPeer for FanIn<T, C, V> {
    fn gathering(&self) -> &Gathering {
        &self.gathering
    }

    fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    fn is_there(&mut self, about_to_sleep: bool) -> bool {
        let found = self.look(about_to_sleep);
        let is_there = found.is_some();
        // Whoever takes it finds it before everything else.
        if let Some(event) = found.flatten() {
            self.events.push_front(event);
        }
        is_there
    }

    fn leave_alone(&mut self) {
        self.cool_all();
    }

    fn keep_nothing_back(&mut self) {
        FanIn::keep_nothing_back(self);
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Drop for FanIn<T, C, V> {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            member.handle.leave();
        }
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> fmt::Debug for FanIn<T, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanIn")
            .field("channel", &self.template.name())
            .field("peers", &self.live)
            .finish_non_exhaustive()
    }
}

impl<N: ?Sized, O: ?Sized, C> fmt::Debug for FanInVersionsBuilder<'_, N, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanInVersionsBuilder")
            .finish_non_exhaustive()
    }
}
