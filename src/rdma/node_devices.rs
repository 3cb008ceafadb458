//! A node's RDMA devices as its handshakes use them: which one for a connection, and queue
//! pairs on it.
//!
//! Rules: nothing is loaded, listed or opened before the first session that could use it,
//! unless verbs is required; everything here may take milliseconds, and is called by
//! threads that wait anyhow, never in a turn of the engine; a node has one device port,
//! that of its first queue pair, since its engine polls one.
#![forbid(unsafe_code)]

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use ibex_base::sync::lock;
use ibex_bootstrap::{
    VerbsDevice, VerbsPair, VerbsSite,
    message::{GidType as WireGidType, VerbsEndpoint},
    negotiate::End,
};
use ibex_ring::memory::HugePages;
use ibex_transport::{
    rdma::{PairEndpoint, PreparedPair, Site},
    runtime::Runtime,
};
use ibex_verbs::{
    FirstSequence, ForkReport, Gid, GidType, Mtu, PartitionKey, RemoteEndpoint, VerbsError,
    discovery::{self, Choice, DeviceInfo, DeviceKind, Inventory, Sysfs, Wish},
    provider::{Libibverbs, Provider},
};

use super::{RdmaSettings, choose};

/// The devices.
#[derive(Debug)]
pub(crate) struct NodeDevices {
    settings: RdmaSettings,
    state: Mutex<State>,
    /// The runtime that looks after an open device before there are sessions.
    runtime: OnceLock<Weak<Runtime>>,
}

#[derive(Debug, Default)]
struct State {
    provider: Option<Arc<dyn Provider>>,
    /// With the moment when it was taken.
    inventory: Option<(Instant, Inventory)>,
    /// The open site, and the choice that led to it.
    site: Option<(Choice, Arc<Site>)>,
}

/// A queue pair, and how it is called in messages.
#[derive(Debug)]
struct NodePair {
    pair: PreparedPair,
    endpoint: VerbsEndpoint,
}

/// Devices come and go, addresses too; but strangers who connect shall not keep us listing.
const INVENTORY_LASTS: Duration = Duration::from_secs(1);

impl NodeDevices {
    pub(crate) fn new(settings: RdmaSettings) -> Self {
        let state = State {
            #[cfg(feature = "fake-device")]
            provider: settings.provider.clone(),
            ..State::default()
        };
        Self {
            settings,
            state: Mutex::new(state),
            runtime: OnceLock::new(),
        }
    }

    /// Puts what is open, and will be, into the care of its node.
    pub(crate) fn entrust_to(&self, runtime: &Arc<Runtime>) {
        let _ = self.runtime.set(Arc::downgrade(runtime));
        let open = self.state().site.as_ref().map(|(_, site)| site.clone());
        if let Some(site) = open {
            self.entrust(&site);
        }
    }

    /// Called without the lock on our state: who has the engine's may want it.
    fn entrust(&self, site: &Arc<Site>) {
        if let Some(runtime) = self.runtime.get().and_then(Weak::upgrade)
            && let Err(error) = runtime.care_for(site)
        {
            tracing::debug!(device = site.device(), %error, "nobody cares for an RDMA device");
        }
    }

    /// Makes sure that there is a device for sessions at `listen`, or for any without it,
    /// and opens it if no other could be meant.
    pub(crate) fn require(&self, listen: Option<IpAddr>) -> Result<(), VerbsError> {
        let mut state = self.state();
        let inventory = state.inventory()?;
        let routed = listen.filter(|address| !address.is_loopback() && !address.is_unspecified());
        let choice = self.choose(inventory, routed.unwrap_or(Ipv4Addr::LOCALHOST.into()))?;
        let is_settled = routed.is_some() || self.settings.device.is_some();
        if is_settled || active_ports(inventory) == 1 {
            state.site(choice, &self.settings)?;
        }
        Ok(())
    }

