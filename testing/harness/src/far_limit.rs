//! The limits between two hosts. The answering side opens a [`Door`], the measuring side learns its
//! [`DoorKey`] from it over a connection that they have, and goes in. For verbs, the TCP connection
//! carries what the two queue pairs need of each other, and its end tells of the other side's.

#![forbid(unsafe_code)]

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

#[cfg(feature = "tls")]
use crate::raw_tls;
use crate::{
    Error,
    check::Tally,
    histogram::Stopped,
    job::Job,
    limit::Limit,
    link::{self, Link},
    raw_tcp::RawTcp,
};
#[cfg(feature = "verbs")]
use std::io::{BufRead, BufReader};

#[cfg(feature = "verbs")]
use crate::{
    pair::Watch,
    queue_pair::{Endpoint, QueuePair},
    raw_verbs::RawVerbs,
    verbs_port::VerbsPort,
};

/// What opens a door.
#[derive(Debug, Serialize, Deserialize)]
pub struct DoorKey {
    port: u16,
    /// The bytes that a connection begins with. A stranger does not know them.
    token: [u8; 16],
    /// The certificate of TLS.
    certificate: Option<Vec<u8>>,
}

/// The answering side of one measurement.
pub struct Door {
    limit: Limit,
    listener: TcpListener,
    token: [u8; 16],
    #[cfg(feature = "tls")]
    tls: Option<raw_tls::Listening>,
}

impl Door {
    /// Listens at a free port of this address.
    ///
    /// # Errors
    /// The address is not of this host, or the limit is none of TCP's.
    pub fn open(address: IpAddr, limit: Limit) -> Result<Self, Error> {
        check(limit)?;
        let listener = TcpListener::bind((address, 0));
        let listener = listener.map_err(Error::io("listening for the raw limit"))?;
        let prepared = listener.set_nonblocking(true);
        prepared.map_err(Error::io("preparing the socket"))?;
        let mut token = [0; 16];
        getrandom(&mut token, GetRandomFlags::empty())
            .map_err(Error::io("asking for random bytes"))?;
        Ok(Self {
            limit,
            listener,
            token,
            #[cfg(feature = "tls")]
            tls: match limit {
                Limit::Tls => Some(raw_tls::Listening::new()?),
                _ => None,
            },
        })
    }

    /// Returns the key for the measuring side.
    ///
    /// # Errors
    /// The system does not tell the port.
    pub fn key(&self) -> Result<DoorKey, Error> {
        let address = self.listener.local_addr();
        let address = address.map_err(Error::io("asking for the port that was given"))?;
        #[cfg(feature = "tls")]
        let certificate = self.tls.as_ref().map(|tls| tls.certificate().to_vec());
        #[cfg(not(feature = "tls"))]
        let certificate = None;
        Ok(DoorKey {
            port: address.port(),
            token: self.token,
            certificate,
        })
    }

