//! A session in the engine: a `Core` and the wire that carries its frames.
//!
//! The core joins the pure `Session` of the protocol with the ends of channels. `requests` handles
//! the requests of handles, `protocol_events` the session's events, and `ending` the end of the
//! session; `senders` and `receivers` are the ends. The [wire](crate::wire) moves frames and sees
//! only the part of the core that a wire needs (`frames`). Both are fields of a `Connection`, whose
//! turn lets them work on each other. After every action of the core on behalf of a handle,
//! `Connection::settle` sends the resulting frames.

mod alarms;
pub(crate) mod compaction;
mod context;
mod core;
mod dialer;
mod draining;
mod ending;
mod ends;
mod frames;
mod grants;
mod idle;
mod large_in;
mod memory_request;
mod new_wire;
mod newer_run;
mod outage;
mod outages;
mod passed_slices;
mod peer_process;
mod protocol_events;
mod receivers;
mod reconnect;
mod reconnect_terms;
mod rendezvous;
mod replace_wire;
mod requests;
mod retained;
mod senders;
mod shared_memory;
mod stalls;
mod stats;
mod turn;
mod unreadable;

use std::{io, os::fd::OwnedFd, sync::Arc, time::Instant};

use ibex_protocol::{
    format::record::Layout,
    session::{Session, SessionConfig},
    timer::TimerTable,
    transfer::eager_write::EagerBlockId,
};
use ibex_ring::{Released, memory::RingLease};

pub(crate) use self::core::Core;
pub(crate) use context::Context;
pub use dialer::{Attempt, Redial, RedialError, Redialed};
pub(crate) use memory_request::{MemoryPurpose, MemoryWanted};
pub use new_wire::NewWire;
pub use reconnect_terms::ReconnectTerms;
pub use stats::{ConnectionStats, SessionTotals};

use self::core::{Common, Phase};
use crate::{
    node::{PollTarget, SessionShared},
    session::{EndCause, HeldPlace},
    shared_memory::UnixWires,
    wire::{AnyWire, MessageBytes, Tools, Wire, WireParts, WireSocket, WireStart},
};
pub(crate) use reconnect::Reconnect;
use shared_memory::SharedMemory;

/// A session in the engine.
pub(crate) struct Connection {
    // In drop order: a device lets go of memory before the core returns it to its pool.
    pub(crate) wire: AnyWire,
    /// The session without its wire.
    pub(crate) core: Core,
    pub(crate) socket: WireSocket,
    /// The peer has closed the connection beside a device's wire.
    peer_has_left: bool,
    /// The session is over, and its wire was notified.
    has_let_go: bool,

    // The engine's notes about the session.
    /// The wire over a device is gone, and the engine was not notified yet.
    pub(crate) has_left_device: bool,
    /// The engine turns this session in each of its turns.
    pub(crate) is_hot: bool,
    /// Number of turns for which the session stays hot if nothing moves.
    pub(crate) mark_active: u32,
    /// The engine looks regularly for memory that the session may give back.
    pub(crate) is_watched: bool,
    /// The engine looks at the session's deadline then.
    pub(crate) due_at: Option<Instant>,
}

/// The results of a handshake that a connection begins with.
pub(crate) struct Handover {
    /// The parts of the first wire.
    pub(crate) parts: WireParts,
    /// Sockets that pass descriptors and ring, if the two processes share memory.
    pub(crate) unix: Option<UnixWires>,
    /// Number of ends that each side may have open.
    pub(crate) max_channels: usize,
    /// The terms for getting other wires, if both ends can continue over them.
    pub(crate) reconnect: Option<ReconnectTerms>,
    /// The session's place in its node, dropped when the session is over.
    pub(crate) place: Box<dyn HeldPlace>,
}

