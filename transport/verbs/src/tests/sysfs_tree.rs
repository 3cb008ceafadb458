//! A `/sys` and a `/dev` made of files, for tests of discovery.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::discovery::Sysfs;

/// A tree below the directory for temporary files, removed when dropped.
pub(super) struct SysfsTree {
    root: PathBuf,
}

impl SysfsTree {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ibex-sysfs-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let tree = Self { root };
        fs::create_dir_all(tree.path("sys/class/net")).unwrap();
        tree
    }

    pub(super) fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.path("sys"), self.path("dev"))
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file of one line.
    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A network interface, on top of others.
    pub(super) fn netdev(&self, name: &str, index: u32, below: &[&str]) {
        let directory = format!("sys/class/net/{name}");
        self.file(&format!("{directory}/ifindex"), &index.to_string());
        for lower in below {
            let link = self.path(&format!("{directory}/lower_{lower}"));
            std::os::unix::fs::symlink(Path::new("..").join(lower), link).unwrap();
        }
    }

    /// The interface that one GID of a device belongs to.
    pub(super) fn gid_netdev(&self, device: &str, index: u32, netdev: &str) {
        let file = format!("sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/{index}");
        self.file(&file, netdev);
    }

    /// A device on a bus, with its interfaces.
    pub(super) fn hardware(&self, device: &str, numa_node: &str, netdevs: &[&str]) {
        let directory = format!("sys/class/infiniband/{device}/device");
        self.file(&format!("{directory}/numa_node"), numa_node);
        for netdev in netdevs {
            fs::create_dir_all(self.path(&format!("{directory}/net/{netdev}"))).unwrap();
        }
    }
}

impl Drop for SysfsTree {
    fn drop(&mut self) {
        // A directory that cannot be removed is left to the cleaning of temporary files.
        let _ = fs::remove_dir_all(&self.root);
    }
}
