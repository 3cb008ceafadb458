//! Replication over ibex. Each replica has a channel "log" from the primary, which carries batches
//! and is acknowledged when records are durable, and a channel "join" to it. A [`LogGroup`] sends
//! the log to each from the position at which it joined.
//!
//! A batch of the segment that still grows is built in the ring, or beside it if it is long. One of
//! a sealed segment goes out from where it lies, as far as the fabric can. Either is read where it
//! arrived. An acknowledgement is [`Message::ack`]; the library sends it in its own time, or at once if the
//! primary waits.

use std::{
    future,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use ::ibex::{
    Address, Driver, Fabric, FanIn, FanInEvent, Message, Node, NodeBuilder, Peer, Policy, Raw,
    Receiver, RecvError, RecvErrorKind, Select, Selectable, Wait,
    group::MemberId,
    log::{LogAnswer, LogGroup, LogMember, LogMemberState, LogSender, LogSent, LogSource, LogTurn},
};
use ibex_harness::{Error, run_keys::RunKeys};
use serde::{Deserialize, Serialize};

use super::{Change, Join, Lost, PrimaryLink, Received, Replicas, Waiting, majority, security};
use crate::{
    catch_up,
    log::{Log, Piece},
};

/// Settings of a node, the same for all processes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The required fabric; with `None`, ibex chooses.
    pub(crate) fabric: Option<FabricName>,
    /// The driver of the engine.
    pub(crate) driver: DriverName,
    /// The way to wait.
    pub(crate) waiting: Waiting,
    /// Keys by which nodes authenticate each other, if they do.
    pub(crate) keys: Option<RunKeys>,
}

/// A fabric that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FabricName {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    Verbs,
}

/// The driver of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DriverName {
    /// The calling thread turns the engine.
    Caller,
    /// Any waiting thread turns the engine, and the node's I/O thread while none waits.
    Threads,
}

impl Setup {
    fn builder(self) -> Result<NodeBuilder, Error> {
        let builder = match self.driver {
            DriverName::Caller => Node::builder().driver(Driver::Caller),
            DriverName::Threads => Node::builder().driver(Driver::Threads),
        };
        let builder = builder.wait(match self.waiting {
            Waiting::Sleep => Wait::Event,
            Waiting::Spin => Wait::Adaptive {
                spin: self.waiting.spin(),
            },
            Waiting::Poll => Wait::BusyPoll,
        });
        let builder = match self.keys {
            Some(keys) => builder.security(security::of(keys)?),
            None => builder,
        };
        let fabric = match self.fabric {
            None => return Ok(builder),
            Some(FabricName::Shm) => Fabric::Shm,
            Some(FabricName::Tcp) => Fabric::Tcp,
            Some(FabricName::Verbs) => Fabric::Verbs,
        };
        Ok(builder.fabric(fabric, Policy::Require))
    }
}

/// The identity of a primary's node. A replica on another host learns by it, as soon as the next
/// primary answers, that the one before is gone.
const PRIMARY: [u8; 16] = *b"primary of a log";

/// The primary's node, and the group of the replicas that have joined.
pub(crate) struct IbexReplicas {
    node: Node,
    setup: Setup,
    address: SocketAddr,
    /// Messages of replicas that say where their logs end.
    joins: FanIn<Join>,
    carrier: Option<Fabric>,
    select: Select,

    replicas: usize,
    group: LogGroup<[u8], Raw>,
    members: Vec<Member>,
}

/// A replica that joined.
struct Member {
    replica: u32,
    id: MemberId,
    session: Peer,
    /// Its batches go in frames of the engine, and not through shared memory.
    is_framed: bool,
    /// The end of its part of the log when it joined.
    has: u64,
    /// What it had acknowledged at the last look.
    acked: u64,
}

impl IbexReplicas {
    /// Listens at any port of `address` for `replicas` replicas. Strangers must not be able to
    /// reach `address`, unless nodes authenticate each other.
    pub(crate) fn listen(
        setup: Setup,
        address: IpAddr,
        replicas: usize,
    ) -> Result<IbexReplicas, Error> {
        let builder = setup.builder()?.identity(PRIMARY);
        let mut builder = builder.listen((address, 0));
        if !address.is_loopback() && setup.keys.is_none() {
            builder = builder.insecure_network();
        }
        let node = builder.build().map_err(Error::subject)?;
        let address = node.local_addr().and_then(Address::inet);
        Ok(IbexReplicas {
            address: address.ok_or_else(|| Error::subject("the node does not listen"))?,
            joins: node.fan_in("join").map_err(Error::subject)?,
            node,
            setup,
            carrier: None,
            select: Select::new(),
            replicas,
            group: LogGroup::new(),
            members: Vec::new(),
        })
    }

    /// Returns whether batches and acknowledgements need turns of the engine. Over shared memory what
    /// is published has arrived.
    fn needs_turns(&self) -> bool {
        self.members.is_empty() || self.members.iter().any(|one| one.is_framed)
    }