    /// Waits for the measuring side and answers one job. Returns the checks made here.
    ///
    /// # Errors
    /// Nobody came within 10 s, or the connection broke.
    pub fn answer(self, job: &Job) -> Result<Tally, Error> {
        job.check()?;
        let socket = self
            .wait()
            .map_err(Error::io("waiting for the raw limit"))?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return link::answer(job, &mut RawTcp::over(*job, tls.accept(socket)?));
        }
        #[cfg(feature = "verbs")]
        if self.limit == Limit::Verbs {
            return link::answer(job, &mut answer_verbs(*job, socket)?);
        }
        let blocks = self.limit == Limit::BlockingTcp;
        link::answer(job, &mut RawTcp::new(*job, socket, blocks)?)
    }

    fn wait(&self) -> io::Result<TcpStream> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let come = self.listener.accept().and_then(|(mut socket, _)| {
                socket.set_nonblocking(false)?;
                socket.set_read_timeout(Some(Duration::from_secs(1)))?;
                let mut token = [0; 16];
                socket.read_exact(&mut token)?;
                socket.set_read_timeout(None)?;
                Ok((token == self.token).then_some(socket))
            });
            match come {
                Ok(Some(socket)) => return Ok(socket),
                _ if Instant::now() > deadline => return Err(ErrorKind::TimedOut.into()),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Measures with the door that this key opens on the host.
///
/// # Errors
/// The way is closed, or the connection broke.
pub fn measure(
    host: IpAddr,
    key: &DoorKey,
    limit: Limit,
    job: Job,
) -> Result<(Stopped, Tally), Error> {
    check(limit)?;
    let address = SocketAddr::new(host, key.port);
    let connected = TcpStream::connect_timeout(&address, PATIENCE).and_then(|mut socket| {
        socket.write_all(&key.token)?;
        Ok(socket)
    });
    let socket = connected.map_err(Error::io("connecting for the raw limit"))?;
    #[cfg(feature = "tls")]
    if let Some(certificate) = &key.certificate {
        return run(job, RawTcp::over(job, raw_tls::dial(certificate, socket)?));
    }
    #[cfg(feature = "verbs")]
    if limit == Limit::Verbs {
        return run(job, dial_verbs(job, socket)?);
    }
    run(job, RawTcp::new(job, socket, limit == Limit::BlockingTcp)?)
}

/// Connects a queue pair to that of the measuring side. This side connects first, since the other
/// sends at once.
#[cfg(feature = "verbs")]
fn answer_verbs(job: Job, socket: TcpStream) -> Result<RawVerbs, Error> {
    let theirs: Endpoint = receive(&socket)?;
    let mut ours = QueuePair::new(&VerbsPort::choose()?)?;
    ours.connect(&theirs)?;
    send(&socket, &ours.endpoint())?;
    RawVerbs::new(job, ours.watched(Watch::over(socket)?), true)
}

#[cfg(feature = "verbs")]
fn dial_verbs(job: Job, socket: TcpStream) -> Result<RawVerbs, Error> {
    let mut ours = QueuePair::new(&VerbsPort::choose()?)?;
    send(&socket, &ours.endpoint())?;
    ours.connect(&receive(&socket)?)?;
    RawVerbs::new(job, ours.watched(Watch::over(socket)?), false)
}

#[cfg(feature = "verbs")]
fn send(mut socket: &TcpStream, endpoint: &Endpoint) -> Result<(), Error> {
    let mut line = serde_json::to_string(endpoint).map_err(Error::subject)?;
    line.push('\n');
    let sent = socket.write_all(line.as_bytes());
    sent.map_err(Error::io("sending the endpoint of the queue pair"))
}

/// Receives the line of an endpoint, behind which the other side sends nothing by TCP.
#[cfg(feature = "verbs")]
fn receive(socket: &TcpStream) -> Result<Endpoint, Error> {
    let mut line = String::new();
    socket
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| BufReader::new(socket.take(LONGEST_LINE)).read_line(&mut line))
        .and_then(|_| socket.set_read_timeout(None))
        .map_err(Error::io("receiving the endpoint of the queue pair"))?;
    serde_json::from_str(&line).map_err(Error::subject)
}

fn run(job: Job, mut link: impl Link) -> Result<(Stopped, Tally), Error> {
    let mut tally = Tally::default();
    let stopped = link::measure(&job, &mut link, &mut tally)?;
    Ok((stopped, tally))
}

fn check(limit: Limit) -> Result<(), Error> {
    match limit {
        Limit::Tcp | Limit::BlockingTcp => Ok(()),
        Limit::Tls if cfg!(feature = "tls") => Ok(()),
        Limit::Verbs if cfg!(feature = "verbs") => Ok(()),
        _ => Err(Error::subject(format!(
            "{limit:?} is no limit between hosts"
        ))),
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of an endpoint's line.
#[cfg(feature = "verbs")]
const LONGEST_LINE: u64 = 4096;
