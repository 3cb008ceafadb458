//! Replication over ibex. Each replica has a channel "log" from the primary, which carries batches
//! and is acknowledged when records are durable, and a channel "join" to it. A [`LogSender`] sends
//! the log from the position at which the replica joined.
//!
//! A batch of the segment that still grows is built in the ring, or beside it if it is long. One of
//! a sealed segment goes out from where it lies, as far as the fabric can. Either is read where it
//! arrived. An acknowledgement is [`Message::ack`]; the library sends it in its own time, or at once if the
//! primary waits.

use std::{
    future,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use ::ibex::{
    Address, Driver, Fabric, FanIn, FanInEvent, Message, Node, NodeBuilder, Peer, Policy, Raw,
    Receiver, RecvError, RecvErrorKind, Select, Selectable, SendErrorKind, Wait,
    log::{LogAnswer, LogSender, LogSent, LogSource, LogTurn},
};
use ibex_harness::{Error, run_keys::RunKeys};
use serde::{Deserialize, Serialize};

use super::{Endpoint, Join, Joined, Lost, PrimaryLink, Received, ReplicaLink, Waiting, security};
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

/// The primary's node.
pub(crate) struct IbexEndpoint {
    node: Rc<Node>,
    setup: Setup,
    address: SocketAddr,
    /// Messages of replicas that say where their logs end.
    joins: FanIn<Join>,
    carrier: Option<Fabric>,
    select: Select,
}

impl IbexEndpoint {
    /// Listens at any port of `address`. Strangers must not be able to reach `address`, unless
    /// nodes authenticate each other.
    pub(crate) fn listen(setup: Setup, address: IpAddr) -> Result<IbexEndpoint, Error> {
        let builder = setup.builder()?.identity(PRIMARY);
        let mut builder = builder.listen((address, 0));
        if !address.is_loopback() && setup.keys.is_none() {
            builder = builder.insecure_network();
        }
        let node = builder.build().map_err(Error::subject)?;
        let address = node.local_addr().and_then(Address::inet);
        Ok(IbexEndpoint {
            address: address.ok_or_else(|| Error::subject("the node does not listen"))?,
            joins: node.fan_in("join").map_err(Error::subject)?,
            node: Rc::new(node),
            setup,
            carrier: None,
            select: Select::new(),
        })
    }
}

impl Endpoint for IbexEndpoint {
    type Link = IbexReplica;

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn carrier(&self) -> String {
        self.carrier
            .map_or_else(|| "none".to_owned(), |fabric| fabric.to_string())
    }

    fn poll_join(&mut self, log: &mut Log) -> Result<Option<Joined<IbexReplica>>, Error> {
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
            let has = catch_up::position(&join, log).map_err(Error::subject)?;
            let fabric = *self.carrier.insert(peer.fabric());
            // Over shared memory a published batch has arrived; other fabrics need a turn of the
            // engine.
            let turns = self.setup.driver == DriverName::Caller && fabric != Fabric::Shm;
            let mut log = LogSender::new();
            log.go_on_with(peer);
            return Ok(Some(Joined {
                replica: join.replica,
                has,
                link: IbexReplica {
                    log,
                    has,
                    turns: turns.then(|| self.node.clone()),
                },
            }));
        }
        Ok(None)
    }

    fn wait<'a>(
        &mut self,
        links: impl Iterator<Item = &'a mut IbexReplica>,
        offset: u64,
        limit: Duration,
    ) {
        if self.setup.waiting == Waiting::Poll {
            // Except over shared memory, acknowledgements arrive only with a turn of the engine.
            if self.carrier != Some(Fabric::Shm) {
                self.node.poll();
            }
            thread::yield_now();
            return;
        }
        // Acknowledgements show in the counters; a lost replica shows when the next batch is sent
        // to it.
        let mut acknowledged: Vec<_> = links
            .filter_map(|link| link.log.until_acked(offset))
            .collect();
        if acknowledged.is_empty() {
            // No batch is under way that could be acknowledged, so only a joining replica can end
            // this wait.
            thread::sleep(limit.min(JOINS_EVERY));
            return;
        }
        let mut ends: Vec<&mut dyn Selectable> = acknowledged
            .iter_mut()
            .map(|one| one as &mut dyn Selectable)
            .collect();
        self.select.ready_timeout(&mut ends, limit);
    }
}

/// A replica that joined.
pub(crate) struct IbexReplica {
    log: LogSender<[u8], Raw>,
    /// The end of the replica's log when it joined.
    has: u64,
    /// The node, if its engine must be turned to transmit a short batch.
    turns: Option<Rc<Node>>,
}

/// The result of a log's source.
type Sourced<R> = Result<R, Box<dyn std::error::Error + Send + Sync>>;

/// A log for a replica that has the part of it that it joined with.
struct Joining<'a> {
    log: &'a mut Log,
    has: u64,
}

impl LogSource<[u8], Raw> for Joining<'_> {
    fn end(&self) -> u64 {
        self.log.tip().end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        let log = peer.channel("log").codec::<Raw>();
        let log = log
            .window_messages(WINDOW_MESSAGES)
            .window_bytes(WINDOW_BYTES);
        let sender = log.sender().map_err(Into::into);
        Box::pin(future::ready(sender.map(|sender| (sender, self.has))))
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> Sourced<LogSent> {
        let piece = catch_up::next(self.log, position)?;
        let end = position + piece.len() as u64;
        Ok(match piece {
            Piece::Active(records) => turn.send(records, end),
            Piece::Sealed(records) => turn.send_region(&records, end),
        })
    }
}

impl ReplicaLink for IbexReplica {
    fn try_send(&mut self, log: &mut Log) -> Result<bool, Lost> {
        let has = self.has;
        let before = self.log.position().max(has);
        match self.log.try_send(&mut Joining { log, has }) {
            // Memory may be available at the next attempt.
            Ok(false) => return Ok(false),
            Err(error) => match error.send_error() {
                Some(reason) if reason.kind() == SendErrorKind::Memory => return Ok(false),
                _ => return Err(Lost::because(error)),
            },
            Ok(true) => {}
        }
        // Publishing a long batch has transmitted it.
        if let Some(node) = &self.turns
            && self.log.position() - before < TRANSMITTED_BYTES
        {
            node.poll();
        }
        Ok(true)
    }

    fn acknowledged(&mut self) -> Result<u64, Lost> {
        Ok(self.log.acked())
    }

    fn end(self) {
        // A batch without records ends the log. If it cannot be sent, the replica is lost and
        // knows.
        if let Some(mut log) = self.log.into_channel() {
            let _ = log.send(&[]);
            // Closing waits until the peer's engine has everything. By then the counters say how
            // much its application has acknowledged.
            let _ = log.close();
        }
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
const TRANSMITTED_BYTES: u64 = 32 << 10;
/// Interval at which joining replicas are looked for while no batch is under way.
const JOINS_EVERY: Duration = Duration::from_millis(1);
