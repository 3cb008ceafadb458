//! The two processes of a measurement, and the link between their tasks.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ibex::{Driver, Node, NodeBuilder, Peer, Policy};
use ibex_harness::{
    Error,
    check::Tally,
    cores::Cores,
    pair::{self, Pair, Task},
};
use serde_json::Value;
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    task::JoinHandle,
    time::timeout,
};

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

/// Starts the other process, does the work of `order` with it, and returns the figure in the
/// unit of the work.
pub(crate) fn measure(cores: Cores, order: Order) -> Result<f64, Error> {
    let task = serde_json::to_value(order).map_err(Error::subject)?;
    let mut pair = Pair::start(cores, Task::Subject(task))?;
    let address: SocketAddr = pair.receive("the address where it listens")?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    let figure = run(&runtime, async move {
        let (end, link) = End::connect(order.over, address).await?;
        let figure = measure_over(link, order).await?;
        end.close().await?;
        Ok(figure)
    })?;
    pair.finish()?;
    Ok(figure)
}

/// Answers the one measurement that the other process was started for.
pub(crate) fn answer(_: Cores, task: Value) -> Result<Tally, Error> {
    let order: Order = serde_json::from_value(task).map_err(Error::subject)?;
    let runtime = order.runtime.build().map_err(Error::subject)?;
    run(&runtime, async move {
        let (end, link) = End::accept(order.over).await?;
        answer_over(link, order).await?;
        end.close().await
    })?;
    Ok(Tally::default())
}

async fn measure_over(link: Link, order: Order) -> Result<f64, Failure> {
    match order.work {
        Work::PingPong => ping_pong::measure(link, order).await,
        Work::Get | Work::Bodies => http::measure(link, order).await,
        Work::Call | Work::Channels => calls::measure(link, order).await,
        Work::Stream | Work::RawChannel => streams::measure(link, order).await,
        Work::IdlePolls | Work::IdleCost => idle::measure(link, order).await,
    }
}

async fn answer_over(link: Link, order: Order) -> Result<(), Failure> {
    match order.work {
        Work::PingPong => ping_pong::answer(link).await,
        Work::Get | Work::Bodies => http::answer(link, order).await,
        Work::Call | Work::Channels => calls::answer(link, order).await,
        Work::Stream | Work::RawChannel => streams::answer(link, order).await,
        Work::IdlePolls | Work::IdleCost => idle::answer(link, order).await,
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
    async fn connect(over: Over, address: SocketAddr) -> Result<(End, Link), Failure> {
        let Over::Ibex { driver, .. } = over else {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            return Ok((End::Socket, Link::Socket(stream)));
        };
        let driven = Driven::build(builder(over), driver)?;
        let peer = driven.node.connect_async(address).await?;
        Ok(driven.with(peer))
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
        Ok(driven.with(peer))
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

    fn with(self, peer: Peer) -> (End, Link) {
        let node = self.node.clone();
        (End::Ibex(self), Link::Ibex(Session { node, peer }))
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

const LOOPBACK: &str = "127.0.0.1:0";

/// A measurement that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);
