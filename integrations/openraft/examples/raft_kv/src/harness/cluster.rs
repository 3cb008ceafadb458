//! A cluster of processes, in a directory of its own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use clap::ValueEnum;
use ibex_harness::process::{Process, ours};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::proxy::{Cut, Proxies};
use crate::{lines::Lines, node::Wire, types::Failure};

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The path of this program.
    pub program: PathBuf,
    /// The directory in which the cluster's directory is made.
    pub directory: PathBuf,
    /// The wire between the nodes.
    pub wire: Wire,
    /// Set if proxies stand between the nodes, so that one can be cut off.
    pub has_proxies: bool,
}

/// A cluster of three nodes. Dropping it kills the processes and removes the directory.
#[derive(Debug)]
pub struct Cluster {
    launch: Launch,
    directory: PathBuf,
    members: BTreeMap<u64, Member>,
    proxies: Option<Proxies>,
}

#[derive(Debug)]
struct Member {
    listen: String,
    lines: String,
    process: Option<Process>,
}

impl Cluster {
    /// Starts the processes, makes them a cluster, and waits until one leads.
    ///
    /// # Errors
    ///
    /// A process cannot be started, or no node leads within three minutes.
    pub async fn start(launch: Launch) -> Result<Cluster, Failure> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("raft_kv-{}-{number}", process::id());
        let directory = launch.directory.join(name);
        let mut members = BTreeMap::new();
        for id in 1..=3 {
            let [listen, lines] = addresses(number, id);
            members.insert(
                id,
                Member {
                    listen,
                    lines,
                    process: None,
                },
            );
        }
        let nodes: Vec<_> = members
            .iter()
            .map(|(id, member)| (*id, member.listen.clone()))
            .collect();
        let proxies = match launch.has_proxies {
            true => Some(Proxies::start(&nodes)?),
            false => None,
        };
        let mut cluster = Cluster {
            launch,
            directory,
            members,
            proxies,
        };
        for id in 1..=3 {
            cluster.start_node(id)?;
        }
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(id, listen)| format!("{id}={listen}"))
            .collect();
        cluster
            .ask_patiently(1, &format!("init {}", nodes.join(" ")))
            .await?;
        cluster.leader().await?;
        Ok(cluster)
    }

    /// Starts a node that does not run.
    ///
    /// # Errors
    ///
    /// The process cannot be started.
    pub fn start_node(&mut self, id: u64) -> Result<(), Failure> {
        let wire = self
            .launch
            .wire
            .to_possible_value()
            .ok_or("a wire has a name")?;
        let ways = self.proxies.iter().flat_map(|proxies| proxies.ways_of(id));
        let via: Vec<_> = ways
            .map(|(to, address)| format!("{to}={address}"))
            .collect();
        let member = self.members.get_mut(&id).ok_or("no such node")?;
        let mut command = ours(&self.launch.program);
        command
            .args(["node", "--with-parent", "--id", &id.to_string()])
            .args(["--listen", &member.listen, "--lines", &member.lines])
            .args(["--wire", wire.get_name()])
            .arg("--directory")
            .arg(self.directory.join(id.to_string()));
        if !via.is_empty() {
            command.args(["--via", &via.join(",")]);
        }
        member.process = Some(Process::start(format!("node {id}"), &mut command)?);
        Ok(())
    }

    /// Kills a node, as by `kill -9`.
    ///
    /// # Errors
    ///
    /// The node does not run.
    pub fn kill(&mut self, id: u64) -> Result<(), Failure> {
        let member = self.members.get_mut(&id).ok_or("no such node")?;
        let mut process = member.process.take().ok_or("it does not run")?;
        process.kill()?;
        Ok(())
    }

    /// Sends a signal to a node.
    ///
    /// # Errors
    ///
    /// The node does not run.
    pub fn signal(&self, id: u64, signal: Signal) -> Result<(), Failure> {
        let member = self.members.get(&id).ok_or("no such node")?;
        let process = member.process.as_ref().ok_or("it does not run")?;
        Ok(process.signal(signal)?)
    }

    /// Cuts a node off from the others, until the returned value is dropped; `None` without
    /// proxies.
    #[must_use]
    pub fn cut(&self, id: u64) -> Option<Cut> {
        self.proxies.as_ref().map(|proxies| proxies.cut(id))
    }

    /// Waits until a node has ended by itself with a failure.
    ///
    /// # Errors
    ///
    /// The node does not end within three minutes, or ends with success.
    pub async fn failed(&mut self, id: u64) -> Result<(), Failure> {
        let member = self.members.get_mut(&id).ok_or("no such node")?;
        let mut process = member.process.take().ok_or("it does not run")?;
        for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
            if let Some(status) = process.ended()? {
                return match status.success() {
                    true => Err("a node ended well".into()),
                    false => Ok(()),
                };
            }
            sleep(PAUSE).await;
        }
        member.process = Some(process);
        Err(format!("node {id} did not end").into())
    }

    /// Returns the nodes' addresses for clients.
    #[must_use]
    pub fn lines(&self) -> BTreeMap<u64, String> {
        let members = self.members.iter();
        members
            .map(|(id, member)| (*id, member.lines.clone()))
            .collect()
    }

    /// Waits until a node says that it leads itself, and returns it.
    ///
    /// # Errors
    ///
    /// No node does within three minutes.
    pub async fn leader(&self) -> Result<u64, Failure> {
        let search = async {
            loop {
                for id in self.members.keys() {
                    let status = self.ask(*id, "status").await;
                    if status.is_ok_and(|status| status.starts_with(&format!("leader {id},"))) {
                        return *id;
                    }
                }
                sleep(PAUSE).await;
            }
        };
        let found = timeout(PATIENCE, search).await;
        found.map_err(|_| "nobody leads".into())
    }

    /// Asks a node, and waits up to a second for the answer.
    ///
    /// # Errors
    ///
    /// The node does not answer.
    pub async fn ask(&self, id: u64, request: &str) -> Result<String, Failure> {
        self.ask_within(id, request, Duration::from_secs(1)).await
    }

    /// Asks a node, and waits up to a given time for the answer.
    ///
    /// # Errors
    ///
    /// The node does not answer.
    pub async fn ask_within(
        &self,
        id: u64,
        request: &str,
        time: Duration,
    ) -> Result<String, Failure> {
        let member = self.members.get(&id).ok_or("no such node")?;
        let asking = async {
            let mut lines = Lines::connect(&member.lines).await?;
            lines.ask(request).await
        };
        Ok(timeout(time, asking).await??)
    }

    /// Asks again and again until the answer is `ok`.
    ///
    /// # Errors
    ///
    /// The answer is not `ok` within three minutes.
    pub async fn ask_patiently(&self, id: u64, request: &str) -> Result<(), Failure> {
        let asking = async {
            while !self
                .ask_within(id, request, PATIENCE)
                .await
                .is_ok_and(|answer| answer == "ok")
            {
                sleep(PAUSE).await;
            }
        };
        let asked = timeout(PATIENCE, asking).await;
        asked.map_err(|_| format!("node {id} did not do \"{request}\"").into())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The processes are gone before their directory.
        self.members.clear();
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        eprintln!("{} was not removed: {error}", directory.display());
    }
}

/// Returns the addresses of a node, for the other nodes and for clients, which no other process or
/// cluster uses. They are no ports that the kernel gives to connections, so a restarted node finds
/// its own free.
fn addresses(cluster: u64, node: u64) -> [String; 2] {
    let process = process::id();
    let (high, low) = (64 + (process >> 8) % 128, process & 0xff);
    let last = cluster % 60 * 4 + node;
    ["7100", "7200"].map(|port| format!("127.{high}.{low}.{last}:{port}"))
}

const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(20);
