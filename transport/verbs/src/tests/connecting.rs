//! From RESET to RTS: the attributes set at each step, and the content of an error.

use std::net::IpAddr;

use rustix::io::Errno;

use super::*;
use crate::{
    ConnectCause, Gid, GidType, Mtu, PortState, QueuePairState, RemoteEndpoint, VerbsError,
    provider::fake::{Call, FaultScript},
};

fn remote_of(local: &LocalPort) -> RemoteEndpoint {
    RemoteEndpoint::of(0x77, FirstSequence::from_random(0x2222), local)
}

#[test]
fn each_step_sets_the_attributes_of_the_table_and_the_agreed_values() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    let mut remote = remote_of(&local);
    remote.mtu = Mtu::Bytes512;
    let first = FirstSequence::from_random(0xabcd_ef01);
    assert_eq!(
        end.pair.connect(first, local, remote).unwrap(),
        Mtu::Bytes512
    );
    assert_eq!(end.pair.state(), QueuePairState::ReadyToSend);

    let steps = fake.modifications();
    let masks: Vec<_> = steps.iter().map(|step| step.mask.to_string()).collect();
    assert_eq!(
        masks,
        [
            "STATE|ACCESS_FLAGS|PKEY_INDEX|PORT",
            "STATE|AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN",
            "STATE|TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN",
        ]
    );
    let init = &steps[0].attributes;
    assert_eq!((init.port, init.pkey_index), (1, 0));
    assert_eq!(init.access_flags, EVERYTHING.bits());
    let receive = &steps[1].attributes;
    assert_eq!(receive.destination, 0x77);
    assert_eq!(receive.receive_sequence, 0x2222);
    assert_eq!(receive.path_mtu, Mtu::Bytes512);
    assert_eq!(receive.min_rnr_timer, 14);
    let route = receive.address.route.unwrap();
    assert_eq!(route.destination, remote.gid);
    assert_eq!(u32::from(route.source_index), local.gid.index);
    assert_eq!(route.hop_limit, 64);
    let send = &steps[2].attributes;
    assert_eq!(send.send_sequence, 0x00cd_ef01);
    assert_eq!((send.timeout, send.retry_count, send.rnr_retry), (14, 6, 7));
    assert_eq!((send.initiator_depth, receive.responder_resources), (1, 1));
}

#[test]
fn a_partition_key_outside_the_table_is_refused_before_the_device() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.ports[0].pkeys = vec![0xffff, 0x8001];
        device.ports[0].attributes.pkey_table_len = 2;
    });
    let end = End::new(&fake.provider(), USUAL);
    let asked = fake.modifications().len();
    let at = |index| QueuePairBuilder::new(&end.domain, &end.completions).pkey_index(index);
    let settings = ConnectionSettings::default();
    for refused in [
        at(2).build(1, settings).unwrap_err(),
        at(2).build_datagram(1, crate::QKey(1)).unwrap_err(),
    ] {
        assert_eq!(
            refused.to_string(),
            "RDMA device rxe0 port 1: its table of partition keys has 2 places, and 2 is asked \
             for; name one by `Device::partition`"
        );
    }
    assert_eq!(fake.modifications().len(), asked);
    assert!(at(1).build(1, settings).is_ok());
}

#[test]
fn the_ipv4_mapped_gid_is_found_again_after_it_has_moved() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let before = end.local().gid;
    assert_eq!(before.index, 1);
    fake.change(DEVICE, |device| device.ports[0].gids[1].index = 5);
    let same = |entry: &crate::GidEntry| entry.gid == before.gid;
    let after = LocalPort::with_gid(&end.device, 1, same).unwrap();
    assert_eq!(after.gid.index, 5);
}

#[test]
fn an_index_that_moved_meanwhile_is_told_with_all_there_is() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    fake.change(DEVICE, |device| device.ports[0].gids[1].index = 5);
    let error = end
        .pair
        .connect(FirstSequence::from_random(1), local, remote_of(&local))
        .unwrap_err();
    let number = end.pair.number();
    assert_eq!(
        error.to_string(),
        format!(
            "queue pair {number:#x} of rxe0: INIT -> RTR failed: No data available (os error 61); \
             set were STATE|AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN; port 1 \
             with MTU 1024 and GID [1] ::ffff:192.0.2.1 (RoCE v2); peer's queue pair 0x77 at \
             ::ffff:192.0.2.1 (RoCE v2, LID 0) with MTU 1024; the GID index has moved: addresses \
             changed meanwhile; connect again"
        )
    );
    assert_eq!(end.pair.state(), QueuePairState::Init);
}

#[test]
fn each_refusal_of_the_device_has_its_next_step() {
    for (errno, step) in [
        (Errno::TIMEDOUT, "ip neigh"),
        (Errno::INVAL, "MTU and GID type"),
        (Errno::NOMEM, "made anew"),
    ] {
        let fake = one_device();
        let mut end = End::new(&fake.provider(), USUAL);
        let local = end.local();
        fake.play(&FaultScript::new().refuse(Call::ModifyPair, 2, errno));
        let first = FirstSequence::from_random(1);
        let error = end
            .pair
            .connect(first, local, remote_of(&local))
            .unwrap_err();
        let VerbsError::Connect(error) = error else {
            panic!("not the connection's error: {error}");
        };
        assert!(matches!(error.cause, ConnectCause::Refused(cause) if cause == errno));
        assert_eq!(error.from, QueuePairState::ReadyToReceive);
        assert!(error.to_string().contains(step), "{error}");
    }
}

