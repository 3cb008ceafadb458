//! Faults: how each is injected, and how it ends.

use std::{fmt, time::Duration};

use ibex_harness::draw::Draw;
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::{harness::Cluster, node::Wire, types::Failure};

/// A fault of the leading node, or a change that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The process gets SIGKILL, and is started again.
    Killed,
    /// The process gets SIGSTOP, and later SIGCONT.
    Stopped,
    /// The network carries nothing from the node or to it, and closes nothing.
    CutOff,
    /// Every write to the node's disk fails; the node ends, and is started again when there is
    /// space.
    DiskFull,
    /// A follower stops voting, and then votes again.
    Members,
}

impl Fault {
    /// Returns the faults in a random order, each once. Over shared memory there is no network to
    /// cut.
    pub(super) fn shuffled(wire: Wire, draw: &mut Draw) -> Vec<Fault> {
        let all = [
            Fault::Killed,
            Fault::Stopped,
            Fault::CutOff,
            Fault::DiskFull,
            Fault::Members,
        ];
        let mut faults: Vec<_> = all.into();
        faults.retain(|fault| *fault != Fault::CutOff || wire == Wire::Tcp);
        draw.shuffle(&mut faults);
        faults
    }

    /// Injects the fault, ends it, and waits until the cluster is whole again.
    pub(super) async fn inflict(
        self,
        cluster: &mut Cluster,
        leader: u64,
        draw: &mut Draw,
    ) -> Result<(), Failure> {
        // The fault lasts longer than an election takes.
        let lasts = Duration::from_millis(1500 + draw.below(1000));
        match self {
            Fault::Killed => {
                cluster.kill(leader)?;
                sleep(lasts).await;
                cluster.start_node(leader)?;
            }
            Fault::Stopped => {
                cluster.signal(leader, Signal::STOP)?;
                sleep(lasts).await;
                cluster.signal(leader, Signal::CONT)?;
            }
            Fault::CutOff => {
                let cut = cluster.cut(leader).ok_or("there are no proxies")?;
                sleep(lasts).await;
                drop(cut);
            }
            Fault::DiskFull => {
                cluster.ask_patiently(leader, "full").await?;
                cluster.failed(leader).await?;
                sleep(lasts).await;
                cluster.start_node(leader)?;
            }
            Fault::Members => {
                let follower = leader % 3 + 1;
                let rest = (1..=3).filter(|id| *id != follower);
                let rest: Vec<_> = rest.map(|id| id.to_string()).collect();
                change_members(cluster, &rest.join(" ")).await?;
                sleep(lasts / 4).await;
                change_members(cluster, "1 2 3").await?;
            }
        }
        caught_up(cluster).await
    }
}

async fn change_members(cluster: &Cluster, ids: &str) -> Result<(), Failure> {
    let changing = async {
        loop {
            let leader = cluster.leader().await?;
            let request = format!("members {ids}");
            let answer = cluster.ask_within(leader, &request, PATIENCE).await;
            if answer.is_ok_and(|answer| answer == "ok") {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, changing).await?
}

/// Waits until every node has applied what the leader has by now.
async fn caught_up(cluster: &Cluster) -> Result<(), Failure> {
    let catching_up = async {
        let leader = cluster.leader().await?;
        let target = applied(cluster, leader).await;
        for id in 1..=3 {
            while applied(cluster, id).await < target {
                sleep(PAUSE).await;
            }
        }
        Ok(())
    };
    let caught_up = timeout(PATIENCE, catching_up).await;
    caught_up.map_err(|_| "a node does not catch up")?
}

async fn applied(cluster: &Cluster, id: u64) -> u64 {
    let status = cluster.ask(id, "status").await;
    let index = status.ok().and_then(|status| {
        let (_, applied) = status.rsplit_once(' ')?;
        applied.parse().ok()
    });
    index.unwrap_or(0)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Killed => "killed",
            Fault::Stopped => "stopped",
            Fault::CutOff => "cut off",
            Fault::DiskFull => "disk full",
            Fault::Members => "members changed",
        })
    }
}

const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(20);
