//! The partition of an RDMA port, which is looked up in the port's table for each queue pair and
//! must be the same at both ends.

use ibex_verbs::{
    GidType, PartitionKey, QueuePairState, discovery::Choice, provider::fake::FakeDevice,
};

use super::*;
use crate::rdma::PortStanding;

/// Returns an InfiniBand port with these keys.
fn with_keys(keys: &[u16]) -> FakeProvider {
    let mut device = FakeDevice::infiniband(DEVICE, 12);
    set_keys(&mut device, keys);
    FakeProvider::new(vec![device])
}

fn set_keys(device: &mut FakeDevice, keys: &[u16]) {
    device.ports[0].pkeys = keys.to_vec();
    device.ports[0].attributes.pkey_table_len = keys.len() as u16;
}

fn open(fake: &FakeProvider, key: Option<u16>) -> Result<Arc<RdmaPort>, VerbsError> {
    let chosen = Choice {
        gid: FakeDevice::infiniband(DEVICE, 12).ports[0].gids[0],
        partition_key: key.map(|key| PartitionKey::new(key).unwrap()),
        ..choice(DeviceKind::Software)
    };
    assert_eq!(chosen.gid.gid_type, GidType::InfiniBand);
    RdmaPort::open(&fake.provider(), &chosen, settings())
}

/// Returns the indices in the port's table that queue pairs were given, in the order in which they
/// were made.
fn places(fake: &FakeProvider) -> Vec<u16> {
    let steps = fake.modifications();
    let init = steps
        .iter()
        .filter(|step| step.attributes.state == QueuePairState::Init);
    init.map(|step| step.attributes.pkey_index).collect()
}

#[test]
fn queue_pairs_are_in_the_partition_of_the_choice_wherever_its_key_stands() {
    let fake = with_keys(&[0xffff, 0x8002, 0x0001, 0x8001]);
    let rdma_port = open(&fake, Some(0x8001)).unwrap();
    assert_eq!(rdma_port.partition_key(), PartitionKey::new(0x8001));
    let made = pairs([&rdma_port, &rdma_port]).unwrap();
    assert_eq!(places(&fake), [3, 3]);
    assert_eq!(
        made[0].endpoint().pair.partition_key,
        PartitionKey::new(0x8001)
    );
    // The subnet manager has moved the key.
    fake.change(DEVICE, |device| set_keys(device, &[0xffff, 0x8001, 0, 0]));
    let moved =
        "its LID 12, partition 0x8001 at index 3 became LID 12, partition 0x8001 at index 1";
    assert_eq!(
        rdma_port.check_port().unwrap(),
        PortStanding::Moved(rdma_port.of_port(moved)),
        "queue pairs of before send with another key now"
    );
    let again = pairs([&rdma_port, &rdma_port]).unwrap();
    assert_eq!(places(&fake), [3, 3, 1, 1]);
    drop((made, again));
    // Without a chosen key, the first is used.
    let first = open(&fake, None).unwrap();
    drop(pairs([&first, &first]).unwrap());
    assert_eq!(places(&fake)[4..], [0, 0]);
}

#[test]
fn a_partition_that_the_port_is_not_in_is_told_with_its_table() {
    let fake = with_keys(&[0xffff, 0x8002, 0]);
    let says = "RDMA device rxe0 port 1 is not in partition 0x8001: its table of partition keys \
                has 0xffff, 0x8002; have the subnet manager add it (opensm: partitions.conf), or \
                name another by partition_key or IBEX_RDMA_PARTITION_KEY";
    assert_eq!(open(&fake, Some(0x8001)).unwrap_err().to_string(), says);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
    // The same holds for a partition that the port has left.
    fake.change(DEVICE, |device| set_keys(device, &[0xffff, 0x8001]));
    let rdma_port = open(&fake, Some(0x8001)).unwrap();
    fake.change(DEVICE, |device| set_keys(device, &[0xffff, 0x8002]));
    assert_eq!(rdma_port.prepare(true).unwrap_err().to_string(), says);
}

#[test]
fn two_ends_that_take_no_packets_of_each_other_are_refused_before_they_try() {
    let fake = with_keys(&[0x7fff, 0x8001, 0x8002]);
    for (keys, says) in [
        (
            [0x8001, 0x8002],
            "the two ends' ports are in different partitions: our key is 0x8001, the peer's \
             0x8002; ",
        ),
        (
            [0xffff, 0xffff],
            "both ends' ports are limited members of their partition (keys 0x7fff and 0x7fff), ",
        ),
    ] {
        let rdma_ports = keys.map(|key| open(&fake, Some(key)).unwrap());
        let asked = fake.modifications().len();
        let error = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
        assert_eq!(fake.modifications().len(), asked + 2, "INIT and no more");
    }
}

#[test]
fn a_limited_member_talks_to_full_members_and_to_peers_without_a_key() {
    let limited = open(&with_keys(&[0x0001]), Some(0x8001)).unwrap();
    let mut ours = limited.prepare(true).unwrap();
    let mut theirs = ours.endpoint();
    assert_eq!(theirs.pair.partition_key, PartitionKey::new(0x0001));
    assert!(ours.connect(&theirs).is_err());
    for key in [Some(0x8001), None] {
        let mut ours = limited.prepare(true).unwrap();
        theirs.pair.partition_key = key.and_then(PartitionKey::new);
        ours.connect(&theirs).unwrap();
    }
}
