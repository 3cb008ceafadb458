//! `ibex info`: fabrics, the choice among them, RDMA devices, and the device on a route.

use ibex::Fabric;
use serde::Serialize;

use crate::Failure;
use crate::config;
use crate::devices::{self, Device, Port};
use crate::options::InfoOptions;
use crate::page::{Page, Tone, print_json};
use crate::root::Root;
use crate::route::{self, Route};
use crate::session::{self, Taken};

const OTHER_HOST: &str = "a node of another host";
const NO_NODE: &str = "no node can be made in this environment";

/// Whether this build has sessions over RDMA.
const HAS_VERBS: bool = cfg!(feature = "verbs");

/// What the machine has.
#[derive(Debug, Serialize)]
pub(crate) struct Info {
    pub(crate) version: &'static str,
    pub(crate) kernel: Option<String>,
    /// Why no node can be made in this environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment_problem: Option<String>,
    pub(crate) fabrics: Vec<FabricInfo>,
    pub(crate) sessions: Vec<Expected>,
    pub(crate) devices: Vec<Device>,
    pub(crate) library: Library,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<Route>,
}

/// A fabric.
#[derive(Debug, Serialize)]
pub(crate) struct FabricInfo {
    pub(crate) name: String,
    pub(crate) is_usable: bool,
    pub(crate) reason: String,
}

/// The fabric that a session takes without policies.
#[derive(Debug, Serialize)]
pub(crate) struct Expected {
    pub(crate) peer: &'static str,
    /// `None` if there is no session.
    pub(crate) fabric: Option<String>,
    pub(crate) reason: String,
}

/// What libibverbs says of this machine.
#[derive(Debug, Serialize)]
pub(crate) struct Library {
    /// Set if this build asks libibverbs.
    pub(crate) is_asked: bool,
    /// The inventory as text, if there is one.
    pub(crate) inventory: Option<String>,
    /// What ibex uses of each device, or would use.
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) error: Option<String>,
    #[serde(skip)]
    has_usable_hardware: bool,
}

/// Something that ibex uses of a device.
#[derive(Debug, Serialize)]
pub(crate) struct Capability {
    pub(crate) device: String,
    pub(crate) name: &'static str,
    /// What the device has of it.
    pub(crate) value: u64,
    /// What follows if the device has less than ibex would use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consequence: Option<&'static str>,
}

/// Runs the subcommand.
pub(crate) fn run(options: &InfoOptions) -> Result<u8, Failure> {
    let root = Root::new(&options.common.root);
    if options.shell {
        return shell(&root, options);
    }
    let mut info = gather(&root);
    let find_route = |info: &Info| match (&options.to, &options.netdev) {
        (Some(host), _) => route::to_host(&root, &info.devices, host).map(Some),
        (None, Some(netdev)) => route::over_netdev(&root, &info.devices, netdev).map(Some),
        (None, None) => Ok(None),
    };
    if options.common.json {
        info.route = find_route(&info).map_err(Failure::said)?;
        print_json(&info)?;
        return Ok(info.code());
    }
    let mut page = Page::for_output();
    show(&info, &mut page);
    // A name may take long to resolve, so that what is known comes first.
    page.print()?;
    if let Some(route) = find_route(&info).map_err(Failure::said)? {
        show_route(&route, &info, &mut page);
        page.print()?;
    }
    Ok(info.code())
}

impl Info {
    /// Returns the reason against verbs if there is one. It may be long, so that it is printed once.
    fn against_verbs(&self) -> Option<&str> {
        let name = Fabric::Verbs.to_string();
        let verbs = self.fabrics.iter().find(|fabric| fabric.name == name)?;
        (!verbs.is_usable).then_some(verbs.reason.as_str())
    }

    /// Returns the exit code.
    fn code(&self) -> u8 {
        match self.environment_problem {
            Some(_) => 3,
            None => 0,
        }
    }
}

