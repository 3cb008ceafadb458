//! A machine for tests: its /sys, /proc, /dev, /etc and /usr in a folder, all well at first.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ibex_harness::process::Process;
use serde_json::Value;

/// The folder, which is removed with the machine.
pub(crate) struct Machine(PathBuf);

impl Machine {
    /// Makes a machine without RDMA.
    pub(crate) fn bare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ibex-cli-{}-{count}", std::process::id());
        let machine = Self(std::env::temp_dir().join(name));
        for (path, text) in [
            (
                "proc/sys/kernel/random/boot_id",
                "6f2a0c5e-0000-4000-8000-000000000001",
            ),
            ("proc/sys/kernel/overflowuid", "65534"),
            ("proc/sys/kernel/hostname", "storage-17"),
            ("proc/sys/kernel/osrelease", "6.12.1"),
            (
                "proc/self/status",
                "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000",
            ),
            ("proc/self/uid_map", "         0          0 4294967295"),
            ("proc/self/limits", LIMITS),
            ("proc/self/cgroup", "0::/user.slice"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc",
            ),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance",
            ),
            ("sys/class/net/lo/mtu", "65536"),
        ] {
            machine.write(path, text);
        }
        for (kind, number) in [
            ("pid", 4026531836_u32),
            ("user", 4026531837),
            ("ipc", 4026531839),
        ] {
            machine.link(
                &format!("proc/self/ns/{kind}"),
                &format!("{kind}:[{number}]"),
            );
        }
        machine
    }

    /// Makes a machine with a RoCE card that works.
    pub(crate) fn with_card() -> Self {
        let machine = Self::bare();
        let card = "sys/bus/pci/devices/0000:3b:00.0";
        for (path, text) in [
            ("class", "0x020000"),
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("numa_node", "1"),
            ("net/eth4/mtu", "4200"),
            ("infiniband/mlx5_0/x", ""),
        ] {
            machine.write(&format!("{card}/{path}"), text);
        }
        machine.link(&format!("{card}/driver"), "../../drivers/mlx5_core");
        let device = "sys/class/infiniband/mlx5_0";
        for (path, text) in [
            ("node_guid", "506b:4b03:00ba:1234"),
            ("fw_ver", "16.35.4030"),
            ("board_id", "MT_0000000080"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/lid", "0x0"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:526b:4bff:feba:1234"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0207"),
            ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/gid_attrs/types/1", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "eth4"),
            ("ports/1/gid_attrs/ndevs/1", "eth4"),
        ] {
            machine.write(&format!("{device}/{path}"), text);
        }
        machine.link(
            &format!("{device}/device"),
            "../../../bus/pci/devices/0000:3b:00.0",
        );
        machine.write("sys/class/net/eth4/mtu", "4200");
        machine.write("sys/class/net/eth4/ifindex", "4");
        machine.write("sys/class/net/vlan7/lower_eth4", "");
        machine.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
        machine.write("dev/infiniband/uverbs0", "");
        machine.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        machine.write("etc/libibverbs.d/mlx5.driver", "driver mlx5");
        machine.write(
            "proc/self/limits",
            &LIMITS.replace("8388608 ", "unlimited "),
        );
        machine
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder is made");
        fs::write(path, format!("{text}\n")).expect("a file is written");
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder is made");
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("a link is made");
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.0.join(path);
        let removed = match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Sets the soft limit of a name in `/proc/self/limits`.
    pub(crate) fn limit(&self, name: &str, soft: &str) {
        let path = self.0.join("proc/self/limits");
        let limits = fs::read_to_string(path).expect("the limits");
        let lines = limits.lines().map(|line| match line.starts_with(name) {
            true => format!("{name}  {soft}  unlimited  units"),
            false => line.to_owned(),
        });
        self.write("proc/self/limits", &lines.collect::<Vec<_>>().join("\n"));
    }

    /// Runs the command on this machine.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        let root = self.0.to_str().expect("text");
        all.extend(["--root", root]);
        ibex(&all)
    }

    /// Runs the command on this machine, and returns its exit code and what it prints as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let value = serde_json::from_slice(&output.stdout);
        (
            code(&output),
            value.unwrap_or_else(|error| panic!("{error}: {output:?}")),
        )
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that listens, and is ended with this.
pub(crate) struct Listener {
    _process: Process,
    pub(crate) address: String,
}

impl Listener {
    /// Runs the command, which prints its address behind `says`.
    pub(crate) fn new(arguments: &[&str], says: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibex"));
        Self::of(command.args(arguments), says)
    }

    pub(crate) fn of(command: &mut Command, says: &str) -> Self {
        command.env_remove("IBEX_FABRICS").stdout(Stdio::piped());
        let mut process = Process::start("the listener", command).expect("the command runs");
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout());
        output.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix(says).expect("an address");
        Self {
            address: address.to_owned(),
            _process: process,
        }
    }
}

/// Runs the command.
pub(crate) fn ibex(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ibex"))
        .args(arguments)
        .env("USER", "ann")
        .env_remove("IBEX_FABRICS")
        .output()
        .expect("the command runs")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it exits")
}

/// Returns the standard output, whose lines have no more than 100 columns and no colour.
pub(crate) fn page(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(!text.contains('\x1b'), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    text
}

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            65536                524288               files
Max locked memory         8388608              8388608              bytes";
