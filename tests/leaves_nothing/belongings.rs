//! The kernel objects of a process, counted.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ibex::Fabric;
use ibex_harness::process::memory_kib;

use crate::processes::{Party, own_pid};

/// Kernel objects of this process that a session could leave behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Belongings {
    descriptors: Vec<String>,
    threads: Vec<String>,
    segments: Vec<String>,
    /// Objects on RDMA devices and their owners, from rdma(8) if it is installed: queue pairs,
    /// memory regions and so on.
    pub(crate) on_devices: Vec<String>,
}

impl Belongings {
    /// Returns the objects that remain: as soon as none exceeds `settled`, or once they have not
    /// changed for a while. The kernel reports the end of a session through the node's engine.
    pub(crate) fn settle(party: &Party, settled: Option<&Self>) -> Self {
        let patience = if settled.is_some() { SILENCE } else { SETTLED };
        let is_expected = |left: &Self| settled.is_some_and(|settled| left.is_within(settled));
        let mut seen = Self::now(party);
        let mut since = Instant::now();
        while since.elapsed() < patience && !is_expected(&seen) {
            thread::sleep(Duration::from_millis(5));
            party.node.poll();
            let now = Self::now(party);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        seen
    }

    /// Returns whether every object here is in `other` as well. There may be fewer: a ring that was
    /// in its pool when the other was counted is returned after an idle time.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        let lists = |of: &Self| {
            let Self {
                descriptors,
                threads,
                segments,
                on_devices,
            } = of.clone();
            [descriptors, threads, segments, on_devices]
        };
        let mut others = lists(other);
        lists(self).iter().zip(&mut others).all(|(ours, others)| {
            ours.iter().all(|one| {
                let there = others.iter().position(|other| other == one);
                there.map(|at| others.remove(at)).is_some()
            })
        })
    }

    fn now(party: &Party) -> Self {
        let mut descriptors = entries("/proc/self/fd", |path| {
            let target = fs::read_link(path).ok()?.to_string_lossy().into_owned();
            // Socket numbers change with each session, but their count must not.
            Some(
                target
                    .split_once(":[")
                    .map_or(target.clone(), |(kind, _)| kind.to_owned()),
            )
        });
        descriptors.retain(|target| !target.starts_with("/proc/"));
        let threads = entries("/proc/self/task", |path| {
            Some(
                fs::read_to_string(path.join("comm"))
                    .ok()?
                    .trim()
                    .to_owned(),
            )
        });
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        let segments = maps
            .lines()
            .filter_map(|line| line.find("/memfd:ibex").map(|at| line[at..].to_owned()))
            .collect();
        Self {
            descriptors,
            threads,
            segments,
            on_devices: match party.peer.fabric() {
                Fabric::Verbs => on_devices(party.other.pid()),
                _ => Vec::new(),
            },
        }
    }
}

/// Returns the resident anonymous memory of this process in KiB (`RssAnon`, proc_pid_status(5)):
/// the heap, stacks, and other private mappings.
pub(crate) fn anonymous_kib() -> u64 {
    memory_kib(own_pid(), "RssAnon").expect("/proc is mounted")
}

/// Returns the objects of this process on RDMA devices, and those of the killed one.
fn on_devices(killed: u32) -> Vec<String> {
    let program = Command::new("rdma")
        .args(["-f", "-b", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut program) = program else {
        return Vec::new();
    };
    let mut questions = program.stdin.take().expect("it is piped");
    for kind in ["qp", "cq", "mr", "srq", "pd", "ctx"] {
        writeln!(questions, "resource show {kind}").expect("it reads to the end");
    }
    drop(questions);
    let listed = program.wait_with_output().expect("it ends");
    let listed = String::from_utf8_lossy(&listed.stdout);
    // `dev rxe0 mrn 5 ... pid 189 ...`; the number differs in each round.
    let mut found: Vec<_> = listed
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let owner = words.iter().skip_while(|word| **word != "pid").nth(1)?;
            let owner = match owner.parse::<u32>() {
                Ok(pid) if pid == own_pid() => "ours",
                Ok(pid) if pid == killed => "of the killed",
                _ => return None,
            };
            Some(format!("{} {owner}", words.get(2)?))
        })
        .collect();
    found.sort();
    assert!(
        found.iter().any(|line| line == "pdn ours"),
        "a node over verbs has a protection domain: {listed}"
    );
    found
}

fn entries(folder: &str, what: impl Fn(&std::path::Path) -> Option<String>) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("/proc is mounted");
    let mut found: Vec<_> = entries
        .filter_map(|entry| what(&entry.expect("an entry").path()))
        .collect();
    found.sort();
    found
}

/// Returns the files of ibex in /dev/shm. Other tests may have left some.
pub(crate) fn shared_files() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("ibex")).collect()
}

/// The time without a change that suffices. An awake engine needs one turn.
const SETTLED: Duration = Duration::from_millis(500);
/// The time that suffices if a ring may still be in its pool: longer than an idle one stays there.
const SILENCE: Duration = Duration::from_secs(200);
