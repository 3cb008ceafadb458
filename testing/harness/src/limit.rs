//! The raw limits as measurements: a peer process, a pinned thread on either side, and the common
//! loop.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::RawFd,
};

use serde::{Deserialize, Serialize};

#[cfg(feature = "tls")]
use crate::raw_tls;
#[cfg(not(feature = "verbs"))]
use crate::verbs_port::NOT_COMPILED_IN;
use crate::{
    Error,
    check::Tally,
    cores::{Cores, keep_to},
    job::{Figures, Job},
    link::{self, Link},
    mapping::Mapping,
    pair::{Pair, Task},
    raw_shm::RawShm,
    raw_tcp::RawTcp,
};
#[cfg(feature = "verbs")]
use crate::{
    queue_pair::{Endpoint, QueuePair},
    raw_verbs::RawVerbs,
    verbs_port::VerbsPort,
};

/// A carrier of bytes between two processes of one host, without any library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// A ring in shared memory.
    Shm,
    /// A TCP connection over the loopback interface, busy-polled.
    Tcp,
    /// A TCP connection over the loopback interface, with blocking calls.
    BlockingTcp,
    /// A TCP connection over the loopback interface, with blocking calls, encrypted by rustls.
    Tls,
    /// SENDs between two queue pairs on [one port](crate::verbs_port) of an RDMA device.
    Verbs,
}

impl Limit {
    /// Measures `job` between this thread, which it pins to the first of `cores`,
    /// and a peer process on the second.
    pub fn measure(self, cores: Cores, job: Job) -> Result<Figures, Error> {
        // Only the peer damages a byte, since this end must notice it.
        let honest = Job { flip: false, ..job };
        match self {
            Limit::Shm => {
                let memory = Mapping::create(RawShm::memory_bytes(&job))?;
                let task = Task::RawShm {
                    job,
                    memory: memory.descriptor(),
                };
                let pair = Pair::start(cores, task)?;
                let link = RawShm::new(honest, memory.watched(pair.watch()), false);
                measure(cores, job, pair, link)
            }
            Limit::Tcp | Limit::BlockingTcp => {
                let blocks = self == Limit::BlockingTcp;
                let (listener, address) = listen()?;
                let task = Task::RawTcp {
                    job,
                    address,
                    blocks,
                };
                let pair = Pair::start(cores, task)?;
                let stream = accept(&listener)?;
                measure(cores, job, pair, RawTcp::new(honest, stream, blocks)?)
            }
            #[cfg(not(feature = "tls"))]
            Limit::Tls => Err(Error::subject("TLS is not compiled in")),
            #[cfg(feature = "tls")]
            Limit::Tls => {
                let (listener, address) = listen()?;
                let tls = raw_tls::Listening::new()?;
                let task = Task::RawTls {
                    job,
                    address,
                    certificate: tls.certificate().to_vec(),
                };
                let pair = Pair::start(cores, task)?;
                let stream = tls.accept(accept(&listener)?)?;
                measure(cores, job, pair, RawTcp::over(honest, stream))
            }
            #[cfg(not(feature = "verbs"))]
            Limit::Verbs => Err(Error::NoRdma(NOT_COMPILED_IN.to_owned())),
            #[cfg(feature = "verbs")]
            Limit::Verbs => {
                let mut ours = QueuePair::new(&VerbsPort::choose()?)?;
                let endpoint = ours.endpoint();
                let mut pair = Pair::start(cores, Task::RawVerbs { job, endpoint })?;
                ours.connect(&pair.receive("the endpoint of its queue pair")?)?;
                let link = RawVerbs::new(honest, ours.watched(pair.watch()), false)?;
                measure(cores, job, pair, link)
            }
        }
    }
}

fn listen() -> Result<(TcpListener, SocketAddr), Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(Error::io("listening on the loopback interface"))?;
    let address = listener
        .local_addr()
        .map_err(Error::io("asking for the port that was given"))?;
    Ok((listener, address))
}

fn accept(listener: &TcpListener) -> Result<TcpStream, Error> {
    let accepted = listener.accept();
    let (stream, _) = accepted.map_err(Error::io("accepting the peer's connection"))?;
    Ok(stream)
}

fn measure(cores: Cores, job: Job, pair: Pair, mut link: impl Link) -> Result<Figures, Error> {
    keep_to(&cores[..1])?;
    let mut tally = Tally::default();
    let stopped = link::measure(&job, &mut link, &mut tally)?;
    Ok(stopped.figures(tally, &pair.finish()?))
}

pub(crate) fn answer_shm(cores: Cores, job: Job, memory: RawFd) -> Result<Tally, Error> {
    keep_to(&cores[1..])?;
    let memory = Mapping::inherit(memory)?;
    link::answer(&job, &mut RawShm::new(job, memory, true))
}

pub(crate) fn answer_tcp(
    cores: Cores,
    job: Job,
    address: SocketAddr,
    blocks: bool,
) -> Result<Tally, Error> {
    keep_to(&cores[1..])?;
    link::answer(&job, &mut RawTcp::new(job, connect(address)?, blocks)?)
}

#[cfg(feature = "tls")]
pub(crate) fn answer_tls(
    cores: Cores,
    job: Job,
    address: SocketAddr,
    certificate: &[u8],
) -> Result<Tally, Error> {
    keep_to(&cores[1..])?;
    let stream = raw_tls::dial(certificate, connect(address)?)?;
    link::answer(&job, &mut RawTcp::over(job, stream))
}

fn connect(address: SocketAddr) -> Result<TcpStream, Error> {
    TcpStream::connect(address).map_err(Error::io("connecting to the parent"))
}

#[cfg(feature = "verbs")]
pub(crate) fn answer_verbs(cores: Cores, job: Job, peer: &Endpoint) -> Result<Tally, Error> {
    keep_to(&cores[1..])?;
    let mut ours = QueuePair::new(&peer.port)?;
    ours.connect(peer)?;
    crate::pair::tell(&ours.endpoint())?;
    link::answer(&job, &mut RawVerbs::new(job, ours, true)?)
}