/// Gathers everything but the route.
pub(crate) fn gather(root: &Root) -> Info {
    let devices = devices::devices(root);
    let library = Library::ask(root);
    let environment_problem = match root.is_machine() {
        true => config::node_of_environment().err().map(|found| found.seen),
        false => None,
    };
    // The sentence itself stands above all that follows from it.
    let obstacle = environment_problem.as_ref().map(|_| NO_NODE.to_owned());
    let taken = match &obstacle {
        Some(why) => Some(Err(why.clone())),
        None => root.is_machine().then(session::on_this_host),
    };
    let verbs = match &obstacle {
        Some(why) => Err(why.clone()),
        None => verbs(&devices, &library),
    };
    let others = match &obstacle {
        Some(why) => no_session(OTHER_HOST, why.clone()),
        None => with_others(verbs.clone()),
    };
    let mut fabrics = vec![shm(taken.as_ref())];
    fabrics.push(FabricInfo {
        name: Fabric::Tcp.to_string(),
        is_usable: obstacle.is_none(),
        reason: obstacle.unwrap_or_else(|| "every machine has it".to_owned()),
    });
    fabrics.push(FabricInfo {
        name: Fabric::Verbs.to_string(),
        is_usable: verbs.is_ok(),
        reason: verbs.unwrap_or_else(|why| why),
    });
    Info {
        version: env!("CARGO_PKG_VERSION"),
        kernel: root.read("/proc/sys/kernel/osrelease"),
        environment_problem,
        fabrics,
        sessions: vec![on_this_host(taken), others],
        devices,
        library,
        route: None,
    }
}

fn shm(taken: Option<&Result<Taken, String>>) -> FabricInfo {
    let name = Fabric::Shm.to_string();
    let (is_usable, reason) = match taken {
        None => (
            true,
            "not tried: these are the files of another machine".to_owned(),
        ),
        Some(Ok(taken)) if taken.fabric == name => (
            true,
            "two nodes of this process shared memory just now".to_owned(),
        ),
        Some(Ok(taken)) => (false, taken.reason.clone()),
        Some(Err(error)) => (false, error.clone()),
    };
    FabricInfo {
        name,
        is_usable,
        reason,
    }
}

fn on_this_host(taken: Option<Result<Taken, String>>) -> Expected {
    let peer = "a node of this host and user";
    match taken {
        None => Expected {
            peer,
            fabric: Some(Fabric::Shm.to_string()),
            reason: "not tried: these are the files of another machine".to_owned(),
        },
        Some(Ok(taken)) => {
            let variables = match taken.environment.is_empty() {
                true => String::new(),
                false => format!(" (the environment sets {})", taken.environment.join(", ")),
            };
            Expected {
                peer,
                fabric: Some(taken.fabric),
                reason: format!("a session just now: {}{variables}", taken.reason),
            }
        }
        Some(Err(error)) => no_session(peer, error),
    }
}

fn no_session(peer: &'static str, why: String) -> Expected {
    Expected {
        peer,
        fabric: None,
        reason: why,
    }
}

fn with_others(verbs: Result<String, String>) -> Expected {
    let peer = OTHER_HOST;
    match verbs {
        Ok(why) => Expected {
            peer,
            fabric: Some(Fabric::Verbs.to_string()),
            reason: format!("{why}; if the other host has such a device too, and tcp otherwise"),
        },
        Err(why) => Expected {
            peer,
            fabric: Some(Fabric::Tcp.to_string()),
            reason: format!("no verbs: {why}"),
        },
    }
}

/// Returns why a session with another host can take verbs, or why not.
fn verbs(devices: &[Device], library: &Library) -> Result<String, String> {
    if devices.is_empty() && !library.is_asked {
        return Err("this machine has no RDMA device".to_owned());
    }
    if !HAS_VERBS {
        return Err("this build of the command lacks the feature `verbs`".to_owned());
    }
    if let Some(error) = &library.error {
        return Err(error.clone());
    }
    let active = |device: &&Device| device.ports.iter().any(Port::is_active);
    let mut hardware = devices
        .iter()
        .filter(active)
        .filter(|device| device.is_hardware);
    match hardware.next() {
        Some(device) => Ok(format!(
            "{} is hardware and has an active port{}",
            device.name,
            rails(devices)
        )),
        None if library.has_usable_hardware => Ok("libibverbs shows a hardware device".to_owned()),
        None if devices.iter().any(|device| active(&device)) => Err(
            "the RDMA device is software, which is slower than tcp; a policy or IBEX_FABRICS=verbs \
             takes it"
                .to_owned(),
        ),
        None => Err("no RDMA device has an active port".to_owned()),
    }
}

