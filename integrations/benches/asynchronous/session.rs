//! The two processes of a measurement, and the link between their tasks.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ibex::{Driver, Node, NodeBuilder, Peer, Policy};
use ibex_harness::{
    Error,
    check::Tally,
    cores::Cores,
    pair::{self, Pair, Task},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::JoinHandle,
    time::timeout,
};

#[cfg(feature = "raft")]
use crate::raft;
use crate::{
    calls, http, idle,
    order::{DriverName, Order, Over, Work},
    ping_pong, streams,
};

/// An error of whatever is measured.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A connected end of the transport.
pub(crate) enum Link {
    /// A socket of tokio that is connected.
    Socket(TcpStream),
    /// The session of a node.
    Ibex(Session),
}

/// A session, and the node of this process.
pub(crate) struct Session {
    #[expect(dead_code, reason = "only byte streams are accepted by a node")]
    pub(crate) node: Arc<Node>,
    pub(crate) peer: Peer,
}

/// The task of an answering process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Start {
    order: Order,
    /// Its number among the answering processes, from 1.
    number: u64,
}

/// Starts the other processes, does the work of `order` with them, and returns the figure in the
/// unit of the work.
pub(crate) fn measure(cores: Cores, order: Order) -> Result<f64, Error> {
    let mut pairs = Vec::new();
    for number in 1..=order.work.peers() {
        let start = Start { order, number };
        let task = serde_json::to_value(start).map_err(Error::subject)?;
        pairs.push(Pair::start(cores, Task::Subject(task))?);
    }
    let addresses = pairs
        .iter_mut()
        .map(|pair| pair.receive("the address where it listens"));
    let addresses: Vec<SocketAddr> = addresses.collect::<Result<_, _>>()?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    let figure = run(&runtime, async move {
        let (end, links) = End::connect(order.over, &addresses).await?;
        let figure = measure_over(links, order).await?;
        end.close().await?;
        Ok(figure)
    })?;
    for pair in pairs {
        pair.finish()?;
    }
    Ok(figure)
}

/// Answers the one measurement that the other process was started for.
pub(crate) fn answer(_: Cores, task: Value) -> Result<Tally, Error> {
    let Start { order, number } = serde_json::from_value(task).map_err(Error::subject)?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    run(&runtime, async move {
        let (end, link) = End::accept(order.over).await?;
        answer_over(link, order, number).await?;
        end.close().await
    })?;
    Ok(Tally::default())
}

async fn measure_over(mut links: Vec<Link>, order: Order) -> Result<f64, Failure> {
    let mut link = || links.pop().ok_or("there is no other process");
    match order.work {
        Work::PingPong => ping_pong::measure(link()?, order).await,
        Work::Get | Work::Bodies => http::measure(link()?, order).await,
        Work::Call | Work::Channels => calls::measure(link()?, order).await,
        Work::Stream | Work::RawChannel => streams::measure(link()?, order).await,
        Work::IdlePolls | Work::IdleCost => idle::measure(link()?, order).await,
        #[cfg(feature = "raft")]
        Work::RaftOne | Work::RaftMany => raft::measure(links, order).await,
        #[cfg(not(feature = "raft"))]
        Work::RaftOne | Work::RaftMany => Err(NO_RAFT.into()),
    }
}

async fn answer_over(link: Link, order: Order, number: u64) -> Result<(), Failure> {
    match order.work {
        Work::PingPong => ping_pong::answer(link).await,
        Work::Get | Work::Bodies => http::answer(link, order).await,
        Work::Call | Work::Channels => calls::answer(link, order).await,
        Work::Stream | Work::RawChannel => streams::answer(link, order).await,
        Work::IdlePolls | Work::IdleCost => idle::answer(link, order).await,
        #[cfg(feature = "raft")]
        Work::RaftOne | Work::RaftMany => raft::answer(link, number).await,
        #[cfg(not(feature = "raft"))]
        Work::RaftOne | Work::RaftMany => Err(NO_RAFT.into()),
    }
}

