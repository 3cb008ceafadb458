//! The primary as a process of its own: records come on its standard input, and what becomes
//! of them goes to its standard output.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use ibex_harness::{Error, network};
use serde::{Deserialize, Serialize};

use crate::{
    load::{Load, Source},
    log::{Log, LogSettings, Tip},
    primary::{Observer, Pace, Primary},
    quorum::Change,
    replica::Transport,
    transport::{Endpoint, ibex::IbexEndpoint, sockets::SocketEndpoint},
};

/// What a primary's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    /// How many replicas it waits for.
    pub(crate) replicas: usize,
    /// How to talk to them.
    pub(crate) transport: Transport,
    /// Where it listens,
    pub(crate) address: IpAddr,
    /// the network namespace that it lives in, if not in that of the others,
    pub(crate) namespace: Option<PathBuf>,
    /// and the RDMA device that it takes.
    pub(crate) device: Option<String>,
    /// Its log.
    pub(crate) log: LogSettings,
    /// What its input is cut into.
    pub(crate) record_bytes: usize,
    /// How it takes records.
    pub(crate) pace: Pace,
}

/// What it says, a line of JSON each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// It listens at `address`, and its log has so many records from before.
    Listens { address: SocketAddr, records: u64 },
    /// So many records of its log are acknowledged, those from before included.
    Acknowledged(u64),
    /// A replica came, and has so many bytes of the log.
    Joined { replica: u32, has: u64 },
    /// A replica is gone.
    Lost { replica: u32, why: String },
    /// The input has ended, and everybody has everything.
    Complete { tip: Tip, carrier: String },
}

impl Serve {
    /// Replicates its input until that ends.
    pub(crate) fn run(self) -> Result<(), Error> {
        if let Some(namespace) = &self.namespace {
            network::enter(namespace).map_err(Error::io("entering a network namespace"))?;
        }
        let address = self.address;
        match self.transport {
            Transport::Ibex(setup) => self.serve(IbexEndpoint::listen(setup, address)?),
            Transport::Sockets(waiting) => self.serve(SocketEndpoint::listen(waiting, address)?),
        }
    }

    fn serve<E: Endpoint>(self, endpoint: E) -> Result<(), Error> {
        let log = Log::open(self.log).map_err(Error::subject)?;
        let records = log.tip().number;
        let address = endpoint.address();
        tell(&Told::Listens { address, records })?;
        let mut load = Load::open(&Source::Stdin, self.record_bytes)?;
        let mut teller = Teller(records);
        let primary = Primary::new(log, endpoint, self.replicas, &mut teller)?;
        let written = primary.write(&mut load, self.pace)?;
        tell(&Told::Complete {
            tip: written.tip,
            carrier: written.carrier,
        })
    }
}

/// Tells what is acknowledged, and who comes and goes.
struct Teller(u64);

impl Observer for Teller {
    fn acknowledged(&mut self, records: u64) -> Result<(), Error> {
        if records == self.0 {
            return Ok(());
        }
        self.0 = records;
        tell(&Told::Acknowledged(records))
    }

    fn changed(&mut self, change: &Change) {
        let told = match change {
            &Change::Joined { replica, has } => Told::Joined { replica, has },
            Change::Lost { replica, why } => Told::Lost {
                replica: *replica,
                why: why.clone(),
            },
        };
        // If nobody listens any more, that is seen with the next acknowledgement.
        let _ = tell(&told);
    }
}

fn tell(told: &Told) -> Result<(), Error> {
    let line = serde_json::to_string(told).map_err(Error::subject)?;
    writeln!(io::stdout(), "{line}").map_err(Error::io("telling the supervisor"))
}
