//! The processes below this one: descriptions of them, and their end.
//!
//! A hanging test is rarely a child of this process. It is a test binary below cargo, or a peer
//! that a test binary has started, perhaps in a process group of its own. As *child subreaper* this
//! process becomes the parent of every descendant whose own parent dies, so that all of them stay
//! below it and can be found.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

/// Makes orphaned descendants children of this process.
pub(crate) fn adopt_orphans() {
    // Only a kernel older than 3.4 refuses; then orphans are not found.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Describes all processes below this one, their present activity, and the names of their threads: a
/// test's thread has the first letters of the test's name.
pub(crate) fn describe() -> Vec<String> {
    below(getpid().as_raw_pid(), &running())
        .map(describe_one)
        .collect()
}

/// Kills all processes below this one.
pub(crate) fn kill_all() {
    // A process that forks during the search is found in the next round; if its parent is gone by
    // then, it is our child.
    for _ in 0..KILL_ROUNDS {
        let running = running();
        let mut pids = below(getpid().as_raw_pid(), &running).peekable();
        if pids.peek().is_none() {
            return;
        }
        for pid in pids.filter_map(Pid::from_raw) {
            // The process may have ended in the meantime.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(KILL_PAUSE);
    }
}

/// Returns the process ids below `top`, the nearest first.
fn below(top: i32, running: &HashMap<i32, i32>) -> impl Iterator<Item = i32> {
    let mut found = vec![top];
    let mut looked_at = 0;
    while let Some(&parent) = found.get(looked_at) {
        let mut children: Vec<i32> = running
            .iter()
            .filter(|&(_, &its_parent)| its_parent == parent)
            .map(|(&pid, _)| pid)
            .collect();
        children.sort_unstable();
        found.extend(children);
        looked_at += 1;
    }
    found.into_iter().skip(1)
}

/// Returns the parent of each process that has not ended.
fn running() -> HashMap<i32, i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some((pid, stat.parent))
    })
    .collect()
}

/// The used fields of proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
}

impl Stat {
    /// The name in parentheses may contain anything, so fields count from the last parenthesis.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self {
            state,
            parent: fields.next()?.parse().ok()?,
        })
    }
}

fn describe_one(pid: i32) -> String {
    let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let state = Stat::parse(&read("stat")).map_or('?', |stat| stat.state);
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    let mut names: Vec<_> = names.map(|name| name.trim_end().to_owned()).collect();
    names.dedup();
    names.truncate(MAX_THREAD_NAMES);
    let waits_in = match read("wchan").trim() {
        "" | "0" => String::new(),
        function => format!(", waits in {function}"),
    };
    let command: String = read("cmdline")
        .replace('\0', " ")
        .chars()
        .take(MAX_COMMAND_CHARS)
        .collect();
    format!(
        "{pid} (state {state}{waits_in}): {}; threads {}",
        command.trim_end(),
        names.join(", ")
    )
}

const KILL_ROUNDS: u32 = 100;
const KILL_PAUSE: Duration = Duration::from_millis(20);
const MAX_COMMAND_CHARS: usize = 300;
const MAX_THREAD_NAMES: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = Stat::parse("7 (a) R 1 (b)) S 42 7 7 0");
        assert_eq!(
            stat,
            Some(Stat {
                state: 'S',
                parent: 42
            })
        );
        assert_eq!(Stat::parse("7 (cut"), None);
    }

    #[test]
    fn grandchildren_are_below_and_siblings_are_not() {
        let running = HashMap::from([(2, 1), (3, 1), (4, 2), (5, 4), (6, 3)]);
        assert_eq!(below(2, &running).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(below(1, &running).collect::<Vec<_>>(), [2, 3, 4, 6, 5]);
        assert_eq!(below(6, &running).count(), 0);
    }
}
