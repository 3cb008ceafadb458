//! The drain of a node, with all of its engines.
#![forbid(unsafe_code)]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use ibex_base::fork;

use super::{EventLoop, Runtime};
use crate::node::Undelivered;

impl Runtime {
    /// Stops beginning calls, tells peers so, and refuses calls that wait.
    pub fn begin_drain(&self) {
        if fork::is_child() {
            return;
        }
        self.stop_accepting();
        // COUNTED, pairs with `Request::new`: a service counts a request before it looks whether
        // the node drains, and the drain reads the counts after this.
        self.draining.is_draining.store(true, Ordering::SeqCst);
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, context| {
                engine.on_every_connection(context, |connection, _| {
                    connection.core.common.say_draining();
                });
            });
        }
        self.wake_engines();
        self.for_participants(|participant| participant.begin_drain());
    }

    /// Tells peers that all their calls are answered. This notice is not ordered after the answers,
    /// so it goes only to peers that got everything.
    pub fn say_delivered(&self, undelivered: &[Undelivered]) {
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, context| {
                engine.on_every_connection(context, |connection, _| {
                    connection.core.common.say_drained(undelivered);
                });
            });
        }
        self.wake_engines();
    }

    /// Returns the channels with messages that their peers are not known to hold, and asks these
    /// peers.
    #[must_use]
    pub fn undelivered(&self) -> Vec<Undelivered> {
        if fork::is_child() {
            return Vec::new();
        }
        let of_engine = |event_loop: &Arc<EventLoop>| {
            event_loop.with_engine(|engine, context| {
                let undelivered = engine.connections.undelivered();
                if !undelivered.is_empty() {
                    engine.on_every_connection(context, |connection, _| {
                        connection
                            .core
                            .ends
                            .senders
                            .ask_for_all(&mut connection.core.common);
                    });
                }
                undelivered
            })
        };
        self.event_loops().iter().flat_map(of_engine).collect()
    }

    /// Waits until `is_done` returns true, the node is closed, or `deadline` has come. Calls
    /// `is_done` again when a session ends and at
    /// [`wake_drain`](crate::node::NodeState::wake_drain).
    pub fn wait_in_drain(&self, deadline: Option<Instant>, is_done: impl Fn() -> bool) {
        let check = || (self.is_closed() || is_done()).then_some(());
        let _ = self.wait_at(&self.draining.waiters, deadline, check);
    }

    /// Waits until `until`, or until the node is closed.
    pub fn go_on_until(&self, until: Instant) {
        let check = || self.is_closed().then_some(());
        let _ = self.wait_at(&self.draining.waiters, Some(until), check);
    }
}
