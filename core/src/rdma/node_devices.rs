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

mod state;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};

use ibex_base::sync::lock;
use ibex_bootstrap::{PairRequest, VerbsDevice, VerbsDevices, VerbsPair, negotiate::Party};
use ibex_ring::memory::HugePages;
use ibex_transport::{
    rdma::{PortOpening, PreparedPair, PreparedRail, RdmaPort},
    runtime::Runtime,
};
use ibex_verbs::{
    ForkReport, GidType, VerbsError,
    discovery::{Choice, DeviceInfo, DeviceKind, Inventory, Wish},
    provider::Provider,
};

use super::{
    RdmaSettings,
    node_pair::{Coming, ComingPair, NodePair, text},
};
use crate::accept_placement::AcceptPlacement;
use state::{State, is_at_same_port};

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

/// The devices for sessions that are to be on one engine.
#[derive(Debug)]
pub(crate) struct DevicesOfEngine {
    devices: Arc<NodeDevices>,
    engine: usize,
}

impl NodeDevices {
    pub(crate) fn new(settings: RdmaSettings, placement: Option<AcceptPlacement>) -> Self {
        let state = State::of(settings.provider.clone(), settings.sysfs.clone());
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
            && let Err(error) = runtime.attach_port(rdma_port)
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
        rdma_port.inspect_err(|_| self.state().forget_devices())
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
        // Rails carry the reads that the session's own port does not.
        if most == 0 || pair.endpoint().reads.resources == 0 {
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
        let rail = rdma_port.prepare_rail(dialed)?;
        match rail.endpoint().pair {
            // No message can name it.
            pair if pair.lid == 0 && matches!(pair.gid_type, GidType::Unknown(_)) => {
                let why = format!("its port has an {}", pair.gid_type);
                Err(VerbsError::Other(why.into()))
            }
            _ => Ok(rail),
        }
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
                .place(who, request.peer.into())
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

fn active_ports(inventory: &Inventory) -> usize {
    let ports = inventory.devices.iter().flat_map(DeviceInfo::ports);
    ports.filter(|port| port.is_active()).count()
}

#[cfg(test)]
mod tests;
