//! Reads the kernel's files in `/sys` about devices and network interfaces.
//!
//! libibverbs knows devices, ports and GIDs. Only the kernel's files say which network
//! interface belongs to which device, which interfaces it stands on, its partition key, and
//! whether a device is hardware. Any file may be missing (a sandbox hides it, or a device has
//! no such file); the answer is then empty and never an error.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use crate::PartitionKey;

/// The kernel's files, at their usual place or at a test's.
#[derive(Clone, Debug)]
pub struct Sysfs {
    sys: PathBuf,
    dev: PathBuf,
}

/// The kind of a device: hardware or a driver in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A device on a bus.
    Hardware,
    /// A driver above a network interface, such as soft-RoCE, which is slower than the kernel's
    /// TCP on the same machine and good for tests.
    Software,
    /// A device whose files are hidden. ibex prefers it to nothing by itself.
    Unknown,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys", "/dev")
    }
}

impl Sysfs {
    /// Reads below other roots than `/sys` and `/dev`.
    #[must_use]
    pub fn at(sys: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self {
            sys: sys.into(),
            dev: dev.into(),
        }
    }

    /// Returns the devices that the kernel has; a process may be able to use fewer.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        names(&self.sys.join("class/infiniband"))
    }

    /// Returns why the library's list may lack devices; `None` if the kernel would show them and
    /// has none either.
    #[must_use]
    pub fn why_hidden(&self) -> Option<String> {
        if self.is_hidden() {
            return Some(
                "/sys is not mounted here, and without it none may be found: mount it".to_owned(),
            );
        }
        let devices = self.devices();
        let is_loaded = self.sys.join("class/infiniband_verbs").is_dir();
        if devices.is_empty() {
            return (!is_loaded).then(|| {
                "ib_uverbs is not loaded: if there is hardware, `modprobe ib_uverbs` and its \
                 driver (inside a container, have the host do so)"
                    .to_owned()
            });
        }
        let devices = devices.join(", ");
        let why = if !is_loaded {
            "ib_uverbs is not loaded: `modprobe ib_uverbs` (inside a container, have the host do so)"
        } else if !self.has_device_files() {
            "its files in /dev/infiniband are not here: give a container --device=/dev/infiniband, or a \
             systemd service PrivateDevices=no"
        } else {
            "no provider library knows them: install ibverbs-providers"
        };
        Some(format!("the kernel has {devices}, but {why}"))
    }

    /// Returns whether `/sys` is hidden altogether.
    pub(super) fn is_hidden(&self) -> bool {
        !self.sys.join("class").is_dir()
    }

    /// Returns the kind of a device. Hardware has a link to its place on a bus.
    #[must_use]
    pub fn kind(&self, device: &str) -> DeviceKind {
        let directory = self.device(device);
        match directory.is_dir() {
            true if directory.join("device").exists() => DeviceKind::Hardware,
            true => DeviceKind::Software,
            false => DeviceKind::Unknown,
        }
    }

    fn has_device_files(&self) -> bool {
        let files = names(&self.dev.join("infiniband"));
        files.iter().any(|name| name.starts_with("uverbs"))
    }

    /// Returns the NUMA node that a device is nearest to.
    #[must_use]
    pub fn numa_node(&self, device: &str) -> Option<u32> {
        // The file says -1 if the machine has only one node.
        read(&self.device(device).join("device/numa_node"))?
            .parse()
            .ok()
    }

    /// Returns the cores of the NUMA node that a device is nearest to. Empty where that is unknown,
    /// or where all cores are on one node.
    #[must_use]
    pub fn near_cores(&self, device: &str) -> Vec<usize> {
        let near = self.numa_node(device);
        let nodes = self.sys.join("devices/system/node");
        let mut found = Vec::new();
        let mut with_cores = 0;
        for name in names(&nodes) {
            let number = name.strip_prefix("node");
            let number: Option<u32> = number.and_then(|number| number.parse().ok());
            let list = read(&nodes.join(&name).join("cpulist"));
            // A node with memory and no processors has an empty list.
            let (Some(number), Some(list)) = (number, list) else {
                continue;
            };
            with_cores += 1;
            if near == Some(number) {
                found = core_list(&list).unwrap_or_default();
            }
        }
        match with_cores {
            0 | 1 => Vec::new(),
            _ => found,
        }
    }

    /// Returns what a port's driver and hardware have counted, by the names of the files in
    /// `counters` and `hw_counters` of the port, in the order of the names. Empty if the driver has
    /// no such files, or none that this process may read. Some devices ask their firmware for each
    /// file, so this may take milliseconds.
    #[must_use]
    pub fn port_counters(&self, device: &str, port: u8) -> Vec<(String, u64)> {
        let directory = self.device(device).join(format!("ports/{port}"));
        let mut found = Vec::new();
        for folder in ["counters", "hw_counters"] {
            let folder = directory.join(folder);
            let counter = |name: String| {
                // Other files have settings: `lifespan` is the age at which the driver reads anew.
                let value = read(&folder.join(&name)).filter(|_| name != "lifespan")?;
                Some((name, value.parse().ok()?))
            };
            found.extend(names(&folder).into_iter().filter_map(counter));
        }
        found.sort();
        found
    }

    /// Returns the name of the network interface of a GID.
    #[must_use]
    pub fn gid_netdev(&self, device: &str, port: u8, index: u32) -> Option<String> {
        let file = format!("ports/{port}/gid_attrs/ndevs/{index}");
        read(&self.device(device).join(file))
    }

    /// Returns the network interfaces of a port, independent of its GIDs: those on the same bus
    /// device and port (InfiniBand's `ib0`), and the one below a software device.
    #[must_use]
    pub fn port_netdevs(&self, device: &str, port: u8) -> Vec<String> {
        let directory = self.device(device);
        let on_port = |netdev: &String| {
            let dev_port = self.netdev_number(netdev, "dev_port");
            // Older kernels number InfiniBand interfaces by `dev_id` instead.
            let number = match dev_port {
                Some(0) | None => self.netdev_hex(netdev, "dev_id").or(dev_port),
                some => some,
            };
            number.is_none_or(|number| number + 1 == u32::from(port))
        };
        let mut found: Vec<_> = names(&directory.join("device/net"))
            .into_iter()
            .filter(on_port)
            .collect();
        found.extend(read(&directory.join("parent")));
        found
    }

    /// Returns the network interfaces of a device, on all ports.
    pub(super) fn netdevs(&self, device: &str) -> Vec<String> {
        let directory = self.device(device);
        let mut found = names(&directory.join("device/net"));
        found.extend(read(&directory.join("parent")));
        found
    }

    /// Returns the network interfaces of the machine, or of this network namespace.
    pub(super) fn all_netdevs(&self) -> Vec<String> {
        let mut found = names(&self.sys.join("class/net"));
        // The directory also has files, such as `bonding_masters`.
        found.retain(|name| self.netdev(name).is_dir());
        found
    }

    /// Returns the index of a network interface.
    #[must_use]
    pub fn interface_index(&self, netdev: &str) -> Option<u32> {
        self.netdev_number(netdev, "ifindex")
    }

    /// Returns the name of the network interface with an index.
    #[must_use]
    pub fn interface_name(&self, index: u32) -> Option<String> {
        names(&self.sys.join("class/net"))
            .into_iter()
            .find(|netdev| self.interface_index(netdev) == Some(index))
    }

    /// Returns the partition key of an IPoIB interface; `None` for other interfaces. The kernel
    /// sets the bit of full members in it, independent of the port's table (`ipoib_intf_init`,
    /// [drivers/infiniband/ulp/ipoib/ipoib_main.c](https://github.com/torvalds/linux/blob/master/drivers/infiniband/ulp/ipoib/ipoib_main.c)).
    #[must_use]
    pub fn partition_key(&self, netdev: &str) -> Option<PartitionKey> {
        let number = self.netdev_hex(netdev, "pkey")?;
        PartitionKey::new(u16::try_from(number).ok()?)
    }

    /// Returns whether a network interface exists.
    #[must_use]
    pub fn has_netdev(&self, netdev: &str) -> bool {
        self.netdev(netdev).exists()
    }

    /// Returns the interfaces that a network interface stands on, nearest first. These are the
    /// interface below a VLAN or a macvlan, the members of a bond or bridge (a bond's active
    /// one first), the parent of an IPoIB child, and the interfaces that these stand on.
    #[must_use]
    pub fn below(&self, netdev: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut queue = VecDeque::from([netdev.to_owned()]);
        while let Some(next) = queue.pop_front() {
            for lower in self.directly_below(&next) {
                // A tree from a test or a broken kernel may go in circles.
                if lower != netdev && !found.contains(&lower) {
                    found.push(lower.clone());
                    queue.push_back(lower);
                }
            }
        }
        found
    }

    fn directly_below(&self, netdev: &str) -> Vec<String> {
        let directory = self.netdev(netdev);
        let mut lower: Vec<_> = names(&directory)
            .iter()
            .filter_map(|name| name.strip_prefix("lower_"))
            .map(str::to_owned)
            .collect();
        lower.sort();
        if let Some(active) = read(&directory.join("bonding/active_slave")) {
            lower.sort_by_key(|name| *name != active);
        }
        // An InfiniBand child has no `lower_` link, but a file with its parent.
        lower.extend(read(&directory.join("parent")));
        lower
    }

    fn device(&self, device: &str) -> PathBuf {
        self.sys.join("class/infiniband").join(device)
    }

    fn netdev(&self, netdev: &str) -> PathBuf {
        self.sys.join("class/net").join(netdev)
    }

    fn netdev_number(&self, netdev: &str, file: &str) -> Option<u32> {
        read(&self.netdev(netdev).join(file))?.parse().ok()
    }

    fn netdev_hex(&self, netdev: &str, file: &str) -> Option<u32> {
        let text = read(&self.netdev(netdev).join(file))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Reads a list of cores such as `0-3,8`; see
/// [List format](https://man7.org/linux/man-pages/man7/cpuset.7.html). `None` if it is none.
fn core_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CORES {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// The most cores of which Linux can be built to know (`NR_CPUS` in
/// [arch/x86/Kconfig](https://github.com/torvalds/linux/blob/master/arch/x86/Kconfig)).
const MOST_CORES: usize = 8192;

/// Reads a file of one line; `None` if it is missing or empty.
fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
