//! A node's RDMA devices as its handshakes use them: the choice of a device for a connection, and
//! queue pairs on it.
//!
//! Rules:
//! 1. Nothing is loaded, listed or opened before the first session that could use it, unless
//!    verbs is required.
//! 2. Everything here may take milliseconds. Threads that wait in any case call it, never a turn of
//!    an engine.
//! 3. Each engine has an [`RdmaPort`] of its own for each device port that one of its sessions goes
//!    over. The engine's thread makes the queues and buffers of that, so that their memory is near
//!    the cores that read it.
//! 4. RDMA ports are opened one at a time, without the lock on our state: a turn may want that
//!    lock, and opening waits for the engine's thread.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use ibex_base::sync::lock;
use ibex_bootstrap::{PairRequest, VerbsDevice, VerbsDevices, VerbsPair, negotiate::Party};
use ibex_ring::memory::HugePages;
use ibex_transport::{
    rdma::{PortOpening, RdmaPort},
    runtime::Runtime,
};
use ibex_verbs::{
    ForkReport, VerbsError,
    discovery::{self, Choice, DeviceInfo, DeviceKind, Inventory, Sysfs, Wish},
    provider::{Libibverbs, Provider},
};

use super::{
    RdmaSettings,
    node_pair::{Coming, ComingPair, NodePair, text},
};
use crate::accept_placement::AcceptPlacement;

/// The RDMA devices of a node, and its RDMA ports on them.
#[derive(Debug)]
pub(crate) struct NodeDevices {
    settings: RdmaSettings,
    /// The program's wish for sessions that peers dial.
    placement: Option<AcceptPlacement>,
    state: Mutex<State>,
    /// Held while an RDMA port is opened.
    opening: Mutex<()>,
    /// Queue pairs by engine that are on their way to a session.
    coming: Arc<Coming>,
    /// The runtime that looks after an open device before there are sessions.
    runtime: OnceLock<Weak<Runtime>>,
}

#[derive(Debug, Default)]
struct State {
    provider: Option<Arc<dyn Provider>>,
    sysfs: Sysfs,
    /// The inventory, with the moment when it was taken.
    inventory: Option<(Instant, Inventory)>,
    /// The open RDMA ports, each with the choice that led to it.
    rdma_ports: Vec<(Choice, Arc<RdmaPort>)>,
}

/// The devices for sessions that are to be on one engine.
#[derive(Debug)]
pub(crate) struct DevicesOfEngine {
    devices: Arc<NodeDevices>,
    engine: usize,
}

/// Devices come and go, and so do addresses. But strangers that connect must not make the node list
/// them all the time.
const INVENTORY_LASTS: Duration = Duration::from_secs(1);

impl NodeDevices {
    pub(crate) fn new(settings: RdmaSettings, placement: Option<AcceptPlacement>) -> Self {
        let state = State {
            #[cfg(feature = "fake-device")]
            provider: settings.provider.clone(),
            #[cfg(feature = "fake-device")]
            sysfs: settings.sysfs.clone().unwrap_or_default(),
            ..State::default()
        };
        Self {
            settings,
            placement,
            state: Mutex::new(state),
            opening: Mutex::default(),
            coming: Arc::default(),
            runtime: OnceLock::new(),
        }
    }

    /// Returns the devices for sessions that are to be on `engine`.
    pub(crate) fn of_engine(self: &Arc<Self>, engine: usize) -> DevicesOfEngine {
        let devices = self.clone();
        DevicesOfEngine { devices, engine }
    }

    /// Hands the RDMA ports that will be opened to the engines of a node.
    pub(crate) fn entrust_to(&self, runtime: &Arc<Runtime>) {
        let _ = self.runtime.set(Arc::downgrade(runtime));
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.get().and_then(Weak::upgrade)
    }

    /// Call this without the lock on our state: the thread that has the engine's lock may want it.
    fn entrust(&self, rdma_port: &Arc<RdmaPort>) {
        if let Some(runtime) = self.runtime()
            && let Err(error) = runtime.care_for(rdma_port)
        {
            tracing::debug!(device = rdma_port.device(), %error, "no engine takes an RDMA device");
        }
    }

    /// Makes sure that there is a device for sessions at `listen`, or for any without it,
    /// and opens it for the first engine if no other could be meant.
    pub(crate) fn require(&self, listen: Option<IpAddr>) -> Result<(), VerbsError> {
        let routed = listen.filter(|address| !address.is_loopback() && !address.is_unspecified());
        let (choice, active_ports) = {
            let mut state = self.state();
            let inventory = state.inventory()?;
            let choice = self.choose(inventory, routed.unwrap_or(Ipv4Addr::LOCALHOST.into()))?;
            (choice, active_ports(inventory))
        };
        let is_settled = routed.is_some() || self.settings.device.is_some();
        if is_settled || active_ports == 1 {
            let rdma_port = self.rdma_port(choice, 0)?;
            self.entrust(&rdma_port);
        }
        Ok(())
    }

