//! One session in the engine: its wires, and the ends of its channels.
//!
//! A link joins the pure [`Session`] with what moves bytes. `requests` says what
//! handles want of it, `protocol_events` what it does about the session's events,
//! `ending` how it ends; `senders` and `receivers` are the
//! ends. Frames go over the `wires`: the session's connection (`stream`) or a
//! queue pair (`queue_pair`); `shared_memory` passes descriptors where the data goes through
//! shared memory. Whatever a link does on behalf of a handle is followed by
//! `Link::settle`, which lets the consequences out.

mod alarms;
pub(crate) mod compaction;
mod context;
mod cut_frame;
mod dialer;
mod draining;
mod ending;
mod epoll_token;
mod failover_policy;
mod grants;
mod idle;
mod in_epoll;
mod memory_request;
mod new_wire;
mod openings;
mod outage;
mod peer_process;
mod protocol_events;
mod queue_pair;
mod queue_pair_receive;
mod queue_pair_send;
mod receivers;
mod reconnect;
mod reconnect_terms;
mod replace_wire;
mod requests;
mod retained;
mod senders;
mod shared_memory;
mod shared_memory_bell;
mod shared_memory_passing;
mod stalls;
mod stats;
mod stream;
mod stream_receive;
mod tools;
mod turn_share;
mod wires;

use std::{any::Any, io, mem, net::TcpStream, os::fd::OwnedFd, sync::Arc, time::Instant};

use ibex_protocol::{
    credit::{broker::CreditAction, session::CreditReport},
    id_map::IdMap,
    session::{Session, SessionConfig},
    timer::TimerTable,
};
use ibex_tls::Tls;

pub(crate) use context::Context;
pub(crate) use dialer::Redialing;
pub use dialer::{Attempt, Redial, RedialError};
pub(crate) use epoll_token::EpollToken;
pub use failover_policy::FailoverPolicy;
pub(crate) use memory_request::{MemoryWanted, Purpose};
pub use new_wire::NewWire;
pub use reconnect_terms::ReconnectTerms;
pub(crate) use replace_wire::say_last_word;
pub use stats::LinkStats;
pub(crate) use tools::Tools;

use crate::{
    rdma::PreparedPair,
    session::{EndCause, PeerDescription, SessionShared},
    shared_memory::UnixWires,
    stream::Layer,
};
use in_epoll::Membership;
use receivers::ReceiveLink;
use reconnect::Reconnect;
use retained::Parting;
use senders::SendLink;
use shared_memory::LocalWires;
use wires::Wires;

/// One session's wires and ends.
pub(crate) struct Link {
    shared: Arc<SessionShared>,
    session: Session,

    // The wires.
    tcp: TcpStream,
    /// The socket may have something to read.
    readable: bool,
    membership: Membership,
    /// Turns since somebody last meant to sleep in the epoll set.
    busy_turns: u32,
    wires: Wires,
    local: Option<LocalWires>,

    // The ends.
    senders: IdMap<SendLink>,
    receivers: IdMap<ReceiveLink>,
    /// Sending ends whose ring is looked at in every turn.
    hot_rings: Vec<u32>,
    /// Memory of ends that are gone, until no frame of theirs is on its way.
    parting: Vec<Parting>,

    // The life of the session.
    phase: Phase,
    /// It did not end in order: what the peer did not take is lost.
    is_lost: bool,
    /// The wires are of no more use: the session ends, or is suspended, when what had arrived
    /// is read.
    broken: Option<EndCause>,
    /// How it gets others, where both ends can go on over them.
    rewiring: Option<Box<Reconnect>>,
    /// Its queue pair is gone, and the engine has not heard so.
    pub(crate) has_left_site: bool,
    timers: TimerTable,
    alarms: alarms::Alarms,
    /// As it closes: until then handles that are inside are waited for.
    leaving_until: Option<Instant>,
    /// Of the node's sessions; given up when this one is over.
    place: Option<Box<dyn Any + Send>>,
    /// It is turned in every turn of the engine: for so many more, if nothing moves.
    pub(crate) is_hot: bool,
    pub(crate) heat: u32,
    /// It is looked at now and then for what it may give back.
    pub(crate) is_watched: bool,
}

/// What the handshake left for a link to go on with.
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
    pub(crate) rewiring: Option<ReconnectTerms>,
    /// Whatever is to be dropped when the session is over.
    pub(crate) place: Box<dyn Any + Send>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Up,
    /// We say goodbye, and wait for the peer's.
    Closing,
    /// The peer said goodbye; ours goes out.
    PeerClosed,
    /// Over: nothing is sent or read any more.
    Gone,
}

