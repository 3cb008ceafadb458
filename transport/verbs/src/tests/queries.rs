//! Queries.

use rustix::io::Errno;

use super::*;
use crate::{
    LinkSpeed, LinkWidth, NodeType, PhysicalState, QueuePairState, SendRequest,
    provider::fake::Call,
};

#[test]
fn query_qp_tells_what_was_set_and_the_present_state() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let queried = one.pair.query().unwrap();
    let attributes = queried.attributes;
    assert_eq!(attributes.state, QueuePairState::ReadyToSend);
    assert_eq!(attributes.destination, other.pair.number());
    assert_eq!(
        (attributes.send_sequence, attributes.receive_sequence),
        (0x1111, 0x2222)
    );
    assert_eq!(
        (attributes.initiator_depth, attributes.responder_resources),
        (1, 1)
    );
    assert_eq!(attributes.access_flags, EVERYTHING.bits());
    assert_eq!(queried.sizes.inline_bytes, one.pair.max_inline_bytes());
    assert!(!queried.is_draining);

    // An error moves the queue pair without notice.
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
    batch.post().unwrap();
    fake.fail_send(one.pair.number(), 12, 0);
    assert_eq!(one.pair.state(), QueuePairState::ReadyToSend);
    let queried = one.pair.query().unwrap();
    assert_eq!(queried.attributes.state, QueuePairState::Error);
    fake.refuse(Call::QueryPair, Errno::NODEV);
    let error = one.pair.query().unwrap_err();
    assert!(error.to_string().contains("ibv_query_qp failed"), "{error}");
}

#[test]
fn query_srq_tells_its_size_and_its_limit() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let queue = end.receive_queue();
    let queried = queue.query().unwrap();
    assert_eq!(
        (queried.requests, queried.entries, queried.limit),
        (15, 2, 0)
    );
    queue.arm_limit(4).unwrap();
    assert_eq!(queue.query().unwrap().limit, 4);
}

#[test]
fn query_device_ex_and_query_port_tell_all_fields() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let attributes = end.device.attributes();
    assert_eq!(attributes.capabilities, 0x0122_3c76);
    assert_eq!(attributes.max_windows, 4096);
    assert_eq!(attributes.atomics.to_string(), "ATOMIC_HCA");
    assert!(!attributes.on_demand_paging);
    let port = end.device.query_port(1).unwrap();
    assert_eq!((port.width, port.speed), (LinkWidth(1), LinkSpeed(1)));
    assert_eq!(port.physical_state, PhysicalState::LinkUp);
}

#[test]
fn get_device_guid_finds_a_device() {
    let second = FakeDevice {
        guid: 0x1122_3344_5566_7788,
        ..FakeDevice::soft_roce("rxe1", 8, ADDRESS)
    };
    let provider = FakeProvider::new(vec![soft_roce(), second]).provider();
    let device = Device::open_by_guid(&provider, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(device.name(), "rxe1");
    let error = Device::open_by_guid(&provider, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no RDMA device \"with GUID 0000:0000:0000:0001\"; there are: \
         rxe0 with GUID 0002:c903:0000:0001, rxe1 with GUID 1122:3344:5566:7788"
    );
    let entry = &provider.devices().unwrap()[0];
    assert_eq!(entry.node_type, NodeType::ChannelAdapter);
    assert_eq!(NodeType::from_raw(99), NodeType::Unknown(99));
}
