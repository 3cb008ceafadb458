//! The initrd: an archive that the kernel unpacks into memory and from which it starts `/init`.
//!
//! The archive contains busybox, `vm/init` and the modules that are needed to reach the root. Its
//! format is "newc", of the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;

/// An archive that grows by a file at a time.
#[derive(Debug, Default)]
pub(crate) struct Initrd {
    bytes: Vec<u8>,
    files: u32,
}

/// The modules of a kernel: those to load, with their dependencies, and those built in.
#[derive(Debug)]
pub(crate) struct Modules {
    /// The path of each module, and those of the modules that it needs.
    needs: HashMap<String, Vec<String>>,
    /// Paths of the modules that the kernel has built in.
    builtin: Vec<String>,
}

impl Initrd {
    /// Builds the initrd for the kernel whose modules are in `modules`.
    pub(crate) fn build(modules: &Path, busybox: &Path, init: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut initrd = Self::default();
        for folder in ["bin", "dev", "modules", "proc", "sys"] {
            initrd.add(folder, FOLDER, &[]);
        }
        // /dev/console, for output before there are devices.
        initrd.add_device("dev/console", (5, 1));
        initrd.add("bin/busybox", PROGRAM, &read(busybox)?);
        initrd.add("init", PROGRAM, init);
        let mut order = String::new();
        for path in Modules::read(modules)?.in_order(MODULES)? {
            let name = format!("{}.ko", module_name(&path));
            initrd.add(
                &format!("modules/{name}"),
                FILE,
                &plain(&modules.join(&path))?,
            );
            order += &format!("{name}\n");
        }
        initrd.add("modules/order", FILE, order.as_bytes());
        Ok(initrd.finish())
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.add_entry(path, mode, (0, 0), content);
    }

    fn add_device(&mut self, path: &str, number: (u32, u32)) {
        self.add_entry(path, DEVICE, number, &[]);
    }

    fn add_entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.files += 1;
        let length = u32::try_from(content.len()).expect("a module is smaller than 4 GiB");
        let path_length = path.len() as u32 + 1; // with the zero behind it
        let (inode, owner, links, time, on, checksum) = (self.files, 0, 1, 0, 0, 0);
        self.bytes.extend_from_slice(b"070701");
        for field in [
            inode,
            mode,
            owner,
            owner,
            links,
            time,
            length,
            on,
            on,
            device.0,
            device.1,
            path_length,
            checksum,
        ] {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

impl Modules {
    /// Reads the files that depmod(8) wrote.
    fn read(folder: &Path) -> Result<Self, Failure> {
        let text = |name| {
            let bytes = read(&folder.join(name))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Self::parse(
            &text("modules.dep")?,
            &text("modules.builtin")?,
        ))
    }

    fn parse(dependencies: &str, builtin: &str) -> Self {
        let needs = dependencies.lines().filter_map(|line| {
            let (path, needs) = line.split_once(':')?;
            let needs = needs.split_whitespace().map(String::from).collect();
            Some((path.to_string(), needs))
        });
        Self {
            needs: needs.collect(),
            builtin: builtin.lines().map(String::from).collect(),
        }
    }

    /// Returns the paths of the modules to load, each behind those that it needs.
    fn in_order(&self, names: &[&str]) -> Result<Vec<String>, Failure> {
        let mut order: Vec<String> = Vec::new();
        for name in names {
            let is_it = |path: &&String| module_name(path) == *name;
            let Some(path) = self.needs.keys().find(is_it) else {
                if self.builtin.iter().any(|path| is_it(&path)) {
                    continue;
                }
                return Err(Failure::new(format!("the kernel has no module {name}")));
            };
            // modules.dep names direct and indirect dependencies, and the last of them has none of
            // its own.
            for path in self.needs[path].iter().rev().chain([path]) {
                if !order.contains(path) {
                    order.push(path.clone());
                }
            }
        }
        Ok(order)
    }
}

/// Returns the module's name in a path: `kernel/fs/9p/9p.ko.xz` is `9p`. Dashes become underscores.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split('.').next().unwrap_or_default().replace('-', "_")
}

/// Returns an uncompressed module, as the kernel takes it.
fn plain(path: &Path) -> Result<Vec<u8>, Failure> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return read(path),
    };
    let unpacked = Command::new(program).arg("-dcq").arg(path).output();
    match unpacked {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(Failure::new(format!(
            "`{program}` cannot unpack {}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) => Err(Failure::new(format!("`{program}`: {error}"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Modules that are needed to reach the root. Others are loaded from there.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "qemu_fw_cfg",
    "9pnet_virtio",
    "9p",
    "overlay",
];

// File type and permissions, see inode(7).
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

#[cfg(test)]
mod tests {
    use super::*;

    fn modules() -> Modules {
        Modules::parse(
            "kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
             kernel/net/9p/9pnet-virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
             kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz\n\
             kernel/fs/netfs/netfs.ko.xz:\n",
            "kernel/drivers/virtio/virtio_pci.ko\n",
        )
    }

    #[test]
    fn a_module_comes_behind_those_that_it_needs() {
        let names = |names: &[&str]| -> Vec<String> {
            let order = modules().in_order(names).unwrap();
            order.iter().map(|path| module_name(path)).collect()
        };
        assert_eq!(
            names(&["9p", "9pnet_virtio"]),
            ["netfs", "9pnet", "9p", "9pnet_virtio"]
        );
        assert_eq!(names(&["virtio_pci"]), [""; 0]);
    }

    #[test]
    fn a_module_that_is_nowhere_is_named() {
        let failure = modules().in_order(&["rdma_rxe"]).unwrap_err();
        assert_eq!(failure.to_string(), "the kernel has no module rdma_rxe");
    }

    #[test]
    fn an_entry_is_a_header_of_110_bytes_and_ends_on_a_multiple_of_4() {
        let mut initrd = Initrd::default();
        initrd.add("init", PROGRAM, b"#!/x\n");
        let bytes = initrd.bytes.clone();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000081ed"); // 0o100755
        assert_eq!(&bytes[54..62], b"00000005"); // the content's length
        assert_eq!(&bytes[94..102], b"00000005"); // the path's, with its zero
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"#!/x\n\0\0\0");
        assert_eq!(bytes.len(), 124);
        let all = initrd.finish();
        assert_eq!(&all[124 + 110..124 + 121], b"TRAILER!!!\0");
        assert_eq!(all.len() % 4, 0);
    }
}
