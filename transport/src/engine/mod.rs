//! The engine: the sessions that a node has placed on it, and the turn that moves them.
//!
//! A turn reads the sockets that were hot lately directly and asks epoll only now and
//! then; before the leader sleeps every ring is armed, looked at once more, and the
//! epoll set has the last word.

use std::{
    io, mem,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ibex_base::sync::{Asymmetry, LentLimit};
use ibex_protocol::id_map::IdMap;
use ibex_ring::{memory::BlockPool, parking::Bell};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

mod admission;
mod alarm;
mod close;
mod credit;
mod errands;
mod idle;
mod listener;
mod mail;
mod poll;
mod rdma_ports;
mod resume;

pub use admission::Admission;
pub(crate) use credit::lendable_credit;
pub use listener::{ControlSource, Incoming};
pub(crate) use mail::{Exchange, Mail};
pub(crate) use poll::{Ready, sleep};

use crate::{
    clock,
    connection::{Connection, Context, Handover, LinkStats, compaction::compact_pool},
    node::{
        Driving, Host, Mark, NodeState, RuntimeConfig, SessionShared, Sessions, Undelivered,
        Warning, Warnings,
        session::{Over, PeerInLog},
        warn_of,
    },
    rdma::PreparedPair,
    session::EngineId,
    wire::{EpollToken, Tools, Wire, stream::outbound::Lists},
};
use alarm::Alarm;
use close::Closing;
use credit::{Credit, report_credit};
use errands::Errands;
use idle::Watch;
use poll::{Readiness, SITE_WIRE, TOKEN_ALARM, TOKEN_BELL, TOKEN_CONTROL};
use rdma_ports::{PortLooks, PortPoller};

/// Sessions of a node, and what they use while they are turned.
pub(crate) struct Engine {
    id: EngineId,
    tools: Tools,

    // Sessions.
    links: IdMap<Box<Connection>, u64>,
    next_session: u64,
    /// Those of all engines.
    sessions: Sessions,
    /// Sessions whose socket is read every turn.
    hot: Vec<u64>,
    /// Sessions with a deadline.
    timed: Vec<u64>,
    /// Who of those whose data comes over tcp may have how much of it in flight.
    credit: Credit,

    /// Sessions that may be silent.
    watch: Watch,

    /// RDMA device ports that sessions go over.
    sites: Vec<PortPoller>,
    site_looks: PortLooks,

    /// The kind of doorbells between handles and the engine.
    asymmetry: Asymmetry,

    /// When who sleeps now wakes up by itself.
    pub(crate) sleeps_until: Option<Instant>,
    /// Wakes a program, or an executor, that sleeps on the epoll set itself.
    alarm: Option<Alarm>,
    pub(crate) errands: Errands,

    /// The node's engines, for mail to them; none before there is a runtime.
    exchange: Option<Weak<dyn Exchange>>,
    /// A program sleeps on the epoll set itself (`Driver::Caller`).
    is_watched: bool,
    driving: Driving,

    // Where sessions come from.
    control: Option<Box<dyn ControlSource>>,
    control_deadline: Option<Instant>,

    // The turn.
    turns: u64,
    /// Empty between turns; kept for its memory.
    pub(crate) marks: Vec<Mark>,
    closing: Closing,
    undelivered: Vec<Undelivered>,
    warnings: Arc<Warnings>,
}

/// Turns between two questions to epoll while nobody sleeps.
const TURNS_PER_EPOLL: u64 = 64;
/// Turns that a socket stays hot after something moved there.
const HOT_TURNS: u32 = 256;

impl Engine {
    /// An engine without sessions, of a node whose engines share `sessions`, credit and warnings.
    pub(crate) fn new(
        id: EngineId,
        bell: &'static Bell,
        config: &RuntimeConfig,
        (sessions, credit, warnings): (Sessions, Arc<LentLimit>, Arc<Warnings>),
    ) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(
            &epoll,
            bell.fd(),
            EventData::new_u64(TOKEN_BELL),
            EventFlags::IN,
        )?;
        let driving = Driving::of(config);
        let alarm = match driving.has_thread() {
            true => None,
            false => Some(Alarm::new()?),
        };
        if let Some(alarm) = &alarm {
            epoll::add(
                &epoll,
                alarm,
                EventData::new_u64(TOKEN_ALARM),
                EventFlags::IN,
            )?;
        }
        Ok(Self {
            id,
            tools: Tools {
                blocks: BlockPool::default(),
                compact_blocks: compact_pool(),
                lists: Lists::default(),
                epoll,
                share_is_spent: false,
            },
            links: IdMap::new(),
            next_session: id.first_session(),
            sessions,
            hot: Vec::new(),
            timed: Vec::new(),
            watch: Watch::default(),
            sites: Vec::new(),
            site_looks: PortLooks::default(),
            asymmetry: driving.asymmetry(),
            sleeps_until: None,
            alarm,
            errands: Errands::default(),
            exchange: None,
            is_watched: false,
            driving,
            credit: Credit::new(config, credit),
            control: None,
            control_deadline: None,
            turns: 0,
            marks: Vec::new(),
            closing: Closing::No,
            undelivered: Vec::new(),
            warnings,
        })
    }

    /// Joins the engine to the others of its node.
    pub(crate) fn join(&mut self, exchange: Weak<dyn Exchange>) {
        self.exchange = Some(exchange);
    }

    /// Notes that a program sleeps on the epoll set itself from now on (`Driver::Caller`).
    pub(crate) fn watch_all(&mut self) {
        self.is_watched = self.driving == Driving::Callers;
    }

    /// Returns whether a program or an executor sleeps on the epoll set, which then has to
    /// tell of everything.
    #[inline]
    fn sleeps_elsewhere(&self) -> bool {
        self.is_watched || self.driving == Driving::Tasks
    }

    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        self.tools.epoll.clone()
    }

    // ---- The turn --------------------------------------------------------------------

    /// Moves everything that can move. Returns whether anything did.
    #[inline]
    pub(crate) fn turn(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        self.turns += 1;
        let mut progress = self.take_readiness(ready, context);
        // What was published goes out before the queues are asked for more, unless a look
        // has found something already: that is waited for, and the links have had their
        // turn in the round before.
        if !self.has_found_completions() {
            progress |= self.turn_hot_links(context);
        }
        progress |= self.turn_sites(context);
        if self.is_left() {
            progress |= self.turn_hot_links(context);
        }
        self.share_credit(context);
        let is_due = self.watch.is_due || self.site_looks.is_due;
        if is_due || self.turns.is_multiple_of(TURNS_PER_EPOLL) {
            progress |= self.look_for_silence(context);
            self.look_for_devices(context);
            if self.warnings.are_held() {
                self.warnings.tell_held(Instant::now());
            }
        }
        // The clock is worth a tenth of a system call, so only who waits for it reads it.
        if self.control_deadline.is_some() || !self.timed.is_empty() {
            let now = clock::now();
            progress |= self.turn_control(now, context);
            self.expire(now, context);
        }
        progress
    }

    /// Posts a record that is alone in its session, and does nothing else. Returns whether
    /// there was one; the turn that follows looks after the rest.
    #[inline]
    pub(crate) fn post_lone_record(&mut self, session: u64) -> bool {
        let Some(link) = self.links.get_mut(session) else {
            return false;
        };
        let is_posted = link.send_lone_record(&mut self.tools);
        if is_posted {
            heat_link(link, &mut self.hot);
            self.watch.take_in(link);
        }
        is_posted
    }

    /// Takes the completions that a look has found, and lets out what they lead to: of a
    /// turn the part that who waits for them needs at once.
    #[inline]
    pub(crate) fn take_completions(&mut self, context: &mut Context<'_>) {
        self.take_found(context);
    }

    /// Takes in what handles and other engines have left; `marks` are empty afterwards. Returns
    /// whether there was anything.
    #[inline(never)]
    pub(crate) fn take_news(
        &mut self,
        marks: &mut Vec<Mark>,
        mail: Vec<Mail>,
        context: &mut Context<'_>,
    ) -> bool {
        let any = !marks.is_empty() || !mail.is_empty();
        for mark in marks.drain(..) {
            let (session, end) = match mark {
                Mark::Ready { session, end } | Mark::Released { session, end } => (session, end),
            };
            self.heat(session);
            if let Some(link) = self.links.get_mut(session) {
                match mark {
                    Mark::Ready { .. } => link.core.ends.senders.ring_is_ready(end),
                    Mark::Released { .. } => {
                        link.core
                            .ends
                            .receivers
                            .prefix_moved(end, &mut link.core.common);
                    }
                }
            }
        }
        self.take_mail(mail, context);
        any
    }

    /// What epoll said to the leader, or says now that it is asked again. Returns whether
    /// it said anything: whatever makes the set readable is taken in by this turn, and
    /// more may stand behind it.
    #[inline]
    fn take_readiness(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        if !ready.is_empty() {
            return self.take_said(ready, context);
        }
        let is_due = self.turns.is_multiple_of(TURNS_PER_EPOLL) || self.tools.share_is_spent;
        is_due && self.ask_epoll(context)
    }

    #[inline(never)]
    fn ask_epoll(&mut self, context: &mut Context<'_>) -> bool {
        self.tools.share_is_spent = false;
        let ready = poll::sleep(&self.tools.epoll, Some(Duration::ZERO));
        self.take_said(&ready, context)
    }

    #[inline(never)]
    fn take_said(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        for &readiness in ready.as_slice() {
            self.handle_readiness(readiness, context);
        }
        !ready.is_empty()
    }

    fn handle_readiness(&mut self, readiness: Readiness, context: &mut Context<'_>) {
        match readiness.token {
            TOKEN_BELL => {
                context.surroundings.drain_bell();
                self.answer_guards(context);
            }
            TOKEN_ALARM => {
                if let Some(alarm) = &mut self.alarm {
                    alarm.went_off();
                }
                self.note_time(clock::now());
            }
            // Due now.
            TOKEN_CONTROL => self.control_deadline = Some(clock::now()),
            token if token & SITE_WIRE == SITE_WIRE => self.site_is_ready(token >> 2, context),
            token => {
                let session = token >> 2;
                self.heat(session);
                let Some(link) = self.links.get_mut(session) else {
                    return;
                };
                match token & 3 {
                    bell if bell == EpollToken::Bell as u64 => {
                        link.core.bell_rang(&self.tools, context);
                        note_deadline(link, &mut self.timed);
                        self.watch.take_in(link);
                        if self.is_watched {
                            // Whoever runs this turn looks for messages after it.
                            link.core.ends.receivers.arm(&link.core.common);
                        }
                    }
                    unix if unix == EpollToken::Unix as u64 => {
                        link.core.look_at_unix(context);
                        note_deadline(link, &mut self.timed);
                    }
                    _ => link.socket.readable |= readiness.readable,
                }
            }
        }
    }

    /// Sums the cells of whoever was asked, as a guard settled while a sender waits.
    #[inline(never)]
    pub(crate) fn answer_guards(&mut self, context: &mut Context<'_>) {
        for link in self.links.values_mut() {
            if link.core.ends.answer_guards(&mut link.core.common, context)
                && !mem::replace(&mut link.is_hot, true)
            {
                self.hot.push(link.id());
            }
        }
    }

    #[inline]
    fn turn_hot_links(&mut self, context: &mut Context<'_>) -> bool {
        let sleeps_elsewhere = self.sleeps_elsewhere();
        let mut progress = false;
        let mut at = 0;
        while at < self.hot.len() {
            let session = self.hot[at];
            let Some(link) = self.links.get_mut(session) else {
                self.hot.swap_remove(at);
                continue;
            };
            let has_moved = link.turn(&mut self.tools, context);
            // Who sleeps on the epoll set itself is told of everything by it.
            if !sleeps_elsewhere {
                let reads = link.wire.reads_every_turn();
                link.socket.stay_awake(reads, &self.tools.epoll);
            }
            if has_moved {
                progress = true;
                link.heat = HOT_TURNS;
                self.watch.take_in(link);
                let report = link.core.common.take_credit_report();
                report_credit(&mut self.credit.broker, &mut self.sites, session, report);
            } else {
                link.heat = link.heat.saturating_sub(1);
                if link.heat > 0
                    && link.core.is_undisturbed()
                    && !link.waits_for_completions()
                    && !link.has_left_site
                {
                    at += 1;
                    continue;
                }
            }
            note_deadline(link, &mut self.timed);
            if link.has_left_site {
                self.left_site(session, context);
                at += 1;
            } else if link.is_finished() {
                self.remove(session);
            } else if (link.waits_for_completions() || link.heat == 0 && link.is_cold())
                && link.socket.join(&self.tools.epoll).is_ok()
            {
                link.is_hot = false;
                self.hot.swap_remove(at);
            } else {
                at += 1;
            }
        }
        progress
    }

    /// Turns so far, and what the sessions counted.
    pub(crate) fn stats(&self) -> (u64, Vec<LinkStats>) {
        let mut stats: Vec<_> = self.links.values().map(|link| link.core.stats()).collect();
        stats.sort_by_key(|link| link.session.id);
        (self.turns, stats)
    }

    /// Whether there is no such session any more, or it says nothing more.
    pub(crate) fn is_over(&self, session: u64) -> bool {
        self.links
            .get(session)
            .is_none_or(|link| link.core.common.is_over())
    }

    /// Sessions that every turn looks at.
    #[cfg(test)]
    pub(crate) fn hot_sessions(&self) -> usize {
        self.hot.len()
    }

    fn turn_control(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        if self.control_deadline.is_none_or(|deadline| deadline > now) {
            return false;
        }
        let Some(control) = &mut self.control else {
            return false;
        };
        let incoming = control.turn(now);
        self.control_deadline = control.next_deadline();
        let any = !incoming.is_empty();
        for incoming in incoming {
            match incoming {
                Incoming::Session(admission) => self.place_session(*admission, context),
                Incoming::Wires(wires) => self.resume(*wires, context),
            }
        }
        any
    }

    fn expire(&mut self, now: Instant, context: &mut Context<'_>) {
        let links = &self.links;
        let is_due = |&id: &u64| {
            let deadline = links.get(id).and_then(|link| link.core.common.deadline());
            deadline.is_none_or(|deadline| deadline <= now)
        };
        if !self.timed.iter().any(is_due) {
            return;
        }
        let mut at = 0;
        while at < self.timed.len() {
            let session = self.timed[at];
            let Some(link) = self.links.get_mut(session) else {
                self.timed.swap_remove(at);
                continue;
            };
            link.expire(now, &mut self.tools, context);
            let report = link.core.common.take_credit_report();
            report_credit(&mut self.credit.broker, &mut self.sites, session, report);
            if link.has_left_site {
                self.left_site(session, context);
                at += 1;
            } else if link.is_finished() {
                self.remove(session);
            } else if link.core.common.deadline().is_none() {
                self.timed.swap_remove(at);
            } else {
                at += 1;
            }
        }
        // Whoever waits for what a session had that has ended would sleep on.
        self.share_credit(context);
    }

    /// The session is worth a look in every turn for a while.
    fn heat(&mut self, session: u64) {
        if let Some(link) = self.links.get_mut(session) {
            heat_link(link, &mut self.hot);
        }
    }

    fn remove(&mut self, session: u64) {
        self.leaves_site(session);
        if let Some(mut link) = self.links.remove(session) {
            self.credit.broker.leave(session);
            link.unregister(&self.tools.epoll);
            link.core.common.shared().end();
            if self.closing != Closing::No {
                self.undelivered.extend(link.core.undelivered());
            }
        }
        self.hot.retain(|&hot| hot != session);
        self.timed.retain(|&timed| timed != session);
        self.credit.give_back();
        self.watch.forget(session);
        self.stop_listening_if_over();
    }

    // ---- Sleeping --------------------------------------------------------------------

    /// Arms what the peers of a program that sleeps on the epoll set itself have to ring
    /// for. Returns whether it armed anything: then the program must look again.
    pub(crate) fn arm_receivers(&mut self) -> bool {
        let links = self.links.values_mut();
        let armed = links.fold(false, |any, link| {
            link.core.ends.receivers.arm(&link.core.common) | any
        });
        self.arm_sites_once() | armed
    }

    /// Has epoll tell of every session again. Returns whether it does.
    pub(crate) fn join_epoll(&mut self) -> bool {
        let mut all = true;
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session)
                && let Err(error) = link.socket.join(&self.tools.epoll)
            {
                warn_of!(
                    self.warnings,
                    Warning::NoEpoll,
                    error,
                    %error, "epoll does not take a session back; polling it instead"
                );
                all = false;
            }
        }
        all
    }

    /// Arms every ring and looks once more. `None`: something is there, do not sleep, as
    /// `stay_awake` says already; else when to wake up at the latest.
    pub(crate) fn prepare_sleep(
        &mut self,
        now: Instant,
        stay_awake: bool,
    ) -> Option<Option<Instant>> {
        let is_told = self.join_epoll();
        let mut armed = false;
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session) {
                armed |= link.core.ends.senders.arm_rings();
            }
        }
        if armed {
            // DOORBELL, the heavy half for all words set above; pairs with the light
            // half in `Doorbell::is_due`.
            self.asymmetry.heavy_here();
        }
        let mut work = stay_awake || !is_told || self.is_finished() || self.arm_sites();
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session) {
                work |= link.look_at_armed_rings() || link.has_leftover();
                link.heat = 0;
            }
        }
        if work {
            return None;
        }
        let links = &mut self.links;
        self.hot.retain(|&session| {
            let Some(link) = links.get_mut(session) else {
                return false;
            };
            link.is_hot = !link.is_cold();
            link.is_hot
        });
        self.warnings.tell_held(now);
        let next = self.deadline();
        self.note_time(now);
        if next.is_some_and(|next| next <= now) {
            None
        } else {
            Some(next)
        }
    }

    /// When there is something to do even if nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let deadlines = self
            .timed
            .iter()
            .filter_map(|&id| self.links.get(id)?.core.common.deadline());
        deadlines
            .chain(self.control_deadline)
            .chain(self.closing.deadline())
            .chain(self.watch.next_look())
            .chain(self.site_looks.next())
            .chain(self.warnings.next_due())
            .min()
    }

    /// Sets the alarm for `next`, for who sleeps on the epoll set itself.
    pub(crate) fn set_alarm(&mut self, now: Instant, next: Option<Instant>) {
        self.sleeps_until = next;
        if let Some(alarm) = &mut self.alarm {
            alarm.set(now, next);
        }
    }

    /// Sets the alarm for the earliest deadline.
    pub(crate) fn set_alarm_for_deadline(&mut self) {
        let next = self.deadline();
        self.set_alarm(clock::now(), next);
    }

    /// Whether who sleeps now does so beyond a deadline that has come since.
    pub(crate) fn is_overslept(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| self.sleeps_until.is_none_or(|until| deadline < until))
    }

    // ---- Sessions --------------------------------------------------------------------

    pub(crate) fn set_control_source(&mut self, source: Box<dyn ControlSource>) -> io::Result<()> {
        epoll::add(
            &self.tools.epoll,
            source.fd(),
            EventData::new_u64(TOKEN_CONTROL),
            EventFlags::IN,
        )?;
        self.control = Some(source);
        Ok(())
    }

    pub(crate) fn admit(
        &mut self,
        (node, host): (Arc<NodeState>, Arc<dyn Host>),
        admission: Admission,
        accepted_on: Option<SocketAddr>,
        context: &mut Context<'_>,
    ) -> io::Result<Arc<SessionShared>> {
        if self.closing != Closing::No {
            admission.abandon();
            return Err(io::Error::other("the node is closing"));
        }
        let id = self.next_session;
        self.next_session += 1;
        let peer = PeerInLog {
            peer: &admission.peer,
            accepted_on,
        };
        tracing::info!(
            %peer,
            fabric = %admission.peer.fabric,
            reason = %admission.peer.reason,
            "session up"
        );
        let ticket = admission.rdma.as_ref().map(PreparedPair::ticket);
        let over = match (&admission.rdma, &admission.unix) {
            (Some(pair), _) => {
                self.care_for(pair.site())?;
                Over::Pair(pair)
            }
            (None, Some(unix)) => Over::Shm(unix.bells.clone()),
            (None, None) => Over::Stream,
        };
        let (peer, resumes) = (admission.peer, admission.reconnect.is_some());
        let checksums = admission.payload_checksums;
        let shared = SessionShared::new(
            (node, host),
            id,
            peer,
            accepted_on,
            resumes,
            checksums,
            over,
        );
        let shared = Arc::new(shared);
        let handover = Handover {
            tcp: admission.stream,
            leftover: &admission.leftover,
            tls: admission.tls,
            unix: admission.unix,
            pair: admission.rdma,
            max_channels: admission.max_channels,
            reconnect: admission.reconnect,
            place: admission.place,
        };
        let link = Connection::new(shared.clone(), handover, &mut self.tools)?;
        if link.needs_credit() {
            self.credit.broker.join(id).map_err(io::Error::other)?;
        }
        self.links.insert(id, Box::new(link));
        // A deadline that comes while messages flow shall not meet the allocator.
        self.timed.reserve(self.links.len());
        self.watch.make_room(self.links.len());
        self.joins_site(id, ticket, context)?;
        self.runs_anew(shared.peer(), context);
        self.tell_of_run(shared.peer());
        self.heat(id);
        // The first frames may be in `leftover`, and our Unix socket greets the peer's.
        self.on_link(id, context, |link, context| {
            link.core.common.tell_of_connection(context);
        });
        let surroundings = context.surroundings;
        surroundings.session_came(&shared, &mut context.wakers);
        Ok(shared)
    }

    /// Those that are there.
    pub(crate) fn sessions(&self) -> Vec<Arc<SessionShared>> {
        self.links
            .values()
            .map(|link| link.core.common.shared())
            .collect()
    }

    /// Does something to one session and lets what follows out at once.
    pub(crate) fn on_link<T>(
        &mut self,
        session: u64,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let link = self.links.get_mut(session)?;
        let result = act(link, context);
        link.settle(&mut self.tools, context);
        let report = link.core.common.take_credit_report();
        report_credit(&mut self.credit.broker, &mut self.sites, session, report);
        note_deadline(link, &mut self.timed);
        self.watch.take_in(link);
        if link.has_left_site {
            self.left_site(session, context);
        } else if link.is_finished() {
            self.remove(session);
        }
        self.share_credit(context);
        Some(result)
    }
}

/// The link is worth a look in every turn for a while.
#[inline]
fn heat_link(link: &mut Connection, hot: &mut Vec<u64>) {
    link.heat = HOT_TURNS;
    if !mem::replace(&mut link.is_hot, true) {
        hot.push(link.id());
    }
}

/// The clock is looked at as long as the link has a deadline.
#[inline]
fn note_deadline(link: &Connection, timed: &mut Vec<u64>) {
    if link.core.common.deadline().is_some() && !timed.contains(&link.id()) {
        timed.push(link.id());
    }
}
