//! The engine: the sessions that a node has placed on it, and the turn that moves them.
//!
//! A turn reads sockets that were hot lately directly, and asks epoll only now and then
//! (`turn.rs`). Before the leader sleeps, the engine arms every ring, looks at it once more, and
//! leaves the rest to the epoll set (`sleeping.rs`).

use std::{
    any::Any,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Instant,
};

use ibex_base::sync::LentLimit;
use ibex_ring::{memory::BlockPool, parking::Bell};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

mod admission;
mod alarm;
mod bursts;
mod close;
mod connections;
mod credit;
mod deadlines;
mod idle;
mod listener;
mod mail;
mod poll;
#[cfg(any(test, feature = "verbs"))]
mod port_events;
#[cfg(any(test, feature = "verbs"))]
mod port_poller;
#[cfg(any(test, feature = "verbs"))]
mod rdma_ports;
#[cfg(not(any(test, feature = "verbs")))]
#[path = "absent_ports.rs"]
mod rdma_ports;
mod resume;
mod sessions;
mod sleeping;
#[cfg(test)]
mod tests;
mod turn;

pub use admission::Admission;
pub(crate) use credit::lendable_credit;
pub use listener::{ControlSource, Incoming};
pub(crate) use mail::{Mail, Post};
pub(crate) use poll::{ReadyWires, sleep};

use crate::{
    connection::{ConnectionStats, SessionTotals, compaction::compact_pool},
    node::{CloseReport, Driving, Mark, RuntimeConfig, Sessions, Warnings},
    session::EngineId,
    wire::{Tools, stream::outbound::Lists},
};
use alarm::Alarm;
use bursts::BurstDetector;
use close::Closing;
use connections::Connections;
use credit::Credit;
use listener::Controls;
use mail::OtherEngines;
use poll::{TOKEN_ALARM, TOKEN_BELL};
use rdma_ports::RdmaPorts;

/// Sessions of a node, and the tools with which they are turned.
pub(crate) struct Engine {
    id: EngineId,
    /// The sessions that are placed here.
    pub(crate) connections: Connections,
    next_session: u64,
    /// The sessions of all engines of the node.
    sessions: Sessions,
    /// The counts of sessions that are over and forgotten.
    ended: SessionTotals,

    /// RDMA device ports that sessions go over.
    pub(crate) ports: RdmaPorts,

    /// The time at which the present sleeper wakes up by itself.
    pub(crate) sleeps_until: Option<Instant>,
    /// Wakes a program, or an executor, that sleeps on the epoll set itself.
    alarm: Option<Alarm>,
    pub(crate) bursts: BurstDetector,

    others: OtherEngines,
    /// True if a program sleeps on the epoll set itself (`Driver::Caller`).
    is_watched: bool,
    driving: Driving,

    /// The listener and the dialer, if the engine has them.
    pub(crate) controls: Controls,

    // The turn.
    turns: u64,
    /// The time of the first question of epoll since the executor last ran one of the two tasks.
    unstepped_since: Option<Instant>,
    /// A list that is empty between turns, and kept for its memory.
    pub(crate) marks: Vec<Mark>,
    closing: Closing,
    /// What the sessions that are gone have not delivered.
    close_report: CloseReport,
    warnings: Arc<Warnings>,
}

impl Engine {
    /// Makes an engine without sessions. The engines of its node share `sessions`, credit and
    /// warnings.
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
        let tools = Tools {
            blocks: BlockPool::default(),
            compact_blocks: compact_pool(),
            lists: Lists::default(),
            epoll,
            reactor: None,
            share_is_spent: false,
        };
        Ok(Self {
            id,
            connections: Connections::new(Credit::new(config, credit), tools),
            next_session: id.first_session(),
            sessions,
            ended: SessionTotals::default(),
            ports: RdmaPorts::new(),
            sleeps_until: None,
            alarm,
            bursts: BurstDetector::default(),
            others: OtherEngines::of(id),
            is_watched: false,
            driving,
            controls: Controls::default(),
            turns: 0,
            unstepped_since: None,
            marks: Vec::new(),
            closing: Closing::No,
            close_report: CloseReport::default(),
            warnings,
        })
    }

    /// Joins the engine to the others of its node.
    pub(crate) fn join(&mut self, runtime: Weak<dyn Any + Send + Sync>, post: Post) {
        self.others.join(runtime, post);
    }

    /// Notes that a program sleeps on the epoll set itself from now on (`Driver::Caller`).
    pub(crate) fn watch_all(&mut self) {
        self.is_watched = self.driving == Driving::Callers;
    }

    /// Notes that the driving task or the flushing task runs, so the executor is not held up.
    pub(crate) fn note_step(&mut self) {
        self.unstepped_since = None;
    }

    /// Returns whether a program or an executor sleeps on the epoll set, which must then report
    /// every event.
    #[inline]
    fn sleeps_elsewhere(&self) -> bool {
        self.is_watched || self.driving == Driving::Tasks
    }

    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        self.connections.tools.epoll.clone()
    }

    /// Returns the number of turns so far, the counts of the sessions, and those of the sessions
    /// that are forgotten.
    pub(crate) fn stats(&self) -> (u64, Vec<ConnectionStats>, SessionTotals) {
        let connections = self.connections.all.values();
        let mut stats: Vec<_> = connections
            .map(|connection| connection.core.stats())
            .collect();
        stats.sort_by_key(|connection| connection.session.id);
        (self.turns, stats, self.ended)
    }
}
