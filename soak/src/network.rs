//! Where the processes meet: on loopback, or over a link that can be cut and disturbed.
//!
//! The link is a veth pair whose far end lives in a network namespace of its own, with the
//! hub. Nothing of it has a name: the namespace goes with the process that holds it, and the
//! link with the namespace. In the guest of `cargo xtask vm --pair` there is one already,
//! with an RDMA device at each end.
#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use ibex_harness::draw::Draw;
use rustix::process::geteuid;

use crate::options::Carrier;

/// Where the hub is, how to get there, and what can be done on the way.
pub(crate) struct Network {
    pub(crate) hub_address: SocketAddr,
    pub(crate) hub_namespace: Option<PathBuf>,
    /// RDMA devices at the hub and at the senders.
    pub(crate) hub_device: Option<String>,
    pub(crate) sender_device: Option<String>,
    link: Result<Link, String>,
}

/// A link with two ends.
struct Link {
    ends: [End; 2],
    has_netem: bool,
    /// Lives for as long as the far namespace has to.
    _holder: Option<Holder>,
}

struct End {
    name: String,
    /// What a command begins with to run there.
    there: Vec<String>,
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Network {
    pub(crate) fn of(carrier: Carrier, draw: &mut Draw) -> io::Result<Self> {
        let device = env::var("IBEX_TEST_DEVICE").ok();
        match carrier {
            Carrier::Verbs if is_in_guest_with_link() => Self::of_the_guest(),
            Carrier::Verbs => {
                let why = "both ends are on one device".to_owned();
                Ok(Self {
                    hub_device: device.clone(),
                    sender_device: device,
                    ..Self::loopback(why, draw)?
                })
            }
            Carrier::Shm => Self::loopback("shared memory has none".to_owned(), draw),
            Carrier::Tcp => match veth() {
                Ok((link, namespace)) => Ok(Self {
                    hub_address: (FAR, PORT).into(),
                    hub_namespace: Some(namespace),
                    hub_device: None,
                    sender_device: None,
                    link: Ok(link),
                }),
                Err(why) => Self::loopback(why.to_string(), draw),
            },
        }
    }

    fn loopback(why: String, draw: &mut Draw) -> io::Result<Self> {
        // Below those that the kernel gives to whoever connects (ip_local_port_range), so
        // that nobody has it while the hub is away.
        let port = (0..100).map(|_| draw.of(20_000..30_000) as u16);
        let mut free = port.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
        let port = free
            .next()
            .ok_or_else(|| io::Error::other("no port is free"))?;
        Ok(Self {
            hub_address: (Ipv4Addr::LOCALHOST, port).into(),
            hub_namespace: None,
            hub_device: None,
            sender_device: None,
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
            hub_address: (FAR, PORT).into(),
            hub_namespace: namespace,
            hub_device: Some("rxe1".to_owned()),
            sender_device: Some("rxe0".to_owned()),
            link: Ok(Link::new(ends, None)),
        })
    }

    /// Whether it can be cut.
    pub(crate) fn has_link(&self) -> Result<(), String> {
        self.link.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Whether its packets can be disturbed.
    pub(crate) fn has_netem(&self) -> Result<(), String> {
        match &self.link {
            Ok(link) if link.has_netem => Ok(()),
            Ok(_) => Err("this kernel has no netem".to_owned()),
            Err(why) => Err(why.clone()),
        }
    }

    /// Nothing gets through any more.
    pub(crate) fn cut(&self) -> io::Result<()> {
        self.set("down", "loss 100%")
    }

    /// Everything does again.
    pub(crate) fn restore(&self) -> io::Result<()> {
        self.set("up", "")
    }

    /// Does that to packets, as netem says it.
    pub(crate) fn disturb(&self, how: &str) -> io::Result<()> {
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
        // The far end alone: the near one keeps its routes and loses its carrier.
        link.ends[1].run(&format!("ip link set dev {{}} {state}"))
    }
}

impl Link {
    fn new(ends: [End; 2], holder: Option<Holder>) -> Self {
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
    /// Runs a command there; `{}` stands for the device.
    fn run(&self, command: &str) -> io::Result<()> {
        run(&self.there, &command.replace("{}", &self.name))
    }
}

/// Has this program begin anew in a network namespace of its own, where a link disturbs
/// nobody. It comes back if that cannot be had; then the run does without.
pub(crate) fn move_away(carrier: Carrier) {
    if carrier != Carrier::Tcp || !geteuid().is_root() || env::var_os(MOVED).is_some() {
        return;
    }
    if let Ok(program) = env::current_exe() {
        let mut command = Command::new("unshare");
        command
            .arg("--net")
            .arg(program)
            .args(env::args_os().skip(1))
            .env(MOVED, "1");
        eprintln!("soak: no network namespace: {}", command.exec());
    }
}

/// A pair of ends, the far one in another namespace.
fn veth() -> io::Result<(Link, PathBuf)> {
    if env::var_os(MOVED).is_none() {
        return Err(io::Error::other(
            "there is no namespace for one, which takes root's rights",
        ));
    }
    run(&[], "ip link set lo up")?;
    let mut holder = Command::new("unshare");
    // It ends with its input, so with us in any case.
    holder
        .args(["--net", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut holder = Holder(holder.spawn()?);
    // It answers from where it is, so by then it is there.
    let (mut to, mut from) = (
        holder.0.stdin.as_ref().expect("a pipe"),
        holder.0.stdout.take().expect("a pipe"),
    );
    to.write_all(b"\n")?;
    io::Read::read_exact(&mut from, &mut [0])?;
    let pid = holder.0.id();
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

// Addresses for documentation (RFC 5737), which nobody's network uses.
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 4100;

/// Set where this program is in a namespace of its own.
const MOVED: &str = "SOAK_NAMESPACE";

/// Both ends of the pair; commands about the far one begin with `there`.
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