impl Connection {
    /// Takes over the session that a handshake led to. What is left of one that cannot begin is dropped
    /// behind the turn.
    pub(crate) fn new(
        shared: Arc<SessionShared>,
        handover: Handover,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> io::Result<Box<Self>> {
        let Handover {
            parts,
            unix,
            max_channels,
            reconnect,
            place,
        } = handover;
        let resumes = reconnect.is_some();
        let speaks_first = parts.speaks_first();
        let add = |unix| SharedMemory::new(unix, &shared, max_channels, &tools.epoll);
        let shared_memory = match unix.map(add).transpose() {
            Ok(shared_memory) => shared_memory,
            Err(refused) => {
                context.leave(parts.abandon(resumes));
                return Err(refused);
            }
        };
        let data_path = shared.data_path();
        let start = WireStart {
            parts,
            session: shared.id,
            data_path,
            payload_checksums: shared.payload_checksums(),
            resumes,
        };
        let (wire, socket, terms) = match start.begin(tools) {
            Ok(begun) => begun,
            Err(refused) => {
                context.leave(refused.pair);
                return Err(refused.error);
            }
        };
        let session = SessionConfig {
            wires: terms,
            dialed: speaks_first,
            max_channels,
            data_path,
            resumes,
        };
        let fabric = shared.fabric();
        let address = socket.stream().local_addr().ok().map(Into::into);
        let mut connection = Box::new(Self {
            core: Core {
                common: Common {
                    shared,
                    session: Session::new(session),
                    timers: TimerTable::default(),
                    phase: Phase::Up,
                    address,
                },
                ends: Default::default(),
                shared_memory,
                retained: Default::default(),
                grants: Default::default(),
                reconnect: reconnect.map(|terms| Box::new(Reconnect::new(terms, fabric))),
                alarms: Default::default(),
                unopened: Default::default(),
                parting: None,
                is_cut_short: false,
                is_lost: false,
                ends_with_wire: false,
                broken: None,
                place: Some(place),
            },
            wire,
            socket,
            peer_has_left: false,
            has_let_go: false,
            has_left_device: false,
            is_hot: false,
            mark_active: 0,
            is_watched: false,
            due_at: None,
        });
        if let Err(refused) = connection.socket.join(tools) {
            connection.say_last_word();
            context.leftovers.push(connection);
            return Err(refused);
        }
        if let Some(reconnect) = &connection.core.reconnect {
            reconnect.limit_age_of_wire(&mut connection.core.common.timers);
        }
        Ok(connection)
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.core.common.shared.id
    }

    // ---- The socket ------------------------------------------------------------------

    /// Takes the sockets out of the epoll set.
    pub(crate) fn unregister(&mut self, epoll: &OwnedFd) {
        self.socket.part(epoll);
        if let Some(shared_memory) = &self.core.shared_memory {
            shared_memory.unregister(epoll);
        }
    }

    // ---- Credit ----------------------------------------------------------------------

    /// Returns whether the session's frames are charged to the memory that the node allows for
    /// arrivals over connections.
    pub(crate) fn needs_credit(&self) -> bool {
        self.core.common.shared.poll_target() == PollTarget::Socket
    }

    // ---- Questions of the engine -----------------------------------------------------

    /// Returns whether only a device's completions and handles advance the session, so that looking
    /// at it finds nothing new. Its rings are empty and armed, or their records wait for credit or
    /// room, which completions bring.
    #[inline]
    pub(crate) fn waits_for_completions(&self) -> bool {
        self.wire.is_event_driven()
            && (self.core.ends.senders.hot.is_empty() || self.wire.is_blocked())
            && !self.socket.readable
            && self.core.is_undisturbed()
    }

    /// Returns whether the session needs no turn until epoll, a bell or a mark requests one.
    pub(crate) fn is_cold(&self) -> bool {
        self.core.ends.senders.hot.is_empty()
            && !self.socket.readable
            && !self.socket.may_be_unread()
            && !self.has_leftover()
    }

    /// Returns whether the session is over and may be forgotten.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_let_go && self.wire.is_gone()
    }

    /// Keeps the armed rings hot that still have records for a peer; the others are cold now.
    /// Returns whether there are records to send.
    pub(crate) fn poll_armed_rings(&mut self) -> bool {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        senders.poll_armed_rings(&mut core.common.session) && !self.wire.is_blocked()
    }

    // ---- Requests of handles that concern the wire -----------------------------------

    /// Takes over the ring that the handle of a sending end has made. The messages counted in
    /// `before` were sent and are released.
    pub(crate) fn attach_ring(
        &mut self,
        end: u32,
        lease: Arc<RingLease>,
        layout: Layout,
        before: Released,
        context: &mut Context<'_>,
    ) {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        senders.take_ring(end, lease, layout, before, &core.common);
        self.register_late(end, context);
    }

    /// Takes over a large message. It waits for its grant, or goes into the block that this
    /// returns.
    pub(crate) fn send_large(
        &mut self,
        end: u32,
        sequence: u64,
        length: usize,
        bytes: MessageBytes,
        context: &mut Context<'_>,
    ) -> Option<EagerBlockId> {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        let block = senders.take_large(end, sequence, length, bytes, &mut core.common);
        // A session that closes still sends what its handles have begun.
        if senders.is_over(end) && core.common.phase != Phase::Closing {
            senders.forget_large(end, sequence, &mut core.retained);
        }
        self.register_late(end, context);
        block
    }

    /// Registers memory that a handle took while the session had no device, or another device.
    fn register_late(&mut self, end: u32, context: &mut Context<'_>) {
        if let Some(sender) = self.core.ends.senders.ends.get_mut(end) {
            let (ring, messages) = sender.memory();
            if let Err(error) = self.wire.register(ring, messages, &mut context.leftovers) {
                let why = error.to_string();
                self.drain_then_end(EndCause::DeviceLost { why });
            }
        }
    }

    /// Ends a session that closes, at once, because no time is left.
    pub(crate) fn close_now(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        self.core.close_now(context);
        self.follow(tools, context);
    }
}
