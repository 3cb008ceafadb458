//! The kernel's view of processes, threads and connections, as evidence that depends on no library.

use ibex_harness::wait_until;
use std::{
    collections::HashSet,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
};

use rustix::{
    io::Errno,
    process::{Pid, Resource, Rlimit, getrlimit, setrlimit},
    thread::gettid,
};

/// Panics unless a TCP connection of this process to `remote` ends in process `pid`, and none ends
/// in a descriptor of this process.
pub(crate) fn assert_connected_to(remote: SocketAddr, pid: u32) {
    let connections = connections();
    let (ours, theirs) = (sockets_of("self"), sockets_of(&pid.to_string()));
    let far_ends: Vec<u64> = connections
        .iter()
        .filter(|here| here.remote == remote && ours.contains(&here.inode))
        .filter_map(|here| {
            let is_far_end =
                |far: &&Connection| far.local == here.remote && far.remote == here.local;
            Some(connections.iter().find(is_far_end)?.inode)
        })
        .collect();
    assert!(
        far_ends.iter().any(|inode| theirs.contains(inode)),
        "no connection to {remote} ends in process {pid}"
    );
    assert!(
        !far_ends.iter().any(|inode| ours.contains(inode)),
        "a connection to {remote} ends in this very process"
    );
}

/// Raises this process's limit of descriptors to its maximum, since each session takes some.
pub(crate) fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).expect("a process may have what it may have");
}

/// Returns the calling thread, for [`wait_until_asleep`].
pub(crate) fn this_thread() -> Pid {
    gettid()
}

/// Waits until `thread` of this process sleeps in the kernel.
pub(crate) fn wait_until_asleep(thread: Pid) {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    wait_until(|| is_in_state(Path::new(&stat), 'S').expect("the thread lives"));
}

/// Waits until every thread of a process that got SIGSTOP has stopped or ended.
pub(crate) fn wait_until_stopped(process: Pid) {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped = || {
        let mut tasks = fs::read_dir(&tasks).expect("the process lives");
        tasks.all(|task| {
            let stat = task.expect("a thread").path().join("stat");
            is_in_state(&stat, 'T').unwrap_or(true)
        })
    };
    wait_until(is_stopped);
}

/// Returns whether a thread's `stat` (proc_pid_stat(5)) shows this state; `None` if the thread has
/// ended since it was listed.
fn is_in_state(stat: &Path, state: char) -> Option<bool> {
    let stat = match fs::read_to_string(stat) {
        Ok(text) => text,
        Err(error) => {
            // The open fails with the first of these errors, a read of an open file with the other.
            let ended = [Errno::NOENT, Errno::SRCH].map(|errno| Some(errno.raw_os_error()));
            assert!(ended.contains(&error.raw_os_error()), "{error}");
            return None;
        }
    };
    // The name stands in parentheses and may contain anything; the state follows.
    let rest = stat.rsplit(") ").next();
    Some(rest.is_some_and(|rest| rest.starts_with(state)))
}

struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u64,
}

/// Returns the IPv4 connections of this network namespace (proc_pid_net(5), `tcp`).
fn connections() -> Vec<Connection> {
    let table = fs::read_to_string("/proc/self/net/tcp").expect("/proc is mounted");
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Some(Connection {
            local: address(fields.get(1)?)?,
            remote: address(fields.get(2)?)?,
            inode: fields.get(9)?.parse().ok()?,
        })
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Parses `0100007F:1F90`: the address in the machine's byte order, the port in hexadecimal.
fn address(field: &str) -> Option<SocketAddr> {
    let (ip, port) = field.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
}

/// Returns the inodes of the sockets among a process's descriptors.
fn sockets_of(process: &str) -> HashSet<u64> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("the process lives");
    let inode = |descriptor: fs::DirEntry| {
        let target = fs::read_link(descriptor.path()).ok()?;
        target
            .to_str()?
            .strip_prefix("socket:[")?
            .strip_suffix(']')?
            .parse()
            .ok()
    };
    descriptors
        .filter_map(Result::ok)
        .filter_map(inode)
        .collect()
}
