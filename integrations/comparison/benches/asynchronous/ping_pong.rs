//! 64 B there and back: tokio's socket, or two channels with the raw codec.

use ibex::{Peer, Raw, Receiver, RecvErrorKind, Sender};
use ibex_harness::check;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    end::{Link, Session},
    laps::{self, Exchange},
    order::Order,
    session::Failure,
};

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    match link {
        Link::Socket(stream) => laps::p50(Sockets { stream }, order.count).await,
        Link::Ibex(Session { peer, .. }) => {
            let pings = channel(&peer, PINGS).sender()?;
            let pongs = channel(&peer, PONGS).receiver()?;
            laps::p50(Channels { pings, pongs }, order.count).await
        }
    }
}

pub(crate) async fn answer(link: Link) -> Result<(), Failure> {
    match link {
        Link::Socket(stream) => answer_socket(stream).await,
        Link::Ibex(Session { peer, .. }) => answer_channels(&peer).await,
    }
}

struct Sockets {
    stream: TcpStream,
}

impl Exchange for Sockets {
    async fn exchange(&mut self, sequence: u64) -> Result<(), Failure> {
        let mut payload = [0; SIZE];
        check::fill(sequence, &mut payload);
        self.stream.write_all(&payload).await?;
        self.stream.read_exact(&mut payload).await?;
        Ok(check::verify(sequence, &payload)?)
    }
}

struct Channels {
    pings: Sender<[u8], Raw>,
    pongs: Receiver<[u8], Raw>,
}

impl Exchange for Channels {
    async fn exchange(&mut self, sequence: u64) -> Result<(), Failure> {
        let mut payload = [0; SIZE];
        check::fill(sequence, &mut payload);
        self.pings.send_async(&payload).await?;
        let pong = self.pongs.recv_async().await?;
        Ok(check::verify(sequence, &pong)?)
    }
}

async fn answer_socket(mut stream: TcpStream) -> Result<(), Failure> {
    let mut payload = [0; SIZE];
    loop {
        match stream.read_exact(&mut payload).await {
            Ok(_) => stream.write_all(&payload).await?,
            Err(end) if end.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn answer_channels(peer: &Peer) -> Result<(), Failure> {
    let mut pings = channel(peer, PINGS).receiver::<[u8]>()?;
    let mut pongs = channel(peer, PONGS).sender::<[u8]>()?;
    loop {
        match pings.recv_async().await {
            Ok(ping) => pongs.send_async(&ping).await?,
            Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    }
}

fn channel(peer: &Peer, name: &str) -> ibex::ChannelBuilder<Raw> {
    peer.channel(name).codec::<Raw>()
}

const SIZE: usize = 64;
const PINGS: &str = "pings";
const PONGS: &str = "pongs";
