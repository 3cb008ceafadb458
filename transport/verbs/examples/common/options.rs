//! Options, with the names and defaults of rdma-core's `ibv_*_pingpong`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ibex_verbs::Mtu;

use super::Outcome;

/// The options of a ping-pong.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The TCP port by which the two ends meet.
    pub(crate) port: u16,
    /// The device; the first one without a name.
    pub(crate) device: Option<String>,
    /// The port of the device.
    pub(crate) ib_port: u8,
    /// The length of a message.
    pub(crate) bytes: usize,
    /// The path MTU.
    pub(crate) mtu: Mtu,
    /// Receives that are posted at a time.
    pub(crate) receives: u32,
    /// Messages in each direction.
    pub(crate) rounds: u64,
    /// The service level.
    pub(crate) service_level: u8,
    /// The GID's place in the port's table; the preferred one without a place.
    pub(crate) gid_index: Option<u32>,
    /// Queue pairs, where there can be several.
    pub(crate) queue_pairs: usize,
    /// The host to connect to; without one, this end waits for a peer.
    pub(crate) host: Option<String>,
}

impl Options {
    /// The defaults, with a length of messages.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            port: 18515,
            device: None,
            ib_port: 1,
            bytes,
            mtu: Mtu::Bytes1024,
            receives: 500,
            rounds: 1000,
            service_level: 0,
            gid_index: None,
            queue_pairs: 1,
            host: None,
        }
    }

    /// Reads the arguments of a program over these defaults.
    pub(crate) fn parse(mut self, mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        while let Some(argument) = arguments.next() {
            if !argument.starts_with('-') {
                if let Some(first) = self.host.replace(argument) {
                    return Err(format!("{first} is one host, and there is another").into());
                }
                continue;
            }
            let (name, joined) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let mut value = || {
                let value = joined.clone().or_else(|| arguments.next());
                value.ok_or_else(|| format!("{name} wants a value"))
            };
            match name.as_str() {
                "-p" | "--port" => self.port = number(&name, &value()?, 1..=u16::MAX)?,
                "-d" | "--ib-dev" => self.device = Some(value()?),
                "-i" | "--ib-port" => self.ib_port = number(&name, &value()?, 1..=u8::MAX)?,
                "-s" | "--size" => self.bytes = number(&name, &value()?, 1..=MOST_BYTES)?,
                "-m" | "--mtu" => self.mtu = mtu(&name, &value()?)?,
                "-r" | "--rx-depth" => self.receives = number(&name, &value()?, 1..=MOST_QUEUED)?,
                "-n" | "--iters" => self.rounds = number(&name, &value()?, 1..=u32::MAX.into())?,
                "-l" | "--sl" => self.service_level = number(&name, &value()?, 0..=15)?,
                "-g" | "--gid-idx" => {
                    self.gid_index = Some(number(&name, &value()?, 0..=u32::MAX)?);
                }
                "-q" | "--num-qp" => self.queue_pairs = number(&name, &value()?, 1..=MOST_PAIRS)?,
                _ => return Err(format!("there is no option {name}; --help lists them").into()),
            }
        }
        match self.receives as usize >= self.queue_pairs {
            true => Ok(self),
            false => Err(format!(
                "--rx-depth is {}: it is at least --num-qp, which is {}",
                self.receives, self.queue_pairs
            )
            .into()),
        }
    }
}

/// Reads the value of an option, a whole number of this range.
fn number<T>(name: &str, value: &str, range: RangeInclusive<T>) -> Outcome<T>
where
    T: FromStr + PartialOrd + Display,
{
    let number = value.parse().ok().filter(|number| range.contains(number));
    Ok(number.ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        format!("{name} is {value:?}: it is a whole number from {least} to {most}")
    })?)
}

fn mtu(name: &str, value: &str) -> Outcome<Mtu> {
    let known = value.parse().ok().and_then(Mtu::from_bytes);
    Ok(known.ok_or_else(|| format!("{name} is {value:?}: it is 256, 512, 1024, 2048 or 4096"))?)
}

/// The longest message of InfiniBand is twice as long.
const MOST_BYTES: usize = 1 << 30;
/// More than the queues of any device hold.
const MOST_QUEUED: u32 = 1 << 20;
/// `MAX_QP` of rdma-core's `ibv_srq_pingpong`.
pub(crate) const MOST_PAIRS: usize = 256;

/// What `--help` prints.
pub(crate) const USAGE: &str = "\
usage: PROGRAM [OPTION VALUE]... [HOST]

With HOST, connects to the server there; without, waits for a client. Both need the feature
libibverbs: without it, both ends run in this process, over a device made of memory.

  -p, --port PORT       TCP port by which the two ends meet (18515)
  -d, --ib-dev DEVICE   RDMA device (the first)
  -i, --ib-port PORT    port of the device (1)
  -s, --size BYTES      length of a message (4096; 1024 for ud_pingpong)
  -m, --mtu BYTES       path MTU: 256, 512, 1024, 2048 or 4096 (1024)
  -r, --rx-depth COUNT  receives that are posted at a time (500)
  -n, --iters COUNT     messages in each direction (1000)
  -l, --sl LEVEL        service level (0)
  -g, --gid-idx INDEX   place in the port's GID table (the preferred one)
  -q, --num-qp COUNT    queue pairs (16 for srq_pingpong; the others have one)
  -h, --help            print this
";