    /// The place for a connection with this address of ours.
    fn choice(&self, state: &mut State, local: IpAddr) -> Result<Choice, VerbsError> {
        state.forget_lost_site();
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
            false => choose(inventory, &Wish::Address(local)),
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
                let mut named = choose(inventory, &wish)?;
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
            let taken = discovery::discover(self.provider()?, &Sysfs::default())?;
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

    fn provider(&mut self) -> Result<&Arc<dyn Provider>, VerbsError> {
        let provider = match self.provider.take() {
            Some(provider) => provider,
            None => Arc::new(Libibverbs::load()?),
        };
        Ok(self.provider.insert(provider))
    }

    /// The site of this choice, opened if there is none.
    fn site(&mut self, choice: Choice, settings: &RdmaSettings) -> Result<Arc<Site>, VerbsError> {
        self.forget_lost_site();
        if let Some((_, site)) = &self.site {
            return Ok(site.clone());
        }
        let provider = self.provider()?;
        let report = ForkReport::now(provider);
        let opened = Site::open(provider, &choice, settings.site());
        // It may have gone since we looked.
        let site = opened.inspect_err(|_| self.inventory = None)?;
        tracing::info!(device = %choice, pages = %HugePages::of_system(), "RDMA device opened");
        report.log(&choice.device);
        self.site = Some((choice, site.clone()));
        Ok(site)
    }

    /// Forgets a site that is lost, and the list of devices with it.
    fn forget_lost_site(&mut self) {
        if self.site.take_if(|(_, site)| site.is_lost()).is_some() {
            self.inventory = None;
        }
    }

    /// Why sessions cannot use this place, where the node's is another.
    fn taken_elsewhere(&self, choice: &Choice) -> Result<(), String> {
        let Some((ours, site)) = &self.site else {
            return Ok(());
        };
        if !is_at_same_port(ours, choice) {
            return Err(format!(
                "its route leads over {} port {}, and this node's sessions go over {} port {}: a \
                 node uses one",
                choice.device, choice.port, ours.device, ours.port
            ));
        }
        match (choice.partition_key, site.partition_key()) {
            (Some(wanted), Some(key)) if !wanted.is_of_same_partition(key) => Err(format!(
                "its route leads into partition {wanted}, and this node's sessions are in {key}: \
                 a node uses one"
            )),
            _ => Ok(()),
        }
    }
}

impl VerbsSite for NodeDevices {
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String> {
        let mut state = self.state();
        let choice = self.choice(&mut state, local).map_err(text)?;
        state.taken_elsewhere(&choice)?;
        Ok(VerbsDevice {
            // Where /sys is hidden nobody knows; then it has to be asked for.
            hardware: choice.kind == DeviceKind::Hardware,
            name: choice.device,
        })
    }

    fn prepare(&self, local: IpAddr, peer: IpAddr, end: End) -> Result<Box<dyn VerbsPair>, String> {
        let is_trusted = self.settings.trusts(peer);
        let site = {
            let mut state = self.state();
            let choice = self.choice(&mut state, local).map_err(text)?;
            state.taken_elsewhere(&choice)?;
            state.site(choice, &self.settings).map_err(text)?
        };
        self.entrust(&site);
        let pair = site
            .prepare_for(end == End::Dialer, is_trusted)
            .map_err(|error| {
                // The port may be down or an address gone.
                self.state().forget_inventory();
                text(error)
            })?;
        let endpoint = to_wire(&pair.endpoint())?;
        Ok(Box::new(NodePair { pair, endpoint }))
    }
}

impl VerbsPair for NodePair {
    fn endpoint(&self) -> VerbsEndpoint {
        self.endpoint.clone()
    }

    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String> {
        self.pair.connect(&from_wire(theirs)?).map_err(text)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.pair)
    }
}

