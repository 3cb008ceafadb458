//! Faults on a cluster while clients write and read, and the check of their answers.

mod clients;
mod faults;

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use ibex_harness::draw::Draw;
use tokio::time::Instant;

use self::{clients::Clients, faults::Fault};
use crate::{
    harness::{Cluster, Launch},
    node::Wire,
    types::Failure,
};

/// The settings of a run of faults: its time, its seed, its place.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// The path of this program.
    pub program: PathBuf,
    /// The directory in which the nodes' directories are made.
    pub directory: PathBuf,
    /// The wire between the nodes.
    pub wire: Wire,
    /// The time for which faults are injected; each comes at least once however short it is.
    pub time: Duration,
    /// The seed of the faults, their order and times, and of the clients' requests.
    pub seed: u64,
}

/// The outcome: counts, and a verdict.
#[derive(Debug)]
pub struct Outcome {
    wire: Wire,
    faults: BTreeMap<Fault, u64>,
    /// The number of writes that were acknowledged.
    pub acknowledged: u64,
    /// The number of writes whose outcome no client knows.
    pub unknown: u64,
    /// The number of reads that were answered.
    pub reads: u64,
    /// The number of acknowledged writes that are not there at the end.
    pub lost: u64,
    /// The first key's history that is not linearizable, if there is one.
    pub violation: Option<String>,
}

/// Injects the faults, each into the leading node.
///
/// # Errors
///
/// The cluster cannot be started, or does not come back from a fault.
pub async fn run(chaos: Chaos) -> Result<Outcome, Failure> {
    let mut draw = Draw::new(chaos.seed);
    let mut cluster = Cluster::start(Launch {
        program: chaos.program,
        directory: chaos.directory,
        wire: chaos.wire,
        has_proxies: chaos.wire == Wire::Tcp,
    })
    .await?;
    let clients = Clients::start(cluster.lines(), &mut draw);
    let mut faults = BTreeMap::new();
    let start = Instant::now();
    while faults.is_empty() || start.elapsed() < chaos.time {
        for fault in Fault::shuffled(chaos.wire, &mut draw) {
            let leader = cluster.leader().await?;
            eprintln!(
                "{:?}, {:.1?}: node {leader} leads; {fault}",
                chaos.wire,
                start.elapsed()
            );
            fault.inflict(&mut cluster, leader, &mut draw).await?;
            *faults.entry(fault).or_insert(0) += 1;
        }
    }
    eprintln!("{:?}, {:.1?}: checking", chaos.wire, start.elapsed());
    let recorded = clients.finish().await?;
    let (history, lost) = recorded.read_all(&cluster).await?;
    Ok(Outcome {
        wire: chaos.wire,
        faults,
        acknowledged: recorded.acknowledged,
        unknown: recorded.unknown,
        reads: recorded.reads,
        lost,
        violation: history.check().err(),
    })
}

impl Outcome {
    /// Returns true if nothing was lost and every history is linearizable.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.violation.is_none()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:", self.wire)?;
        for (fault, times) in &self.faults {
            write!(f, " {fault} {times} times,")?;
        }
        write!(
            f,
            " {} writes acknowledged, {} unknown, {} reads: {} acknowledged writes lost, ",
            self.acknowledged, self.unknown, self.reads, self.lost
        )?;
        match &self.violation {
            None => f.write_str("linearizable"),
            Some(violation) => write!(f, "NOT LINEARIZABLE: {violation}"),
        }
    }
}
