use ibex_verbs::{
    Gid, LinkWidth, PortState,
    provider::fake::{FakeDevice, FakeProvider},
};

use super::*;
use ibex_bootstrap::message::PairAbilities;

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
        let devices = NodeDevices::new(settings.on_devices(fake.provider(), |_| ()), None);
        let pair = devices.prepare(&within_this_host())?;
        Ok::<_, String>(pair.endpoint().partition_key)
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
        let PairAbilities {
            read_depth,
            read_resources,
            ..
        } = rail.abilities;
        assert!(read_depth > 0 && read_resources > 0 && rail.probe_address > 0);
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
    let settings = settings.on_devices(fake.provider(), |settings| {
        settings.reads_large = Some(true);
    });
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
fn hardware_has_rails_on_ports_of_hardware() {
    let mut cards = vec![FakeDevice::soft_roce("a_rxe0", 0, [192, 0, 2, 1])];
    let lids = 0..5_u16;
    cards.extend(lids.map(|lid| FakeDevice::infiniband(&format!("mlx5_{lid}"), lid + 1)));
    cards[2].ports[0].attributes.state = PortState::Down;
    let gids: Vec<_> = cards.iter().map(gid_of).collect();
    let of = |settings: RdmaSettings| rails(&devices_of(&cards, settings).1);
    assert_eq!(of(RdmaSettings::new()), gids[3..4], "beside mlx5_0");
    assert_eq!(of(RdmaSettings::new().port(1)), gids[3..4]);
    assert_eq!(of(RdmaSettings::new().max_rails(3)), gids[3..6]);
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
    // The last pieces of a message would wait for a port that is much slower.
    for (at, card) in cards.iter_mut().enumerate() {
        card.ports[0].attributes.width = LinkWidth(if at == 3 { 1 } else { 2 });
    }
    let of = |settings: RdmaSettings| rails(&devices_of(&cards, settings).1);
    assert_eq!(of(RdmaSettings::new()), gids[4..5], "the next one");
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
        .map(|rail| (Gid(rail.address.gid), rail.partition_key))
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
        device.attributes.max_completions = completions;
    });
    assert_eq!(
        rails(&devices),
        [],
        "as it was when the devices were listed"
    );
    devices.state().forget_devices();
    assert_eq!(rails(&devices), gids[..1]);
}

/// A session goes over the port that its route leads to, independent of other sessions, and
/// each engine has an [`RdmaPort`] of its own there.
#[test]
fn a_node_has_a_port_for_each_engine_on_each_port_that_is_chosen() {
    let cards = [("left", [192, 0, 2, 1]), ("right", [198, 51, 100, 1])];
    let fake = cards.map(|(name, address)| FakeDevice::soft_roce(name, 0, address));
    let fake = FakeProvider::new(fake.to_vec());
    let devices = NodeDevices::new(
        RdmaSettings::new().on_devices(fake.provider(), |_| ()),
        None,
    );
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