#[test]
fn a_second_connection_is_illegal_and_never_reaches_the_device() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    let local = one.local();
    let asked = fake.modifications().len();
    let error = one
        .pair
        .connect(FirstSequence::from_random(1), local, remote_of(&local))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("RTS -> RTR failed: it is no legal change of state"),
        "{error}"
    );
    assert_eq!(fake.modifications().len(), asked);
}

#[test]
fn different_roce_versions_are_refused_by_name() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    let mut remote = remote_of(&local);
    remote.gid_type = GidType::RoceV1;
    let error = end
        .pair
        .connect(FirstSequence::from_random(1), local, remote)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the two ends speak different versions: ours is RoCE v2, the peer's RoCE v1; choose a \
         GID of the same type at both ends"
    );
}

#[test]
fn a_port_has_to_be_active_and_to_have_a_gid() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    fake.change(DEVICE, |device| {
        device.ports[0].attributes.state = PortState::Down;
    });
    let error = LocalPort::with_gid(&end.device, 1, |_| true).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("RDMA device rxe0 port 1 is DOWN, not ACTIVE; check the cable"),
        "{text}"
    );
    fake.change(DEVICE, |device| {
        device.ports[0].attributes.state = PortState::Active;
        device.ports[0].gids.clear();
    });
    let error = LocalPort::with_gid(&end.device, 1, |_| true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0 port 1 has no GID that can be used: its table has none; give its \
         network interface an address (`ip addr add`)"
    );
}

#[test]
fn infiniband_goes_by_lid_without_a_global_route() {
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 12)]);
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    let mut remote = remote_of(&local);
    remote.lid = 34;
    // Older kernels number the type of InfiniBand's GIDs as RoCE v1's.
    remote.gid_type = GidType::RoceV1;
    let first = FirstSequence::from_random(1);
    assert_eq!(
        end.pair.connect(first, local, remote).unwrap(),
        Mtu::Bytes4096
    );
    let address = fake.modifications()[1].attributes.address;
    assert_eq!((address.lid, address.route), (34, None));
}

/// The GID of a port in the subnet with this prefix.
fn gid_in(prefix: [u16; 4], port: u8) -> Gid {
    let [a, b, c, d] = prefix;
    Gid::of(IpAddr::from([a, b, c, d, 0, 0, 0, port.into()]))
}

#[test]
fn another_infiniband_subnet_is_reached_by_its_floating_lid_and_a_global_route() {
    let (ours, theirs) = ([0xfec0, 0, 0x4001, 0], [0xfec0, 0, 0x4002, 0]);
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 12)]);
    fake.change(DEVICE, |device| {
        device.ports[0].gids[0].gid = gid_in(ours, 12);
    });
    for (prefix, lid, is_routed) in [(ours, 34, false), (theirs, 0x4002, true)] {
        let mut end = End::new(&fake.provider(), USUAL);
        let local = end.local();
        let remote = RemoteEndpoint {
            lid: 34,
            gid: gid_in(prefix, 34),
            ..remote_of(&local)
        };
        let first = FirstSequence::from_random(1);
        end.pair.connect(first, local, remote).unwrap();
        let steps = fake.modifications();
        let address = steps[steps.len() - 2].attributes.address;
        assert_eq!((address.lid, address.route.is_some()), (lid, is_routed));
        if let Some(route) = address.route {
            assert_eq!((route.destination, route.hop_limit), (remote.gid, 64));
        }
    }
}

#[test]
fn a_port_that_demands_a_global_route_has_one_within_its_subnet_too() {
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 12)]);
    fake.change(DEVICE, |device| {
        device.ports[0].attributes.needs_global_route = true;
    });
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    let remote = RemoteEndpoint {
        lid: 34,
        ..remote_of(&local)
    };
    let first = FirstSequence::from_random(1);
    end.pair.connect(first, local, remote).unwrap();
    let address = fake.modifications()[1].attributes.address;
    assert_eq!((address.lid, address.route.is_some()), (34, true));
}

#[test]
fn a_subnet_that_no_lid_leads_to_is_refused_by_name() {
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 12)]);
    let mut end = End::new(&fake.provider(), USUAL);
    let local = end.local();
    let remote = RemoteEndpoint {
        lid: 34,
        gid: gid_in([0xfec0, 0, 0, 7], 34),
        ..remote_of(&local)
    };
    let first = FirstSequence::from_random(1);
    let text = end
        .pair
        .connect(first, local, remote)
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with(
            "the peer's port has the GID fec0:0:0:7::22 and is in another InfiniBand subnet than \
             ours (fe80::2:c903:0:c)"
        ),
        "{text}"
    );
    assert_eq!(fake.modifications().len(), 1, "it is not even tried");
}

#[test]
fn as_much_inline_as_the_device_has_is_taken() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.max_inline_bytes = 100);
    let end = End::new(&fake.provider(), USUAL);
    let inline = end.pair.max_inline_bytes();
    assert!((50..=100).contains(&inline), "{inline}");
}
