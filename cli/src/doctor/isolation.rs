//! Users, namespaces and /proc: what decides whether two processes of a host share memory.

use super::Diagnosis;
use crate::root::Root;

/// The kernel's first namespaces, whose numbers are fixed (`PROC_PID_INIT_INO` and its kin,
/// [include/linux/proc_ns.h](https://github.com/torvalds/linux/blob/master/include/linux/proc_ns.h)).
const FIRST: [(&str, &str, &str); 3] = [
    ("pid", "PID", "pid:[4026531836]"),
    ("user", "user", "user:[4026531837]"),
    ("ipc", "IPC", "ipc:[4026531839]"),
];

pub(super) fn check(root: &Root, diagnosis: &mut Diagnosis) {
    host_identity(root, diagnosis);
    user(root, diagnosis);
    namespaces(root, diagnosis);
    // Programs that read another process's memory stop at these, so that people look for them here.
    let hidepid = root.read("/proc/self/mounts").is_some_and(|mounts| {
        let mut mounts = mounts
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        mounts.any(|mount| mount.len() > 3 && mount[1] == "/proc" && mount[3].contains("hidepid="))
    });
    let ptrace = root.read("/proc/sys/kernel/yama/ptrace_scope");
    let ptrace = ptrace.filter(|scope| scope != "0");
    let mut present = Vec::new();
    present.extend(hidepid.then(|| "hidepid of /proc".to_owned()));
    present.extend(ptrace.map(|scope| format!("kernel.yama.ptrace_scope={scope}")));
    let text = match present.is_empty() {
        true => "neither hidepid of /proc nor Yama is in force; ibex would need neither lifted"
            .to_owned(),
        false => format!(
            "{}: no obstacle, since processes hand each other memory over a socket; debuggers are \
             hindered",
            present.join(" and ")
        ),
    };
    diagnosis.fine("ptrace", text);
}

fn host_identity(root: &Root, diagnosis: &mut Diagnosis) {
    if root.read("/proc/sys/kernel/random/boot_id").is_none() {
        diagnosis.problem(
            "boot-id",
            "/proc/sys/kernel/random/boot_id cannot be read.",
            "By it two nodes know that they run on one host; without it they never share memory.",
            "mount /proc in the sandbox (a systemd unit: ProcSubset=all)",
        );
    }
    diagnosis.fine("boot-id", "nodes can tell that they run on one host");
}

fn user(root: &Root, diagnosis: &mut Diagnosis) {
    let overflow = root.read("/proc/sys/kernel/overflowuid");
    let overflow = overflow.unwrap_or_else(|| "65534".to_owned());
    // Real, effective, saved and file-system user.
    let effective = root.status("Uid").and_then(|ids| {
        let effective = ids.split_whitespace().nth(1)?;
        Some(effective.to_owned())
    });
    let map = root.read("/proc/self/uid_map").unwrap_or_default();
    let maps_all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if effective.as_ref() == Some(&overflow) && !maps_all {
        diagnosis.problem(
            "user",
            format!("The kernel shows this user as {overflow}, as it shows all users that it does not map."),
            "Memory is shared between processes of one user, and this process cannot tell whose it is.",
            "map the user in the user namespace (/etc/subuid; docker run --userns=host), or set \
             IBEX_SHARE_MEMORY_WITH=anyone for both nodes",
        );
    }
    diagnosis.fine(
        "user",
        effective.map_or_else(
            || "mapped".to_owned(),
            |user| format!("uid {user} is mapped"),
        ),
    );
}

fn namespaces(root: &Root, diagnosis: &mut Diagnosis) {
    let other = |(file, name, first): &(&str, &'static str, &str)| {
        let namespace = root.link(&format!("/proc/self/ns/{file}"))?;
        (namespace != *first).then_some(*name)
    };
    let others: Vec<_> = FIRST.iter().filter_map(other).collect();
    if others.is_empty() {
        return diagnosis.fine("namespaces", "those of the host: PID, user and IPC");
    }
    // IPC and PID namespaces are no obstacle, but tell that this is a container.
    diagnosis.warning(
        "namespaces",
        format!("This process is in a container: its {} namespace is not the host's.", others.join(", ")),
        "Processes in different network namespaces do not find each other's shared memory, and take \
         tcp. A user of another user namespace is another user.",
        "docker run --network=container:NAME for those that share memory, or for both a common directory \
         of /run and IBEX_SHARED_MEMORY_DIRECTORY; one --user, or IBEX_SHARE_MEMORY_WITH; containers of one \
         Kubernetes pod share the network already",
    );
}
