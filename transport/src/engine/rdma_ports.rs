//! The RDMA ports that an engine polls. Each turn polls their completions once, and hands them
//! to the connections of their queue pairs, in the order in which they came.
//!
//! Waiting follows the common rule: before the leader sleeps, each completion queue is armed and
//! polled once more. Completions that this look finds are kept for the next turn.

use std::{
    io, mem,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_verbs::{AsyncEvent, PortEvent, PostError};
use rustix::event::epoll::{self, EventData, EventFlags};

pub(super) use super::port_poller::PortPoller;
use super::{
    Engine, credit::report_credit, heat_link, note_deadline, poll::PORT_WIRE, port_poller::lost,
};
use crate::{
    clock,
    connection::Context,
    rdma::{PortNews, PortQueues, RdmaPort, SharedReceives},
    session::EndCause,
    wire::{Stray, WireNews},
};

/// Polls before an RDMA port is given up: a whole completion queue's worth.
const LAST_POLLS: usize = 1024;

/// The time of the next check that devices still exist.
#[derive(Debug, Default)]
pub(super) struct PortLooks {
    next: Option<Instant>,
    /// True if a reading of the clock has found the check to be due.
    pub(super) is_due: bool,
}

impl PortLooks {
    fn begin(&mut self) {
        let next = || clock::now() + BETWEEN_PORT_LOOKS;
        self.next.get_or_insert_with(next);
    }

    /// Returns the time of the next check, if there is one.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Notes that the time is `now`.
    pub(super) fn note(&mut self, now: Instant) {
        self.is_due |= self.next.is_some_and(|next| next <= now);
    }
}

impl Engine {
    /// Has the engine poll an RDMA port, unless the engine has it already.
    pub(crate) fn care_for(&mut self, rdma_port: &Arc<RdmaPort>) -> io::Result<()> {
        self.let_go_of_lost_ports();
        if rdma_port.is_lost() {
            let device = rdma_port.device();
            return Err(io::Error::other(format!(
                "RDMA device {device} failed under earlier sessions; open its port anew"
            )));
        }
        let mut rdma_ports = self.rdma_ports.iter();
        if rdma_ports.any(|poller| Arc::ptr_eq(&poller.rdma_port, rdma_port)) {
            return Ok(());
        }
        let queues = rdma_port.take_into_care().map_err(io::Error::other)?;
        if let Err(error) = self.watch(&queues) {
            rdma_port.give_back(queues);
            return Err(error);
        }
        self.rdma_ports
            .push(PortPoller::new(rdma_port.clone(), queues));
        self.port_looks.begin();
        Ok(())
    }

    /// Adds the queues of an RDMA port that the engine will poll to the epoll set.
    fn watch(&self, queues: &PortQueues) -> io::Result<()> {
        let epoll = &self.tools.epoll;
        let index = self.rdma_ports.len();
        let add = |fd, which| epoll::add(epoll, fd, token(index, which), EventFlags::IN);
        add(queues.wait.fd(), COMPLETIONS)?;
        let Some(events) = &queues.events else {
            return Ok(());
        };
        add(events.as_fd(), EVENTS).inspect_err(|_| {
            let _ = epoll::delete(epoll, queues.wait.fd());
        })?;
        Ok(())
    }

    /// Checks that devices still exist, if a check is due. Where a quick look is not conclusive,
    /// the verbs library is asked outside the turn.
    #[inline(never)]
    pub(super) fn look_for_devices(&mut self, context: &mut Context<'_>) {
        if self.rdma_ports.is_empty() {
            self.port_looks = PortLooks::default();
            return;
        }
        self.port_looks.note(clock::now());
        if mem::take(&mut self.port_looks.is_due) {
            let is_unsure =
                |rdma_port: &&Arc<RdmaPort>| !rdma_port.is_lost() && !rdma_port.is_shown();
            let rdma_ports = self.rdma_ports.iter().map(|poller| &poller.rdma_port);
            context
                .unsure_ports
                .extend(rdma_ports.filter(is_unsure).cloned());
            self.port_looks.next = None;
            self.port_looks.begin();
        }
    }

    /// Handles the removal of a device from the machine. The removal waits until this process
    /// closes the device, which may work until then. So arrivals are handed out first, and then the
    /// sessions leave the device.
    pub(crate) fn device_was_removed(&mut self, rdma_port: &Arc<RdmaPort>) {
        let mut rdma_ports = self.rdma_ports.iter();
        let Some(at) = rdma_ports.position(|poller| Arc::ptr_eq(&poller.rdma_port, rdma_port))
        else {
            return;
        };
        let device = rdma_port.device();
        tracing::warn!(device, "the RDMA device was removed; it is closed");
        rdma_port.lose();
        let why = format!("RDMA device {device} was removed from this machine");
        self.cut_off(at, &why);
        self.let_go_of_lost_ports();
    }

    /// Makes every session of an RDMA port leave it after everything that has arrived for the
    /// session.
    fn cut_off(&mut self, at: usize, why: &str) {
        for session in self.rdma_ports[at].sessions.clone().into_values() {
            if let Some(link) = self.links.get_mut(session) {
                let why = why.to_owned();
                link.drain_then_end(EndCause::DeviceLost { why });
                self.heat(session);
            }
        }
    }

    /// Adds a session to its RDMA port, for the queue pair with this ticket. The session gets the
    /// completions that came before it.
    pub(super) fn joins_port(
        &mut self,
        session: u64,
        ticket: Option<u64>,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let Some((rdma_port, number)) =
            self.links.get(session).and_then(|link| link.wire.pair_at())
        else {
            return Ok(());
        };
        let mut rdma_ports = self.rdma_ports.iter();
        let Some(at) = rdma_ports.position(|poller| Arc::ptr_eq(&poller.rdma_port, rdma_port))
        else {
            return Ok(());
        };
        let poller = &mut self.rdma_ports[at];
        poller.sessions.insert(number, session);
        if let Some(broker) = &mut poller.broker {
            // The RDMA port has no more permits for sessions than its broker has places.
            broker.join(session).map_err(io::Error::other)?;
        }
        let (ours, others) = mem::take(&mut poller.early)
            .into_iter()
            .partition(|(early, _)| Some(*early) == ticket);
        poller.early = others;
        if let Some(link) = self.links.get_mut(session) {
            for (_, completion) in ours {
                let shared = poller.queues.shared.as_mut();
                let news = WireNews::Completed(&completion, shared);
                if let Err(Stray) = link.hear(news, &mut self.tools, context) {
                    poller.rdma_port.counters.strayed();
                }
            }
            let report = link.core.common.take_credit_report();
            report_credit(
                &mut self.credit.broker,
                &mut self.rdma_ports,
                session,
                report,
            );
        }
        self.refill_port(at, context);
        Ok(())
    }

    /// Removes a session that is over, and whose queue pair is gone, from its RDMA port.
    pub(super) fn leaves_port(&mut self, session: u64) {
        for poller in &mut self.rdma_ports {
            poller.sessions.retain(|lives| *lives != session);
            if let Some(broker) = &mut poller.broker {
                broker.leave(session);
            }
        }
        self.let_go_of_lost_ports();
    }

    /// Returns whether an earlier look has found completions.
    #[inline]
    pub(super) fn has_found_completions(&self) -> bool {
        self.rdma_ports.iter().any(|poller| poller.count > 0)
    }

    /// Returns whether a queue pair waits for the news that its completion queue is empty.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.rdma_ports
            .iter()
            .any(|poller| poller.rdma_port.is_left())
    }

    /// Returns whether completions wait for a turn. Those that this look finds are kept for it.
    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        let mut rdma_ports = self.rdma_ports.iter_mut();
        rdma_ports.any(|poller| poller.look() > 0 || poller.failed.is_some())
    }

    /// Polls every RDMA port once and hands its completions on. Returns whether there were any.
    #[inline]
    pub(super) fn turn_ports(&mut self, context: &mut Context<'_>) -> bool {
        for poller in &mut self.rdma_ports {
            poller.look_around();
        }
        self.take_found(context)
    }

    /// Hands on the completions that looks have found. Returns whether there were any.
    #[inline]
    pub(super) fn take_found(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        for at in 0..self.rdma_ports.len() {
            progress |= self.take_found_at(at, context);
        }
        progress
    }

    #[inline(never)]
    fn take_found_at(&mut self, at: usize, context: &mut Context<'_>) -> bool {
        let poller = &mut self.rdma_ports[at];
        if poller.failed.is_some() {
            self.give_up_port(at, context);
            return true;
        }
        let count = mem::take(&mut poller.count);
        if count == 0 {
            return self.port_is_empty(at, context);
        }
        let mut follows = false;
        for index in 0..count {
            follows |= self.hand_on_found(at, index, context);
        }
        self.refill_port(at, context);
        if follows {
            self.turn_links_of(at, count, context);
            self.share_credit(context);
        }
        true
    }

    #[inline(never)]
    fn give_up_port(&mut self, at: usize, context: &mut Context<'_>) {
        if let Some(cause) = self.rdma_ports[at].failed.take() {
            self.lose_port(at, &cause, context);
        }
    }

    /// Hands a completion to the session of its queue pair. Returns whether the session may have
    /// something to do because of it, which is rare.
    #[inline(always)]
    fn hand_on_found(&mut self, at: usize, index: usize, context: &mut Context<'_>) -> bool {
        let poller = &mut self.rdma_ports[at];
        let completion = &poller.found[index];
        let session = poller.sessions.get(completion.queue_pair()).copied();
        let link = session.and_then(|session| self.links.get_mut(session));
        let (Some(session), Some(link)) = (session, link) else {
            let completion = *completion;
            poller.take_sessionless(&completion);
            return false;
        };
        let shared = poller.queues.shared.as_mut();
        let news = WireNews::Completed(completion, shared);
        let Ok(follows) = link.hear(news, &mut self.tools, context) else {
            poller.rdma_port.counters.strayed();
            return false;
        };
        heat_link(link, &mut self.hot);
        if follows {
            // The completion may mean that a ring is not needed any more.
            self.watch.take_in(link);
            let report = link.core.common.take_credit_report();
            report_credit(
                &mut self.credit.broker,
                &mut self.rdma_ports,
                session,
                report,
            );
        }
        follows
    }

    /// Sends what the completions allow, after all of them were handled.
    #[inline(never)]
    fn turn_links_of(&mut self, at: usize, count: usize, context: &mut Context<'_>) {
        for index in 0..count {
            let poller = &self.rdma_ports[at];
            if let Some(&session) = poller.sessions.get(poller.found[index].queue_pair())
                && let Some(link) = self.links.get_mut(session)
                && link.has_output()
            {
                link.turn(&mut self.tools, context);
                note_deadline(link, &mut self.timed);
                let report = link.core.common.take_credit_report();
                report_credit(
                    &mut self.credit.broker,
                    &mut self.rdma_ports,
                    session,
                    report,
                );
            }
        }
    }

    /// Posts receives again, in batches.
    #[inline]
    fn refill_port(&mut self, at: usize, context: &mut Context<'_>) {
        let poller = &self.rdma_ports[at];
        if let Some(shared) = &poller.queues.shared
            && shared.buffers.wants_refill()
        {
            self.refill_shared(at, context);
        }
    }

    #[inline(never)]
    fn refill_shared(&mut self, at: usize, context: &mut Context<'_>) {
        self.refill_with(at, SharedReceives::refill, context);
    }

    fn refill_with(
        &mut self,
        at: usize,
        refill: impl FnOnce(&mut SharedReceives) -> Result<(), PostError>,
        context: &mut Context<'_>,
    ) {
        let PortPoller {
            rdma_port, queues, ..
        } = &mut self.rdma_ports[at];
        let Some(shared) = &mut queues.shared else {
            return;
        };
        if rdma_port.takes_undrained() {
            shared.may_miss_some();
        }
        let why = match (refill(shared), shared.buffers.is_spent()) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(lost)) => format!(
                "{lost} receive buffers of RDMA device {} went with queue pairs that it never \
                 drained",
                rdma_port.device()
            ),
            (Ok(()), None) => return,
        };
        self.lose_port(at, &EndCause::DeviceLost { why }, context);
    }

    /// Tells queue pairs that wait for the last completion that the queue is empty, once. Returns
    /// whether that gave any session something to do.
    #[inline]
    fn port_is_empty(&mut self, at: usize, context: &mut Context<'_>) -> bool {
        let poller = &self.rdma_ports[at];
        poller.rdma_port.is_left() && !poller.is_told_empty && self.tell_draining_pairs(at, context)
    }

    #[inline(never)]
    fn tell_draining_pairs(&mut self, at: usize, context: &mut Context<'_>) -> bool {
        let poller = &mut self.rdma_ports[at];
        poller.is_told_empty = true;
        let mut any = false;
        for &session in poller.sessions.values() {
            // A session that has moved to another RDMA port has its queue pair there.
            if let Some(link) = self.links.get_mut(session)
                && let Some((rdma_port, _)) = link.wire.pair_at()
                && Arc::ptr_eq(rdma_port, &poller.rdma_port)
                && let Ok(true) = link.hear(WireNews::Empty, &mut self.tools, context)
            {
                heat_link(link, &mut self.hot);
                any = true;
            }
        }
        any
    }

    /// Returns the number of receive buffers that a session's peer may fill, and the number that no
    /// peer may fill.
    #[cfg(test)]
    pub(crate) fn lent_and_free(&self, session: u64) -> (u64, u64) {
        let mut brokers = self
            .rdma_ports
            .iter()
            .filter_map(|poller| poller.broker.as_ref());
        let broker = brokers.next();
        broker.map_or((0, 0), |broker| (broker.held(session), broker.free()))
    }

    // ---- Sleeping --------------------------------------------------------------------

    /// Arms every RDMA port's completion queue and polls once more. Returns whether the next turn
    /// has something to do; then no thread may sleep.
    pub(super) fn arm_ports(&mut self) -> bool {
        let rdma_ports = self.rdma_ports.iter_mut();
        rdma_ports.fold(false, |any, poller| poller.arm() | any)
    }

    /// Arms each RDMA port for a program that sleeps on the epoll set itself. Returns whether it
    /// armed any, or there is something to do; then the program must look again.
    pub(super) fn arm_ports_once(&mut self) -> bool {
        let is_armed = |poller: &PortPoller| poller.is_armed || poller.is_lost;
        if self.rdma_ports.iter().all(is_armed) {
            return false;
        }
        self.arm_ports();
        true
    }

    // ---- Events of the epoll set -----------------------------------------------------

    pub(super) fn port_is_ready(&mut self, index: u64, context: &mut Context<'_>) {
        self.take_port_news(index, context);
        self.let_go_of_lost_ports();
    }

    fn take_port_news(&mut self, index: u64, context: &mut Context<'_>) {
        let at = (index / 2) as usize;
        if at >= self.rdma_ports.len() {
            return;
        }
        if index % 2 == COMPLETIONS {
            // The leader armed the queue for itself, and no other thread arms it again. So a thread
            // that turns the engine meanwhile leaves the event to the leader.
            if !context.surroundings.may_drain() {
                return;
            }
            let poller = &mut self.rdma_ports[at];
            poller.is_armed = false;
            if let Err(error) = poller.queues.wait.take_events() {
                self.lose_port(at, &lost(&error), context);
            }
            return;
        }
        loop {
            let Some(events) = &mut self.rdma_ports[at].queues.events else {
                return;
            };
            match events.take() {
                Ok(Some(event)) => self.handle_async(at, &event, context),
                Ok(None) => return,
                Err(error) => {
                    // The failed descriptor would stay readable for ever, so it leaves the epoll
                    // set.
                    let _ = epoll::delete(&self.tools.epoll, &*events);
                    self.lose_port(at, &lost(&error), context);
                    return;
                }
            }
        }
    }

    /// Handles and counts an asynchronous event of the device, of any kind.
    fn handle_async(&mut self, at: usize, event: &AsyncEvent, context: &mut Context<'_>) {
        self.rdma_ports[at].is_told_empty = false;
        let is_used = self.react(at, event, context);
        let rdma_port = &self.rdma_ports[at].rdma_port;
        rdma_port.counters.said(is_used);
        if !is_used {
            tracing::debug!(device = rdma_port.device(), %event, "of no consequence");
        }
    }

    /// Acts on an event. Returns false if there is nothing to do. An event names objects of this
    /// device context only, so a queue with a matching tag belongs to this RDMA port.
    fn react(&mut self, at: usize, event: &AsyncEvent, context: &mut Context<'_>) -> bool {
        let poller = &self.rdma_ports[at];
        let shared = poller.queues.shared.as_ref();
        let shared = shared.and_then(|shared| shared.queue.tag());
        match *event {
            AsyncEvent::QueuePair(number, _) => {
                let session = poller.sessions.get(number).copied();
                let link = session.and_then(|session| self.links.get_mut(session));
                let (Some(session), Some(link)) = (session, link) else {
                    return false;
                };
                let heard = link.hear(WireNews::Said(event), &mut self.tools, context);
                let is_used = heard.unwrap_or(false);
                self.heat(session);
                return is_used;
            }
            AsyncEvent::CompletionQueueError(tag) if tag == poller.queues.wait.queue().tag() => {
                self.lose_port_by(at, event, context);
            }
            AsyncEvent::ReceiveQueueError(tag) if shared == Some(tag) => {
                self.lose_port_by(at, event, context);
            }
            AsyncEvent::ReceiveQueueLimit(tag) if shared == Some(tag) => {
                self.take_all_found(at, context);
                self.refill_with(at, SharedReceives::run_low, context);
            }
            AsyncEvent::DeviceFatal => self.lose_port_by(at, event, context),
            AsyncEvent::Port(port, said) if port == poller.rdma_port.port() => {
                return self.port_said(at, said, event, context);
            }
            // These concern other objects, queues that are gone, or kinds of objects that an RDMA
            // port does not have.
            AsyncEvent::CompletionQueueError(_)
            | AsyncEvent::ReceiveQueueError(_)
            | AsyncEvent::ReceiveQueueLimit(_)
            | AsyncEvent::Port(..)
            | AsyncEvent::WorkQueueFatal
            | AsyncEvent::Unknown(_) => return false,
        }
        true
    }

    /// Handles an event of the port. Connections survive a pause of the port's link, or fail
    /// because of it and report that themselves. A change that certainly cuts sessions off makes
    /// them leave the RDMA port. Returns whether the event had any consequence.
    fn port_said(
        &mut self,
        at: usize,
        said: PortEvent,
        event: &AsyncEvent,
        context: &mut Context<'_>,
    ) -> bool {
        let rdma_port = &self.rdma_ports[at].rdma_port;
        let device = rdma_port.device();
        tracing::info!(device, %event, "the RDMA port changed");
        let news = match said {
            // The port may be up again before this code could query it.
            PortEvent::Error => Ok(PortNews::Doubtful(format!("RDMA device {device}: {event}"))),
            PortEvent::Active
            | PortEvent::GidChange
            | PortEvent::LidChange
            | PortEvent::PkeyChange
            | PortEvent::SubnetManagerChange
            | PortEvent::ReregisterWanted => rdma_port.look_at_port(),
            // Nothing here depends on the port's speed.
            PortEvent::SpeedChange => return false,
        };
        match news {
            Ok(PortNews::AsBefore) => self.doubt_port(at, None),
            Ok(PortNews::Doubtful(why)) => self.doubt_port(at, Some(why.into())),
            Ok(PortNews::Moved(why)) => self.cut_off(at, &why),
            Err(error) => self.lose_port(at, &lost(&error), context),
        }
        true
    }

    /// Tells the sessions of the RDMA port that it is doubtful, or no longer is.
    fn doubt_port(&mut self, at: usize, doubt: Option<Arc<str>>) {
        for &session in self.rdma_ports[at].sessions.values() {
            if let Some(link) = self.links.get_mut(session) {
                link.wire.doubt_port(doubt.clone());
            }
        }
    }

    /// Hands on everything that is in the completion queue.
    fn take_all_found(&mut self, at: usize, context: &mut Context<'_>) {
        for _ in 0..LAST_POLLS {
            self.rdma_ports[at].look_around();
            if self.rdma_ports[at].is_lost || !self.take_found_at(at, context) {
                break;
            }
        }
    }

    /// Closes lost RDMA ports that have no session any more, even if handles of them remain.
    fn let_go_of_lost_ports(&mut self) {
        let is_over =
            |poller: &PortPoller| poller.rdma_port.is_lost() && poller.sessions.is_empty();
        if !self.rdma_ports.iter().any(is_over) {
            return;
        }
        for over in self.rdma_ports.extract_if(.., |poller| is_over(poller)) {
            over.close(&self.tools.epoll);
        }
        for (index, poller) in self.rdma_ports.iter().enumerate() {
            let modify = |fd, which| {
                let _ = epoll::modify(&self.tools.epoll, fd, token(index, which), EventFlags::IN);
            };
            modify(poller.queues.wait.fd(), COMPLETIONS);
            if let Some(events) = &poller.queues.events {
                modify(events.as_fd(), EVENTS);
            }
        }
    }

    /// Closes all RDMA ports of a closed node whose sessions are over.
    pub(super) fn close_ports(&mut self) {
        for poller in self.rdma_ports.drain(..) {
            poller.rdma_port.lose();
            poller.close(&self.tools.epoll);
        }
    }

    fn lose_port_by(&mut self, at: usize, event: &AsyncEvent, context: &mut Context<'_>) {
        let device = self.rdma_ports[at].rdma_port.device();
        let why = format!("RDMA device {device}: {event}");
        // Earlier arrivals are handed out first.
        self.take_all_found(at, context);
        self.lose_port(at, &EndCause::DeviceLost { why }, context);
    }

    /// Takes an RDMA port away from its sessions, because nothing on it will complete any more.
    /// Each session ends, or goes on over another wire.
    fn lose_port(&mut self, at: usize, cause: &EndCause, context: &mut Context<'_>) {
        let poller = &mut self.rdma_ports[at];
        if mem::replace(&mut poller.is_lost, true) {
            return;
        }
        poller.rdma_port.lose();
        for session in poller.sessions.clone().into_values() {
            if let Some(link) = self.links.get_mut(session) {
                link.lose_wire(cause.clone(), &mut self.tools, context);
                self.heat(session);
            }
        }
    }
}

/// Time between two checks that devices still exist. The removal of a device waits for this time
/// and for the ends of its sessions.
const BETWEEN_PORT_LOOKS: Duration = Duration::from_secs(2);

/// Returns the epoll token of an RDMA port's descriptor.
fn token(index: usize, which: u64) -> EventData {
    EventData::new_u64((2 * index as u64 + which) << 2 | PORT_WIRE)
}

/// Numbers of an RDMA port's two descriptors, for epoll.
const COMPLETIONS: u64 = 0;
const EVENTS: u64 = 1;