    /// Returns the RDMA port of an engine for this choice, opened if there is none.
    fn rdma_port(&self, choice: Choice, engine: usize) -> Result<Arc<RdmaPort>, VerbsError> {
        if let Some(rdma_port) = self.state().open_port(&choice, engine) {
            return Ok(rdma_port);
        }
        let _opening = self.begin_opening(&choice)?;
        let (provider, near) = {
            let mut state = self.state();
            if let Some(rdma_port) = state.open_port(&choice, engine) {
                return Ok(rdma_port);
            }
            (state.provider()?, state.near_cores(&choice.device))
        };
        let report = ForkReport::now(&provider);
        let opened = self.open(&provider, &choice, engine, near);
        // The device may have gone since the inventory was taken.
        let rdma_port = opened.inspect_err(|_| self.state().inventory = None)?;
        tracing::info!(device = %choice, engine, pages = %HugePages::of_system(), "RDMA device opened");
        report.log(&choice.device);
        self.state().rdma_ports.push((choice, rdma_port.clone()));
        Ok(rdma_port)
    }

    /// Waits until no other RDMA port is opened. An engine's thread does not wait, because another
    /// opening may wait for that thread. It gets here only if the process can have no more threads.
    fn begin_opening(&self, choice: &Choice) -> Result<MutexGuard<'_, ()>, VerbsError> {
        if !self.runtime().is_some_and(|it| it.is_engine_thread()) {
            return Ok(lock(&self.opening));
        }
        match self.opening.try_lock() {
            Ok(opening) => Ok(opening),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(VerbsError::Other(
                format!(
                    "RDMA device {} cannot be opened while another session opens one, as no \
                     thread can be started to wait for that",
                    choice.device
                )
                .into(),
            )),
        }
    }

    /// Opens an RDMA port: its queues on the thread of its engine, which stays `near` the device.
    fn open(
        &self,
        provider: &Arc<dyn Provider>,
        choice: &Choice,
        engine: usize,
        near: Vec<usize>,
    ) -> Result<Arc<RdmaPort>, VerbsError> {
        let opening = PortOpening::begin(provider, choice, self.settings.resources(engine))?;
        let Some(runtime) = self.runtime() else {
            return opening.finish();
        };
        let opened = runtime.on_engine_thread(engine, near, || opening.finish());
        opened.unwrap_or_else(|| {
            let device = choice.device.clone();
            Err(VerbsError::Closed { device })
        })
    }

    /// Chooses the engine of a session: the engine that has the session, or that the program wants,
    /// or the least loaded.
    fn engine(&self, request: &PairRequest, wanted: Option<usize>) -> (usize, Option<ComingPair>) {
        let Some(runtime) = self.runtime() else {
            return (0, None);
        };
        let dials = request.end == Party::Dialer;
        let has = |session| runtime.engine_of(&session, dials);
        if let Some(engine) = request.resumes.and_then(has) {
            return (engine.index(), None);
        }
        let coming = self.coming.place(&runtime.loads(), wanted);
        (coming.engine, Some(coming))
    }

    /// Makes a queue pair on an RDMA port of the session's engine.
    fn prepare_on(
        &self,
        request: &PairRequest,
        wanted: Option<usize>,
    ) -> Result<Box<dyn VerbsPair>, String> {
        let is_trusted = self.settings.trusts(request.peer.ip());
        let (engine, coming) = self.engine(request, wanted);
        let choice = self.choice(&mut self.state(), request.local);
        let rdma_port = choice.and_then(|choice| self.rdma_port(choice, engine));
        let rdma_port = rdma_port.map_err(text)?;
        self.entrust(&rdma_port);
        let pair = rdma_port
            .prepare_for(request.end == Party::Dialer, is_trusted)
            .map_err(|error| {
                // The port may be down or an address gone.
                self.state().forget_inventory();
                text(error)
            })?;
        Ok(Box::new(NodePair::new(pair, coming)?))
    }

    /// Returns the place for a connection with this address of the node.
    fn choice(&self, state: &mut State, local: IpAddr) -> Result<Choice, VerbsError> {
        state.forget_lost_ports();
        if local.is_loopback()
            && let Some((choice, _)) = state.rdma_ports.first()
        {
            // Every port of this host serves a session within it, and this one is open.
            return Ok(choice.clone());
        }
        let chosen = self.choose(state.inventory()?, local);
        if chosen.is_ok() || !state.forget_inventory() {
            return chosen;
        }
        self.choose(state.inventory()?, local)
    }

    fn choose(&self, inventory: &Inventory, local: IpAddr) -> Result<Choice, VerbsError> {
        let RdmaSettings {
            device,
            port,
            gid_index,
            partition_key,
            ..
        } = &self.settings;
        let routed = match local.is_loopback() {
            true => any(inventory),
            false => inventory.choose(&Wish::Address(local)),
        };
        let place = match (device, &routed) {
            (Some(device), _) => Some((device.clone(), *port)),
            (None, Ok(routed)) if port.is_some() || gid_index.is_some() => {
                Some((routed.device.clone(), port.or(Some(routed.port))))
            }
            (None, _) => None,
        };
        let mut choice = match place {
            None => routed?,
            Some((name, port)) => {
                let wish = Wish::Device {
                    name,
                    port,
                    gid_index: *gid_index,
                };
                let mut named = inventory.choose(&wish)?;
                // The route may lead over another port, whose partitions are none of this one's.
                named.partition_key = routed
                    .ok()
                    .filter(|routed| is_at_same_port(routed, &named))
                    .and_then(|routed| routed.partition_key);
                named
            }
        };
        choice.partition_key = partition_key.or(choice.partition_key);
        Ok(choice)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Returns the machine's devices, looked up again if the list is old.
    fn inventory(&mut self) -> Result<&Inventory, VerbsError> {
        if self.inventory.is_none() {
            let taken = discovery::discover(&self.provider()?, &self.sysfs)?;
            self.inventory = Some((Instant::now(), taken));
        }
        match &self.inventory {
            Some((_, inventory)) => Ok(inventory),
            None => unreachable!("it was taken above"),
        }
    }

    /// Forgets an old list of devices. Returns whether another look may show something else.
    fn forget_inventory(&mut self) -> bool {
        let is_old = |(taken, _): &mut (Instant, Inventory)| taken.elapsed() > INVENTORY_LASTS;
        self.inventory.take_if(is_old).is_some()
    }

    fn provider(&mut self) -> Result<Arc<dyn Provider>, VerbsError> {
        let provider = match self.provider.take() {
            Some(provider) => provider,
            None => Arc::new(Libibverbs::load()?),
        };
        Ok(self.provider.insert(provider).clone())
    }

    /// Returns the open RDMA port of an engine for this choice.
    fn open_port(&mut self, choice: &Choice, engine: usize) -> Option<Arc<RdmaPort>> {
        self.forget_lost_ports();
        let serves = |(ours, rdma_port): &&(Choice, Arc<RdmaPort>)| {
            rdma_port.engine() == engine
                && is_at_same_port(ours, choice)
                && is_in(rdma_port, choice)
        };
        self.rdma_ports
            .iter()
            .find(serves)
            .map(|(_, rdma_port)| rdma_port.clone())
    }

    /// Returns the cores of a device's NUMA node, as the last list of devices has them.
    fn near_cores(&self, device: &str) -> Vec<usize> {
        let listed = self.inventory.iter().flat_map(|(_, it)| &it.devices);
        let found = listed.into_iter().find(|listed| listed.name == device);
        found.map_or_else(Vec::new, |found| found.near_cores.clone())
    }

    /// Forgets RDMA ports that are lost, and the list of devices with them.
    fn forget_lost_ports(&mut self) {
        let before = self.rdma_ports.len();
        self.rdma_ports
            .retain(|(_, rdma_port)| !rdma_port.is_lost());
        if self.rdma_ports.len() < before {
            self.inventory = None;
        }
    }
}

