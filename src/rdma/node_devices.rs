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
    rdma::{PortOpening, PreparedPair, PreparedRail, RdmaPort},
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
    inventory: Option<Listed>,
    /// The open RDMA ports, each with the choice that led to it.
    rdma_ports: Vec<(Choice, Arc<RdmaPort>)>,
}

/// The machine's devices, at one moment.
#[derive(Debug)]
struct Listed {
    taken: Instant,
    inventory: Inventory,
    /// The places that could not be opened for rails. They are not tried again for each session,
    /// since opening a device may take a second.
    refused: Vec<Choice>,
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
            let rdma_port = self.own_port(choice, 0)?;
            self.entrust(&rdma_port);
        }
        Ok(())
    }

    /// Returns the RDMA port of an engine for this choice, and lists the devices again if it cannot
    /// be opened: the device may have gone since they were listed.
    fn own_port(&self, choice: Choice, engine: usize) -> Result<Arc<RdmaPort>, VerbsError> {
        let rdma_port = self.rdma_port(choice, engine);
        rdma_port.inspect_err(|_| self.state().inventory = None)
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
        let rdma_port = self.open(&provider, &choice, engine, near)?;
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
        let choice = choice.map_err(text)?;
        let rdma_port = self.own_port(choice.clone(), engine).map_err(text)?;
        self.entrust(&rdma_port);
        let dialed = request.end == Party::Dialer;
        let mut pair = rdma_port.prepare_for(dialed, is_trusted).map_err(|error| {
            // The port may be down or an address gone.
            self.state().forget_inventory();
            text(error)
        })?;
        self.add_rails(&mut pair, &choice, engine, dialed);
        Ok(Box::new(NodePair::new(pair, coming)?))
    }

    /// Prepares the rails of a session whose own queue pair is at `own`. Ports that cannot carry
    /// rails are passed over.
    fn add_rails(&self, pair: &mut PreparedPair, own: &Choice, engine: usize, dialed: bool) {
        let most = self.settings.rails_beside(own.kind);
        if most == 0 {
            return;
        }
        let places = match self.state().places_beside(own) {
            Ok(places) => places,
            Err(error) => return tracing::debug!(%error, "no rails"),
        };
        let prepared = places.into_iter().filter_map(|place| {
            let rail = self.prepare_rail(&place, engine, dialed);
            let noted =
                rail.inspect_err(|error| tracing::debug!(device = %place, %error, "no rail"));
            noted.ok()
        });
        prepared.take(most).for_each(|rail| pair.add_rail(rail));
    }

    fn prepare_rail(
        &self,
        place: &Choice,
        engine: usize,
        dialed: bool,
    ) -> Result<PreparedRail, VerbsError> {
        let rdma_port = self.rdma_port(place.clone(), engine);
        let rdma_port = rdma_port.inspect_err(|_| self.state().refuse(place))?;
        self.entrust(&rdma_port);
        rdma_port.prepare_rail(dialed)
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
        Ok(&self.listed()?.inventory)
    }

    fn listed(&mut self) -> Result<&Listed, VerbsError> {
        if self.inventory.is_none() {
            let inventory = discovery::discover(&self.provider()?, &self.sysfs)?;
            self.inventory = Some(Listed {
                taken: Instant::now(),
                inventory,
                refused: Vec::new(),
            });
        }
        match &self.inventory {
            Some(listed) => Ok(listed),
            None => unreachable!("it was taken above"),
        }
    }

    /// Returns the places for the rails of a session whose own queue pair is at `own`, by the names
    /// of their devices: all other active ports of the same kind of device, but for those that could
    /// not be opened.
    fn places_beside(&mut self, own: &Choice) -> Result<Vec<Choice>, VerbsError> {
        let Listed {
            inventory, refused, ..
        } = self.listed()?;
        let of_kind = inventory.devices.iter().filter(|one| one.kind == own.kind);
        let ports = of_kind.flat_map(|device| device.ports().map(move |port| (device, port)));
        let mut places: Vec<_> = ports
            .filter_map(|(device, port)| {
                let wish = Wish::Device {
                    name: device.name.clone(),
                    port: Some(port.number),
                    gid_index: None,
                };
                let mut place = inventory.choose_among(&wish, &[]).ok()?;
                place.partition_key = own.partition_key;
                place.reason = format!("a rail beside {} port {}", own.device, own.port);
                Some(place)
            })
            .filter(|place| !is_at_same_port(place, own))
            .filter(|place| refused.iter().all(|one| !is_same_place(one, place)))
            .collect();
        places.sort_by(|one, other| (&one.device, one.port).cmp(&(&other.device, other.port)));
        Ok(places)
    }

    /// Notes that a place could not be opened for a rail.
    fn refuse(&mut self, place: &Choice) {
        if let Some(listed) = &mut self.inventory {
            listed.refused.push(place.clone());
        }
    }

    /// Forgets an old list of devices. Returns whether another look may show something else.
    fn forget_inventory(&mut self) -> bool {
        let is_old = |listed: &mut Listed| listed.taken.elapsed() > INVENTORY_LASTS;
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
        let listed = self.inventory.iter();
        let listed = listed.flat_map(|listed| &listed.inventory.devices);
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

/// Returns whether an RDMA port for one choice serves the other.
fn is_same_place(one: &Choice, other: &Choice) -> bool {
    is_at_same_port(one, other) && one.partition_key == other.partition_key
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
        Gid, PortState,
        provider::fake::{FakeDevice, FakeProvider},
    };

    use super::*;

    fn within_this_host() -> PairRequest {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        PairRequest {
            local,
            peer: (local, 7000).into(),
            offered: None,
            end: Party::Dialer,
            resumes: None,
        }
    }

    #[test]
    fn queue_pairs_are_in_the_partition_of_the_settings_and_the_peer_is_told() {
        let mut device = FakeDevice::infiniband("mlx5_0", 3);
        device.ports[0].pkeys = vec![0xffff, 0x8001];
        device.ports[0].attributes.pkey_table_len = 2;
        let fake = FakeProvider::new(vec![device]);
        let prepared = |settings: RdmaSettings| {
            let devices = NodeDevices::new(settings.on_fake(&fake, |_| ()), None);
            let pair = devices.prepare(&within_this_host())?;
            Ok::<_, String>(pair.endpoint().address.partition_key)
        };
        let settings = RdmaSettings::new();
        assert_eq!(prepared(settings.clone()), Ok(0xffff));
        assert_eq!(prepared(settings.clone().partition_key(0x8001)), Ok(0x8001));
        let refused = prepared(settings.partition_key(0x8002)).unwrap_err();
        let says = "is not in partition 0x8002: its table of partition keys has 0xffff, 0x8001";
        assert!(refused.contains(says), "{refused}");
    }

    /// Prepares the queue pair of a session within this host, and returns the GIDs of its rails.
    fn rails(devices: &NodeDevices) -> Vec<Gid> {
        let pair = devices.prepare(&within_this_host()).expect("a queue pair");
        let rails = pair.endpoint().rails;
        for rail in &rails {
            assert!(rail.read_depth > 0 && rail.read_resources > 0 && rail.probe_address > 0);
        }
        let gids = rails.iter().map(|rail| Gid(rail.address.gid));
        gids.collect()
    }

    /// Returns the GID of a card.
    fn gid_of(device: &FakeDevice) -> Gid {
        device.ports[0].gids.last().expect("a GID").gid
    }

    fn devices_of(cards: &[FakeDevice], settings: RdmaSettings) -> (FakeProvider, NodeDevices) {
        let fake = FakeProvider::new(cards.to_vec());
        let settings = settings.on_fake(&fake, |settings| settings.reads_large = Some(true));
        let devices = NodeDevices::new(settings, None);
        (fake, devices)
    }

    fn soft_roce_cards() -> [FakeDevice; 3] {
        let cards = [("left", 1), ("right", 3), ("middle", 2)];
        cards.map(|(name, host)| FakeDevice::soft_roce(name, 0, [192, 0, 2, host]))
    }

    #[test]
    fn a_session_has_rails_on_the_other_ports_as_many_as_are_set() {
        let cards = soft_roce_cards();
        // The session's own port is the first that is listed; rails are in the order of names.
        let [_, right, middle] = cards.each_ref().map(gid_of);
        let of = |settings: RdmaSettings| rails(&devices_of(&cards, settings).1);
        let settings = RdmaSettings::new;
        assert_eq!(of(settings()), [], "soft-RoCE");
        assert_eq!(of(settings().max_rails(0)), []);
        assert_eq!(of(settings().max_rails(1)), [middle]);
        assert_eq!(of(settings().max_rails(2)), [middle, right]);
        assert_eq!(of(settings().max_rails(3)), [middle, right]);
        let [left, ..] = cards.each_ref().map(gid_of);
        let named = settings().device("middle").gid_index(1).max_rails(3);
        assert_eq!(of(named), [left, right]);
        let (_fake, devices) = devices_of(&cards, settings().max_rails(2));
        for _ in 0..3 {
            assert_eq!(
                rails(&devices),
                [middle, right],
                "the same for each session"
            );
        }
    }

    #[test]
    fn hardware_has_rails_on_at_most_three_ports_of_hardware() {
        let mut cards = vec![FakeDevice::soft_roce("a_rxe0", 0, [192, 0, 2, 1])];
        let lids = 0..5_u16;
        cards.extend(lids.map(|lid| FakeDevice::infiniband(&format!("mlx5_{lid}"), lid + 1)));
        cards[2].ports[0].attributes.state = PortState::Down;
        let gids: Vec<_> = cards.iter().map(gid_of).collect();
        let of = |settings: RdmaSettings| rails(&devices_of(&cards, settings).1);
        assert_eq!(of(RdmaSettings::new()), gids[3..6], "beside mlx5_0");
        assert_eq!(of(RdmaSettings::new().port(1)), gids[3..6]);
        assert_eq!(of(RdmaSettings::new().max_rails(2)), gids[3..5]);
        assert_eq!(of(RdmaSettings::new().max_rails(0)), []);
        let named = RdmaSettings::new().device("mlx5_3");
        assert_eq!(
            of(named.clone()),
            [],
            "a program that names a device means it"
        );
        let expected = [gids[1], gids[3], gids[5]];
        assert_eq!(of(named.max_rails(3)), expected);
    }

    #[test]
    fn rails_are_in_the_partition_of_the_session() {
        let cards = [1, 2, 3].map(|lid| {
            let mut card = FakeDevice::infiniband(&format!("mlx5_{lid}"), lid);
            if lid != 2 {
                card.ports[0].pkeys = vec![0xffff, 0x8001];
                card.ports[0].attributes.pkey_table_len = 2;
            }
            card
        });
        let (_fake, devices) = devices_of(&cards, RdmaSettings::new().partition_key(0x8001));
        let pair = devices.prepare(&within_this_host()).expect("a queue pair");
        let rails = pair.endpoint().rails;
        let places: Vec<_> = rails
            .iter()
            .map(|rail| (Gid(rail.address.gid), rail.address.partition_key))
            .collect();
        assert_eq!(places, [(gid_of(&cards[2]), 0x8001)], "mlx5_2 is not in it");
    }

    /// A port that cannot be opened is not tried again before the devices are listed again.
    #[test]
    fn ports_that_cannot_carry_rails_are_passed_over() {
        let [left, mut right, mut middle] = soft_roce_cards();
        right.has_windows = false;
        let completions = middle.attributes.max_completions;
        middle.attributes.max_completions = 1;
        let gids = [&middle, &right].map(gid_of);
        let (fake, devices) = devices_of(&[left, right, middle], RdmaSettings::new().max_rails(3));
        assert_eq!(rails(&devices), []);
        fake.change("middle", |device| {
            device.attributes.max_completions = completions
        });
        assert_eq!(
            rails(&devices),
            [],
            "as it was when the devices were listed"
        );
        devices.state().inventory = None;
        assert_eq!(rails(&devices), gids[..1]);
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