    /// Returns whether a member has the log up to `offset`, as far as is known.
    fn has(&self, member: &Member, offset: u64) -> bool {
        self.group.acked_of(member.id) >= Some(offset)
    }

    fn leave_out(&mut self, is_it: impl Fn(&Member) -> bool, why: String) -> Option<Change> {
        let index = self.members.iter().position(is_it)?;
        let Member { replica, id, .. } = self.members.swap_remove(index);
        self.group.leave(id);
        Some(Change::Lost { replica, why })
    }

    /// Returns a loss that was not reported yet. The sessions of replicas do not come again, since
    /// a replica joins in a new one.
    fn next_lost(&mut self) -> Option<Change> {
        while let Some(lost) = self.group.next_lost() {
            let change = self.leave_out(|one| one.id == lost.id, lost.reason.to_string());
            if change.is_some() {
                return change;
            }
        }
        let without_session = |member: LogMember| match member.state {
            LogMemberState::NoSession { why } => Some((member.id, why)),
            _ => None,
        };
        let (id, why) = self.group.members().into_iter().find_map(without_session)?;
        self.leave_out(|one| one.id == id, why)
    }
}

impl Replicas for IbexReplicas {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn carrier(&self) -> String {
        self.carrier
            .map_or_else(|| "none".to_owned(), |fabric| fabric.to_string())
    }

    fn next_change(&mut self, log: &mut Log) -> Result<Option<Change>, Error> {
        while let Ok(Some(event)) = self.joins.try_next() {
            let FanInEvent::Message(who, message) = event else {
                continue;
            };
            let join = Join {
                replica: message.replica.to_native(),
                end: message.end.to_native(),
                number: message.number.to_native(),
                checksum: message.checksum.to_native(),
            };
            message.ack();
            let Some(peer) = self.joins.peer(who) else {
                continue; // The replica is gone already.
            };
            let replica = join.replica;
            let has = catch_up::position(&join, log).map_err(Error::subject)?;
            // A replica that comes again has left before, even if its old session has not noticed.
            self.leave_out(|one| one.replica == replica, String::new());
            self.carrier = Some(peer.fabric());
            self.members.push(Member {
                replica,
                session: peer.clone(),
                is_framed: peer.fabric() != Fabric::Shm,
                id: self.group.join(peer),
                has,
                acked: has,
            });
            return Ok(Some(Change::Joined { replica, has }));
        }
        Ok(self.next_lost())
    }

    fn send(&mut self, log: &mut Log) -> Result<(), Error> {
        let mut source = Source {
            log,
            members: &self.members,
            has_short: false,
        };
        let has_sent = self.group.try_send(&mut source).map_err(Error::subject)?;
        // A long batch was transmitted when it was published, and short ones need a turn.
        if has_sent
            && source.has_short
            && self.setup.driver == DriverName::Caller
            && self.needs_turns()
        {
            self.node.poll();
        }
        Ok(())
    }

    fn reached(&mut self, own: u64) -> u64 {
        for member in &mut self.members {
            member.acked = self.group.acked_of(member.id).unwrap_or(0);
        }
        // With its own log, the primary is one of the majority.
        let others = majority(self.replicas) - 1;
        let with_own = own.min(self.group.acked(others));
        with_own.max(self.group.acked(others + 1))
    }

    fn wait(&mut self, offset: u64, limit: Duration) -> bool {
        if self.setup.waiting == Waiting::Poll {
            if self.needs_turns() {
                self.node.poll();
            }
            thread::yield_now();
            return false;
        }
        let have = self.members.iter().filter(|one| one.acked >= offset);
        let mut acked = self.group.until_acked(offset, have.count() + 1);
        let mut ends: Vec<&mut dyn Selectable> = vec![&mut self.joins];
        ends.extend(acked.as_mut().map(|acked| acked as &mut dyn Selectable));
        self.select.ready_timeout(&mut ends, limit) == Some(0)
    }

    fn present(&self) -> usize {
        self.members.len()
    }

    fn all_have(&self, offset: u64) -> bool {
        self.members.len() == self.replicas && self.members.iter().all(|one| self.has(one, offset))
    }

    fn end(mut self) {
        for Member { id, .. } in self.members {
            // A batch without records ends the log. If it cannot be sent, the replica is lost and
            // knows.
            let channel = self.group.leave(id).and_then(LogSender::into_channel);
            if let Some(mut log) = channel {
                let _ = log.send(&[]);
                // Closing waits until the peer's engine has everything. By then the counters say
                // how much its application has acknowledged.
                let _ = log.close();
            }
        }
    }
}

/// The log as the group reads it. Where each member's part ends was found with the log in hand, when
/// the member joined.
struct Source<'a> {
    log: &'a mut Log,
    members: &'a [Member],
    /// A batch was sent that is short enough to wait for others.
    has_short: bool,
}

/// The result of a log's source.
type Sourced<R> = Result<R, Box<dyn std::error::Error + Send + Sync>>;

