//! The network between processes: the loopback interface, or a link that can be cut and disturbed.
//!
//! The link is a veth pair whose far end is in a network namespace of its own, with the process
//! that listens. Neither has a name: the namespace ends with the process that holds it, and the
//! link with the namespace. The guest of `cargo xtask vm --pair` has a link already, with an RDMA
//! device at each end.
#![forbid(unsafe_code)]

use std::{
    env,
    fs::{self, File},
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    process::geteuid,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{draw::Draw, process::Process};

/// The carrier of the processes' messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Shared memory, for which the processes must be in one network namespace.
    Memory,
    /// A TCP connection.
    Packets,
    /// An RDMA device: the guest's two, or the one that `IBEX_TEST_DEVICE` names.
    Device,
}

/// The place of the listening process, and the link to it.
pub struct Network {
    /// The address at which the process may listen; its port is free.
    pub address: SocketAddr,
    /// The network namespace that the listening process must [`enter`], if any.
    pub far_namespace: Option<PathBuf>,
    /// The RDMA device at the listening end.
    pub far_device: Option<String>,
    /// The RDMA device at the connecting end.
    pub near_device: Option<String>,
    link: Result<Link, String>,
}

/// A link with two ends.
struct Link {
    ends: [End; 2],
    has_netem: bool,
    /// Keeps the far namespace alive.
    _holder: Option<Process>,
}

struct End {
    name: String,
    /// The command prefix that runs a command in the end's namespace.
    there: Vec<String>,
}

impl Network {
    /// Creates a link if the medium uses one and this process may make it (see [`move_away`]), and
    /// uses loopback otherwise.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn of(medium: Medium, draw: &mut Draw) -> io::Result<Self> {
        let device = env::var("IBEX_TEST_DEVICE").ok();
        match medium {
            Medium::Device if is_in_guest_with_link() => Self::of_the_guest(),
            Medium::Device => {
                let why = "both ends are on one device".to_owned();
                Ok(Self {
                    far_device: device.clone(),
                    near_device: device,
                    ..Self::loopback(why, draw)?
                })
            }
            Medium::Memory => Self::loopback("shared memory has none".to_owned(), draw),
            Medium::Packets => match veth() {
                Ok((link, namespace)) => Ok(Self {
                    address: (FAR, PORT).into(),
                    far_namespace: Some(namespace),
                    far_device: None,
                    near_device: None,
                    link: Ok(link),
                }),
                Err(why) => Self::loopback(why.to_string(), draw),
            },
        }
    }

    fn loopback(why: String, draw: &mut Draw) -> io::Result<Self> {
        // Below the kernel's range of ephemeral ports (ip_local_port_range), so that no client gets
        // the port while the listening process is away.
        let port = (0..100).map(|_| draw.of(20_000..30_000) as u16);
        let mut free = port.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
        let port = free
            .next()
            .ok_or_else(|| io::Error::other("no port is free"))?;
        Ok(Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            far_namespace: None,
            far_device: None,
            near_device: None,
            link: Err(why),
        })
    }

    fn of_the_guest() -> io::Result<Self> {
        let there: Vec<_> = env::var("VM_PEER")
            .unwrap_or_default()
            .split_whitespace()
            .map(String::from)
            .collect();
        let namespace = there
            .last()
            .map(|name| PathBuf::from(format!("/run/netns/{name}")));
        let ends = ends(there);
        Ok(Self {
            address: (FAR, PORT).into(),
            far_namespace: namespace,
            far_device: Some("rxe1".to_owned()),
            near_device: Some("rxe0".to_owned()),
            link: Ok(Link::new(ends, None)),
        })
    }

    /// Checks that there is a link, which can be cut.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn has_link(&self) -> Result<(), String> {
        self.link.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Checks that the link's packets can be disturbed.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub fn has_netem(&self) -> Result<(), String> {
        match &self.link {
            Ok(link) if link.has_netem => Ok(()),
            Ok(_) => Err("this kernel has no netem".to_owned()),
            Err(why) => Err(why.clone()),
        }
    }

    /// Cuts the link: no packet passes.
    ///
    /// # Errors
    /// The output of the command that failed.
    pub fn cut(&self) -> io::Result<()> {
        self.set("down", "loss 100%")
    }

    /// Restores the link: every packet passes.
    ///
    /// # Errors
    /// The output of the command that failed.
    pub fn restore(&self) -> io::Result<()> {
        self.set("up", "")
    }

    /// Disturbs packets with these parameters of netem.
    ///
    /// # Errors
    /// The output of the command that failed.
    pub fn disturb(&self, how: &str) -> io::Result<()> {
        self.set("up", how)
    }

    fn set(&self, state: &str, netem: &str) -> io::Result<()> {
        let Ok(link) = &self.link else {
            return Ok(());
        };
        if link.has_netem {
            let command = format!("tc qdisc change dev {{}} root netem limit 100000 {netem}");
            return link.ends.iter().try_for_each(|end| end.run(&command));
        }
        // Changes the far end alone: the near one keeps its routes and loses its carrier.
        link.ends[1].run(&format!("ip link set dev {{}} {state}"))
    }
}

