//! The sources from which an engine gets sessions and connections: peers that dial, and peers that
//! this node dials.

use std::{
    io, mem,
    os::fd::{BorrowedFd, OwnedFd},
    time::Instant,
};

use ibex_ring::parking::Wakers;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{
    Admission, Engine, Mail,
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

    /// Returns whether no peer has to receive something yet.
    fn is_quiet(&self) -> bool {
        true
    }
}

/// The sources of an engine.
#[derive(Default)]
pub(crate) struct ControlSources {
    listener: Option<Box<dyn ControlSource>>,
    dialer: Option<Box<dyn ControlSource>>,
    /// The time at which one of them is due.
    pub(super) deadline: Option<Instant>,
}

impl ControlSources {
    /// Takes the listener of the node, and adds it to the engine's epoll set.
    pub(crate) fn set_listener(
        &mut self,
        source: Box<dyn ControlSource>,
        epoll: &OwnedFd,
    ) -> io::Result<()> {
        watch(&*source, TOKEN_LISTENER, epoll)?;
        self.listener = Some(source);
        Ok(())
    }

    /// Takes the dialer of the node, and adds it to the engine's epoll set.
    pub(crate) fn set_dialer(
        &mut self,
        source: Box<dyn ControlSource>,
        epoll: &OwnedFd,
    ) -> io::Result<()> {
        watch(&*source, TOKEN_DIALER, epoll)?;
        self.dialer = Some(source);
        Ok(())
    }

    /// Notes that the descriptor of a source is readable.
    pub(super) fn is_ready(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Returns whether no peer has to receive something yet.
    pub(super) fn are_quiet(&self) -> bool {
        let dialer = self.dialer.as_ref();
        dialer.is_none_or(|dialer| dialer.is_quiet())
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Box<dyn ControlSource>> {
        [&mut self.listener, &mut self.dialer].into_iter().flatten()
    }

    /// Turns the sources if one of them is due. Returns the results of handshakes.
    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming> {
        let mut incoming = Vec::new();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            for source in self.each() {
                incoming.extend(source.turn(now, wakers));
            }
            let deadlines = self.each().filter_map(|source| source.next_deadline());
            self.deadline = deadlines.min();
        }
        incoming
    }

    /// Refuses new sessions of peers that dial.
    pub(crate) fn stop_accepting(&mut self, wakers: &mut Wakers) {
        if let Some(listener) = &mut self.listener {
            listener.close(wakers);
        }
    }

    /// Begins no more sessions, whichever end dials.
    pub(super) fn begin_no_more(&mut self, wakers: &mut Wakers) {
        for source in self.each() {
            source.close(wakers);
        }
        // A dialer may have something to say to peers still.
        self.is_ready(clock::now());
    }

    /// Drops the sources after the lock is released, since a source waits for the RDMA device that
    /// it uses, and that may wait for the engine.
    pub(super) fn drop_all(&mut self, epoll: &OwnedFd, context: &mut Context<'_>) {
        let sources = mem::take(self);
        for source in [sources.listener, sources.dialer].into_iter().flatten() {
            // Closed, it would stay readable.
            let _ = epoll::delete(epoll, source.fd());
            context.leftovers.push(Box::new(source));
        }
    }
}

fn watch(source: &dyn ControlSource, token: u64, epoll: &OwnedFd) -> io::Result<()> {
    let token = EventData::new_u64(token);
    epoll::add(epoll, source.fd(), token, EventFlags::IN)?;
    Ok(())
}

impl Engine {
    /// Turns the sources if one of them is due. Returns whether a handshake of theirs has finished.
    pub(super) fn turn_controls(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        let incoming = self.controls.turn(now, &mut context.wakers);
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
            let mail = Mail::Redialed(Box::new(redialed));
            return self.others.post(engine, mail, context);
        }
        let Redialed {
            session,
            epoch,
            outcome,
        } = redialed;
        match outcome {
            Ok(wires) => self.resume_session(session, wires, context),
            Err(error) => {
                self.on_connection(session, context, |connection, context| {
                    connection.redial_ended(epoch, error, context);
                });
            }
        }
    }
}