/// Any place that serves, on hardware if there is some: both ends of a connection over the
/// loopback interface are on this host, which every device of it leads to.
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
        match choose(inventory, &wish) {
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

fn active_ports(inventory: &Inventory) -> usize {
    let ports = inventory.devices.iter().flat_map(DeviceInfo::ports);
    ports.filter(|port| port.is_active()).count()
}

fn to_wire(ours: &PairEndpoint) -> Result<VerbsEndpoint, String> {
    let pair = &ours.pair;
    let gid_type = match pair.gid_type {
        // Older kernels number InfiniBand's like RoCE v1's; only InfiniBand has LIDs.
        _ if pair.lid != 0 => WireGidType::Infiniband,
        GidType::InfiniBand => WireGidType::Infiniband,
        GidType::RoceV1 => WireGidType::RoceV1,
        GidType::RoceV2 => WireGidType::RoceV2,
        unknown @ GidType::Unknown(_) => return Err(format!("its port has an {unknown}")),
    };
    Ok(VerbsEndpoint {
        queue_pair: pair.queue_pair,
        packet_sequence: pair.first_sequence.get(),
        lid: pair.lid,
        gid: pair.gid.0,
        gid_type,
        mtu_bytes: pair.mtu.bytes() as u16,
        max_inline_bytes: ours.max_inline_bytes,
        max_send_sge: ours.max_send_entries,
        max_receive_sge: ours.max_receive_entries,
        immediate: ours.immediate,
        partition_key: pair.partition_key.map_or(0, PartitionKey::get),
        receive_buffer_bytes: ours.buffer_bytes,
        credit: ours.credit,
    })
}

fn from_wire(theirs: &VerbsEndpoint) -> Result<PairEndpoint, String> {
    let mtu = Mtu::from_bytes(theirs.mtu_bytes.into());
    Ok(PairEndpoint {
        pair: RemoteEndpoint {
            queue_pair: theirs.queue_pair,
            first_sequence: FirstSequence::from_random(theirs.packet_sequence),
            lid: theirs.lid,
            gid: Gid(theirs.gid),
            gid_type: match theirs.gid_type {
                WireGidType::Infiniband => GidType::InfiniBand,
                WireGidType::RoceV1 => GidType::RoceV1,
                WireGidType::RoceV2 => GidType::RoceV2,
            },
            partition_key: PartitionKey::new(theirs.partition_key),
            mtu: mtu.ok_or_else(|| format!("the peer's MTU is {}", theirs.mtu_bytes))?,
        },
        buffer_bytes: theirs.receive_buffer_bytes,
        credit: theirs.credit,
        max_inline_bytes: theirs.max_inline_bytes,
        max_send_entries: theirs.max_send_sge,
        max_receive_entries: theirs.max_receive_sge,
        immediate: theirs.immediate,
    })
}

fn text(error: VerbsError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(gid_type: GidType, lid: u16) -> PairEndpoint {
        PairEndpoint {
            pair: RemoteEndpoint {
                queue_pair: 0xab_cdef,
                first_sequence: FirstSequence::from_random(0x12_3456),
                lid,
                gid: Gid([7; 16]),
                gid_type,
                partition_key: PartitionKey::new(lid),
                mtu: Mtu::Bytes1024,
            },
            buffer_bytes: 4096,
            credit: 64,
            max_inline_bytes: 220,
            max_send_entries: 3,
            max_receive_entries: 1,
            immediate: true,
        }
    }

    #[test]
    fn an_endpoint_comes_back_from_the_wire_as_it_was() {
        for (gid_type, lid) in [
            (GidType::RoceV1, 0),
            (GidType::RoceV2, 0),
            (GidType::InfiniBand, 9),
        ] {
            let ours = endpoint(gid_type, lid);
            let wire = to_wire(&ours).expect("a known type");
            assert_eq!(from_wire(&wire), Ok(ours));
        }
    }

    #[cfg(feature = "fake-device")]
    #[test]
    fn queue_pairs_are_in_the_partition_of_the_settings_and_the_peer_is_told() {
        use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};

        let mut device = FakeDevice::infiniband("mlx5_0", 3);
        device.ports[0].pkeys = vec![0xffff, 0x8001];
        device.ports[0].attributes.pkey_table_len = 2;
        let fake = FakeProvider::new(vec![device]);
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let prepared = |settings: RdmaSettings| {
            let devices = NodeDevices::new(settings.on_fake(&fake, |_| ()));
            let pair = devices.prepare(local, local, End::Dialer)?;
            Ok::<_, String>(pair.endpoint().partition_key)
        };
        let settings = RdmaSettings::new();
        assert_eq!(prepared(settings.clone()), Ok(0xffff));
        assert_eq!(prepared(settings.clone().partition_key(0x8001)), Ok(0x8001));
        let refused = prepared(settings.partition_key(0x8002)).unwrap_err();
        let says = "is not in partition 0x8002: its table of partition keys has 0xffff, 0x8001";
        assert!(refused.contains(says), "{refused}");
    }

    #[test]
    fn a_port_with_a_lid_is_on_infiniband_whatever_the_kernel_calls_its_gids() {
        let wire = to_wire(&endpoint(GidType::RoceV1, 9)).expect("InfiniBand");
        assert_eq!(wire.gid_type, WireGidType::Infiniband);
        assert!(to_wire(&endpoint(GidType::Unknown(9), 0)).is_err());
    }
}
