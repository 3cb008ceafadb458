//! Mail: messages between the engines of a node.
//!
//! The first engine has the listener. So a session that a peer dials comes to its engine by mail,
//! and so does a new connection of an existing session. An engine also tells the others of each
//! peer's run that it has met. Rule: an engine posts under its own lock and never takes another's.

use std::{
    any::Any,
    sync::{Arc, Weak},
};

use super::{Admission, Engine};
use crate::{
    connection::{Context, NewWire, Redialed},
    node::{Warning, session::PeerInLog, warn_of},
    session::{EngineId, PeerDescription},
};
use ibex_base::Address;

/// Mail of an engine for another engine of its node.
pub(crate) enum Mail {
    /// A session that was placed on the receiving engine.
    Session {
        admission: Box<Admission>,
        accepted_on: Option<Address>,
    },
    /// Another connection for a session that no earlier engine has.
    Wires(Box<NewWire>),
    /// The name of a session that no earlier engine has, and that has lost its place.
    Displaced([u8; 16]),
    /// The outcome of a redial for a session of the receiving engine.
    Redialed(Box<Redialed>),
    /// A run of a peer with which the sending engine has a session.
    Run {
        peer: Box<PeerDescription>,
        met_by: EngineId,
    },
}

/// Leaves mail for an engine. The caller holds its own engine's lock, so this calls no waker.
pub(crate) type Post = Box<dyn Fn(EngineId, Mail) + Send + Sync>;

/// The way of an engine to the others of its node.
pub(super) struct OtherEngines {
    /// The engine whose way this is.
    own: EngineId,
    /// The runtime with the node's engines, and the way to post mail there; `None` before there is
    /// one.
    joined: Option<(Weak<dyn Any + Send + Sync>, Post)>,
}

impl OtherEngines {
    /// Makes the way of an engine that nobody has joined to others yet.
    pub(super) fn of(own: EngineId) -> Self {
        Self { own, joined: None }
    }

    pub(super) fn join(&mut self, runtime: Weak<dyn Any + Send + Sync>, post: Post) {
        self.joined = Some((runtime, post));
    }

    /// Returns the runtime of the node, unless it is gone.
    fn runtime(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.joined.as_ref()?.0.upgrade()
    }

    /// Leaves mail for an engine, or behind the turn if the node has no such engine.
    pub(super) fn post(&self, engine: EngineId, mail: Mail, context: &mut Context<'_>) {
        match (&self.joined, self.runtime()) {
            (Some((_, post)), Some(_)) if engine.index() < context.node.config.engines => {
                post(engine, mail);
            }
            _ => context.leave(mail),
        }
    }

    /// Passes on mail about a session that this engine does not have. After the last engine, it is
    /// given up: no engine has the session.
    pub(super) fn pass_on(&self, mail: Mail, context: &mut Context<'_>) {
        self.post(EngineId::new(self.own.index() + 1), mail, context);
    }

    /// Tells one engine of a peer's run.
    fn tell_one_of_run(&self, engine: EngineId, peer: &PeerDescription, context: &mut Context<'_>) {
        let mail = Mail::Run {
            peer: Box::new(peer.clone()),
            met_by: self.own,
        };
        self.post(engine, mail, context);
    }

    /// Tells the other engines of a peer's run.
    pub(super) fn tell_of_run(&self, peer: &PeerDescription, context: &mut Context<'_>) {
        let engines = (0..context.node.config.engines).map(EngineId::new);
        for other in engines.filter(|other| *other != self.own) {
            self.tell_one_of_run(other, peer, context);
        }
    }
}

impl Engine {
    /// Handles the mail that other engines have left.
    pub(crate) fn take_mail(&mut self, mail: Vec<Mail>, context: &mut Context<'_>) {
        for mail in mail {
            match mail {
                Mail::Session {
                    admission,
                    accepted_on,
                } => self.begin_session(*admission, accepted_on, context),
                Mail::Wires(wires) => self.resume(*wires, context),
                Mail::Displaced(session) => self.displace(session, context),
                Mail::Redialed(redialed) => self.redialed(*redialed, context),
                Mail::Run { peer, met_by } => self.hear_of_run(&peer, met_by, context),
            }
        }
    }

    /// Begins the session of a peer that has dialed, here or on the engine where it is placed.
    pub(super) fn place_session(&mut self, admission: Admission, context: &mut Context<'_>) {
        let accepted_on = admission.parts.stream.local_addr().ok().map(Into::into);
        let (engine, admission) = admission.place(&context.node.sessions);
        if engine == self.id {
            return self.begin_session(admission, accepted_on, context);
        }
        let mail = Mail::Session {
            admission: Box::new(admission),
            accepted_on,
        };
        self.others.post(engine, mail, context);
    }

    fn begin_session(
        &mut self,
        admission: Admission,
        accepted_on: Option<Address>,
        context: &mut Context<'_>,
    ) {
        let Some(runtime) = self.others.runtime() else {
            return context.leave(admission);
        };
        let peer = admission.peer.clone();
        match self.admit(runtime, admission, accepted_on, context) {
            Ok(session) => context.node.push_accepted(session, &mut context.wakers),
            Err(error) => {
                let peer = PeerInLog {
                    peer: &peer,
                    accepted_on,
                };
                warn_of!(
                    self.warnings,
                    Warning::NotSetUp,
                    format_args!("{peer}: {error}"),
                    %peer, %error, "a session could not be set up"
                );
            }
        }
    }

    /// Handles the report that another engine has met a run of a peer. Ends sessions here with older
    /// runs. If a newer run is known here, tells the other engine, which then ends its sessions.
    fn hear_of_run(&mut self, peer: &PeerDescription, met_by: EngineId, context: &mut Context<'_>) {
        if !self.connections.has_other_run(peer) {
            return;
        }
        self.runs_anew(peer, context);
        let connections = self.connections.all.values();
        let peers = connections.map(|connection| connection.core.common.peer());
        let others =
            peers.filter(|other| other.is_of_node(peer) && other.incarnation != peer.incarnation);
        let newest = others.max_by_key(|other| other.began);
        if let Some(newest) = newest.filter(|newest| newest.began > peer.began) {
            self.others.tell_one_of_run(met_by, newest, context);
        }
    }
}
