//! Replication over ibex: a channel "log" of batches to each replica, on which it
//! acknowledges what is durable, and a channel "join" from it.
//!
//! A batch is built in the ring, or beside it where it is long, and read where it arrived.
//! An acknowledgement is [`Message::ack`]; the library tells the sender of it in its own
//! time, and at once where somebody waits.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use ::ibex::{
    Driver, Fabric, Message, Node, NodeBuilder, Peer, Policy, Raw, Receiver, RecvError,
    RecvTimeoutError, Select, Selectable, SendError, Sender, Sequence, TryRecvError, TrySendError,
    UntilAcked, Wait,
};
use ibex_harness::Error;
use serde::{Deserialize, Serialize};

use super::{Batch, Endpoint, Join, Lost, PrimaryLink, Received, ReplicaLink, Waiting};

/// How a node is made; the same for all processes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The fabric that must be used; none leaves the choice to ibex.
    pub(crate) fabric: Option<FabricName>,
    /// Who runs the engine.
    pub(crate) driver: DriverName,
    /// How to wait.
    pub(crate) waiting: Waiting,
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
    fn builder(self) -> NodeBuilder {
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
        let fabric = match self.fabric {
            None => return builder,
            Some(FabricName::Shm) => Fabric::Shm,
            Some(FabricName::Tcp) => Fabric::Tcp,
            Some(FabricName::Verbs) => Fabric::Verbs,
        };
        builder.fabric(fabric, Policy::Require)
    }
}

/// The primary's node.
pub(crate) struct IbexEndpoint {
    node: Rc<Node>,
    setup: Setup,
    address: SocketAddr,
    /// Connected, and has not said where its log ends.
    joining: Vec<(Peer, Receiver<Join>)>,
    carrier: Option<Fabric>,
    select: Select,
}

impl IbexEndpoint {
    /// Listens at any port of `address`, which strangers do not reach.
    pub(crate) fn listen(setup: Setup, address: IpAddr) -> Result<IbexEndpoint, Error> {
        let mut builder = setup.builder().listen((address, 0));
        if !address.is_loopback() {
            builder = builder.insecure_network();
        }
        let node = builder.build().map_err(Error::subject)?;
        let address = node.local_addr();
        Ok(IbexEndpoint {
            address: address.ok_or_else(|| Error::subject("the node does not listen"))?,
            node: Rc::new(node),
            setup,
            joining: Vec::new(),
            carrier: None,
            select: Select::new(),
        })
    }
}

