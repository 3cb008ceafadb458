//! One session in the engine: its wires, and the ends of its channels.
//!
//! A link joins the pure [`Session`] with what moves bytes: [`transmit`](self) takes
//! frames out of the session and ring memory, [`receive`](self) puts arrivals in front
//! of the receivers, [`local`](self) passes descriptors where the data goes through
//! shared memory. Whatever a link does on behalf of a handle is followed by
//! [`settle`](Link::settle), which lets the consequences out.

pub(crate) mod compact;
mod local;
mod receive;
mod transmit;

use std::sync::atomic::Ordering;
use std::{
    collections::BTreeMap,
    io,
    net::TcpStream,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::epoll::{self, EventData, EventFlags};

use self::{local::LocalWires, receive::ReceiveLink, transmit::SendLink};
use super::tcp::{Plain, inbound::Inbound, outbound::Outbound};
use crate::{
    channel::{
        EndCause,
        channel_end::ChannelEnd,
        receive_end::{ReceiveEnd, Source},
        send_end::SendEnd,
        state::End,
        words::Words,
    },
    driver::{Context, SessionShared, Tools, Undelivered, Wire, answer_if_rung},
    engine::{
        carriage::Carriage,
        control::{Ask, ChannelSpec, CloseReason, Role},
        counters::Counters,
        record,
        session::{Agreed, CannotOpen, Event, Session, SessionConfig},
        timer::{Timer, TimerTable},
    },
    memory::MemoryError,
    ring::{CellBlock, arrival_ring},
};

/// One session's wires and ends.
pub(crate) struct Link {
    shared: Arc<SessionShared>,
    session: Session,

    // The wires.
    tcp: TcpStream,
    layer: Plain,
    inbound: Inbound,
    outbound: Outbound,
    local: Option<LocalWires>,
    /// The socket may have something to read.
    readable: bool,
    /// The socket took less than it was given, and epoll tells when it takes more.
    waits_for_writable: bool,
    /// epoll tells of the socket; not while turn follows turn
    /// ([`leave_epoll`](Self::leave_epoll)).
    is_in_epoll: bool,
    /// Turns since the engine last meant to sleep.
    busy_turns: u32,

    // The ends.
    senders: BTreeMap<u32, SendLink>,
    receivers: BTreeMap<u32, ReceiveLink>,
    /// Sending ends whose ring is looked at in every turn.
    hot_rings: Vec<u32>,
    /// Rings of ends that are gone, until no frame of theirs waits to be written.
    parting_rings: Vec<SendLink>,

    // The life of the session.
    phase: Phase,
    /// It did not end in order: what the peer did not take is lost.
    is_lost: bool,
    /// Writing failed: the session ends when what had arrived is read.
    broken: Option<String>,
    timers: TimerTable,
    /// Turns that the link stays hot.
    pub(crate) heat: u32,
}

/// What the handshake settled for a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) our_credit_bytes: u64,
    pub(crate) peer_credit_bytes: u64,
    pub(crate) max_channels: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Up,
    /// We say goodbye, and wait for the peer's.
    Closing,
    /// The peer said goodbye; ours goes out.
    PeerClosed,
    /// Over: nothing is sent or read any more.
    Gone,
}

impl Link {
    pub(crate) fn new(
        shared: Arc<SessionShared>,
        config: LinkConfig,
        tcp: TcpStream,
        leftover: &[u8],
        unix: Option<OwnedFd>,
        tools: &mut Tools<'_>,
    ) -> io::Result<Self> {
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        let id = shared.id;
        let local = match unix {
            Some(unix) => Some(LocalWires::new(unix, id, tools.epoll)?),
            None => None,
        };
        if local.is_none() {
            // Data comes over the connection: it shall not meet the allocator.
            tools.blocks.provide().map_err(io::Error::other)?;
            tools.compact_blocks.provide().map_err(io::Error::other)?;
        }
        let mut inbound = Inbound::new(tools.blocks).map_err(io::Error::other)?;
        let room = inbound.free(leftover.len());
        room.copy_from_slice(leftover);
        inbound.arrived(leftover.len());
        let mut link = Self {
            session: Session::new(SessionConfig {
                carriage: Carriage::Stream,
                our_credit: config.our_credit_bytes,
                peer_credit: config.peer_credit_bytes,
                max_channels: config.max_channels,
                data_in_band: local.is_none(),
            }),
            shared,
            tcp,
            layer: Plain,
            inbound,
            outbound: Outbound::new(),
            local,
            readable: true,
            waits_for_writable: false,
            is_in_epoll: false,
            busy_turns: 0,
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            hot_rings: Vec::new(),
            parting_rings: Vec::new(),
            phase: Phase::Up,
            is_lost: false,
            broken: None,
            timers: TimerTable::default(),
            heat: 0,
        };
        link.join_epoll(tools.epoll)?;
        Ok(link)
    }

    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// Takes the wires out of the epoll set.
    pub(crate) fn unregister(&mut self, epoll: &OwnedFd) {
        self.leave_epoll(epoll);
        if let Some(local) = &self.local {
            local.unregister(epoll);
        }
    }

