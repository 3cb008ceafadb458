//! The transport between the processes: a socket, or a session of two nodes.

use std::{io, net::SocketAddr};

use ibex::{
    Node, NodeBuilder, Peer, Policy,
    io::{Listener, Stream},
};
use ibex_harness::pair;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    order::{DriverName, FabricName, Over},
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
    pub(crate) node: Node,
    pub(crate) peer: Peer,
}

impl Session {
    /// Connects a byte stream to the answering process.
    pub(crate) async fn connect_stream(&self) -> io::Result<Stream> {
        ibex::io::Stream::connect_async(&self.peer, STREAM).await
    }

    /// Accepts the byte stream of the measuring process.
    pub(crate) async fn accept_stream(&self) -> io::Result<Stream> {
        let (stream, _) = self.listener()?.accept_async().await?;
        Ok(stream)
    }

    /// Returns the listener of the byte streams of the measuring process.
    pub(crate) fn listener(&self) -> io::Result<Listener> {
        Listener::bind(&self.node, STREAM)
    }
}

/// The part of an end that outlives its work.
pub(crate) enum End {
    Socket,
    Ibex(Node),
}

impl End {
    /// Connects to every one of `addresses`.
    pub(crate) async fn connect(
        over: Over,
        addresses: &[SocketAddr],
    ) -> Result<(End, Vec<Link>), Failure> {
        let mut links = Vec::new();
        let Over::Ibex { fabric, driver } = over else {
            for address in addresses {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                links.push(Link::Socket(stream));
            }
            return Ok((End::Socket, links));
        };
        let node = builder(fabric, driver).build()?;
        for address in addresses {
            let peer = node.connect_async(*address).await?;
            let node = node.clone();
            links.push(Link::Ibex(Session { node, peer }));
        }
        Ok((End::Ibex(node), links))
    }

    /// Listens, tells the measuring process the address, and takes its connection.
    pub(crate) async fn accept(over: Over) -> Result<(End, Link), Failure> {
        let Over::Ibex { fabric, driver } = over else {
            let listener = TcpListener::bind(LOOPBACK).await?;
            pair::tell(&listener.local_addr()?)?;
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            return Ok((End::Socket, Link::Socket(stream)));
        };
        let node = builder(fabric, driver).listen(LOOPBACK).build()?;
        pair::tell(&node.local_addr())?;
        let peer = node.accept_async().await?;
        let session = Session {
            node: node.clone(),
            peer,
        };
        Ok((End::Ibex(node), Link::Ibex(session)))
    }

    /// Closes the node, and checks that it delivered everything. A byte stream may carry what its
    /// reader has left behind, such as HTTP/2's last window update.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let End::Ibex(node) = self else {
            return Ok(());
        };
        let report = node.close_async(PATIENCE).await;
        let is_message = |channel: &str| !channel.starts_with("stream/");
        let mut undelivered = report.undelivered.iter();
        match undelivered.find(|lost| is_message(&lost.channel)) {
            Some(lost) => Err(format!("messages of {} were not delivered", lost.channel).into()),
            None => Ok(()),
        }
    }
}

/// Returns a builder with the settings that the nodes at both ends have.
fn builder(fabric: FabricName, driver: DriverName) -> NodeBuilder {
    Node::builder()
        .driver(driver.into())
        .fabric(fabric.into(), Policy::Require)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
}

const STREAM: &str = "stream";
const LOOPBACK: &str = "127.0.0.1:0";