impl LogSource<[u8], Raw> for Source<'_> {
    fn end(&self) -> u64 {
        self.log.tip().end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        let mut members = self.members.iter();
        let member = members.find(|one| one.session.is_same_session(&peer));
        let has = member.map_or(0, |one| one.has);
        let log = peer.channel("log").codec::<Raw>();
        let log = log
            .window_messages(WINDOW_MESSAGES)
            .window_bytes(WINDOW_BYTES);
        let sender = log.sender().map_err(Into::into);
        Box::pin(future::ready(sender.map(|sender| (sender, has))))
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> Sourced<LogSent> {
        let piece = catch_up::next(self.log, position)?;
        let end = position + piece.len() as u64;
        self.has_short |= piece.len() < TRANSMITTED_BYTES;
        Ok(match piece {
            Piece::Active(records) => turn.send(records, end),
            Piece::Sealed(records) => turn.send_region(&records, end),
        })
    }
}

/// The primary, as a replica sees it over ibex.
pub(crate) struct IbexPrimary {
    /// Keeps the session alive.
    _node: Node,
    waiting: Waiting,
    log: Receiver<[u8], Raw>,
    /// Messages that were handed out and are not yet known to be durable.
    unacknowledged: Vec<Message<[u8], Raw>>,
    /// Set when the log has ended behind the unacknowledged messages.
    is_complete: bool,
}

impl IbexPrimary {
    /// Connects to the primary at `address`, and tells it where this replica's log ends.
    pub(crate) fn connect(
        setup: Setup,
        address: SocketAddr,
        join: Join,
    ) -> Result<IbexPrimary, Error> {
        let node = setup.builder()?.build().map_err(Error::subject)?;
        let peer = node.connect(address).map_err(Error::subject)?;
        let mut joining = peer.sender::<Join>("join").map_err(Error::subject)?;
        joining.send(&join).map_err(Error::subject)?;
        joining.close().map_err(Error::subject)?;
        // The primary watches the positions of both replicas and waits for neither, so each message
        // is acknowledged at once.
        let log = peer.channel("log").codec::<Raw>().ack_every(1);
        let log = log.receiver::<[u8]>();
        Ok(IbexPrimary {
            log: log.map_err(Error::subject)?,
            waiting: setup.waiting,
            _node: node,
            unacknowledged: Vec::new(),
            is_complete: false,
        })
    }

    /// Returns the next batch; `None` if none came in time.
    fn next(&mut self, limit: Duration) -> Result<Option<Message<[u8], Raw>>, RecvError> {
        if self.waiting != Waiting::Poll {
            return match self.log.recv_timeout(limit) {
                Ok(message) => Ok(Some(message)),
                Err(error) if !error.is_transient() => Err(error),
                Err(_) => Ok(None),
            };
        }
        let begun = Instant::now();
        loop {
            thread::yield_now();
            match self.log.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(error) if !error.is_transient() => return Err(error),
                Err(_) if begun.elapsed() >= limit => return Ok(None),
                Err(_) => {}
            }
        }
    }
}

impl PrimaryLink for IbexPrimary {
    // An acknowledgement costs one store, so a batch is not held back to be acknowledged with the
    // next.
    fn receive(
        &mut self,
        limit: Duration,
        together: bool,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Received, Error> {
        while !self.is_complete {
            let message = match self.log.try_recv() {
                Ok(message) => message,
                // The next call meets the same error again.
                Err(_) if !self.unacknowledged.is_empty() => return Ok(Received::Batches),
                Err(error) if !error.is_transient() => return Ok(Received::Lost(lost(error))),
                Err(_) => match self.next(limit) {
                    Ok(Some(message)) => message,
                    Ok(None) => return Ok(Received::Nothing),
                    Err(error) => return Ok(Received::Lost(lost(error))),
                },
            };
            if message.is_empty() {
                self.is_complete = true;
                break;
            }
            take(&message)?;
            self.unacknowledged.push(message);
            if !together {
                return Ok(Received::Batches);
            }
        }
        match self.unacknowledged[..] {
            [] => Ok(Received::End),
            _ => Ok(Received::Batches),
        }
    }

    fn acknowledge(&mut self, _: u64) -> Result<(), Lost> {
        self.unacknowledged.drain(..).for_each(Message::ack);
        Ok(())
    }
}

/// Maps a receive error to a loss. If the channel ends in order before the log does, the primary
/// has left this replica out.
fn lost(error: RecvError) -> Lost {
    match error.kind() {
        RecvErrorKind::Ended => Lost("it was left out by its primary".to_owned()),
        _ => Lost::because(error),
    }
}

/// Batches that may be on their way to a replica; more than are outstanding. Further records wait
/// in the log.
const WINDOW_MESSAGES: u64 = 8;
/// Room for that many batches of 4 KiB records, small enough that the copies stay in a core's
/// cache.
pub(crate) const WINDOW_BYTES: u64 = 512 << 10;
/// Bytes whose publication runs a turn of the engine under `Driver::Caller`.
const TRANSMITTED_BYTES: usize = 32 << 10;
