//! A session in the engine: a `Core` and the wire that carries its frames.
//!
//! The core joins the pure `Session` of the protocol with the ends of channels. `requests` says
//! what handles want of it, `protocol_events` what it does about the session's events, `ending`
//! how it ends; `senders` and `receivers` are the ends. The [wire](crate::wire) moves frames and
//! knows the core by what a wire may ask of it (`frames`). Both are fields of a `Connection`,
//! whose turn lets one work on the other. Whatever the core does on behalf of a handle is
//! followed by `Connection::settle`, which lets the consequences out.

mod alarms;
pub(crate) mod compaction;
mod context;
mod core;
mod device;
mod dialer;
mod draining;
mod ending;
mod ends;
mod failover_policy;
mod frames;
mod grants;
mod idle;
mod large_in;
mod memory_request;
mod new_wire;
mod outage;
mod outages;
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

use std::{any::Any, io, mem, net::TcpStream, os::fd::OwnedFd, sync::Arc};

use ibex_protocol::{
    format::record::Layout,
    session::{Session, SessionConfig},
    timer::TimerTable,
    transfer::eager_write::LandingId,
};
use ibex_ring::{
    Released,
    memory::{LargeLease, RingLease},
};
use ibex_tls::Tls;

pub(crate) use self::core::Core;
pub(crate) use context::{Context, Surroundings};
pub(crate) use dialer::Redialing;
pub use dialer::{Attempt, Redial, RedialError};
pub use failover_policy::FailoverPolicy;
pub(crate) use memory_request::{MemoryWanted, Purpose};
pub use new_wire::NewWire;
pub use reconnect_terms::ReconnectTerms;
pub use stats::LinkStats;

use self::core::{Common, Phase};
use crate::{
    node::SessionShared,
    rdma::PreparedPair,
    session::EndCause,
    shared_memory::UnixWires,
    wire::{
        AnyWire, Tools, Wire, WireSocket, WireStart,
        stream::{Layer, say_last_word},
    },
};
use reconnect::Reconnect;
use shared_memory::SharedMemory;

/// A session in the engine.
pub(crate) struct Connection {
    /// The session but for its wire.
    pub(crate) core: Core,
    pub(crate) wire: AnyWire,
    pub(crate) socket: WireSocket,
    /// The peer has left the connection beside a queue pair.
    peer_has_left: bool,
    /// The session is over, and its wire was told.
    has_let_go: bool,

    // The engine's notes about it.
    /// The queue pair is gone, and the engine has not heard so.
    pub(crate) has_left_site: bool,
    /// The engine turns it in each of its turns.
    pub(crate) is_hot: bool,
    /// Turns that it stays hot if nothing moves.
    pub(crate) heat: u32,
    /// The engine looks now and then for memory that it may give back.
    pub(crate) is_watched: bool,
}

/// The results of a handshake that a connection begins with.
pub(crate) struct Handover<'a> {
    pub(crate) tcp: TcpStream,
    /// Bytes that came behind the handshake.
    pub(crate) leftover: &'a [u8],
    /// The connection's TLS, where nodes are authenticated.
    pub(crate) tls: Option<Box<Tls>>,
    /// Sockets that pass descriptors and ring (shm).
    pub(crate) unix: Option<UnixWires>,
    /// The queue pair (verbs), connected.
    pub(crate) pair: Option<PreparedPair>,
    /// Ends that either side may have open.
    pub(crate) max_channels: usize,
    /// How it gets other wires, where both ends can go on over them.
    pub(crate) reconnect: Option<ReconnectTerms>,
    /// Whatever is to be dropped when the session is over.
    pub(crate) place: Box<dyn Any + Send>,
}

