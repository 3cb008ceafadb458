//! RDMA devices: the inventory of this machine, the choice of a device, and a node's use of it
//! ([`RdmaSettings`]).
//!
//! An [`Inventory`] and a [`Choice`] print themselves. A program that reads their fields finds the
//! types of these in the crate `ibex-verbs`, in its module `discovery`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let inventory = ibex::rdma::discover()?;
//! print!("{inventory}");
//! let choice = inventory.choose(&ibex::rdma::Wish::Netdev("eth0".to_owned()))?;
//! println!("{choice}");
//! # Ok(())
//! # }
//! ```
//!
//! # When RDMA is not used
//!
//! [`Peer::fabric_reason`](crate::Peer::fabric_reason) says for each session why it has its fabric.
//! The example `devices` (`cargo run --features verbs --example devices -- --peer HOST`) shows what
//! this machine has and would use. The error of a node that *requires* verbs has the same text
//! ([`ListenErrorKind::Rdma`](crate::ListenErrorKind::Rdma),
//! [`ConnectError`](crate::ConnectError)); all others go on over shared memory or TCP. Without
//! settings, two nodes of one host and user take shared memory, and nodes with a software device
//! (soft-RoCE), which is slower than TCP, take TCP.
//!
//! Other obstacles, and what removes them:
//!
//! | what is said | what it takes |
//! |---|---|
//! | libibverbs.so.1 cannot be loaded | the packages `libibverbs1 ibverbs-providers` (Debian), `libibverbs` (Fedora) |
//! | no RDMA device; ib_uverbs is not loaded | `modprobe ib_uverbs`, and the device's driver; for a container, on the host |
//! | there is no RDMA device "..." | the name in [`RdmaSettings::device`] or `IBEX_RDMA_DEVICE` |
//! | its files in /dev/infiniband are not here | docker `--device=/dev/infiniband`; systemd `PrivateDevices=no` |
//! | cannot be opened | the user in the group of `/dev/infiniband/uverbs*` (`rdma`) |
//! | no provider library knows them | the package `ibverbs-providers`, of the same release as libibverbs; programs that run find it |
//! | the list of devices was refused: ibv_get_device_list: Too many open files | `ulimit -n`, raised; the next session or node finds them |
//! | speaks iWARP, or is vendor-specific | another device: reliable connections over InfiniBand or RoCE are needed |
//! | DOWN, not ACTIVE | `ip link set NETDEV up`; on InfiniBand a subnet manager |
//! | no GID that can be used; only link-local GIDs | an address on the device's network interface |
//! | speaks RoCE v1 and ... RoCE v2 | [`RdmaSettings::gid_index`] at one end, of a GID of the other's type |
//! | is not in partition ..., in different partitions, limited members | the subnet manager's partitions, or [`RdmaSettings::partition_key`] at both ends |
//! | is in another InfiniBand subnet | floating LIDs of the subnets' routers, or another fabric |
//! | the limit on locked memory is ... | below |
//! | its limit is ... | the setting that the text names, lowered |
//! | the policy forbids verbs | the policy of that node ([`Policy`](crate::Policy)) |
//!
//! A device may be removed under its sessions, by `rdma link delete` or with its network interface.
//! ibex closes the device a few seconds later, whatever handles and messages exist. Its sessions go
//! on over another queue pair, or over TCP where policies allow it. The next session uses the
//! devices that exist then. Under [`Driver::Caller`](crate::Driver::Caller) this happens in the
//! program's calls.
//!
//! A device's memory is locked. A node locks 36 MiB for each port with its first session over RDMA
//! ([`RdmaSettings`] says for what, and [`RdmaSettings::max_rails`] for how many ports), and users may usually lock 8 MiB in total
//! ([`RLIMIT_MEMLOCK`](https://man7.org/linux/man-pages/man2/getrlimit.2.html)). Raise that by
//! `LimitMEMLOCK=infinity` in a systemd unit, by `docker run --ulimit memlock=-1`, or by a line
//! `USER - memlock unlimited` in /etc/security/limits.conf and a new login. Or lock less:
//! `receive_buffers(1024)`, `held_buffers(512)` and `max_sessions(64)` take 7 MiB.
#![forbid(unsafe_code)]

mod node_devices;
mod node_pair;
mod settings;
mod tuning;

use std::{fmt, sync::Arc};

use ibex_ring::memory::HugePages;
use ibex_verbs::{
    ForkReport,
    discovery::{self, Sysfs},
    provider::{Libibverbs, Provider},
};

pub use ibex_verbs::discovery::{Choice, Inventory, Wish};
pub use ibex_verbs::{CompletionPolling, VerbsError};
pub(crate) use node_devices::NodeDevices;
pub use settings::RdmaSettings;
pub use tuning::Tuning;

/// Takes the inventory: devices, ports, GIDs, partitions and limits, as they are now.
///
/// # Errors
/// [`VerbsError`] if there is no libibverbs, no kernel support or no device at all. A
/// device that cannot be used is in the inventory, with the reason.
pub fn discover() -> Result<Inventory, VerbsError> {
    let provider: Arc<dyn Provider> = Arc::new(Libibverbs::load()?);
    discovery::discover(&provider, &Sysfs::default())
}

/// Returns a report of two lines: the effect of a fork on registered memory, and the system's policy
/// on huge pages. A node logs the same when it opens its device.
///
/// # Errors
/// [`VerbsError`] if there is no libibverbs.
pub fn memory_report() -> Result<impl fmt::Display, VerbsError> {
    let provider: Arc<dyn Provider> = Arc::new(Libibverbs::load()?);
    let (fork, pages) = (ForkReport::now(&provider), HugePages::of_system());
    Ok(format!("fork: {fork}\npages: {pages}"))
}
