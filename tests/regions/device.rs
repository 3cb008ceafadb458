//! Regions of mapped memory, over RDMA: a device sends from them, once they are registered.
//! The device is made of memory.

use ibex::{
    Fabric, Node, NodeBuilder, Policy, Raw, Receiver, Region, RegionSlice, Sender,
    rdma::RdmaSettings,
};
use ibex_verbs::provider::fake::{Call, FakeDevice, FakeProvider};
use rustix::io::Errno;

use super::{BEFORE, LENGTH, LONG, mapped};

/// A channel between two nodes over a device.
struct Pair {
    fake: FakeProvider,
    sender: Sender<[u8], Raw>,
    receiver: Receiver<[u8], Raw>,
    _nodes: [Node; 2],
}

impl Pair {
    /// Makes the channel, and carries a short message, so that all that a session registers for
    /// itself is registered.
    fn meet() -> Self {
        let fake = FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1])]);
        let builder = || -> NodeBuilder {
            let settings = RdmaSettings::new().max_sessions(4).receive_buffers(64);
            let builder = Node::builder().fabric(Fabric::Verbs, Policy::Require);
            builder.rdma(
                settings
                    .held_buffers(64)
                    .on_devices(fake.provider(), |_| ()),
            )
        };
        let there = builder().listen("127.0.0.1:0").build().unwrap();
        let here = builder().build().unwrap();
        let peer = here.connect(there.local_addr().unwrap()).unwrap();
        let other = there.accept_timeout(LONG).unwrap();
        assert_eq!(peer.fabric(), Fabric::Verbs);
        let sender = peer.channel("bytes").codec::<Raw>().sender().unwrap();
        let receiver = other.channel("bytes").codec::<Raw>().receiver().unwrap();
        let mut pair = Self {
            fake,
            sender,
            receiver,
            _nodes: [here, there],
        };
        pair.carry(&Region::from(b"first".to_vec()).slice(..));
        pair
    }

    fn carry(&mut self, slice: &RegionSlice) {
        self.sender.send_region_timeout(slice, LONG).unwrap();
        let message = self.receiver.recv_timeout(LONG).unwrap();
        assert!(message[..] == slice[..], "{slice:?} came as other bytes");
        message.ack();
        self.sender.flush_timeout(LONG).unwrap();
    }
}

/// Returns the bytes of a mapped file, which is mapped from the beginning of a page.
fn mapped_bytes() -> u64 {
    LENGTH as u64 + BEFORE % rustix::param::page_size() as u64
}

#[test]
fn a_mapped_file_is_registered_once_and_sent_from() {
    let mut pair = Pair::meet();
    let region = mapped("once");
    let before = pair.fake.registered_bytes();
    for range in [0..LENGTH, 1..LENGTH, 70_001..140_000, 4097..LENGTH - 4097] {
        pair.carry(&region.slice(range));
        // The copy of a message would be registered as well.
        let registered = pair.fake.registered_bytes() - before;
        assert_eq!(registered, mapped_bytes());
    }
    assert!(region.wait_free(LONG));
    drop(region);
    assert_eq!(pair.fake.registered_bytes(), before);
}

#[test]
fn pages_of_its_own_are_registered_once_and_sent_from() {
    let mut pair = Pair::meet();
    let before = pair.fake.registered_bytes();
    let mut region = Region::zeroed(LENGTH).unwrap();
    for byte in [1, 2, 3] {
        let bytes = region.get_mut().expect("no message needs it");
        bytes.fill(byte);
        pair.carry(&region.slice(1..));
        // The copy of a message would be registered as well.
        let registered = pair.fake.registered_bytes() - before;
        assert_eq!(
            registered,
            LENGTH.next_multiple_of(rustix::param::page_size()) as u64
        );
        assert!(region.wait_free(LONG));
    }
    drop(region);
    assert_eq!(pair.fake.registered_bytes(), before);
}

#[test]
fn a_region_of_heap_memory_is_copied_and_never_registered() {
    let mut pair = Pair::meet();
    let region = Region::from(vec![7; LENGTH]);
    let [_, _, before] = pair.fake.makers(LENGTH as u64);
    pair.carry(&region.slice(..));
    assert!(region.is_free(), "the node holds its copy alone");
    let [_, _, after] = pair.fake.makers(LENGTH as u64);
    assert_eq!(after.len(), before.len() + 1, "the copy is registered");
}

/// As a limit on locked memory does. The refusal is of this file, and of this device.
#[test]
fn a_file_that_cannot_be_registered_is_copied_and_not_tried_again() {
    let mut pair = Pair::meet();
    let region = mapped("refused");
    pair.fake.refuse(Call::Register, Errno::NOMEM);
    pair.carry(&region.slice(3..));
    assert!(region.is_free(), "the node holds its copy alone");
    let before = pair.fake.registered_bytes();
    pair.carry(&region.slice(3..));
    assert!(region.is_free(), "the node holds its copy alone");
    // Memory of copies may be given back meanwhile.
    let after = pair.fake.registered_bytes();
    assert!(after <= before, "the file is tried again");
    for (mut pair, region) in [(pair, mapped("other")), (Pair::meet(), region)] {
        let before = pair.fake.registered_bytes();
        pair.carry(&region.slice(..));
        assert_eq!(pair.fake.registered_bytes(), before + mapped_bytes());
    }
}