impl Connection {
    /// Takes over the session that a handshake led to.
    pub(crate) fn new(
        shared: Arc<SessionShared>,
        handover: Handover<'_>,
        tools: &mut Tools,
    ) -> io::Result<Self> {
        let Handover {
            tcp,
            leftover,
            tls,
            unix,
            pair,
            max_channels,
            reconnect,
            place,
        } = handover;
        let resumes = reconnect.is_some();
        let is_stream = pair.is_none();
        let dialed = pair.as_ref().is_some_and(PreparedPair::dialed);
        let mut layer = Layer::new(tls);
        let prepare = |pair, layer: &mut Layer| -> io::Result<_> {
            let add = |unix| {
                let (peer, asymmetry) = (shared.peer(), shared.asymmetry());
                SharedMemory::new(unix, shared.id, peer, asymmetry, &tools.epoll)
            };
            let shared_memory = unix.map(add).transpose()?;
            let carries_data = shared_memory.is_none();
            if carries_data {
                // Data comes over a network: it shall not meet the allocator.
                if is_stream {
                    tools.blocks.provide().map_err(io::Error::other)?;
                }
                tools.compact_blocks.provide().map_err(io::Error::other)?;
            }
            let start = WireStart {
                layer: mem::take(layer),
                leftover,
                pair,
                carries_data,
                payload_checksums: shared.payload_checksums(),
            };
            let (wire, terms) = AnyWire::new(start)?;
            Ok((shared_memory, wire, terms))
        };
        let prepared = prepare(pair, &mut layer).inspect_err(|_| {
            if is_stream && resumes {
                // The peer has the session, and would wait for this end to come back.
                say_last_word(&tcp, &mut layer, 0);
            }
        });
        let (shared_memory, wire, terms) = prepared?;
        let session = SessionConfig {
            carriage: terms.carriage,
            dialed,
            our_credit: terms.our_credit,
            peer_credit: terms.peer_credit,
            max_channels,
            data_in_band: shared_memory.is_none(),
            writes: terms.writes,
            immediate: terms.immediate,
            resumes,
        };
        let fabric = shared.fabric();
        let address = tcp.local_addr().ok();
        let socket = WireSocket::new(tcp, shared.id)?;
        let mut connection = Self {
            core: Core {
                common: Common {
                    shared,
                    session: Session::new(session),
                    timers: TimerTable::default(),
                    phase: Phase::Up,
                    shares_memory: shared_memory.is_some(),
                    address,
                },
                ends: Default::default(),
                shared_memory,
                retained: Default::default(),
                grants: Default::default(),
                reconnect: reconnect.map(|terms| Box::new(Reconnect::new(terms, fabric))),
                alarms: Default::default(),
                is_lost: false,
                is_refused: false,
                broken: None,
                place: Some(place),
            },
            wire,
            socket,
            peer_has_left: false,
            has_let_go: false,
            has_left_site: false,
            is_hot: false,
            heat: 0,
            is_watched: false,
        };
        if let Err(refused) = connection.socket.join(&tools.epoll) {
            connection.say_last_word();
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

    /// Returns whether its frames are charged to what the node takes in over connections.
    pub(crate) fn needs_credit(&self) -> bool {
        !self.core.common.shares_memory && !matches!(self.wire, AnyWire::QueuePair(_))
    }

    // ---- What the engine asks --------------------------------------------------------

    /// Returns whether what a device tells brings the session on, or a handle does: a look finds
    /// nothing that was not told. Its rings are empty and armed, or wait with their records
    /// for credit or for room, which completions bring.
    #[inline]
    pub(crate) fn waits_for_completions(&self) -> bool {
        self.wire.is_told_of_all()
            && (self.core.ends.senders.hot.is_empty() || self.wire.is_blocked())
            && !self.socket.readable
            && self.core.is_undisturbed()
    }

    /// Returns whether nothing needs a turn until epoll, a bell or a mark says so.
    pub(crate) fn is_cold(&self) -> bool {
        self.core.ends.senders.hot.is_empty() && !self.socket.readable && !self.has_leftover()
    }

    /// Returns whether the session is over and may be forgotten.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_let_go && self.wire.is_gone()
    }

    /// Keeps the rings hot that have records for a peer after all; the others are cold now.
    /// Returns whether there are any to be sent.
    pub(crate) fn look_at_armed_rings(&mut self) -> bool {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        senders.look_at_armed_rings(&mut core.common.session) && !self.wire.is_blocked()
    }

    // ---- What handles ask that concerns the wire -------------------------------------

    /// Takes over the ring that the handle of a sending end has made; messages `before` were sent
    /// and are released.
    pub(crate) fn attach_ring(
        &mut self,
        end: u32,
        lease: Arc<RingLease>,
        layout: Layout,
        before: Released,
    ) {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        senders.take_ring(end, lease, layout, before, &core.common);
        self.register_late(end);
    }

    /// Takes over a large message, which waits for its grant, or goes into the block that this
    /// gives.
    pub(crate) fn send_large(
        &mut self,
        end: u32,
        sequence: u64,
        length: usize,
        memory: LargeLease,
    ) -> Option<LandingId> {
        let core = &mut self.core;
        let senders = &mut core.ends.senders;
        let block = senders.take_large(end, sequence, length, memory, &mut core.common);
        self.register_late(end);
        block
    }

    /// Registers memory that a handle took when the session had no device, or another.
    fn register_late(&mut self, end: u32) {
        if let Some(sender) = self.core.ends.senders.ends.get_mut(end) {
            let (ring, messages) = sender.memory();
            if let Err(error) = self.wire.register(ring, messages) {
                let why = error.to_string();
                self.drain_then_end(EndCause::DeviceLost { why });
            }
        }
    }

    /// Ends a session that cannot go on, at once.
    pub(crate) fn fail_at_once(&mut self, why: &str, tools: &mut Tools, context: &mut Context<'_>) {
        self.core.fail(why, context);
        self.follow(tools, context);
    }
}
