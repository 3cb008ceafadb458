//! The process that connects, sends and asks.

use std::{
    error::Error,
    io::Write,
    net::{SocketAddr, TcpStream},
    time::Instant,
};

use ibex::{Fabric, Node, Policy, Raw, Sender};

use crate::{BYTES, PINGS, ends::Pair, table::MOST};

/// What a client connects with.
enum Dialer {
    Node { node: Node, address: String },
    Sockets(SocketAddr),
}

/// All sessions or sockets of a client.
pub(crate) struct Client {
    dialer: Dialer,
    pair: Pair,
    senders: Vec<Sender<[u8], Raw>>,
    sockets: Vec<TcpStream>,
}

impl Client {
    /// Connects to `address` once, for round trips.
    pub(crate) fn connect(carrier: &str, address: &str) -> Result<Self, Box<dyn Error>> {
        let (dialer, pair) = match fabric(carrier) {
            Some(fabric) => {
                let builder = Node::builder().fabric(fabric, Policy::Require);
                let builder = builder.max_peer_sessions(MOST).max_node_sessions(MOST);
                let node = builder.build()?;
                let pair = Pair::asking(&node.connect(address)?)?;
                let address = address.to_owned();
                (Dialer::Node { node, address }, pair)
            }
            None => {
                let address = address.parse()?;
                let pair = Pair::Socket(dial(address)?);
                (Dialer::Sockets(address), pair)
            }
        };
        Ok(Self {
            dialer,
            pair,
            senders: Vec::new(),
            sockets: Vec::new(),
        })
    }

    /// Connects this many times more.
    pub(crate) fn connect_all(&mut self, sessions: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..sessions {
            match &self.dialer {
                Dialer::Node { node, address } => {
                    let peer = node.connect(address.as_str())?;
                    let sender = peer.channel("rows").codec::<Raw>().sender()?;
                    self.senders.push(sender);
                }
                Dialer::Sockets(address) => self.sockets.push(dial(*address)?),
            }
        }
        Ok(())
    }

    /// Sends this many messages over each, one over each in turn.
    pub(crate) fn send_round(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let message = [7; BYTES];
        for _ in 0..messages {
            for sender in &mut self.senders {
                sender.send(&message)?;
            }
            for socket in &mut self.sockets {
                socket.write_all(&message)?;
            }
        }
        Ok(())
    }

    /// Returns the median and the 99th percentile of round trips one after the other, in
    /// microseconds.
    pub(crate) fn ping(&mut self) -> Result<[f64; 2], Box<dyn Error>> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let begin = Instant::now();
            self.pair.send()?;
            self.pair.receive()?;
            times.push(begin.elapsed());
        }
        times.sort();
        let at = |share: f64| times[(PINGS as f64 * share) as usize].as_secs_f64() * 1e6;
        Ok([at(0.5), at(0.99)])
    }
}

/// Returns the fabric of a row; `None` for plain sockets.
pub(crate) fn fabric(carrier: &str) -> Option<Fabric> {
    match carrier {
        "shm" => Some(Fabric::Shm),
        "tcp" => Some(Fabric::Tcp),
        _ => None,
    }
}

pub(crate) fn dial(address: SocketAddr) -> Result<TcpStream, Box<dyn Error>> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}