/// Runs `work` as a task, where a program's connections live, too.
fn run<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Error> {
    let task = async { tokio::spawn(timeout(PATIENCE, work)).await };
    runtime
        .block_on(task)
        .map_err(Error::subject)?
        .map_err(|_| Error::subject(format!("nothing came of it within {PATIENCE:?}")))?
        .map_err(Error::subject)
}

/// What outlives the work at an end.
enum End {
    Socket,
    Ibex(Driven),
}

/// A node with its driver.
struct Driven {
    node: Arc<Node>,
    /// The task of `DriverName::Tasks`.
    task: Option<JoinHandle<io::Result<()>>>,
}

impl End {
    async fn connect(over: Over, addresses: &[SocketAddr]) -> Result<(End, Vec<Link>), Failure> {
        let mut links = Vec::new();
        let Over::Ibex { driver, .. } = over else {
            for address in addresses {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                links.push(Link::Socket(stream));
            }
            return Ok((End::Socket, links));
        };
        let driven = Driven::build(builder(over), driver)?;
        for address in addresses {
            let peer = driven.node.connect_async(*address).await?;
            links.push(driven.link(peer));
        }
        Ok((End::Ibex(driven), links))
    }

    /// Listens, tells the measuring process where, and takes its connection.
    async fn accept(over: Over) -> Result<(End, Link), Failure> {
        let Over::Ibex { driver, .. } = over else {
            let listener = TcpListener::bind(LOOPBACK).await?;
            pair::tell(&listener.local_addr()?)?;
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            return Ok((End::Socket, Link::Socket(stream)));
        };
        let driven = Driven::build(builder(over).listen(LOOPBACK), driver)?;
        pair::tell(&driven.node.local_addr())?;
        let peer = driven.node.accept_async().await?;
        let link = driven.link(peer);
        Ok((End::Ibex(driven), link))
    }

    /// Closes the node, and checks that it delivered everything.
    async fn close(self) -> Result<(), Failure> {
        let End::Ibex(Driven { node, task }) = self else {
            return Ok(());
        };
        if let Some(task) = task {
            task.abort();
            // It ends here either way: with an error of its own, or as aborted.
            if let Ok(ended) = task.await {
                ended?;
            }
        }
        let report = tokio::task::spawn_blocking(move || node.close(PATIENCE)).await?;
        match report.undelivered.first() {
            Some(lost) => Err(format!("messages of {} were not delivered", lost.channel).into()),
            None => Ok(()),
        }
    }
}

impl Driven {
    fn build(builder: NodeBuilder, driver: DriverName) -> Result<Driven, Failure> {
        Ok(match driver {
            DriverName::Threads => Driven {
                node: Arc::new(builder.driver(Driver::Threads).build()?),
                task: None,
            },
            DriverName::Tasks => {
                let node = Arc::new(builder.driver(Driver::Caller).build()?);
                let task = Some(tokio::spawn(turn(node.clone())));
                Driven { node, task }
            }
        })
    }

    fn link(&self, peer: Peer) -> Link {
        let node = self.node.clone();
        Link::Ibex(Session { node, peer })
    }
}

/// A node with the settings that both ends have.
fn builder(over: Over) -> NodeBuilder {
    let builder = Node::builder()
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE);
    match over {
        Over::Ibex { fabric, .. } => builder.fabric(fabric.into(), Policy::Require),
        Over::Socket => builder,
    }
}

#[expect(deprecated, reason = "safe, as the task owns the descriptor")]
/// Turns the engine when the node's descriptor is readable, and once a second for deadlines.
async fn turn(node: Arc<Node>) -> io::Result<()> {
    let descriptor = node.as_fd().try_clone_to_owned()?;
    let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
    loop {
        while node.poll() {}
        if let Ok(ready) = timeout(Duration::from_secs(1), descriptor.readable()).await {
            ready?.clear_ready();
        }
    }
}

#[cfg(not(feature = "raft"))]
const NO_RAFT: &str = "this benchmark was built without the feature `raft`";

const LOOPBACK: &str = "127.0.0.1:0";

/// A measurement that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);
