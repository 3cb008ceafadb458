//! The sources from which an engine gets sessions and connections: peers that dial, and peers that
//! this node dials.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    time::Instant,
};

use ibex_ring::parking::Wakers;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Admission, Engine, Mail, poll::TOKEN_CONTROLS};
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

/// The source of sessions and connections: the listener and the dialer, with their handshakes.
pub trait ControlSource: Send {
    /// Returns the descriptors of which one is readable when [`turn`](Self::turn) has something to
    /// do.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Moves all handshakes on. Returns the results of those that have finished, as far as they
    /// are the engine's; adds the wakers of others to `wakers`, which are called later.
    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming>;

    /// Returns the time of the next turn if no descriptor becomes readable before.
    fn next_deadline(&self) -> Option<Instant>;

    /// Refuses new sessions of peers that dial. Existing ones go on, over new connections if
    /// necessary.
    fn stop_accepting(&mut self);

    /// Begins no new sessions from now on, whichever end dials. Existing ones go on likewise.
    fn close(&mut self, wakers: &mut Wakers);

    /// Returns whether no peer has to receive something yet.
    fn is_quiet(&self) -> bool;
}

/// The source of an engine.
#[derive(Default)]
pub(crate) struct Controls {
    source: Option<Box<dyn ControlSource>>,
    /// The time at which it is due.
    pub(super) deadline: Option<Instant>,
}

impl Controls {
    /// Takes the source, and adds it to the engine's epoll set.
    pub(crate) fn set(
        &mut self,
        source: Box<dyn ControlSource>,
        epoll: &OwnedFd,
    ) -> io::Result<()> {
        for fd in source.fds() {
            epoll::add(
                epoll,
                fd,
                EventData::new_u64(TOKEN_CONTROLS),
                EventFlags::IN,
            )?;
        }
        self.source = Some(source);
        Ok(())
    }

    /// Notes that a descriptor of the source is readable.
    pub(super) fn is_ready(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Returns whether no peer has to receive something yet.
    pub(super) fn are_quiet(&self) -> bool {
        let source = self.source.as_ref();
        source.is_none_or(|source| source.is_quiet())
    }

    /// Turns the source if it is due. Returns the results of handshakes.
    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming> {
        match &mut self.source {
            Some(source) if self.deadline.is_some_and(|deadline| deadline <= now) => {
                let incoming = source.turn(now, wakers);
                self.deadline = source.next_deadline();
                incoming
            }
            _ => Vec::new(),
        }
    }

    /// Refuses new sessions of peers that dial.
    pub(crate) fn stop_accepting(&mut self) {
        if let Some(source) = &mut self.source {
            source.stop_accepting();
        }
    }

    /// Begins no more sessions, whichever end dials.
    pub(super) fn begin_no_more(&mut self, wakers: &mut Wakers) {
        if let Some(source) = &mut self.source {
            source.close(wakers);
        }
        // A dialer may have something to say to peers still.
        self.is_ready(clock::now());
    }

    /// Drops the source after the lock is released, since it waits for the RDMA device that it uses,
    /// and that may wait for the engine.
    pub(super) fn drop_source(&mut self, epoll: &OwnedFd, context: &mut Context<'_>) {
        self.deadline = None;
        if let Some(source) = self.source.take() {
            for fd in source.fds() {
                // Closed, it would stay readable.
                let _ = epoll::delete(epoll, fd);
            }
            context.leftovers.push(Box::new(source));
        }
    }
}

impl Engine {
    /// Turns the source if it is due. Returns whether a handshake of it has finished.
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
