//! Queries, and changes of what exists.

use rustix::io::Errno;

use super::*;
use crate::{
    AsyncEvent, AsyncEvents, ConnectCause, LinkSpeed, LinkWidth, MigrationState, NodeType,
    PhysicalState, QueuePairState, SendRequest, VerbsError, provider::fake::Call,
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
    assert_eq!(attributes.migration, MigrationState::Migrated);
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
fn modify_srq_changes_the_size_of_the_queue() {
    let fake = one_device();
    let (_one, mut other) = connected(&fake, USUAL);
    other.post_receives(10);
    let queue = other.receive_queue();
    assert_eq!(queue.resize(60).unwrap(), 63);
    assert_eq!((queue.capacity(), queue.outstanding()), (63, 10));
    let few = queue.resize(9).unwrap_err();
    assert_eq!(
        few.to_string(),
        "the size of the shared receive queue is 9, and can be 10 or more, as are outstanding"
    );
    let many = queue.resize(1 << 20).unwrap_err();
    assert!(matches!(many, VerbsError::Limit { .. }), "{many}");
    fake.change(DEVICE, |device| device.has_resizing = false);
    let refused = other.receive_queue().resize(100).unwrap_err();
    assert!(
        matches!(refused, VerbsError::Unsupported { .. }),
        "{refused}"
    );
    assert_eq!(other.receive_queue().capacity(), 63);
}

#[test]
fn resize_cq_keeps_the_completions_in_the_queue() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(3);
    let mut batch = one.pair.send_batch();
    for slot in 0..3 {
        batch
            .push(&SendRequest::send(send_id(slot), &[]).signaled())
            .unwrap();
    }
    batch.post().unwrap();
    assert_eq!(one.completions.resize(200).unwrap(), 255);
    assert_eq!(one.completions.entries(), 255);
    let slots: Vec<_> = one.poll().iter().map(|done| done.id().slot()).collect();
    assert_eq!(slots, [0, 1, 2]);

    let beyond = other.completions.resize(1 << 20).unwrap_err();
    assert!(
        matches!(beyond, VerbsError::Limit { limit: 32767, .. }),
        "{beyond}"
    );
    let few = other.completions.resize(2).unwrap_err();
    assert!(few.to_string().contains("ibv_resize_cq failed"), "{few}");
    assert_eq!(other.completions.entries(), 127);
}

#[test]
fn modify_cq_moderates_within_the_limits_of_the_device() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let refused = end.completions.moderate(8, 100).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "RDMA device rxe0 has no moderation of completions: ibv_modify_cq failed: Operation not \
         supported (os error 95); each completion wakes a sleeper that has asked"
    );
    fake.change(DEVICE, |device| {
        device.attributes.extended.max_moderation_count = 16;
        device.attributes.extended.max_moderation_micros = 50;
    });
    let mut end = End::new(&fake.provider(), USUAL);
    end.completions.moderate(16, 50).unwrap();
    assert_eq!(fake.moderations(), [(16, 50)]);
    for (count, micros) in [(17, 50), (16, 51)] {
        let beyond = end.completions.moderate(count, micros).unwrap_err();
        assert!(matches!(beyond, VerbsError::Limit { .. }), "{beyond}");
    }
    assert_eq!(fake.moderations().len(), 1);
}

#[test]
fn query_device_ex_and_query_port_tell_all_fields() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let attributes = end.device.attributes();
    assert_eq!(attributes.capabilities, 0x0122_3c76);
    assert_eq!(attributes.max_windows, 4096);
    assert_eq!(attributes.atomics.to_string(), "ATOMIC_HCA");
    assert!(!attributes.extended.on_demand.is_there());
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

#[test]
fn modify_qp_pauses_the_send_queue_and_goes_on() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(2);
    let mut events = AsyncEvents::of(&one.device).unwrap().unwrap();
    one.pair.pause_sends(true).unwrap();
    let state = one.pair.query().unwrap().attributes.state;
    assert_eq!(state, QueuePairState::SendQueueDrained);
    let event = events.take().unwrap();
    assert!(
        matches!(event, Some(AsyncEvent::QueuePair { .. })),
        "{event:?}"
    );
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::send(send_id(0), &[]).signaled())
        .unwrap();
    batch.post().unwrap();
    assert!(one.poll().is_empty() && other.poll().is_empty());
    // The other direction goes on.
    one.post_receives(1);
    let mut batch = other.pair.send_batch();
    batch.push(&SendRequest::send(send_id(1), &[])).unwrap();
    batch.post().unwrap();
    assert_eq!(one.poll().len(), 1);

    one.pair.resume_sends().unwrap();
    assert_eq!(one.poll()[0].id(), send_id(0));
    assert_eq!(other.poll().len(), 1);
    let twice = one.pair.resume_sends();
    assert!(twice.is_ok(), "RTS -> RTS is a legal change");
    one.pair.fail().unwrap();
    let Err(VerbsError::Connect(error)) = one.pair.pause_sends(false) else {
        panic!("a dead queue pair is not paused");
    };
    assert!(matches!(error.cause, ConnectCause::Illegal(_)), "{error}");
}

#[test]
fn modify_qp_sets_an_alternate_path_and_migrates() {
    const AUTO_PATH_MIG: u32 = 1 << 4;
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 7)]);
    fake.change(DEVICE, |device| {
        device.attributes.capabilities &= !AUTO_PATH_MIG;
    });
    let (mut one, other) = connected(&fake, USUAL);
    let settings = ConnectionSettings::default();
    let (local, psn) = (one.local(), FirstSequence::from_random(1));
    let remote = other.pair.endpoint(psn, &other.local());
    let refused = one.pair.set_alternate_path(&local, &remote, &settings);
    assert!(
        matches!(refused, Err(VerbsError::Unsupported { .. })),
        "{refused:?}"
    );

    fake.change(DEVICE, |device| {
        device.attributes.capabilities |= AUTO_PATH_MIG;
    });
    let (mut one, other) = connected(&fake, USUAL);
    let remote = other.pair.endpoint(psn, &other.local());
    one.pair
        .set_alternate_path(&local, &remote, &settings)
        .unwrap();
    let attributes = one.pair.query().unwrap().attributes;
    assert_eq!(attributes.migration, MigrationState::Rearm);
    assert_eq!(attributes.alternate.address.lid, 7);
    assert_eq!(attributes.alternate.address.port, 1);
    assert_eq!(attributes.alternate.timeout, 14);
    assert_eq!(attributes.state, QueuePairState::ReadyToSend);
    one.pair.migrate().unwrap();
    let attributes = one.pair.query().unwrap().attributes;
    assert_eq!(attributes.migration, MigrationState::Migrated);
}