impl Link {
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
            rewiring,
            place,
        } = handover;
        let resumes = rewiring.is_some();
        let is_stream = pair.is_none();
        let dialed = pair.as_ref().is_some_and(PreparedPair::dialed);
        let mut layer = Layer::new(tls);
        let prepare = || -> io::Result<_> {
            tcp.set_nonblocking(true)?;
            tcp.set_nodelay(true)?;
            let add = |unix| {
                let (peer, asymmetry) = (shared.peer(), shared.asymmetry());
                LocalWires::new(unix, shared.id, peer, asymmetry, &tools.epoll)
            };
            let local = unix.map(add).transpose()?;
            if local.is_none() {
                // Data comes over a network: it shall not meet the allocator.
                if is_stream {
                    tools.blocks.provide().map_err(io::Error::other)?;
                }
                tools.compact_blocks.provide().map_err(io::Error::other)?;
            }
            let checksums = shared.payload_checksums();
            let layer = mem::take(&mut layer);
            let (wires, terms) = Wires::new(layer, leftover, pair, checksums, &mut tools.blocks)?;
            Ok((local, wires, terms))
        };
        let (local, wires, terms) = match prepare() {
            Ok(prepared) => prepared,
            Err(refused) => {
                if is_stream && resumes {
                    // The peer has the session, and would wait for this end to come back.
                    say_last_word(&tcp, &mut layer, 0);
                }
                return Err(refused);
            }
        };
        let session = SessionConfig {
            carriage: terms.carriage,
            dialed,
            our_credit: terms.our_credit,
            peer_credit: terms.peer_credit,
            max_channels,
            data_in_band: local.is_none(),
            writes: terms.writes,
            immediate: terms.immediate,
            resumes,
        };
        let fabric = shared.fabric();
        let mut link = Self {
            session: Session::new(session),
            shared,
            tcp,
            readable: true,
            membership: Membership::Out,
            busy_turns: 0,
            wires,
            local,
            senders: IdMap::new(),
            receivers: IdMap::new(),
            hot_rings: Vec::new(),
            parting: Vec::new(),
            phase: Phase::Up,
            is_lost: false,
            broken: None,
            rewiring: rewiring.map(|terms| Box::new(Reconnect::new(terms, fabric))),
            has_left_site: false,
            timers: TimerTable::default(),
            alarms: alarms::Alarms::default(),
            leaving_until: None,
            place: Some(place),
            is_hot: false,
            heat: 0,
            is_watched: false,
        };
        if let Err(refused) = link.join_epoll(&tools.epoll) {
            link.say_last_word();
            return Err(refused);
        }
        Ok(link)
    }

    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// Who its peer is.
    pub(crate) fn peer(&self) -> &PeerDescription {
        self.shared.peer()
    }

    /// Whether its frames are charged to what the node takes in over connections.
    pub(crate) fn needs_credit(&self) -> bool {
        self.local.is_none() && !matches!(self.wires, Wires::Pair(_))
    }

    /// What its handles have of it.
    pub(crate) fn shared(&self) -> Arc<SessionShared> {
        self.shared.clone()
    }

    /// Takes the wires out of the epoll set.
    pub(crate) fn unregister(&mut self, epoll: &OwnedFd) {
        self.part_from_epoll(epoll);
        if let Some(local) = &self.local {
            local.unregister(epoll);
        }
    }

    // ---- The turn --------------------------------------------------------------------

    /// Moves what can move. Returns whether anything did.
    #[inline]
    pub(crate) fn turn(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        // What is queued goes out before the socket is asked for more: the question costs
        // a system call, and the peer may be waiting. But the answer may be what a large
        // message waits for, which then goes out in one write with what is queued.
        let mut progress = self.send_lone_record(&mut tools.lists);
        let mut is_due_again = false;
        if !progress {
            let seen = self.look_at_rings();
            progress = seen.is_sendable;
            is_due_again = seen.has_large;
        }
        if !is_due_again {
            progress |= self.transmit(tools, context);
        }
        if self.readable || self.reads_every_turn() || self.has_leftover() || !self.is_undisturbed()
        {
            let has_received = self.receive(tools, context);
            is_due_again |= has_received;
            progress |= has_received;
        }
        if self.session.has_events() {
            self.handle_events(context);
            is_due_again = true;
        }
        if is_due_again {
            progress |= self.transmit(tools, context);
        }
        self.watch_writable(tools);
        progress
    }

    /// Whether something is due, waits to be written, or to be ended when it has been.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.session.is_due() || !self.wires.have_taken_all() || !self.is_undisturbed()
    }

    /// Lets out what a handle's wish led to.
    pub(crate) fn settle(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        self.handle_events(context);
        self.flush_local(context);
        self.transmit(tools, context);
        self.handle_events(context);
        self.watch_writable(tools);
    }

    /// epoll said so.
    ///
    /// That the socket takes more again needs no note: the turn that follows writes, and
    /// [`watch_writable`](Self::watch_writable) then ends the watch if nothing is left.
    pub(crate) fn tcp_is_ready(&mut self, readable: bool) {
        self.readable |= readable;
    }

    // ---- Credit ----------------------------------------------------------------------

    /// What the broker has to hear of the session since the last time.
    pub(crate) fn take_credit_report(&mut self) -> CreditReport {
        self.session.take_credit_report()
    }

    /// How much credit the peer has used in all.
    pub(crate) fn credit_used(&self) -> u64 {
        self.session.credit_used()
    }

    /// Does what the broker decided; [`settle`](Self::settle) tells the peer.
    pub(crate) fn handle_credit(&mut self, action: CreditAction) {
        match action {
            CreditAction::Give { credit, term, .. } => self.session.give(credit, term),
            CreditAction::Recall { credit, .. } => self.session.recall(credit),
        }
    }

    /// Whether the session lives and is not about to end: then nothing but what its turns
    /// move brings it on.
    #[inline]
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.phase == Phase::Up && self.broken.is_none()
    }

    /// Whether what a device tells brings the session on, or a handle does: a look finds
    /// nothing that was not told. Its rings are empty and armed, or wait with their records
    /// for credit or for room, which completions bring.
    #[inline]
    pub(crate) fn waits_for_completions(&self) -> bool {
        match &self.wires {
            Wires::Pair(pair) => {
                (self.hot_rings.is_empty() || pair.sending.is_blocked)
                    && pair.is_settled()
                    && !self.readable
                    && self.is_undisturbed()
            }
            Wires::Stream(_) | Wires::None => false,
        }
    }

    /// Whether nothing needs a turn until epoll, a bell or a mark says so.
    pub(crate) fn is_cold(&self) -> bool {
        self.hot_rings.is_empty() && !self.readable && !self.has_leftover()
    }

    /// Whether the session is over and may be forgotten.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Gone && self.wires.are_gone()
    }

    /// Whether handles have nothing more to hope for.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Gone | Phase::PeerClosed)
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }
}
