//! Datagrams: address handles, what arrives and what is lost, multicast groups.

use rustix::io::Errno;

use super::*;
use crate::{
    AddressHandle, AddressVector, CompletionPolling, DatagramBuffer, DatagramDestination,
    DatagramQueuePair, Gid, GlobalHeader, GlobalRoute, MulticastGroup, PushError, QKey,
    QueuePairKind, QueuePairState, RemoteAddress, ScatterEntry, SendRequest, Teardown, VerbsError,
    Verdict, abi::attribute_mask::AttributeMask, provider::fake::Call,
};

const KEY: QKey = QKey(0x1111_1111);
const BUFFER: DatagramBuffer = DatagramBuffer::new(512, 64);

/// A queue pair of datagrams that is started, with what it needs.
struct Post {
    end: End,
    pair: DatagramQueuePair,
}

impl Post {
    fn new(provider: &Arc<dyn Provider>) -> Self {
        let end = End::new(provider, USUAL);
        let builder = QueuePairBuilder::new(&end.domain, &end.completions).receives(4, 1);
        let mut pair = builder.build_datagram(1, KEY).unwrap();
        let first = FirstSequence::from_random(3);
        assert_eq!(pair.start(first, end.local()).unwrap(), 1024);
        Self { end, pair }
    }

    fn address_of(&self, other: &Self) -> AddressHandle {
        let local = other.end.local();
        let remote = other.pair.endpoint(FirstSequence::from_random(3), &local);
        let settings = ConnectionSettings::default();
        AddressHandle::to(&self.end.domain, &self.end.local(), &remote, settings).unwrap()
    }

    fn post_receive(&mut self, buffer: DatagramBuffer) {
        let mut batch = self.pair.receive_batch().unwrap();
        let id = WorkId::new(Operation::Receive, 2, 0);
        batch.push(id, buffer.entry(&self.end.receives)).unwrap();
        assert_eq!(batch.post(), Ok(1));
    }

    fn send(&mut self, bytes: &[u8], to: &DatagramDestination<'_>) {
        put(&self.end.sends, 0, bytes);
        let entries = [self.end.sends.entry(0..bytes.len())];
        let mut batch = self.pair.send_batch();
        let request = SendRequest::send(send_id(0), &entries).signaled();
        batch.push(&request, to).unwrap();
        assert_eq!(batch.post(), Ok(1));
        let sent = self.end.poll();
        // Nobody tells whether it has arrived.
        assert!(sent[0].outcome().is_ok());
        self.pair.retire_sends(1);
    }

    /// Returns the payload of the one datagram that has arrived, and its completion.
    fn arrived(&mut self) -> (Vec<u8>, WorkCompletion) {
        let arrived = self.end.poll();
        assert_eq!(arrived.len(), 1);
        self.pair.retire_receives(1);
        let place = BUFFER.received(&arrived[0]).unwrap();
        let payload = get(&self.end.receives, place.start, place.len());
        (payload, arrived[0])
    }

    fn header(&self) -> GlobalHeader {
        // SAFETY: the tests read it behind the completion.
        unsafe { BUFFER.header(&self.end.receives) }
    }
}

fn two() -> (FakeProvider, Post, Post) {
    let fake = one_device();
    let provider = fake.provider();
    let (one, other) = (Post::new(&provider), Post::new(&provider));
    (fake, one, other)
}

fn to(address: &AddressHandle, post: &Post) -> (AddressHandle, u32) {
    (address.clone(), post.pair.number())
}

fn destination((address, queue_pair): &(AddressHandle, u32)) -> DatagramDestination<'_> {
    DatagramDestination {
        address,
        queue_pair: *queue_pair,
        key: KEY,
    }
}

#[test]
fn create_qp_ud_has_the_attributes_of_its_kind_alone() {
    let (fake, one, _other) = two();
    assert_eq!(one.pair.state(), QueuePairState::ReadyToSend);
    let steps: Vec<_> = fake
        .modifications()
        .into_iter()
        .filter(|step| step.queue_pair == one.pair.number())
        .collect();
    let masks: Vec<_> = steps
        .iter()
        .map(|step| step.mask.without(AttributeMask::STATE).to_string())
        .collect();
    assert_eq!(masks, ["PKEY_INDEX|PORT|QKEY", "none", "SQ_PSN"]);
    assert_eq!(steps[0].attributes.q_key, KEY.0);
    assert!(!KEY.is_controlled() && QKey(1 << 31).is_controlled());
}