    // ---- The turn --------------------------------------------------------------------

    /// Moves what can move. Returns whether anything did.
    pub(crate) fn turn(&mut self, tools: &mut Tools<'_>, context: &mut Context<'_>) -> bool {
        // What is queued goes out before the socket is asked for more: the question costs
        // a system call, and the peer may be waiting.
        let mut progress = self.look_at_rings();
        progress |= self.transmit(context);
        progress |= self.receive(tools, context);
        self.handle_events(context);
        progress |= self.transmit(context);
        self.watch_writable(tools);
        progress
    }

    /// Lets out what a handle's wish led to.
    pub(crate) fn settle(&mut self, tools: &mut Tools<'_>, context: &mut Context<'_>) {
        self.handle_events(context);
        self.flush_local(context);
        self.transmit(context);
        self.handle_events(context);
        self.watch_writable(tools);
    }

    /// epoll said so.
    ///
    /// That the socket takes more again needs no note: the turn that follows writes, and
    /// [`watch_writable`](Self::watch_writable) then ends the watch if nothing is left.
    pub(crate) fn tcp_is_ready(&mut self, readable: bool) {
        self.readable |= readable;
    }

    fn watch_writable(&mut self, tools: &Tools<'_>) {
        let wants = !self.outbound.is_empty() && self.phase != Phase::Gone;
        if wants != self.waits_for_writable {
            self.waits_for_writable = wants;
            if self.is_in_epoll {
                let (data, flags) = self.epoll_interest();
                let _ = epoll::modify(tools.epoll, &self.tcp, data, flags);
            }
        }
    }

    fn epoll_interest(&self) -> (EventData, EventFlags) {
        let token = Wire::Tcp.token(self.shared.id);
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        flags.set(EventFlags::OUT, self.waits_for_writable);
        (EventData::new_u64(token), flags)
    }

    /// Has epoll tell of the socket: at once if there is something to read already.
    /// Nobody may sleep in the epoll set before this has succeeded.
    pub(crate) fn join_epoll(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        self.busy_turns = 0;
        if !self.is_in_epoll {
            let (data, flags) = self.epoll_interest();
            epoll::add(epoll, &self.tcp, data, flags)?;
            self.is_in_epoll = true;
        }
        Ok(())
    }

    /// Takes the socket out of the epoll set. While turn follows turn and each reads it
    /// anyway, all that membership does is make every segment that arrives dearer, by about
    /// 4 % of a round trip over the loopback interface.
    fn leave_epoll(&mut self, epoll: &OwnedFd) {
        if self.is_in_epoll {
            self.is_in_epoll = false;
            let _ = epoll::delete(epoll, &self.tcp);
        }
    }

    /// Counts a turn that nobody slept before.
    pub(crate) fn stay_awake(&mut self, epoll: &OwnedFd) {
        self.busy_turns = self.busy_turns.saturating_add(1);
        if self.busy_turns == BUSY_TURNS && self.local.is_none() {
            self.leave_epoll(epoll);
        }
    }

    /// Whether nothing needs a turn until epoll, a bell or a mark says so.
    pub(crate) fn is_cold(&self) -> bool {
        self.hot_rings.is_empty() && !self.readable
    }

