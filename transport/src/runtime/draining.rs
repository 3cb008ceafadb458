//! The drain of a node, over all of its engines.
#![forbid(unsafe_code)]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use ibex_base::fork;

use super::{EventLoop, Looks, Runtime};
use crate::node::Undelivered;

impl Runtime {
    /// Begins no call any more, tells peers so, and refuses what waits.
    pub fn begin_drain(&self) {
        if fork::is_child() {
            return;
        }
        self.stop_accepting();
        self.draining.is_draining.store(true, Ordering::SeqCst);
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, context| {
                engine.on_every_link(context, |link, _| link.core.common.say_draining());
            });
        }
        self.wake_engines();
        self.for_services(|service| service.refuse_waiting());
    }

    /// Tells peers the same of all their calls. What is said so is not behind the answers, so it
    /// is said to those alone to whom everything was delivered.
    pub fn say_delivered(&self, undelivered: &[Undelivered]) {
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, context| {
                engine.on_every_link(context, |link, _| link.core.common.say_drained(undelivered));
            });
        }
        self.wake_engines();
    }

    /// Channels with messages that their peers are not known to have, who are asked.
    #[must_use]
    pub fn undelivered(&self) -> Vec<Undelivered> {
        if fork::is_child() {
            return Vec::new();
        }
        let of_engine = |event_loop: &Arc<EventLoop>| {
            event_loop.with_engine(|engine, context| {
                let undelivered = engine.undelivered();
                if !undelivered.is_empty() {
                    engine.on_every_link(context, |link, _| {
                        link.core.ends.senders.ask_for_all(&mut link.core.common);
                    });
                }
                undelivered
            })
        };
        self.event_loops().iter().flat_map(of_engine).collect()
    }

    /// Waits until `is_done` answers so, the node is closed, or it is `deadline`. It is asked again
    /// when a session ends and at [`wake_drain`](crate::node::NodeState::wake_drain).
    pub fn wait_in_drain(&self, deadline: Option<Instant>, is_done: impl Fn() -> bool) {
        let look = || (self.is_closed() || is_done()).then_some(());
        let _ = self.wait(&self.draining.waiters, deadline, Looks::Socket, look);
    }

    /// Goes on until `until`, or until the node is closed.
    pub fn go_on_until(&self, until: Instant) {
        let look = || self.is_closed().then_some(());
        let _ = self.wait(&self.draining.waiters, Some(until), Looks::Socket, look);
    }
}
