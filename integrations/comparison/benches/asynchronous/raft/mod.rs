//! Writes to a cluster of openraft: three processes, of which the measuring one leads.
//!
//! The log is in memory and the state machine counts, so only openraft and the transport are
//! measured.

mod counter;
mod followers;
mod wire;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_integrations_testing::RaftLog;
use openraft::{BasicNode, Config, Raft, RaftMetrics, ServerState, SnapshotPolicy};
use tokio::{sync::Mutex, task::JoinSet};

use self::{
    counter::Counter,
    followers::{Followers, answer_leader},
    wire::Wire,
};
use crate::{
    end::Link,
    laps,
    order::{Order, Work},
    session::Failure,
};

openraft::declare_raft_types!(
    /// Writes are texts, and each is answered with its number.
    pub(crate) Types: D = String, R = u64,
);

/// Returns the writes per second through a leader here and followers behind `links`.
pub(crate) async fn measure(links: Vec<Link>, order: Order) -> Result<f64, Failure> {
    let mut wires = Vec::new();
    for link in links {
        wires.push(Arc::new(Mutex::new(Wire::of_leader(link)?)));
    }
    let members = (0..=wires.len() as u64).map(|number| (number, BasicNode::default()));
    let members: BTreeMap<_, _> = members.collect();
    let raft = start(LEADER, Followers::new(wires.clone())).await?;
    raft.initialize(members).await?;
    // A leader accepts writes once a quorum has acknowledged its first entry.
    let leads = |metrics: &RaftMetrics<Types>| {
        metrics.state == ServerState::Leader && metrics.last_applied.is_some()
    };
    raft.wait(Some(ELECTION)).metrics(leads, "leading").await?;
    let outstanding = match order.work {
        Work::RaftMany => 64,
        _ => 1,
    };
    write(&raft, outstanding, laps::warm_up_count(order.count)).await?;
    let start = Instant::now();
    let written = write(&raft, outstanding, order.count).await?;
    let elapsed = start.elapsed();
    raft.shutdown().await?;
    for wire in wires {
        wire.lock().await.finish().await?;
    }
    Ok(written as f64 / elapsed.as_secs_f64())
}

/// Follows until the leader is gone.
pub(crate) async fn answer(link: Link, number: u64) -> Result<(), Failure> {
    let raft = start(number, Followers::new(Vec::new())).await?;
    answer_leader(Wire::of_follower(link)?, &raft).await?;
    raft.shutdown().await?;
    Ok(())
}

async fn start(number: u64, followers: Followers) -> Result<Raft<Types, Counter>, Failure> {
    let config = Config {
        // The interval is longer than the run: the log has no entries but writes, and no other node
        // becomes leader.
        heartbeat_interval: 10_000,
        election_timeout_min: 300_000,
        election_timeout_max: 600_000,
        snapshot_policy: SnapshotPolicy::Never,
        ..Config::default()
    };
    let config = Arc::new(config.validate()?);
    let (log, counter) = (RaftLog::default(), Counter::default());
    Ok(Raft::new(number, config, followers, log, counter).await?)
}

/// Writes `count` entries or slightly fewer, `outstanding` of them at a time. Returns the number
/// written.
async fn write(raft: &Raft<Types, Counter>, outstanding: u64, count: u64) -> Result<u64, Failure> {
    let each = (count / outstanding).max(1);
    let mut writers = JoinSet::new();
    for _ in 0..outstanding {
        let raft = raft.clone();
        writers.spawn(async move {
            for _ in 0..each {
                raft.client_write(TEXT.to_owned()).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(each * outstanding)
}

const LEADER: u64 = 0;
const ELECTION: Duration = Duration::from_secs(60);

/// A write's text, of 64 B.
const TEXT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