    /// Whether the session is over and may be forgotten.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Whether handles have nothing more to hope for.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Gone | Phase::PeerClosed)
    }

    // ---- What handles want -----------------------------------------------------------

    pub(crate) fn open_sender(
        &mut self,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Result<Arc<SendEnd>, CannotOpen> {
        self.check_open()?;
        let id = self.session.open(Role::Sender, name, spec.clone())?;
        let session = self.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Sender, name, spec, open_timeout);
        let end = Arc::new(SendEnd::new(common));
        if let Some(local) = &mut self.local {
            let words = local.lease_sender_words(id).map_err(refused)?;
            let _ = end.ours.set(words);
        }
        self.senders.insert(id, SendLink::new(end.clone()));
        self.handle_events(context);
        Ok(end)
    }

    pub(crate) fn open_receiver(
        &mut self,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Result<Arc<ReceiveEnd>, CannotOpen> {
        self.check_open()?;
        let id = self.session.open(Role::Receiver, name, spec.clone())?;
        let first = record::first_position(spec.alignment as usize);
        let cells = CellBlock::lease(spec.window.messages as usize, context.runtime.bell());
        let session = self.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Receiver, name, spec, open_timeout);
        let end = Arc::new(ReceiveEnd::new(common, first, cells));
        if let Some(local) = &mut self.local {
            let words = local.lease_receiver_words(id, first).map_err(refused)?;
            let _ = end.ours.set(words);
        }
        self.receivers.insert(id, ReceiveLink::new(end.clone()));
        self.handle_events(context);
        Ok(end)
    }

    fn check_open(&self) -> Result<(), CannotOpen> {
        match self.phase {
            Phase::Up => Ok(()),
            _ => Err(CannotOpen::SessionOver),
        }
    }

    pub(crate) fn close_sender(&mut self, end: u32, last: u64, reason: CloseReason) {
        if let Some(sender) = self.senders.get_mut(&end) {
            sender.is_closed = true;
        }
        self.session.close_sender(end, last, reason);
    }

    pub(crate) fn close_receiver(&mut self, end: u32, counters: &Counters, reason: CloseReason) {
        if let Some(mut receiver) = self.receivers.remove(&end) {
            self.abandon_chunk(end);
            receiver.forget_large();
            self.session.close_receiver(end, counters, reason);
        }
    }

    pub(crate) fn ask(&mut self, end: u32, ask: Ask) {
        if self.senders.contains_key(&end) {
            self.session.ask(end, ask);
        }
    }

    /// Names of channels that the peer opened and we did not, with the peer's role.
    pub(crate) fn incoming(&self) -> Vec<(String, Role)> {
        self.session
            .unpaired()
            .map(|(name, role)| (name.to_owned(), role))
            .collect()
    }

    /// A receiving end's prefix moved far enough for its sender to hear of it.
    pub(crate) fn prefix_moved(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(&end) {
            receiver.end.is_marked.store(false, Ordering::Release);
            self.session.released(end, &receiver.end.counters());
        }
    }

    /// Sums the cells of ends whose sender or receiver waits, where a guard has rung.
    /// Returns whether there is news to send.
    pub(crate) fn answer_guards(&mut self, context: &mut Context<'_>) -> bool {
        let mut news = false;
        for (&id, receiver) in &self.receivers {
            let still_asked = match (self.local.is_some(), receiver.end.theirs.get()) {
                (true, Some(theirs)) => theirs.asked.load(Ordering::Relaxed) != 0,
                _ => self.session.is_asked(id),
            };
            if !answer_if_rung(&receiver.end, still_asked) {
                continue;
            }
            receiver.end.waiters.take(&mut context.wakers);
            if self.local.is_none() {
                self.session.released(id, &receiver.end.counters());
                news = true;
            }
        }
        news
    }

    // ---- Events of the session -------------------------------------------------------

    #[inline]
    fn handle_events(&mut self, context: &mut Context<'_>) {
        if self.session.has_events() {
            self.handle_all_events(context);
        }
    }

    fn handle_all_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::PeerOpened { .. } => {}
                Event::Opened {
                    end,
                    peer_end,
                    agreed,
                } => {
                    self.opened(end, peer_end, agreed, context);
                }
                Event::Mismatched { end, theirs } => {
                    self.end_channel(end, End::Mismatch(theirs), context);
                }
                Event::Counted { end, counters } => {
                    if let Some(sender) = self.senders.get_mut(&end) {
                        if let Some(theirs) = sender.end.theirs.get() {
                            theirs.report(&counters);
                        }
                        sender.forget_large(counters.received);
                        sender.end.waiters.take(&mut context.wakers);
                    }
                }
                Event::Asked { end } => {
                    if let Some(receiver) = self.receivers.get(&end) {
                        receiver.end.answer_ask();
                        // It may wait for a guard that was counted here.
                        receiver.end.waiters.take(&mut context.wakers);
                        self.session.released(end, &receiver.end.counters());
                    }
                }
                Event::Told { end, counters } => {
                    if let Some(receiver) = self.receivers.get(&end) {
                        let end = &receiver.end;
                        end.told_released
                            .store(counters.released, Ordering::Relaxed);
                        end.told_position
                            .store(counters.released_position, Ordering::Relaxed);
                    }
                }
                Event::PeerClosed {
                    end,
                    reason,
                    final_sequence,
                } => {
                    self.peer_closed(end, reason, final_sequence, context);
                }
                Event::LargeAnnounced {
                    end,
                    sequence,
                    length,
                } => {
                    self.large_announced(end, sequence, length, context);
                }
                Event::Forgotten { end } => self.forget_sender(end),
                Event::Goodbye => self.peer_said_goodbye(context),
            }
        }
    }

    /// Both ends are open: gives our handle what it needs, once all of it is here.
    fn opened(&mut self, end: u32, peer_end: u32, agreed: Agreed, context: &mut Context<'_>) {
        let role = if self.senders.contains_key(&end) {
            Role::Sender
        } else {
            Role::Receiver
        };
        if let Some(local) = &mut self.local {
            // The peer's words come over the Unix socket, before or after this.
            local.opened(end, role, peer_end, agreed);
            self.open_local(context);
            return;
        }
        if let Some(sender) = self.senders.get(&end) {
            let words = Words::<crate::channel::words::ReceiverWords>::local();
            words.reset(record::first_position(agreed.alignment as usize));
            let _ = sender.end.theirs.set(words);
            sender.end.state.open(agreed);
            sender.end.waiters.take(&mut context.wakers);
        }
        if let Some(receiver) = self.receivers.get_mut(&end) {
            let (writer, reader, retirer) =
                arrival_ring(agreed.window.messages.next_power_of_two() as usize);
            receiver.writer = Some(writer);
            receiver.end.held().frames = Some(retirer);
            let _ = receiver.end.theirs.set(Words::local());
            receiver.end.provide(Source::Frames(reader));
            receiver.end.state.open(agreed);
            receiver.end.waiters.take(&mut context.wakers);
        }
    }

    fn peer_closed(
        &mut self,
        end: u32,
        reason: CloseReason,
        final_sequence: u64,
        context: &mut Context<'_>,
    ) {
        // What the peer passed before it closed its end is still to be handed out.
        self.receive_local(context);
        if let Some(receiver) = self.receivers.get(&end) {
            if reason == CloseReason::Dropped {
                // shm: the peer's own word says so, and it may be ahead of us. And once we
                // say goodbye, the peer closes what its application did not.
                if self.local.is_none()
                    && self.phase != Phase::Closing
                    && let Some(theirs) = receiver.end.theirs.get()
                {
                    theirs.close(final_sequence);
                }
            } else {
                receiver
                    .end
                    .state
                    .end(End::Cause(EndCause::PeerClosed(reason)));
            }
            receiver.end.waiters.take(&mut context.wakers);
        }
        if self.senders.contains_key(&end) {
            self.end_channel(end, End::Cause(EndCause::PeerClosed(reason)), context);
        }
    }

    fn end_channel(&mut self, end: u32, why: End, context: &mut Context<'_>) {
        if let Some(sender) = self.senders.get(&end) {
            sender.end.state.end(why.clone());
            sender.end.waiters.take(&mut context.wakers);
        }
        if let Some(receiver) = self.receivers.get(&end) {
            receiver.end.state.end(why);
            receiver.end.waiters.take(&mut context.wakers);
        }
    }

    // ---- The end of the session ------------------------------------------------------

    /// Closes every end in order and says goodbye; over at `deadline`, if there is one, in
    /// any case.
    pub(crate) fn begin_close(&mut self, deadline: Option<Instant>, context: &mut Context<'_>) {
        if self.phase != Phase::Up {
            return;
        }
        self.phase = Phase::Closing;
        if let Some(deadline) = deadline {
            self.timers.set(Timer::Linger, deadline);
        }
        for (&id, sender) in &mut self.senders {
            sender.end.state.end(End::Cause(EndCause::NodeClosed));
            sender.end.waiters.take(&mut context.wakers);
            if !sender.is_closed {
                sender.is_closed = true;
                let last = sender.end.sent.load(Ordering::Acquire);
                if let Some(ours) = sender.end.ours.get() {
                    ours.close(last);
                    self.shared.ring_peer();
                }
                self.session.close_sender(id, last, CloseReason::Dropped);
            }
            let sent = sender.end.sent.load(Ordering::Acquire);
            if self.local.is_none() && sent > sender.end.counts().received {
                self.session.ask(
                    id,
                    Ask {
                        received: sent,
                        ..Ask::default()
                    },
                );
            }
        }
        for receiver in self.receivers.values() {
            receiver.end.state.end(End::Cause(EndCause::NodeClosed));
            receiver.end.waiters.take(&mut context.wakers);
        }
        self.session.say_goodbye();
    }

    /// The peer has sent its last frame: what we could send nobody would read.
    fn peer_said_goodbye(&mut self, context: &mut Context<'_>) {
        match self.phase {
            Phase::Up => {
                self.phase = Phase::PeerClosed;
                self.receive_local(context);
                self.end_all(&EndCause::Goodbye, context);
                for (&id, sender) in &mut self.senders {
                    sender.is_closed = true;
                    let last = sender.end.sent.load(Ordering::Acquire);
                    self.session.close_sender(id, last, CloseReason::Dropped);
                }
                self.session.say_goodbye();
                self.timers
                    .set(Timer::Linger, Instant::now() + GOODBYE_TIMEOUT);
            }
            Phase::Closing => self.finish(&EndCause::Goodbye, context),
            Phase::PeerClosed | Phase::Gone => {}
        }
    }

    /// The session cannot go on.
    pub(crate) fn fail(&mut self, why: &str, context: &mut Context<'_>) {
        if self.phase == Phase::Up {
            tracing::warn!(peer = %self.shared.peer().address, why, "session ended");
        }
        // Descriptors that the peer passed before it went are still to be had.
        self.receive_local(context);
        self.finish_broken(why, context);
    }

    fn finish_broken(&mut self, why: &str, context: &mut Context<'_>) {
        self.is_lost = true;
        let cause = match self.phase {
            Phase::Closing => EndCause::NodeClosed,
            _ => EndCause::PeerGone {
                why: why.to_owned(),
            },
        };
        self.finish(&cause, context);
    }

    fn finish(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        self.phase = Phase::Gone;
        self.end_all(cause, context);
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
    }

    fn end_all(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        for sender in self.senders.values() {
            sender.end.state.end(End::Cause(cause.clone()));
            sender.end.waiters.take(&mut context.wakers);
        }
        for receiver in self.receivers.values() {
            receiver.end.state.end(End::Cause(cause.clone()));
            receiver.end.waiters.take(&mut context.wakers);
        }
    }

    /// Our goodbye is out and so is the peer's: nothing is missing.
    fn finish_if_said(&mut self, context: &mut Context<'_>) {
        let done = self.session.said_goodbye() && self.outbound.is_empty();
        if self.phase == Phase::PeerClosed && done {
            self.finish(&EndCause::Goodbye, context);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn expire(&mut self, now: Instant, context: &mut Context<'_>) {
        while let Some(Timer::Linger) = self.timers.poll_expired(now) {
            self.finish(&EndCause::Goodbye, context);
        }
    }

    /// Channels with messages that the peer's engine is not known to hold.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let all = self.senders.values().chain(&self.parting_rings);
        all.filter_map(|sender| {
            let counts = sender.end.counts();
            // shm: publishing is delivery while the peer lives.
            let received = match self.local {
                Some(_) if !self.is_lost => counts.sent,
                _ => counts.received,
            };
            (received < counts.sent).then(|| Undelivered {
                channel: sender.end.name.clone(),
                peer: self.shared.peer_name(),
                sent: counts.sent,
                received,
            })
        })
        .collect()
    }
}

fn refused(error: MemoryError) -> CannotOpen {
    CannotOpen::Memory(error.to_string())
}

/// Turns without sleep after which the socket leaves the epoll set: leaving and joining
/// cost about 2 us, which is nothing against so many turns.
const BUSY_TURNS: u32 = 1024;
/// How long the answer to a goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
