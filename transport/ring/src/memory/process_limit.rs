//! The memory limit of this process, from every source of limits.
#![forbid(unsafe_code)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::{
    process::{Resource, getrlimit},
    system::sysinfo,
};

/// Returns the most bytes that the process may have: those of the machine, of its [control
/// groups](https://docs.kernel.org/admin-guide/cgroup-v2.html#memory), or of its own limits
/// (`RLIMIT_AS` and `RLIMIT_DATA`,
/// [getrlimit(2)](https://man7.org/linux/man-pages/man2/getrlimit.2.html)), whichever are least.
#[must_use]
pub fn process_memory_limit() -> u64 {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    let own = limits.into_iter().flatten().min();
    let machine = physical(Path::new("/proc")).unwrap_or_else(machine_bytes);
    let others = [of_groups(Path::new("/")), own].into_iter().flatten();
    others.fold(machine, u64::min)
}

/// Returns the memory of the machine as the kernel tells it without `/proc`.
fn machine_bytes() -> u64 {
    let machine = sysinfo();
    (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit))
}

/// Memory of the machine; a container may see less of it here than the kernel has.
fn physical(proc: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least that a control group of the process, or one above it, allows.
fn of_groups(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| of_line(root, line)).min()
}

/// Returns the limit that a line `number:controllers:path` leads to.
fn of_line(root: &Path, line: &str) -> Option<u64> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    // In a container, the path may be one of the host's, of which only the last part exists here.
    let inner = mount.join(path.trim_start_matches('/'));
    let groups = inner.ancestors().map(PathBuf::from);
    groups
        .take_while(|group| group.starts_with(&mount))
        .filter_map(|group| fs::read_to_string(group.join(file)).ok())
        .filter_map(|text| text.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_have_something() {
        assert!(process_memory_limit() > 1 << 20);
        assert!(machine_bytes() > 1 << 20);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("ibex-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("inside")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("proc/self/cgroup", "3:cpu,memory:/a/b\n1:cpu:/c\n0::/a/b\n");
        assert_eq!(of_groups(&root), None);
        write("sys/fs/cgroup/memory.max", "max\n");
        write("sys/fs/cgroup/a/memory.max", "2147483648\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(of_groups(&root), Some(2 << 30));
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(of_groups(&root), Some(1 << 30));
        write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n");
        assert_eq!(physical(&root.join("proc")), Some(1 << 20));
        fs::remove_dir_all(&root).expect("gone");
    }
}
