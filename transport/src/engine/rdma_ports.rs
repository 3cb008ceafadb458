//! The RDMA ports that an engine polls. Each turn polls their completions once, and hands them
//! to the connections of their queue pairs, in the order in which they came.
//!
//! Waiting follows the common rule: before the leader sleeps, each completion queue is armed and
//! polled once more. Completions that this poll finds are kept for the next turn.

use std::{
    io, mem,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{connections::Connections, poll::PORT_WIRE, port_poller::PortPoller};
use crate::{
    clock,
    connection::Context,
    rdma::{PortQueues, RdmaPort},
};

/// The RDMA ports of an engine.
#[derive(Default)]
pub(crate) struct RdmaPorts {
    pollers: Vec<PortPoller>,
    /// The time of the next check that devices still exist.
    next_check: Option<Instant>,
    /// True if a reading of the clock has found the check to be due.
    is_check_due: bool,
}

impl RdmaPorts {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Has the engine poll an RDMA port, unless the engine has it already.
    pub(crate) fn attach(
        &mut self,
        rdma_port: &Arc<RdmaPort>,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        self.close_lost(connections, context);
        if rdma_port.is_lost() {
            let device = rdma_port.device();
            return Err(io::Error::other(format!(
                "RDMA device {device} failed under earlier sessions; open its port anew"
            )));
        }
        if self.poller_of(rdma_port).is_some() {
            return Ok(());
        }
        let queues = rdma_port.take_into_care().map_err(io::Error::other)?;
        if let Err(error) = self.watch(&queues, &connections.tools.epoll) {
            rdma_port.give_back(queues);
            return Err(error);
        }
        if let Some(broker) = rdma_port.broker() {
            connections.credit.add_port(rdma_port, broker);
        }
        self.pollers
            .push(PortPoller::new(rdma_port.clone(), queues));
        self.begin_checks();
        Ok(())
    }

    /// Adds the queues of an RDMA port that the engine will poll to the epoll set.
    fn watch(&self, queues: &PortQueues, epoll: &OwnedFd) -> io::Result<()> {
        let index = self.pollers.len();
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

    fn poller_of(&mut self, rdma_port: &Arc<RdmaPort>) -> Option<&mut PortPoller> {
        let mut pollers = self.pollers.iter_mut();
        pollers.find(|poller| Arc::ptr_eq(&poller.rdma_port, rdma_port))
    }

    /// Adds a session to its RDMA port, for the queue pair with this ticket.
    pub(super) fn join(
        &mut self,
        session: u64,
        ticket: Option<u64>,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let connection = connections.all.get(session);
        let Some((rdma_port, number)) = connection.and_then(|connection| connection.wire.pair_at())
        else {
            return Ok(());
        };
        let rails = connections
            .all
            .get(session)
            .map(|connection| connection.wire.rails_at());
        match self.poller_of(&rdma_port.clone()) {
            Some(poller) => poller.join(session, (number, ticket), connections, context)?,
            None => return Ok(()),
        }
        for (rdma_port, number) in rails.into_iter().flatten() {
            if let Err(error) = self.attach(&rdma_port, connections, context) {
                if let Some(connection) = connections.all.get_mut(session) {
                    // Nothing is posted there, so it is destroyed at once.
                    connection.fail_rail(&rdma_port, number, &error.to_string());
                }
            } else if let Some(poller) = self.poller_of(&rdma_port) {
                poller.rails.insert(number, session);
            }
        }
        Ok(())
    }

    /// Removes a session that is over, and whose queue pair is gone, from its RDMA port.
    pub(super) fn leave(
        &mut self,
        session: u64,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        for poller in &mut self.pollers {
            poller.sessions.retain(|lives| *lives != session);
            poller.rails.retain(|lives| *lives != session);
        }
        connections.credit.leave_ports(session);
        self.close_lost(connections, context);
    }

    /// Closes lost RDMA ports that have no session any more, even if handles of them remain.
    fn close_lost(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        for poller in &mut self.pollers {
            if poller.rdma_port.is_lost() && !poller.rails.is_empty() {
                poller.forget_gone_rails(connections);
            }
        }
        let is_over = |poller: &PortPoller| {
            poller.rdma_port.is_lost() && poller.sessions.is_empty() && poller.rails.is_empty()
        };
        if !self.pollers.iter().any(is_over) {
            return;
        }
        let epoll = &connections.tools.epoll;
        for over in self.pollers.extract_if(.., |poller| is_over(poller)) {
            connections.credit.remove_port(&over.rdma_port);
            over.close(epoll, context);
        }
        for (index, poller) in self.pollers.iter().enumerate() {
            let modify = |fd, which| {
                let _ = epoll::modify(epoll, fd, token(index, which), EventFlags::IN);
            };
            modify(poller.queues.wait.fd(), COMPLETIONS);
            if let Some(events) = &poller.queues.events {
                modify(events.as_fd(), EVENTS);
            }
        }
    }

    /// Closes all RDMA ports of a closed node whose sessions are over.
    pub(super) fn close(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        for poller in self.pollers.drain(..) {
            connections.credit.remove_port(&poller.rdma_port);
            poller.rdma_port.lose();
            poller.close(&connections.tools.epoll, context);
        }
    }

    // ---- Completions -----------------------------------------------------------------

    /// Returns whether an earlier poll has found completions.
    #[inline]
    pub(super) fn has_found(&self) -> bool {
        self.pollers.iter().any(|poller| poller.count > 0)
    }

    /// Returns whether a queue pair waits for the event that its completion queue is empty.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        let mut pollers = self.pollers.iter();
        pollers.any(|poller| poller.rdma_port.is_left())
    }

    /// Returns whether completions wait for a turn. Those that this poll finds are kept for it.
    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        let mut pollers = self.pollers.iter_mut();
        pollers.any(|poller| poller.check() > 0 || poller.failed.is_some())
    }

    /// Polls every RDMA port, unless a poll has found completions there, and hands on what was
    /// found. Returns whether there were any, and whether sessions may have something to do because
    /// of them.
    #[inline]
    pub(super) fn take_completions(
        &mut self,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> (bool, bool) {
        let mut progress = (false, false);
        for poller in &mut self.pollers {
            poller.poll_all();
            let (any, follows) = poller.take_found(connections, context);
            progress = (progress.0 | any, progress.1 | follows);
        }
        progress
    }

    // ---- Sleeping and events ---------------------------------------------------------

    /// Arms every RDMA port's completion queue and polls once more. Returns whether the next turn
    /// has something to do; then no thread may sleep.
    pub(super) fn arm(&mut self) -> bool {
        let pollers = self.pollers.iter_mut();
        pollers.fold(false, |any, poller| poller.arm() | any)
    }

    /// Arms each RDMA port for a program that sleeps on the epoll set itself. Returns whether it
    /// armed any, or there is something to do; then the program must look again.
    pub(super) fn arm_once(&mut self) -> bool {
        let is_armed = |poller: &PortPoller| poller.is_armed || poller.is_lost;
        if self.pollers.iter().all(is_armed) {
            return false;
        }
        self.arm();
        true
    }

    /// Takes the events of a descriptor of the set that is readable.
    pub(super) fn is_ready(
        &mut self,
        index: u64,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        if let Some(poller) = self.pollers.get_mut((index / 2) as usize) {
            match index % 2 {
                COMPLETIONS => poller.completions_are_ready(connections, context),
                _ => poller.take_events(connections, context),
            }
        }
        self.close_lost(connections, context);
    }

    // ---- Removed devices -------------------------------------------------------------

    fn begin_checks(&mut self) {
        let next = || clock::now() + BETWEEN_CHECKS;
        self.next_check.get_or_insert_with(next);
    }

    /// Returns the time of the next check that devices still exist, if there is one.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.next_check
    }

    /// Returns whether that check is known to be due.
    pub(super) fn is_check_due(&self) -> bool {
        self.is_check_due
    }

    /// Notes that the time is `now`.
    pub(super) fn note(&mut self, now: Instant) {
        self.is_check_due |= self.next_check.is_some_and(|next| next <= now);
    }

    /// Checks that devices still exist, if a check is due. Where a quick look is not conclusive,
    /// the verbs library is asked outside the turn.
    #[inline(never)]
    pub(super) fn check_for_devices(
        &mut self,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        self.close_lost(connections, context);
        if self.pollers.is_empty() {
            (self.next_check, self.is_check_due) = (None, false);
            return;
        }
        self.note(clock::now());
        if mem::take(&mut self.is_check_due) {
            let is_unsure =
                |rdma_port: &&Arc<RdmaPort>| !rdma_port.is_lost() && !rdma_port.is_shown();
            let rdma_ports = self.pollers.iter().map(|poller| &poller.rdma_port);
            context
                .unsure_ports
                .extend(rdma_ports.filter(is_unsure).cloned());
            self.next_check = None;
            self.begin_checks();
        }
    }

    /// Handles the removal of a device from the machine. The removal waits until this process
    /// closes the device, which may work until then. So arrivals are handed out first, and then the
    /// sessions leave the device.
    pub(crate) fn device_was_removed(
        &mut self,
        rdma_port: &Arc<RdmaPort>,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        let Some(poller) = self.poller_of(rdma_port) else {
            return;
        };
        let device = rdma_port.device();
        ibex_base::warn_limited!(device, device, "the RDMA device was removed; it is closed");
        rdma_port.lose();
        let why = format!("RDMA device {device} was removed from this machine");
        poller.cut_off(&why, connections);
        self.close_lost(connections, context);
    }
}

/// Time between two checks that devices still exist. The removal of a device waits for this time
/// and for the ends of its sessions.
const BETWEEN_CHECKS: Duration = Duration::from_secs(2);

/// Returns the epoll token of an RDMA port's descriptor.
fn token(index: usize, which: u64) -> EventData {
    EventData::new_u64((2 * index as u64 + which) << 2 | PORT_WIRE)
}

/// Numbers of an RDMA port's two descriptors, for epoll.
const COMPLETIONS: u64 = 0;
const EVENTS: u64 = 1;
