//! Replication over ibex: a channel "log" of batches to each replica, on which it
//! acknowledges what is durable, and a channel "join" from it. The first is a [`LogSender`]'s, which
//! reads the log from where the replica joined.
//!
//! A batch is built in the ring, or beside it where it is long, and read where it arrived.
//! An acknowledgement is [`Message::ack`]; the library tells the sender of it in its own
//! time, and at once where somebody waits.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use ::ibex::{
    Driver, Fabric, FanIn, FanInEvent, Message, Node, NodeBuilder, Peer, Policy, Raw, Receiver,
    RecvError, RecvErrorKind, Select, Selectable, SendErrorKind, Sender, Wait,
    log::{LogSender, LogSent, LogSource, LogTurn},
};
use ibex_harness::{Error, run_keys::RunKeys};
use serde::{Deserialize, Serialize};

use super::{
    Batch, Endpoint, Join, Joined, Lost, PrimaryLink, Received, ReplicaLink, Waiting, security,
};
use crate::{catch_up, log::Log};

/// How a node is made; the same for all processes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The fabric that must be used; none leaves the choice to ibex.
    pub(crate) fabric: Option<FabricName>,
    /// Who runs the engine.
    pub(crate) driver: DriverName,
    /// How to wait.
    pub(crate) waiting: Waiting,
    /// How nodes authenticate each other, if they do.
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

/// Who runs the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DriverName {
    /// The thread that calls.
    Caller,
    /// Whoever waits, and the node's I/O thread while nobody does.
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

/// The primary's node.
pub(crate) struct IbexEndpoint {
    node: Rc<Node>,
    setup: Setup,
    address: SocketAddr,
    /// Replicas say here where their logs end.
    joins: FanIn<Join>,
    carrier: Option<Fabric>,
    select: Select,
}

impl IbexEndpoint {
    /// Listens at any port of `address`, which strangers do not reach.
    pub(crate) fn listen(setup: Setup, address: IpAddr) -> Result<IbexEndpoint, Error> {
        let mut builder = setup.builder()?.listen((address, 0));
        if !address.is_loopback() && setup.keys.is_none() {
            builder = builder.insecure_network();
        }
        let node = builder.build().map_err(Error::subject)?;
        let address = node.local_addr();
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
                continue; // It is gone already.
            };
            let has = catch_up::position(&join, log).map_err(Error::subject)?;
            let fabric = *self.carrier.insert(peer.fabric());
            // In shared memory a batch is there once it is published.
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
            // What replicas tell comes with a turn of the engine, but in shared memory.
            if self.carrier != Some(Fabric::Shm) {
                self.node.poll();
            }
            thread::yield_now();
            return;
        }
        // What they say is seen in the counters, and what ends one by its next batch.
        let mut acknowledged: Vec<_> = links
            .filter_map(|link| link.log.until_acked(offset))
            .collect();
        if acknowledged.is_empty() {
            // Nothing is under way that could be acknowledged: who comes is waited for.
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
    /// Where its part of the log ended when it joined.
    has: u64,
    /// The node, where a short batch is transmitted only when somebody turns its engine.
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

    fn resume(&mut self, peer: &Peer) -> Sourced<(Sender<[u8], Raw>, u64)> {
        let log = peer.channel("log").codec::<Raw>();
        let log = log
            .window_messages(WINDOW_MESSAGES)
            .window_bytes(WINDOW_BYTES);
        Ok((log.sender()?, self.has))
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> Sourced<LogSent> {
        let batch = catch_up::next(self.log, position)?;
        let length = Batch::HEADER_BYTES + batch.records.len();
        Ok(turn.build(length, batch.end(), |bytes| {
            let (header, records) = bytes.split_at_mut(Batch::HEADER_BYTES);
            header.copy_from_slice(&batch.header());
            records.copy_from_slice(batch.records);
        }))
    }
}

impl ReplicaLink for IbexReplica {
    fn try_send(&mut self, log: &mut Log) -> Result<bool, Lost> {
        let has = self.has;
        let before = self.log.position().max(has);
        match self.log.try_send(&mut Joining { log, has }) {
            // There may be memory for the next attempt.
            Ok(false) => return Ok(false),
            Err(error) => match error.send_error() {
                Some(reason) if reason.kind() == SendErrorKind::Memory => return Ok(false),
                _ => return Err(Lost::because(error)),
            },
            Ok(true) => {}
        }
        // A long one was transmitted when it was published.
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
        // A batch without records. If it cannot be said the replica is gone, and knows.
        let last = Batch {
            at: self.log.acked(),
            records: &[],
        };
        if let Some(mut log) = self.log.into_channel() {
            let _ = log.send(&last.header());
            // Closing waits until the peer's engine has everything; whether its application has is
            // known by then from the counters.
            let _ = log.close();
        }
    }
}

/// The primary, as a replica sees it over ibex.
pub(crate) struct IbexPrimary {
    /// Its session lives as long as the node.
    _node: Node,
    waiting: Waiting,
    log: Receiver<[u8], Raw>,
    /// Handed out, and not known to be durable.
    unacknowledged: Vec<Message<[u8], Raw>>,
    /// Behind those, there will be nothing more.
    is_complete: bool,
}

impl IbexPrimary {
    /// Connects to the primary at `address`, and says where the log of this replica ends.
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
        // The primary looks at what both replicas have, and waits for neither.
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

    /// The next batch; none if nothing came in time.
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
    // An acknowledgement costs a store, so a batch need not wait for the next one's.
    fn receive(
        &mut self,
        limit: Duration,
        together: bool,
        take: &mut dyn FnMut(Batch<'_>) -> Result<(), Error>,
    ) -> Result<Received, Error> {
        while !self.is_complete {
            let message = match self.log.try_recv() {
                Ok(message) => message,
                // What else there is to say is said again.
                Err(_) if !self.unacknowledged.is_empty() => return Ok(Received::Batches),
                Err(error) if !error.is_transient() => return Ok(Received::Lost(lost(error))),
                Err(_) => match self.next(limit) {
                    Ok(Some(message)) => message,
                    Ok(None) => return Ok(Received::Nothing),
                    Err(error) => return Ok(Received::Lost(lost(error))),
                },
            };
            let batch = Batch::parse(&message)?;
            if batch.records.is_empty() {
                self.is_complete = true;
                break;
            }
            take(batch)?;
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

    fn acknowledge(&mut self) -> Result<(), Lost> {
        self.unacknowledged.drain(..).for_each(Message::ack);
        Ok(())
    }
}

/// A channel that ends in order is not a log that does: the primary has left this replica out.
fn lost(error: RecvError) -> Lost {
    match error.kind() {
        RecvErrorKind::Ended => Lost("it was left out by its primary".to_owned()),
        _ => Lost::because(error),
    }
}

/// Batches that may be on their way to a replica; what it lacks beyond that waits in the log,
/// which is there anyway. More than are outstanding.
const WINDOW_MESSAGES: u64 = 8;
/// So many fit, of records of 4 KiB, and what they are copied through stays in a core's cache.
pub(crate) const WINDOW_BYTES: u64 = 512 << 10;
/// Under `Driver::Caller`, publishing so much runs a turn of the engine.
const TRANSMITTED_BYTES: u64 = 32 << 10;
/// How often who may have come is looked for, while nothing is under way.
const JOINS_EVERY: Duration = Duration::from_millis(1);