impl IbexEndpoint {
    fn replica(&self, log: Sender<[u8], Raw>) -> IbexReplica {
        // In shared memory a batch is there once it is published.
        let turns = self.setup.driver == DriverName::Caller && self.carrier != Some(Fabric::Shm);
        IbexReplica {
            log,
            turns: turns.then(|| self.node.clone()),
            sent: VecDeque::new(),
            acknowledged: 0,
        }
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

    fn poll_join(&mut self) -> Result<Option<(Join, IbexReplica)>, Error> {
        while let Some(peer) = self.node.try_accept().map_err(Error::subject)? {
            // One that is gone already cannot be opened: nothing was lost.
            if let Ok(join) = peer.receiver::<Join>("join") {
                self.joining.push((peer, join));
            }
        }
        let mut index = 0;
        while let Some((peer, join)) = self.joining.get_mut(index) {
            match join.try_recv() {
                Ok(message) => {
                    let join = Join {
                        replica: message.replica.to_native(),
                        end: message.end.to_native(),
                        number: message.number.to_native(),
                        checksum: message.checksum.to_native(),
                    };
                    message.ack();
                    self.carrier = Some(peer.fabric());
                    let log = peer
                        .channel("log")
                        .codec::<Raw>()
                        .window_messages(WINDOW_MESSAGES)
                        .window_bytes(WINDOW_BYTES)
                        .sender::<[u8]>();
                    self.joining.swap_remove(index);
                    return match log {
                        Ok(log) => Ok(Some((join, self.replica(log)))),
                        Err(_) => Ok(None),
                    };
                }
                Err(error) if error.is_transient() => index += 1,
                Err(_) => drop(self.joining.swap_remove(index)),
            }
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
        let mut acknowledged: Vec<UntilAcked<'_>> = links
            .filter_map(|link| Some(link.log.until_acked(link.sequence_of(offset)?)))
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
    log: Sender<[u8], Raw>,
    /// The node, where a short batch is transmitted only when somebody turns its engine.
    turns: Option<Rc<Node>>,
    /// The batches that are not acknowledged: the place of each in the channel, and the log
    /// offset behind it.
    sent: VecDeque<(Sequence, u64)>,
    acknowledged: u64,
}

impl IbexReplica {
    /// The batch whose acknowledgement brings `offset`, if it was sent.
    fn sequence_of(&self, offset: u64) -> Option<Sequence> {
        let index = self.sent.partition_point(|&(_, end)| end < offset);
        self.sent.get(index).map(|&(sequence, _)| sequence)
    }
}

impl ReplicaLink for IbexReplica {
    fn try_send(&mut self, batch: Batch<'_>) -> Result<bool, Lost> {
        let length = Batch::HEADER_BYTES + batch.records.len();
        let mut slot = match self.log.try_reserve(length) {
            Ok(slot) => slot,
            Err(full) if full.is_transient() => return Ok(false),
            // There may be some for the next attempt.
            Err(TrySendError::Failed(SendError::Memory(_))) => return Ok(false),
            Err(error) => return Err(Lost::because(error)),
        };
        let (header, records) = slot.split_at_mut(Batch::HEADER_BYTES);
        header.copy_from_slice(&batch.header());
        records.copy_from_slice(batch.records);
        let sequence = slot.send().map_err(Lost::because)?;
        self.sent.push_back((sequence, batch.end()));
        // A long one was transmitted when it was published.
        if let Some(node) = &self.turns
            && length < TRANSMITTED_BYTES
        {
            node.poll();
        }
        Ok(true)
    }

    fn acknowledged(&mut self) -> Result<u64, Lost> {
        let acked = self.log.acked();
        while let Some(&(sequence, end)) = self.sent.front()
            && sequence <= acked
        {
            self.acknowledged = end;
            self.sent.pop_front();
        }
        Ok(self.acknowledged)
    }

    fn end(mut self) {
        // A batch without records. If it cannot be said the replica is gone, and knows.
        let last = Batch {
            at: self.acknowledged,
            records: &[],
        };
        let _ = self.log.send(&last.header());
        // Closing waits until the peer's engine has everything; whether its application has is
        // known by then from the counters.
        let _ = self.log.close();
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
        let node = setup.builder().build().map_err(Error::subject)?;
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
                Err(RecvTimeoutError::Failed(error)) => Err(error),
                Err(_) => Ok(None),
            };
        }
        let begun = Instant::now();
        loop {
            thread::yield_now();
            match self.log.try_recv() {
                Ok(message) => return Ok(Some(message)),
                Err(TryRecvError::Failed(error)) => return Err(error),
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
                Err(TryRecvError::Failed(error)) => return Ok(Received::Lost(lost(error))),
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
    match error {
        RecvError::Ended => Lost("it was left out by its primary".to_owned()),
        error => Lost::because(error),
    }
}

/// Batches that may be on their way to a replica; what it lacks beyond that waits in the log,
/// which is there anyway. More than are outstanding.
const WINDOW_MESSAGES: u64 = 8;
/// So many fit, of records of 4 KiB, and what they are copied through stays in a core's cache.
pub(crate) const WINDOW_BYTES: u64 = 512 << 10;
/// Under `Driver::Caller`, publishing so much runs a turn of the engine.
const TRANSMITTED_BYTES: usize = 32 << 10;
/// How often who may have come is looked for, while nothing is under way.
const JOINS_EVERY: Duration = Duration::from_millis(1);