impl Link {
    fn new(ends: [End; 2], holder: Option<Process>) -> Self {
        let begin = "tc qdisc replace dev {} root netem limit 100000";
        let has_netem = ends.iter().all(|end| end.run(begin).is_ok());
        Self {
            ends,
            has_netem,
            _holder: holder,
        }
    }
}

impl End {
    /// Runs a command in the end's namespace; `{}` stands for the device.
    fn run(&self, command: &str) -> io::Result<()> {
        run(&self.there, &command.replace("{}", &self.name))
    }
}

/// Starts this program again in a network namespace of its own, where a link disturbs nobody.
/// Returns if that is not possible; the run then has no link.
pub fn move_away(medium: Medium) {
    if medium != Medium::Packets || !geteuid().is_root() || env::var_os(MOVED).is_some() {
        return;
    }
    if let Ok(program) = env::current_exe() {
        let mut command = Command::new("unshare");
        command
            .arg("--net")
            .arg(program)
            .args(env::args_os().skip(1))
            .env(MOVED, "1");
        eprintln!("no network namespace for a link: {}", command.exec());
    }
}

/// Moves this process, which must still be single-threaded, into a network namespace.
///
/// # Errors
/// The namespace does not exist, or this process may not enter it.
pub fn enter(namespace: &Path) -> io::Result<()> {
    let namespace = File::open(namespace)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Creates a pair of ends, the far one in another namespace.
fn veth() -> io::Result<(Link, PathBuf)> {
    if env::var_os(MOVED).is_none() {
        return Err(io::Error::other(
            "there is no namespace for one, which takes root's rights",
        ));
    }
    run(&[], "ip link set lo up")?;
    let mut command = Command::new("unshare");
    // The holder ends with its input, and therefore with this process at the latest.
    command
        .args(["--net", "sh", "-c", "echo && exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut holder = Process::start("unshare", &mut command)?;
    // The holder speaks from its new namespace, which exists by then.
    holder.stdout().read_exact(&mut [0])?;
    let pid = holder.id();
    let namespace = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let there: Vec<_> = ["nsenter", "-t", &pid.to_string(), "-n"]
        .map(String::from)
        .into();
    run(
        &[],
        &format!("ip link add v0 type veth peer name v1 netns {pid}"),
    )?;
    let ends = ends(there);
    for (end, address) in ends.iter().zip([NEAR, FAR]) {
        end.run(&format!("ip address add {address}/24 dev {{}}"))?;
        end.run("ip link set dev {} up")?;
    }
    ends[1].run("ip link set dev lo up")?;
    Ok((Link::new(ends, Some(holder)), namespace))
}

fn run(there: &[String], command: &str) -> io::Result<()> {
    let mut words = there
        .iter()
        .map(String::as_str)
        .chain(command.split_whitespace());
    let said = Command::new(words.next().expect("a command"))
        .args(words)
        .output()?;
    if said.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
    Err(io::Error::other(format!("`{command}`: {why}")))
}

fn is_in_guest_with_link() -> bool {
    let settings = fs::read_to_string("/run/vm/settings").unwrap_or_default();
    settings.lines().any(|line| line == "topology=pair")
}

// Addresses for documentation (RFC 5737), which no real network uses.
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 4100;

/// The environment variable that marks a program in a namespace of its own.
const MOVED: &str = "HARNESS_NAMESPACE";

/// Returns both ends of the pair; commands about the far one begin with `there`.
fn ends(there: Vec<String>) -> [End; 2] {
    [
        End {
            name: "v0".to_owned(),
            there: Vec::new(),
        },
        End {
            name: "v1".to_owned(),
            there,
        },
    ]
}

/// Disturbances by netem that still let packets pass.
pub const DISTURBANCES: &[&str] = &[
    "delay 1ms",
    "loss 1%",
    "delay 1ms reorder 25%",
    "duplicate 5%",
    "corrupt 1%",
];
