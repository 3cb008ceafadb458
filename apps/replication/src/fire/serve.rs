//! The primary in a process of its own: it reads records from its standard input, and reports their
//! progress on its standard output.

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
    quorum::Quorum,
    replica::Transport,
    transport::{Change, Replicas, ibex::IbexReplicas},
};

/// Instructions to a primary process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    /// The number of replicas that it waits for.
    pub(crate) replicas: usize,
    /// The transport to the replicas.
    pub(crate) transport: Transport,
    /// The address at which it listens.
    pub(crate) address: IpAddr,
    /// The network namespace to enter, if it differs from the other processes'.
    pub(crate) namespace: Option<PathBuf>,
    /// The RDMA device to use.
    pub(crate) device: Option<String>,
    /// Settings of its log.
    pub(crate) log: LogSettings,
    /// The size of the records into which its input is cut.
    pub(crate) record_bytes: usize,
    /// The pace at which it takes records.
    pub(crate) pace: Pace,
}

/// A report of the primary, one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// The primary listens at `address`, and its log holds `records` from before.
    Listens { address: SocketAddr, records: u64 },
    /// The number of acknowledged records in the log, earlier ones included.
    Acknowledged(u64),
    /// A replica joined and has `has` bytes of the log.
    Joined { replica: u32, has: u64 },
    /// A replica is lost.
    Lost { replica: u32, why: String },
    /// The input has ended, and every replica has all records.
    Complete { tip: Tip, carrier: String },
}

impl Serve {
    /// Replicates its input until the input ends.
    pub(crate) fn run(self) -> Result<(), Error> {
        if let Some(namespace) = &self.namespace {
            network::enter(namespace).map_err(Error::io("entering a network namespace"))?;
        }
        let (address, replicas) = (self.address, self.replicas);
        match self.transport {
            Transport::Ibex(setup) => self.serve(IbexReplicas::listen(setup, address, replicas)?),
            Transport::Sockets(waiting) => self.serve(Quorum::listen(waiting, address, replicas)?),
        }
    }

    fn serve(self, replicas: impl Replicas) -> Result<(), Error> {
        let log = Log::open(self.log).map_err(Error::subject)?;
        let records = log.tip().number;
        let address = replicas.address();
        tell(&Told::Listens { address, records })?;
        let mut load = Load::open(&Source::Stdin, self.record_bytes)?;
        let mut teller = Teller(records);
        let primary = Primary::new(log, replicas, &mut teller)?;
        let written = primary.write(&mut load, self.pace)?;
        tell(&Told::Complete {
            tip: written.tip,
            carrier: written.carrier,
        })
    }
}

/// Reports acknowledgements, and replicas that come and go.
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
        // If nobody reads the reports any more, the next acknowledgement shows that.
        let _ = tell(&told);
    }
}

fn tell(told: &Told) -> Result<(), Error> {
    let line = serde_json::to_string(told).map_err(Error::subject)?;
    writeln!(io::stdout(), "{line}").map_err(Error::io("telling the supervisor"))
}