#[test]
fn create_qp_ud_needs_completions_that_name_the_sender() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let extended = CompletionQueue::of_kind(&end.device, 15, 0, CompletionPolling::Extended, false);
    let extended = extended.unwrap();
    let builder = QueuePairBuilder::new(&end.domain, &extended);
    let refused = builder.clone().build_datagram(1, KEY).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("does not name the sender"), "{text}");
    let mixed = builder.receive_completions(&end.completions);
    assert!(mixed.build_datagram(1, KEY).is_ok());
}

#[test]
fn post_recv_ud_has_the_route_in_front_of_the_payload() {
    let (_fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    other.post_receive(BUFFER);
    one.send(b"datagram", &destination(&there));
    let (payload, completion) = other.arrived();
    assert_eq!(payload, b"datagram");
    assert_eq!(completion.outcome().unwrap().bytes, 40 + 8);
    assert_eq!(get(&other.end.receives, 512 + 40, 8), b"datagram");
    let source = completion.datagram().unwrap();
    assert_eq!(source.queue_pair, one.pair.number());
    assert!(source.has_header);
    let route = other.header().route().unwrap();
    let gid = Gid::of(std::net::IpAddr::from(ADDRESS));
    assert_eq!((route.source, route.destination), (gid, gid));
}

#[test]
fn create_ah_from_wc_leads_back_to_the_sender() {
    let (_fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    other.post_receive(BUFFER);
    one.send(b"ping", &destination(&there));
    let (_, completion) = other.arrived();
    let header = other.header();
    let back = AddressHandle::from_completion(&other.end.domain, 1, &completion, &header).unwrap();
    let sender = completion.datagram().unwrap().queue_pair;
    one.post_receive(BUFFER);
    other.send(b"pong", &destination(&(back, sender)));
    assert_eq!(one.arrived().0, b"pong");
}

#[test]
fn init_ah_from_wc_tells_what_is_missing() {
    let (fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    other.post_receive(BUFFER);
    one.send(b"ping", &destination(&there));
    let (_, completion) = other.arrived();
    let device = &other.end.device;
    let of = |completion: &WorkCompletion, header: &GlobalHeader| {
        AddressVector::from_completion(device, 1, completion, header)
    };
    let header = other.header();
    let vector = of(&completion, &header).unwrap();
    let route = vector.route.unwrap();
    assert_eq!((route.source_index, route.hop_limit), (1, 64));

    let reason = |refused: VerbsError| match refused {
        VerbsError::NoReturnAddress { reason, .. } => reason,
        other => panic!("{other}"),
    };
    let empty = of(&completion, &GlobalHeader([0; 40])).unwrap_err();
    assert_eq!(reason(empty), "the 40 bytes in front of it are no header");
    let none = of(&WorkCompletion::EMPTY, &header).unwrap_err();
    assert_eq!(reason(none), "the completion is not that of a message");
    fake.change(DEVICE, |device| device.ports[0].gids.truncate(1));
    let gone = of(&completion, &header).unwrap_err();
    assert_eq!(reason(gone), "the port has no such GID any more");
}

#[test]
fn init_ah_from_wc_without_a_header_goes_by_lid() {
    let fake = FakeProvider::new(vec![FakeDevice::infiniband(DEVICE, 9)]);
    let provider = fake.provider();
    let end = End::new(&provider, USUAL);
    let mut posts = Vec::new();
    for _ in 0..2 {
        let builder = QueuePairBuilder::new(&end.domain, &end.completions).receives(2, 1);
        let mut pair = builder.build_datagram(1, KEY).unwrap();
        let most = pair.start(FirstSequence::from_random(0), end.local());
        assert_eq!(most.unwrap(), 4096);
        posts.push(pair);
    }
    let vector = AddressVector {
        lid: 9,
        port: 1,
        ..AddressVector::default()
    };
    let address = AddressHandle::new(&end.domain, &vector).unwrap();
    let mut receives = posts[1].receive_batch().unwrap();
    let id = WorkId::new(Operation::Receive, 0, 0);
    receives.push(id, BUFFER.entry(&end.receives)).unwrap();
    receives.post().unwrap();
    let there = (address, posts[1].number());
    let bytes = [ScatterEntry::unregistered(b"by LID")];
    let mut batch = posts[0].send_batch();
    let request = SendRequest::send(send_id(0), &bytes).inline();
    batch
        .push(&request.with_immediate(5), &destination(&there))
        .unwrap();
    batch.post().unwrap();
    let mut room = [WorkCompletion::EMPTY; 4];
    let mut completions = end.completions;
    let arrived = completions.poll(&mut room).unwrap();
    let source = arrived[0].datagram().unwrap();
    assert_eq!((source.lid, source.has_header), (9, false));
    assert_eq!(arrived[0].outcome().unwrap().immediate, Some(5));
    let header = GlobalHeader([0; 40]);
    let back = AddressVector::from_completion(&end.device, 1, &arrived[0], &header);
    assert_eq!(back.unwrap(), vector);
}

#[test]
fn post_send_ud_loses_what_finds_no_receive_or_carries_another_q_key() {
    let (fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    one.send(b"no receive", &destination(&there));
    other.post_receive(BUFFER);
    let mut wrong = destination(&there);
    wrong.key = QKey(0x2222_2222);
    one.send(b"wrong key", &wrong);
    one.send(&[7; 65], &destination(&there));
    wrong = destination(&there);
    wrong.queue_pair = one.end.pair.number();
    one.send(b"a connection's", &wrong);
    wrong.queue_pair = 0x00ab_cdef;
    one.send(b"nobody's", &wrong);
    assert!(other.end.poll().is_empty());
    // A controlled key stands for that of the sender.
    let mut controlled = destination(&there);
    controlled.key = QKey(1 << 31 | 5);
    one.send(b"arrives", &controlled);
    assert_eq!(other.arrived().0, b"arrives");
    assert_eq!(fake.rnr_naks(), 0);
    let room = other.pair.receive_room();
    other.post_receive(BUFFER);
    assert_eq!(other.pair.receive_room(), room - 1);
}

#[test]
fn post_send_ud_refuses_more_than_the_path_mtu() {
    let (fake, mut one, other) = two();
    let there = to(&one.address_of(&other), &other);
    let mut batch = one.pair.send_batch();
    let entries = [one.end.sends.entry(0..1025)];
    let refused = batch.push(
        &SendRequest::send(send_id(0), &entries),
        &destination(&there),
    );
    let (bytes, limit) = (1025, 1024);
    assert_eq!(refused, Err(PushError::DatagramTooLong { bytes, limit }));
    let entries = [one.end.sends.entry(0..1024)];
    let fits = batch.push(
        &SendRequest::send(send_id(0), &entries),
        &destination(&there),
    );
    assert_eq!(fits, Ok(()));
    assert_eq!(fake.doorbells().0, 0);
}

#[test]
fn post_send_ud_refuses_addresses_of_other_domains_and_other_operations() {
    let (fake, mut one, other) = two();
    let foreign = to(&other.address_of(&one), &other);
    let ours = to(&one.address_of(&other), &other);
    let mut batch = one.pair.send_batch();
    let send = SendRequest::send(send_id(0), &[]);
    let refused = batch.push(&send, &destination(&foreign));
    assert_eq!(refused, Err(PushError::OtherDomain));
    let kind = QueuePairKind::Datagram;
    let remote = RemoteAddress {
        address: 0,
        rkey: 0,
    };
    let write = SendRequest::write(send_id(0), &[], remote);
    let operation = "RDMA write";
    let refused = batch.push(&write, &destination(&ours));
    assert_eq!(refused, Err(PushError::OtherKind { operation, kind }));
    assert_eq!(batch.post(), Ok(0));
    assert_eq!(fake.doorbells().0, 0);
}

#[test]
fn create_ah_and_destroy_ah_end_with_the_last_datagram() {
    let (fake, mut one, other) = two();
    fake.hold_sends(true);
    let there = to(&one.address_of(&other), &other);
    let mut batch = one.pair.send_batch();
    let send = SendRequest::send(send_id(0), &[]);
    batch.push(&send, &destination(&there)).unwrap();
    // A batch that is dropped holds nothing.
    let alive = |fake: &FakeProvider| fake.alive().get("address handles").copied();
    let mut batch = one.pair.send_batch();
    batch.push(&send, &destination(&there)).unwrap();
    batch.post().unwrap();
    drop(there);
    assert_eq!(alive(&fake), Some(1));
    // The last one is kept to drain the queue by.
    one.pair.retire_sends(1);
    assert_eq!(alive(&fake), Some(1));
    drop(one);
    assert_eq!(alive(&fake), None);

    let vector = vector(Gid::default(), 7);
    let refused = AddressHandle::new(&other.end.domain, &vector).unwrap_err();
    assert!(refused.to_string().contains("ibv_create_ah"), "{refused}");
}

#[test]
fn destroy_qp_ud_is_drained_by_its_last_address_or_has_sent_nothing() {
    let (fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    fake.hold_sends(true);
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::send(send_id(0), &[]), &destination(&there))
        .unwrap();
    batch.post().unwrap();
    other.post_receive(BUFFER);
    for mut post in [one, other] {
        let (now, late) = moments();
        let mut teardown = Teardown::begin(post.pair, 1, now, Duration::from_secs(1));
        assert_eq!(teardown.verdict(now), Verdict::Draining);
        for completion in post.end.poll() {
            teardown.handle_completion(&completion);
        }
        assert_eq!(teardown.verdict(late), Verdict::Drained);
    }
}

#[test]
fn modify_qp_recovers_from_the_state_sqe() {
    let (fake, mut one, mut other) = two();
    let there = to(&one.address_of(&other), &other);
    let refused = one.pair.recover_sends().unwrap_err();
    assert!(refused.to_string().contains("SQE -> RTS"), "{refused}");
    assert_eq!(one.pair.state(), QueuePairState::ReadyToSend);
    fake.hold_sends(true);
    let mut batch = one.pair.send_batch();
    for _ in 0..2 {
        let send = SendRequest::send(send_id(0), &[]);
        batch.push(&send, &destination(&there)).unwrap();
    }
    batch.post().unwrap();
    one.post_receive(BUFFER);
    fake.fail_send(one.pair.number(), 4, 0);
    fake.hold_sends(false);
    let failed = one.end.poll();
    assert_eq!(failed.len(), 2);
    assert!(failed.iter().all(|one| one.outcome().is_err()));
    one.pair.retire_sends(2);
    let queried = one.pair.query().unwrap().attributes.state;
    assert_eq!(queried, QueuePairState::SendQueueError);

    // Receives go on.
    let back = to(&other.address_of(&one), &one);
    other.send(b"received", &destination(&back));
    assert_eq!(one.arrived().0, b"received");
    one.pair.recover_sends().unwrap();
    other.post_receive(BUFFER);
    one.send(b"sent", &destination(&there));
    assert_eq!(other.arrived().0, b"sent");
}

/// Returns the way to a GID, from the port's GID of this index.
fn vector(destination: Gid, source_index: u8) -> AddressVector {
    AddressVector {
        port: 1,
        route: Some(GlobalRoute {
            destination,
            source_index,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
        }),
        ..AddressVector::default()
    }
}

fn group() -> MulticastGroup {
    MulticastGroup::new(Gid::of("239.1.2.3".parse().unwrap()), 0).unwrap()
}

#[test]
fn attach_mcast_and_detach_mcast_begin_and_end_the_copies_of_a_group() {
    let (fake, mut one, mut other) = two();
    let vector = vector(group().gid(), 1);
    let address = AddressHandle::new(&one.end.domain, &vector).unwrap();
    let all = (address, MulticastGroup::QUEUE_PAIR);
    one.send(b"to nobody", &destination(&all));
    other.pair.attach_multicast(group()).unwrap();
    other.pair.attach_multicast(group()).unwrap();
    other.post_receive(BUFFER);
    other.post_receive(BUFFER);
    one.send(b"to the group", &destination(&all));
    let (payload, completion) = other.arrived();
    assert_eq!(payload, b"to the group");
    let header = other.header();
    let back = AddressVector::from_completion(&other.end.device, 1, &completion, &header);
    assert!(matches!(back, Err(VerbsError::NoReturnAddress { .. })));
    let mut wrong = destination(&all);
    wrong.key = QKey(5);
    one.send(b"wrong key", &wrong);

    fake.refuse(Call::DetachMulticast, Errno::NOMEM);
    let refused = other.pair.detach_multicast(group()).unwrap_err();
    assert!(
        refused.to_string().contains("ibv_detach_mcast"),
        "{refused}"
    );
    other.pair.detach_multicast(group()).unwrap();
    one.send(b"to nobody again", &destination(&all));
    assert!(other.end.poll().is_empty());
    let refused = other.pair.detach_multicast(group()).unwrap_err();
    assert!(
        refused.to_string().ends_with("attached to: none"),
        "{refused}"
    );

    // A queue pair that is still attached goes nevertheless.
    other.pair.attach_multicast(group()).unwrap();
    fake.refuse(Call::AttachMulticast, Errno::NOMEM);
    let second = MulticastGroup::new(Gid::of("ff0e::1".parse().unwrap()), 0xc001).unwrap();
    let refused = other.pair.attach_multicast(second).unwrap_err();
    assert!(
        refused.to_string().contains("ibv_attach_mcast"),
        "{refused}"
    );
    drop((one, other, all));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn attach_mcast_takes_only_groups() {
    let unicast = MulticastGroup::new(Gid::of("192.0.2.1".parse().unwrap()), 0).unwrap_err();
    assert!(unicast.to_string().contains("begins with ff"), "{unicast}");
    let lid = MulticastGroup::new(group().gid(), 7).unwrap_err();
    assert!(lid.to_string().contains("0xc000"), "{lid}");
}
