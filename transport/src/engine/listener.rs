//! The sources from which an engine gets sessions and connections: peers that dial, and peers that
//! this node dials.

use std::{os::fd::BorrowedFd, time::Instant};

use ibex_ring::parking::Wakers;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{
    Admission, Engine,
    poll::{TOKEN_DIALER, TOKEN_LISTENER},
};
use crate::{
    clock,
    connection::{Context, NewWire, Redialed},
    session::EngineId,
};

/// The result of a handshake.
#[derive(Debug)]
pub enum Incoming {
    /// A new session with a peer that dialed.
    Session(Box<Admission>),
    /// Another connection for an existing session whose peer dialed.
    Wires(Box<NewWire>),
    /// Another session has taken the place of the session with this name, which has no connection.
    Displaced([u8; 16]),
    /// The outcome of a [redial](crate::connection::Redial).
    Redialed(Box<Redialed>),
}

/// A source of sessions and connections: a listener or a dialer, and its handshakes.
pub trait ControlSource: Send {
    /// Returns a descriptor that is readable when [`turn`](Self::turn) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Moves all handshakes on. Returns the results of those that have finished, as far as they
    /// are the engine's; adds the wakers of others to `wakers`, which are called later.
    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming>;

    /// Returns the time of the next turn if the descriptor does not become readable before.
    fn next_deadline(&self) -> Option<Instant>;

    /// Begins no new sessions from now on. Existing ones go on, over new connections if necessary.
    fn close(&mut self, wakers: &mut Wakers);

    /// Returns whether no peer has to hear something yet.
    fn is_quiet(&self) -> bool {
        true
    }
}

/// The sources of an engine.
#[derive(Default)]
pub(super) struct ControlSources {
    listener: Option<Box<dyn ControlSource>>,
    dialer: Option<Box<dyn ControlSource>>,
    /// The time at which one of them is due.
    pub(super) deadline: Option<Instant>,
}

impl ControlSources {
    /// Notes that the descriptor of a source is readable.
    pub(super) fn is_ready(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Returns whether no peer has to hear something yet.
    pub(super) fn are_quiet(&self) -> bool {
        let dialer = self.dialer.as_ref();
        dialer.is_none_or(|dialer| dialer.is_quiet())
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Box<dyn ControlSource>> {
        [&mut self.listener, &mut self.dialer].into_iter().flatten()
    }

    fn note_deadline(&mut self) {
        self.deadline = self
            .each()
            .filter_map(|source| source.next_deadline())
            .min();
    }
}

impl Engine {
    /// Takes the listener of the node.
    pub(crate) fn set_listener(&mut self, source: Box<dyn ControlSource>) -> std::io::Result<()> {
        self.watch_source(&*source, TOKEN_LISTENER)?;
        self.controls.listener = Some(source);
        Ok(())
    }

    /// Takes the dialer of the node.
    pub(crate) fn set_dialer(&mut self, source: Box<dyn ControlSource>) -> std::io::Result<()> {
        self.watch_source(&*source, TOKEN_DIALER)?;
        self.controls.dialer = Some(source);
        Ok(())
    }

    fn watch_source(&self, source: &dyn ControlSource, token: u64) -> std::io::Result<()> {
        let token = EventData::new_u64(token);
        epoll::add(&self.tools.epoll, source.fd(), token, EventFlags::IN)?;
        Ok(())
    }

    /// Turns the sources if one of them is due. Returns whether a handshake of theirs has finished.
    pub(super) fn turn_controls(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        if self.controls.deadline.is_none_or(|deadline| deadline > now) {
            return false;
        }
        let mut incoming = Vec::new();
        for source in self.controls.each() {
            incoming.extend(source.turn(now, &mut context.wakers));
        }
        self.controls.note_deadline();
        let any = !incoming.is_empty();
        for incoming in incoming {
            match incoming {
                Incoming::Session(admission) => self.place_session(*admission, context),
                Incoming::Wires(wires) => self.resume(*wires, context),
                Incoming::Displaced(session) => self.displace(session, context),
                Incoming::Redialed(redialed) => self.redialed(*redialed, context),
            }
        }
        any
    }

    /// Takes the outcome of a redial, or passes it on to the session's engine.
    pub(crate) fn redialed(&mut self, redialed: Redialed, context: &mut Context<'_>) {
        let engine = EngineId::of_session(redialed.session);
        if engine != self.id {
            return self.pass_on_redialed(engine, redialed);
        }
        let Redialed {
            session,
            epoch,
            outcome,
        } = redialed;
        match outcome {
            Ok(wires) => self.resume_session(session, wires, context),
            Err(error) => {
                self.on_link(session, context, |link, context| {
                    link.redial_ended(epoch, error, context);
                });
            }
        }
    }

    /// Refuses new sessions of peers that dial.
    pub(crate) fn stop_accepting(&mut self, context: &mut Context<'_>) {
        if let Some(listener) = &mut self.controls.listener {
            listener.close(&mut context.wakers);
        }
    }

    /// Begins no more sessions, whichever end dials.
    pub(super) fn begin_no_more(&mut self, context: &mut Context<'_>) {
        for source in self.controls.each() {
            source.close(&mut context.wakers);
        }
        // A dialer may have something to say to peers still.
        self.controls.is_ready(clock::now());
    }

    /// Drops the sources after the lock is released, since a source waits for the RDMA device that
    /// it uses, and that may wait for the engine.
    pub(super) fn drop_sources(&mut self, context: &mut Context<'_>) {
        let sources = std::mem::take(&mut self.controls);
        for source in [sources.listener, sources.dialer].into_iter().flatten() {
            // Closed, it would stay readable.
            let _ = epoll::delete(&self.tools.epoll, source.fd());
            context.leftovers.push(Box::new(source));
        }
    }
}