/// Tells of the further ports of hardware that may be the rails of a session.
fn rails(devices: &[Device]) -> String {
    let hardware = devices.iter().filter(|device| device.is_hardware);
    let ports = hardware.flat_map(|device| &device.ports);
    let active = ports.filter(|port| port.is_active()).count();
    match active {
        0 | 1 => String::new(),
        _ => ", and large messages may go over another (max_rails)".to_owned(),
    }
}

impl Library {
    #[cfg(feature = "verbs")]
    fn ask(root: &Root) -> Self {
        use ibex_verbs::discovery::DeviceKind;

        if !root.is_machine() {
            return Self::not_asked();
        }
        let (inventory, error) = match ibex::rdma::discover() {
            Ok(inventory) => (Some(inventory), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let devices = inventory.iter().flat_map(|inventory| &inventory.devices);
        let mut hardware = devices.filter(|device| device.kind != DeviceKind::Software);
        Self {
            is_asked: true,
            has_usable_hardware: hardware.any(|device| {
                device
                    .ports()
                    .any(ibex_verbs::discovery::PortInfo::is_active)
            }),
            capabilities: inventory.iter().flat_map(capabilities).collect(),
            inventory: inventory.map(|inventory| inventory.to_string()),
            error,
        }
    }

    #[cfg(not(feature = "verbs"))]
    fn ask(_: &Root) -> Self {
        Self::not_asked()
    }

    fn not_asked() -> Self {
        Self {
            is_asked: false,
            inventory: None,
            capabilities: Vec::new(),
            error: None,
            has_usable_hardware: false,
        }
    }
}

/// Returns what ibex uses of the devices that can be opened.
#[cfg(feature = "verbs")]
fn capabilities(inventory: &ibex::rdma::Inventory) -> Vec<Capability> {
    let opened = inventory.devices.iter().filter_map(|device| {
        let details = device.details.as_ref().ok()?;
        Some((&device.name, &details.attributes))
    });
    let each = opened.flat_map(|(device, limits)| capabilities_of(device, limits));
    each.collect()
}

#[cfg(feature = "verbs")]
fn capabilities_of(
    device: &str,
    limits: &ibex_verbs::provider::DeviceAttributes,
) -> [Capability; 6] {
    // Name, what the device has, what the default settings use, and what follows of less.
    let uses: [(_, u64, u64, _); 6] = [
        (
            "shared receive queues",
            limits.max_shared_receive_queues.into(),
            1,
            "each session takes receive buffers of its own, so fewer sessions fit",
        ),
        (
            "receives in a shared queue",
            limits.max_shared_receive_requests.into(),
            8192,
            "fewer spare buffers are posted, so messages that a program holds are copied",
        ),
        (
            "pieces of a send",
            limits.max_entries.into(),
            3,
            "what a frame has beyond them is copied first",
        ),
        (
            "queue pairs",
            limits.max_queue_pairs.into(),
            256,
            "a node has no more sessions over this device; others take tcp",
        ),
        (
            "completions in a queue",
            limits.max_completions.into(),
            41_472,
            "a node has fewer sessions over this device; others take tcp",
        ),
        (
            "completion vectors",
            limits.completion_vectors.into(),
            2,
            "all nodes are woken by one interrupt, on one core",
        ),
    ];
    uses.map(|(name, value, used, consequence)| Capability {
        device: device.to_owned(),
        name,
        value,
        consequence: (value < used).then_some(consequence),
    })
}

/// Adds everything but the route.
pub(crate) fn show(info: &Info, page: &mut Page) {
    if let Some(why) = &info.environment_problem {
        page.row(0, "problem", 8, Tone::Bad, why);
    }
    page.title("Fabrics");
    for fabric in &info.fabrics {
        let (tone, word) = match fabric.is_usable {
            true => (Tone::Good, "yes"),
            false => (Tone::Warning, "no"),
        };
        let label = format!("{:<7}{word}", fabric.name);
        page.row(2, &label, 12, tone, &fabric.reason);
    }
    let against = info.against_verbs();
    page.title("What a session takes");
    for session in &info.sessions {
        let fabric = session.fabric.as_deref().unwrap_or("none");
        let label = format!("with {}", session.peer);
        let reason = match against {
            Some(why) if session.fabric.is_some() => session.reason.replace(why, "see verbs above"),
            _ => session.reason.clone(),
        };
        page.row(2, &label, 36, Tone::Plain, &format!("{fabric}: {reason}"));
    }
    page.title("RDMA devices");
    if info.devices.is_empty() {
        page.text(
            2,
            "none in /sys/class/infiniband; `ibex doctor` says whether one should be there",
        );
    }
    for device in &info.devices {
        show_device(device, page);
    }
    match (&info.library.inventory, &info.library.error) {
        (Some(inventory), _) => {
            page.title("RDMA devices as libibverbs shows them");
            page.text(2, inventory.trim_end());
            page.title("What ibex uses of them");
            for one in &info.library.capabilities {
                let tone = match one.consequence {
                    Some(_) => Tone::Warning,
                    None => Tone::Good,
                };
                let consequence = one.consequence.map(|text| format!(": {text}"));
                let text = format!("{}{}", one.value, consequence.unwrap_or_default());
                page.row(2, &format!("{} {}", one.device, one.name), 36, tone, &text);
            }
        }
        (None, Some(error)) => {
            let error = match against == Some(error) {
                true => "see verbs above",
                false => error,
            };
            page.row(2, "libibverbs", 12, Tone::Warning, error);
        }
        (None, None) => page.row(
            2,
            "libibverbs",
            12,
            Tone::Plain,
            "not asked: this build lacks the feature `verbs`, or the files are another machine's",
        ),
    }
}

fn show_device(device: &Device, page: &mut Page) {
    let kind = match device.is_hardware {
        true => "hardware",
        false => "software",
    };
    let mut facts = vec![kind.to_owned()];
    let mut fact = |name: &str, value: &Option<String>| {
        facts.extend(value.as_ref().map(|value| format!("{name} {value}")));
    };
    fact("driver", &device.driver);
    fact(
        "at",
        &device.bus_address.clone().filter(|_| device.is_hardware),
    );
    fact("firmware", &device.firmware);
    fact("board", &device.board);
    fact("GUID", &device.node_guid);
    fact("NUMA node", &device.numa_node.map(|node| node.to_string()));
    facts.push(match (&device.device_file, device.is_openable) {
        (Some(file), true) => file.clone(),
        (Some(file), false) => format!("{file} (cannot be opened here)"),
        (None, _) => "no device file (ib_uverbs is not loaded)".to_owned(),
    });
    page.row(2, &device.name, 8, Tone::Title, &facts.join(", "));
    for port in &device.ports {
        let mut facts = vec![port.state.clone(), port.link_layer.clone()];
        let physical = port.physical_state.iter().filter(|_| !port.is_active());
        facts.extend(physical.map(|state| format!("physically {state}")));
        facts.extend(port.speed.clone());
        facts.extend(port.mtu_bytes.map(|mtu| format!("MTU {mtu}")));
        facts.extend(port.lid.as_ref().map(|lid| format!("LID {lid}")));
        if !port.netdevs.is_empty() {
            let mtu = port
                .netdev_mtu_bytes
                .map_or_else(String::new, |mtu| format!(" (MTU {mtu})"));
            facts.push(format!("on {}{mtu}", port.netdevs.join(", ")));
        }
        facts.push(format!("P_Keys {}", port.partition_keys.join(" ")));
        let tone = if port.is_active() {
            Tone::Good
        } else {
            Tone::Warning
        };
        page.row(
            4,
            &format!("port {}", port.number),
            8,
            tone,
            &facts.join(", "),
        );
        for gid in &port.gids {
            let mut text = gid.gid.to_string();
            text.extend(gid.kind.iter().map(|kind| format!(", {kind}")));
            text.extend(gid.netdev.iter().map(|netdev| format!(", on {netdev}")));
            page.row(6, &format!("GID {}", gid.index), 8, Tone::Plain, &text);
        }
    }
}

fn show_route(route: &Route, info: &Info, page: &mut Page) {
    page.title(&format!("Route to {}", route.asked_for));
    if let Some(address) = route.local_address {
        page.row(2, "from", 8, Tone::Plain, &address.to_string());
    }
    let over = match route.netdevs.as_slice() {
        [] => "no network interface has this address".to_owned(),
        [netdev] => netdev.clone(),
        [netdev, below @ ..] => format!("{netdev}, which stands on {}", below.join(", ")),
    };
    page.row(2, "over", 8, Tone::Plain, &over);
    let rdma = match &route.choice {
        Ok(choice) => format!(
            "{} port {} with GID [{}] {}{}: {}",
            choice.device,
            choice.port,
            choice.gid_index,
            choice.gid,
            choice
                .mtu_bytes
                .map_or_else(String::new, |mtu| format!(" and MTU {mtu}")),
            choice.reason
        ),
        Err(why) if info.against_verbs() == Some(why) => "none: see verbs above".to_owned(),
        Err(why) => format!("none: {why}"),
    };
    page.row(2, "RDMA", 8, Tone::Plain, &rdma);
    page.row(2, "session", 8, Tone::Plain, &expected(route, info));
}

/// Says which fabric a session takes over a route.
fn expected(route: &Route, info: &Info) -> String {
    if route.is_this_host {
        let here = &info.sessions[0];
        let fabric = here.fabric.as_deref().unwrap_or("none");
        return format!(
            "{fabric} with a node of this user, since the host is this one; {}",
            here.reason
        );
    }
    match (&route.choice, HAS_VERBS) {
        (Ok(choice), true) if choice.is_hardware => {
            "verbs if the other host has RDMA hardware too, and tcp otherwise".to_owned()
        }
        (Ok(choice), true) => {
            format!(
                "tcp: {} is software, which is slower than tcp",
                choice.device
            )
        }
        (Ok(_), false) => "tcp from this build, which lacks the feature `verbs`".to_owned(),
        (Err(_), _) => "tcp, since there is no RDMA on this route".to_owned(),
    }
}

/// Prints the choice for a shell script.
fn shell(root: &Root, options: &InfoOptions) -> Result<u8, Failure> {
    let devices = devices::devices(root);
    let route = match (&options.to, &options.netdev) {
        (Some(host), _) => route::to_host(root, &devices, host),
        (None, Some(netdev)) => route::over_netdev(root, &devices, netdev),
        (None, None) => {
            return Err(Failure::usage(
                "--shell needs --to HOST or --netdev IF: it prints the choice for a route",
            ));
        }
    };
    match route.map_err(Failure::said)?.choice {
        Ok(choice) => {
            let mtu = choice
                .mtu_index()
                .map_or_else(String::new, |index| index.to_string());
            let (device, port, gid) = (&choice.device, choice.port, choice.gid_index);
            let line =
                format!("device_name={device} ib_port={port} gid_index={gid} mtu_index={mtu}\n");
            crate::print(&line)?;
            Ok(0)
        }
        Err(why) => {
            eprintln!("{why}");
            Ok(4)
        }
    }
}

#[cfg(all(test, feature = "verbs"))]
mod tests {
    use ibex_verbs::provider::DeviceAttributes;

    use super::*;

    #[test]
    fn a_capability_that_is_missing_has_a_consequence() {
        let limits = DeviceAttributes {
            max_queue_pairs: 1 << 17,
            max_entries: 2,
            max_completions: 1 << 22,
            completion_vectors: 16,
            max_shared_receive_requests: 1 << 15,
            ..DeviceAttributes::default()
        };
        let all = capabilities_of("mlx5_0", &limits);
        let missing = all.iter().filter(|one| one.consequence.is_some());
        let missing: Vec<_> = missing.map(|one| one.name).collect();
        assert_eq!(missing, ["shared receive queues", "pieces of a send"]);
    }
}
