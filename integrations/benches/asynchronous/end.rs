//! The transport between the processes: a socket, or a session of two nodes.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ibex::{
    Driver, Node, NodeBuilder, Peer, Policy,
    io::{Listener, Stream},
};
use ibex_harness::pair;
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    order::{DriverName, Over},
    session::{Failure, PATIENCE},
};

/// A connected end of the transport.
pub(crate) enum Link {
    /// A socket of tokio that is connected.
    Socket(TcpStream),
    /// The session of a node.
    Ibex(Session),
}

/// A session, and the node of this process.
pub(crate) struct Session {
    pub(crate) node: Arc<Node>,
    pub(crate) peer: Peer,
}

impl Session {
    /// Connects a byte stream to the answering process.
    pub(crate) async fn connect_stream(&self) -> io::Result<Stream> {
        ibex::io::connect_async(&self.peer, STREAM).await
    }

    /// Accepts the byte stream of the measuring process.
    pub(crate) async fn accept_stream(&self) -> io::Result<Stream> {
        let mut listener = Listener::bind(&self.node, STREAM)?;
        let (stream, _) = listener.accept_async().await?;
        Ok(stream)
    }
}

/// What outlives the work at an end.
pub(crate) enum End {
    Socket,
    Ibex(Driven),
}

/// A node with its driver.
pub(crate) struct Driven {
    node: Arc<Node>,
    /// The task of `DriverName::Tasks`.
    task: Option<JoinHandle<io::Result<()>>>,
}

impl End {
    /// Connects to every one of `addresses`.
    pub(crate) async fn connect(
        over: Over,
        addresses: &[SocketAddr],
    ) -> Result<(End, Vec<Link>), Failure> {
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
    pub(crate) async fn accept(over: Over) -> Result<(End, Link), Failure> {
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
    pub(crate) async fn close(self) -> Result<(), Failure> {
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

const STREAM: &str = "stream";
const LOOPBACK: &str = "127.0.0.1:0";
