//! The process that connects and sends.

use std::{
    error::Error,
    io::Write,
    net::{SocketAddr, TcpStream},
};

use ibex::{Fabric, Node, Policy, Raw, Sender};

use crate::{BYTES, table::MOST};

/// All sessions or sockets of a client.
pub(crate) enum Client {
    Sessions {
        _node: Node,
        senders: Vec<Sender<[u8], Raw>>,
    },
    Sockets(Vec<TcpStream>),
}

impl Client {
    /// Connects to `address` this many times.
    pub(crate) fn connect(
        carrier: &str,
        sessions: usize,
        address: &str,
    ) -> Result<Self, Box<dyn Error>> {
        let fabric = match carrier {
            "shm" => Fabric::Shm,
            "tcp" => Fabric::Tcp,
            _ => {
                let address: SocketAddr = address.parse()?;
                let sockets = (0..sessions).map(|_| {
                    let socket = TcpStream::connect(address)?;
                    socket.set_nodelay(true).map(|()| socket)
                });
                return Ok(Self::Sockets(sockets.collect::<Result<_, _>>()?));
            }
        };
        let builder = Node::builder().fabric(fabric, Policy::Require);
        let node = builder
            .max_peer_sessions(MOST)
            .max_node_sessions(MOST)
            .build()?;
        let mut senders = Vec::new();
        for _ in 0..sessions {
            let peer = node.connect(address)?;
            senders.push(peer.channel("rows").codec::<Raw>().sender()?);
        }
        let _node = node;
        Ok(Self::Sessions { _node, senders })
    }

    /// Sends this many messages over each, one over each in turn.
    pub(crate) fn send_round(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let message = [7; BYTES];
        for _ in 0..messages {
            match self {
                Self::Sessions { senders, .. } => {
                    for sender in senders {
                        sender.send(&message)?;
                    }
                }
                Self::Sockets(sockets) => {
                    for socket in sockets {
                        socket.write_all(&message)?;
                    }
                }
            }
        }
        Ok(())
    }
}
