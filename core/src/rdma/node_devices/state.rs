//! What a node knows of its RDMA devices: their list, and the RDMA ports that are open.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibex_transport::rdma::RdmaPort;
use ibex_verbs::{
    VerbsError,
    discovery::{self, Choice, DeviceInfo, Inventory, PortInfo, Sysfs, Wish},
    provider::{Libibverbs, Provider},
};

/// The list of devices, and the open RDMA ports.
#[derive(Debug, Default)]
pub(super) struct State {
    provider: Option<Arc<dyn Provider>>,
    sysfs: Sysfs,
    inventory: Option<Listed>,
    /// The open RDMA ports, each with the choice that led to it.
    pub(super) rdma_ports: Vec<(Choice, Arc<RdmaPort>)>,
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

impl State {
    /// Begins without a list. These devices and these files about them take the place of the
    /// machine's, where they are given.
    pub(super) fn of(provider: Option<Arc<dyn Provider>>, sysfs: Option<Sysfs>) -> Self {
        Self {
            provider,
            sysfs: sysfs.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Returns the machine's devices, looked up again if the list is old.
    pub(super) fn inventory(&mut self) -> Result<&Inventory, VerbsError> {
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
    /// of their devices: all other active ports of the same kind of device that are not much slower, but
    /// for those that could not be opened.
    pub(super) fn places_beside(&mut self, own: &Choice) -> Result<Vec<Choice>, VerbsError> {
        let Listed {
            inventory, refused, ..
        } = self.listed()?;
        let of_kind = inventory.devices.iter().filter(|one| one.kind == own.kind);
        let ports = of_kind.flat_map(|device| device.ports().map(move |port| (device, port)));
        let ports: Vec<_> = ports.collect();
        let is_own = |(device, port): &&(&DeviceInfo, &PortInfo)| {
            (&device.name, port.number) == (&own.device, own.port)
        };
        let least = ports
            .iter()
            .find(is_own)
            .and_then(|(_, port)| speed(port))
            .map(|own| own / 2);
        let is_fast = |port: &PortInfo| speed(port) >= least;
        let mut places: Vec<_> = ports
            .into_iter()
            .filter(|(_, port)| is_fast(port))
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
    pub(super) fn refuse(&mut self, place: &Choice) {
        if let Some(listed) = &mut self.inventory {
            listed.refused.push(place.clone());
        }
    }

    /// Forgets the list of devices, however old it is.
    pub(super) fn forget_devices(&mut self) {
        self.inventory = None;
    }

    /// Forgets an old list of devices. Returns whether another check may show something else.
    pub(super) fn forget_inventory(&mut self) -> bool {
        let is_old = |listed: &mut Listed| listed.taken.elapsed() > INVENTORY_LASTS;
        self.inventory.take_if(is_old).is_some()
    }

    pub(super) fn provider(&mut self) -> Result<Arc<dyn Provider>, VerbsError> {
        let provider = match self.provider.take() {
            Some(provider) => provider,
            None => Arc::new(Libibverbs::load()?),
        };
        Ok(self.provider.insert(provider).clone())
    }

    /// Returns the open RDMA port of an engine for this choice.
    pub(super) fn open_port(&mut self, choice: &Choice, engine: usize) -> Option<Arc<RdmaPort>> {
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
    pub(super) fn near_cores(&self, device: &str) -> Vec<usize> {
        let listed = self.inventory.iter();
        let listed = listed.flat_map(|listed| &listed.inventory.devices);
        let found = listed.into_iter().find(|listed| listed.name == device);
        found.map_or_else(Vec::new, |found| found.near_cores.clone())
    }

    /// Forgets RDMA ports that are lost, and the list of devices with them.
    pub(super) fn forget_lost_ports(&mut self) {
        let before = self.rdma_ports.len();
        self.rdma_ports
            .retain(|(_, rdma_port)| !rdma_port.is_lost());
        if self.rdma_ports.len() < before {
            self.inventory = None;
        }
    }
}

pub(super) fn is_at_same_port(one: &Choice, other: &Choice) -> bool {
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

/// Devices come and go, and so do addresses. But strangers that connect must not make the node list
/// them all the time.
const INVENTORY_LASTS: Duration = Duration::from_secs(1);

/// Returns the speed of a port in Mb/s, if it is known.
fn speed(port: &PortInfo) -> Option<u32> {
    let attributes = &port.attributes;
    Some(attributes.width.lanes()? * attributes.speed.megabits()?)
}
