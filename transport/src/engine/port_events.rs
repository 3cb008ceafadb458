//! The events of an RDMA port: what the device says beside completions, and how its sessions leave
//! it.

use std::{mem, sync::Arc};

use ibex_protocol::id_map::IdMap;
use ibex_verbs::{AsyncEvent, PortEvent};
use rustix::event::epoll;

use super::{
    connections::Connections,
    port_poller::{PortPoller, lost},
};
use crate::{
    connection::Context,
    rdma::{PortStanding, SharedReceives},
    session::EndCause,
    wire::{RailEvent, WireEvent},
};

impl PortPoller {
    /// Takes the events of the completion queue. The leader armed the queue for itself, and no other
    /// thread arms it again. So a thread that turns the engine meanwhile leaves them to the leader.
    pub(super) fn completions_are_ready(
        &mut self,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        if !context.may_drain {
            return;
        }
        self.is_armed = false;
        if let Err(error) = self.queues.wait.take_events() {
            self.lose(&lost(&error), connections, context);
        }
    }

    /// Takes the asynchronous events of the device.
    pub(super) fn take_events(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        loop {
            let Some(events) = &mut self.queues.events else {
                return;
            };
            match events.take() {
                Ok(Some(event)) => self.handle_async(&event, connections, context),
                Ok(None) => return,
                Err(error) => {
                    // The failed descriptor would stay readable for ever, so it leaves the epoll
                    // set.
                    let _ = epoll::delete(&connections.tools.epoll, &*events);
                    self.lose(&lost(&error), connections, context);
                    return;
                }
            }
        }
    }

    /// Handles and counts an asynchronous event of the device, of any kind.
    fn handle_async(
        &mut self,
        event: &AsyncEvent,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        self.is_notified_empty = false;
        let is_used = self.react(event, connections, context);
        let rdma_port = &self.rdma_port;
        rdma_port.counters.said(is_used);
        if !is_used {
            tracing::debug!(device = rdma_port.device(), %event, "of no consequence");
        }
    }

    /// Acts on an event. Returns false if there is nothing to do. An event names objects of this
    /// device context only, so a queue with a matching tag belongs to this RDMA port.
    fn react(
        &mut self,
        event: &AsyncEvent,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> bool {
        let shared = self.queues.shared.as_ref();
        let shared = shared.and_then(|shared| shared.queue.tag());
        match *event {
            AsyncEvent::QueuePair(number, _) => {
                let session = self.sessions.get(number).copied();
                let connection = session.and_then(|session| connections.all.get_mut(session));
                let (Some(session), Some(connection)) = (session, connection) else {
                    let event = RailEvent::Said(event);
                    return self
                        .tell_rail(number, event, connections, context)
                        .is_some();
                };
                let heard =
                    connection.hear(WireEvent::Said(event), &mut connections.tools, context);
                let is_used = heard.unwrap_or(false);
                connections.mark_active(session);
                return is_used;
            }
            AsyncEvent::CompletionQueueError(tag) if tag == self.queues.wait.queue().tag() => {
                self.lose_by(event, connections, context);
            }
            AsyncEvent::ReceiveQueueError(tag) if shared == Some(tag) => {
                self.lose_by(event, connections, context);
            }
            AsyncEvent::ReceiveQueueLimit(tag) if shared == Some(tag) => {
                self.take_all(connections, context);
                self.refill_with(SharedReceives::run_low, connections, context);
            }
            AsyncEvent::DeviceFatal => self.lose_by(event, connections, context),
            AsyncEvent::Port(port, said) if port == self.rdma_port.port() => {
                return self.port_reported(said, event, connections, context);
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
    fn port_reported(
        &mut self,
        said: PortEvent,
        event: &AsyncEvent,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> bool {
        let rdma_port = &self.rdma_port;
        let device = rdma_port.device();
        tracing::info!(device, %event, "the RDMA port changed");
        let event = match said {
            // The port may be up again before this code could query it.
            PortEvent::Error => Ok(PortStanding::Doubtful(format!(
                "RDMA device {device}: {event}"
            ))),
            PortEvent::Active
            | PortEvent::GidChange
            | PortEvent::LidChange
            | PortEvent::PkeyChange
            | PortEvent::SubnetManagerChange
            | PortEvent::ReregisterWanted => rdma_port.check_port(),
            // Nothing here depends on the port's speed.
            PortEvent::SpeedChange => return false,
        };
        match event {
            Ok(PortStanding::AsBefore) => self.doubt(None, connections),
            Ok(PortStanding::Doubtful(why)) => self.doubt(Some(why.into()), connections),
            Ok(PortStanding::Moved(why)) => self.cut_off(&why, connections),
            Err(error) => self.lose(&lost(&error), connections, context),
        }
        true
    }

    /// Tells the sessions of the RDMA port that it is doubtful, or no longer is.
    fn doubt(&self, doubt: Option<Arc<str>>, connections: &mut Connections) {
        for &session in self.sessions.values() {
            if let Some(connection) = connections.all.get_mut(session) {
                connection.wire.doubt_port(doubt.clone());
            }
        }
    }

    /// Makes every session of the RDMA port leave it after everything that has arrived for the
    /// session.
    pub(super) fn cut_off(&self, why: &str, connections: &mut Connections) {
        for &session in self.sessions.values() {
            if let Some(connection) = connections.all.get_mut(session) {
                let why = why.to_owned();
                connection.drain_then_end(EndCause::DeviceLost { why });
                connections.mark_active(session);
            }
        }
        for (number, &session) in self.rails.iter() {
            if let Some(connection) = connections.all.get_mut(session) {
                connection.fail_rail(&self.rdma_port, number, why);
                connections.mark_active(session);
            }
        }
    }

    fn lose_by(
        &mut self,
        event: &AsyncEvent,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        let device = self.rdma_port.device();
        let why = format!("RDMA device {device}: {event}");
        // Earlier arrivals are handed out first.
        self.take_all(connections, context);
        self.lose(&EndCause::DeviceLost { why }, connections, context);
    }

    /// Takes the RDMA port away from its sessions, because nothing on it will complete any more.
    /// Each session ends, or goes on over another wire.
    pub(super) fn lose(
        &mut self,
        cause: &EndCause,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        if mem::replace(&mut self.is_lost, true) {
            return;
        }
        self.rdma_port.lose();
        for &session in self.sessions.values() {
            if let Some(connection) = connections.all.get_mut(session) {
                connection.lose_wire(cause.clone(), &mut connections.tools, context);
                connections.mark_active(session);
            }
        }
        let why = cause.to_string();
        let rails: Vec<u32> = self.rails.iter().map(|(number, _)| number).collect();
        for number in rails {
            self.tell_rail(number, RailEvent::Lost(&why), connections, context);
        }
        self.rails = IdMap::new();
    }
}
