//! Options, with the names and defaults of rdma-core's `ibv_*_pingpong`.

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
                "-p" | "--port" => self.port = value()?.parse()?,
                "-d" | "--ib-dev" => self.device = Some(value()?),
                "-i" | "--ib-port" => self.ib_port = value()?.parse()?,
                "-s" | "--size" => self.bytes = value()?.parse()?,
                "-m" | "--mtu" => self.mtu = mtu(value()?.parse()?)?,
                "-r" | "--rx-depth" => self.receives = value()?.parse()?,
                "-n" | "--iters" => self.rounds = value()?.parse()?,
                "-l" | "--sl" => self.service_level = value()?.parse()?,
                "-g" | "--gid-idx" => self.gid_index = Some(value()?.parse()?),
                "-q" | "--num-qp" => self.queue_pairs = value()?.parse()?,
                _ => return Err(format!("{name} is no option; {OPTIONS}").into()),
            }
        }
        match (self.bytes, self.receives as usize >= self.queue_pairs) {
            (0, _) => Err("--size is at least 1".into()),
            (_, false) => Err("--rx-depth is at least the number of queue pairs".into()),
            _ => Ok(self),
        }
    }
}

fn mtu(bytes: u32) -> Outcome<Mtu> {
    let known = Mtu::from_bytes(bytes);
    Ok(known.ok_or_else(|| format!("{bytes} is no MTU: 256, 512, 1024, 2048 or 4096"))?)
}

const OPTIONS: &str = "there are --port, --ib-dev, --ib-port, --size, --mtu, --rx-depth, --iters, \
                       --sl, --gid-idx, --num-qp, and the host of a server";