impl VerbsDevices for NodeDevices {
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String> {
        let mut state = self.state();
        let choice = self.choice(&mut state, local).map_err(text)?;
        Ok(VerbsDevice {
            // If /sys is hidden, the kind is unknown, and RDMA has to be asked for.
            hardware: choice.kind == DeviceKind::Hardware,
            name: choice.device,
        })
    }

    fn prepare(&self, request: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        let wanted = match (&self.placement, request.offered) {
            (Some(placement), Some(who)) => placement
                .place(who, request.peer)
                .map_err(|panic| format!("the program's place_accepted panicked: {panic}"))?,
            _ => None,
        };
        self.prepare_on(request, wanted)
    }
}

impl VerbsDevices for DevicesOfEngine {
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String> {
        self.devices.device(local)
    }

    fn prepare(&self, request: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        self.devices.prepare_on(request, Some(self.engine))
    }
}

/// Returns any usable place, on hardware if there is some. Both ends of a connection over the
/// loopback interface are on this host, which each of its devices can reach.
fn any(inventory: &Inventory) -> Result<Choice, VerbsError> {
    let mut devices: Vec<_> = inventory.devices.iter().collect();
    devices.sort_by_key(|device| device.kind != DeviceKind::Hardware);
    let mut first_error = None;
    for device in devices {
        let wish = Wish::Device {
            name: device.name.clone(),
            port: None,
            gid_index: None,
        };
        match inventory.choose(&wish) {
            Ok(mut choice) => {
                choice.reason = "the connection is within this host".to_owned();
                return Ok(choice);
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or(VerbsError::NoDevice { hidden: None }))
}

fn is_at_same_port(one: &Choice, other: &Choice) -> bool {
    (&one.device, one.port) == (&other.device, other.port)
}

/// Returns whether sessions of an RDMA port are in the partition that a choice names, if it names
/// one.
fn is_in(rdma_port: &RdmaPort, choice: &Choice) -> bool {
    match (choice.partition_key, rdma_port.partition_key()) {
        (Some(wanted), Some(key)) => wanted.is_of_same_partition(key),
        _ => true,
    }
}

fn active_ports(inventory: &Inventory) -> usize {
    let ports = inventory.devices.iter().flat_map(DeviceInfo::ports);
    ports.filter(|port| port.is_active()).count()
}

#[cfg(all(test, feature = "fake-device"))]
mod tests {
    use ibex_verbs::{
        Gid,
        provider::fake::{FakeDevice, FakeProvider},
    };

    use super::*;

    #[test]
    fn queue_pairs_are_in_the_partition_of_the_settings_and_the_peer_is_told() {
        let mut device = FakeDevice::infiniband("mlx5_0", 3);
        device.ports[0].pkeys = vec![0xffff, 0x8001];
        device.ports[0].attributes.pkey_table_len = 2;
        let fake = FakeProvider::new(vec![device]);
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let prepared = |settings: RdmaSettings| {
            let devices = NodeDevices::new(settings.on_fake(&fake, |_| ()), None);
            let pair = devices.prepare(&PairRequest {
                local,
                peer: (local, 7000).into(),
                offered: None,
                end: Party::Dialer,
                resumes: None,
            })?;
            Ok::<_, String>(pair.endpoint().address.partition_key)
        };
        let settings = RdmaSettings::new();
        assert_eq!(prepared(settings.clone()), Ok(0xffff));
        assert_eq!(prepared(settings.clone().partition_key(0x8001)), Ok(0x8001));
        let refused = prepared(settings.partition_key(0x8002)).unwrap_err();
        let says = "is not in partition 0x8002: its table of partition keys has 0xffff, 0x8001";
        assert!(refused.contains(says), "{refused}");
    }

    /// A session goes over the port that its route leads to, independent of other sessions, and
    /// each engine has an [`RdmaPort`] of its own there.
    #[test]
    fn a_node_has_a_port_for_each_engine_on_each_port_that_is_chosen() {
        let cards = [("left", [192, 0, 2, 1]), ("right", [198, 51, 100, 1])];
        let fake = cards.map(|(name, address)| FakeDevice::soft_roce(name, 0, address));
        let fake = FakeProvider::new(fake.to_vec());
        let devices = NodeDevices::new(RdmaSettings::new().on_fake(&fake, |_| ()), None);
        let rdma_port = |name: &str, engine| {
            let wish = Wish::Device {
                name: name.to_owned(),
                port: None,
                gid_index: None,
            };
            let choice = devices.state().inventory().unwrap().choose(&wish).unwrap();
            devices.rdma_port(choice, engine).unwrap()
        };
        for engine in [0, 1, 1] {
            for (name, address) in cards {
                let rdma_port = rdma_port(name, engine);
                assert_eq!((rdma_port.engine(), rdma_port.device()), (engine, name));
                let gid = rdma_port.prepare(true).unwrap().endpoint().pair.gid;
                assert_eq!(gid, Gid::of(IpAddr::from(address)));
            }
        }
        assert_eq!(
            devices.state().rdma_ports.len(),
            4,
            "two engines on two ports"
        );
        // Every port serves a session within this host: one that is open is taken.
        let within = devices.choice(&mut devices.state(), Ipv4Addr::LOCALHOST.into());
        assert_eq!(within.unwrap().device, "left");
    }
}
