//! Extended reliable connections.

use rustix::io::Errno;

use super::*;
use crate::{
    CompletionStatus, QueuePairState, ReadRequest, SendRequest, Teardown, VerbsError, Verdict,
    XrcDomain, XrcOpening, XrcReceiveQueue, XrcReceiveQueuePair, XrcSendQueuePair,
    abi::attribute_mask::AttributeMask, provider::fake::Call,
};

/// A sender, a receiving end and two receive queues of its domain, connected.
struct Extended {
    sender: End,
    sends: XrcSendQueuePair,
    receiver: End,
    ends: XrcReceiveQueuePair,
    queues: [XrcReceiveQueue; 2],
    domain: XrcDomain,
}

fn extended(fake: &FakeProvider) -> Extended {
    let provider = fake.provider();
    let (sender, receiver) = (End::new(&provider, USUAL), End::new(&provider, USUAL));
    let domain = XrcDomain::private(&receiver.device).unwrap();
    let queue = || {
        let (of, completions) = (&receiver.domain, &receiver.completions);
        XrcReceiveQueue::new(of, &domain, completions, 7, 1).unwrap()
    };
    let queues = [queue(), queue()];
    let settings = ConnectionSettings::default();
    let builder = QueuePairBuilder::new(&sender.domain, &sender.completions);
    let mut sends = builder.build_xrc_send(1, settings).unwrap();
    let mut ends = XrcReceiveQueuePair::new(&domain, 1, EVERYTHING).unwrap();
    let (local, first) = (sender.local(), FirstSequence::from_random(1));
    let (here, there) = (sends.endpoint(first, &local), ends.endpoint(first, &local));
    sends.connect(first, local, there).unwrap();
    ends.connect(first, local, here, settings).unwrap();
    Extended {
        sender,
        sends,
        receiver,
        ends,
        queues,
        domain,
    }
}

fn post_receive(queue: &mut XrcReceiveQueue, end: &End, offset: usize) {
    let entries = [end.receives.entry(offset..offset + 8)];
    let id = WorkId::new(Operation::Receive, offset as u32, 0);
    let mut batch = queue.batch();
    batch.push(&ReceiveRequest::new(id, &entries)).unwrap();
    assert_eq!(batch.post(), Ok(1));
}

fn send(extended: &mut Extended, bytes: &[u8], queue: u32) {
    put(&extended.sender.sends, 0, bytes);
    let entries = [extended.sender.sends.entry(0..bytes.len())];
    let mut batch = extended.sends.send_batch();
    let request = SendRequest::send(send_id(0), &entries).signaled();
    batch.push(&request, queue).unwrap();
    assert_eq!(batch.post(), Ok(1));
}

#[test]
fn create_qp_xrc_has_the_attributes_of_its_kinds_alone() {
    let fake = one_device();
    let extended = extended(&fake);
    assert_eq!(extended.sends.state(), QueuePairState::ReadyToSend);
    assert_eq!(extended.ends.state(), QueuePairState::ReadyToSend);
    let masks = |number| {
        let steps = fake.modifications();
        let own = steps.iter().filter(|step| step.queue_pair == number);
        own.map(|step| step.mask.without(AttributeMask::STATE).to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        masks(extended.sends.number()),
        [
            "ACCESS_FLAGS|PKEY_INDEX|PORT",
            "AV|PATH_MTU|RQ_PSN|DEST_QPN",
            "TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN"
        ]
    );
    assert_eq!(
        masks(extended.ends.number()),
        [
            "ACCESS_FLAGS|PKEY_INDEX|PORT",
            "AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN",
            "TIMEOUT|SQ_PSN"
        ]
    );
}

#[test]
fn create_srq_ex_xrc_takes_what_names_it_by_get_srq_num() {
    let fake = one_device();
    let mut extended = extended(&fake);
    let [one, other] = &mut extended.queues;
    let numbers = [one.number(), other.number()];
    assert_ne!(numbers[0], numbers[1]);
    post_receive(one, &extended.receiver, 0);
    post_receive(other, &extended.receiver, 64);
    send(&mut extended, b"second", numbers[1]);
    send(&mut extended, b"first", numbers[0]);
    assert_eq!(get(&extended.receiver.receives, 64, 6), b"second");
    assert_eq!(get(&extended.receiver.receives, 0, 5), b"first");
    let arrived = extended.receiver.poll();
    let slots: Vec<_> = arrived.iter().map(|one| one.id().slot()).collect();
    assert_eq!(slots, [64, 0]);
    assert_eq!(arrived[0].queue_pair(), extended.ends.number());
    extended.queues.iter_mut().for_each(|queue| queue.retire(1));
    assert_eq!(extended.queues[0].outstanding(), 0);
    assert!(extended.queues[0].capacity() >= 7);
    assert_eq!(extended.sender.poll().len(), 2);
    extended.sends.retire_sends(2);

    // A read names a queue and takes no receive.
    put(&extended.receiver.receives, 4096, b"granted");
    let targets = [extended.sender.receives.target(0..7)];
    let remote = extended.receiver.receives.remote(4096);
    let mut batch = extended.sends.send_batch();
    let id = WorkId::new(Operation::Read, 0, 0);
    let read = ReadRequest::new(id, &targets, remote).signaled();
    batch.push_read(&read, numbers[0]).unwrap();
    batch.post().unwrap();
    assert!(extended.sender.poll()[0].outcome().is_ok());
    assert_eq!(get(&extended.sender.receives, 0, 7), b"granted");
}

#[test]
fn post_send_xrc_to_a_queue_of_another_domain_breaks_the_connection() {
    let fake = one_device();
    let mut extended = extended(&fake);
    let receiver = &extended.receiver;
    let foreign = XrcDomain::private(&receiver.device).unwrap();
    let (of, completions) = (&receiver.domain, &receiver.completions);
    let mut queue = XrcReceiveQueue::new(of, &foreign, completions, 7, 1).unwrap();
    post_receive(&mut queue, receiver, 0);
    send(&mut extended, b"lost", queue.number());
    let failure = extended.sender.poll()[0].outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RemoteInvalidRequest);
}

/// A file without a name, opened twice.
fn one_file(name: &str) -> (std::fs::File, std::fs::File) {
    let path = std::env::temp_dir().join(format!("ibex-xrc-{name}-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let again = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (file, again)
}

#[test]
fn open_xrcd_of_one_file_is_one_domain() {
    let fake = one_device();
    let provider = fake.provider();
    let (file, again) = one_file("domain");
    let (one, other) = (End::new(&provider, USUAL), End::new(&provider, USUAL));
    let nobody = XrcDomain::of_file(&one.device, &file, XrcOpening::Existing);
    assert!(nobody.unwrap_err().to_string().contains("ibv_open_xrcd"));
    let made = XrcDomain::of_file(&one.device, &file, XrcOpening::Create).unwrap();
    assert!(XrcDomain::of_file(&other.device, &again, XrcOpening::Create).is_err());
    let opened = XrcDomain::of_file(&other.device, &again, XrcOpening::Existing).unwrap();
    drop((one, other, made, opened));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn open_qp_holds_a_receiving_end_that_another_process_has_made() {
    let fake = one_device();
    let provider = fake.provider();
    let (file, again) = one_file("pair");
    let (one, other) = (End::new(&provider, USUAL), End::new(&provider, USUAL));
    let made = XrcDomain::of_file(&one.device, &file, XrcOpening::Create).unwrap();
    let opened = XrcDomain::of_file(&other.device, &again, XrcOpening::Existing).unwrap();
    let mut maker = XrcReceiveQueuePair::new(&made, 1, RegionAccess::SEND).unwrap();
    let (local, first) = (one.local(), FirstSequence::from_random(1));
    let peer = one.pair.endpoint(first, &local);
    let settings = ConnectionSettings::default();
    maker.connect(first, local, peer, settings).unwrap();
    let holder = XrcReceiveQueuePair::open(&opened, maker.number()).unwrap();
    assert_eq!(holder.state(), QueuePairState::ReadyToSend);
    drop((maker, made));
    let queried = holder.query().unwrap();
    assert_eq!(queried.attributes.destination, one.pair.number());
    let private = XrcDomain::private(&other.device).unwrap();
    let refused = XrcReceiveQueuePair::open(&private, holder.number()).unwrap_err();
    assert!(refused.to_string().contains("ibv_open_qp"), "{refused}");
    drop((one, other, opened, private));
    assert_eq!(fake.alive()["queue pairs"], 1);
    drop(holder);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn open_xrcd_is_refused_by_devices_without_extended_connections() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.has_xrc = false);
    let end = End::new(&fake.provider(), USUAL);
    let refused = XrcDomain::private(&end.device).unwrap_err();
    assert!(
        matches!(refused, VerbsError::Unsupported { .. }),
        "{refused}"
    );
    let builder = QueuePairBuilder::new(&end.domain, &end.completions);
    let refused = builder
        .build_xrc_send(1, ConnectionSettings::default())
        .unwrap_err();
    assert!(
        matches!(refused, VerbsError::Unsupported { .. }),
        "{refused}"
    );
}

#[test]
fn create_srq_ex_xrc_needs_objects_of_one_device() {
    let fake = one_device();
    let provider = fake.provider();
    let (one, other) = (End::new(&provider, USUAL), End::new(&provider, USUAL));
    let domain = XrcDomain::private(&other.device).unwrap();
    let refused = XrcReceiveQueue::new(&one.domain, &domain, &one.completions, 7, 1);
    assert!(refused.unwrap_err().to_string().contains("XRC domain"));
    fake.refuse(Call::CreateXrcReceives, Errno::INVAL);
    let refused = XrcReceiveQueue::new(&other.domain, &domain, &other.completions, 7, 99);
    assert!(matches!(refused, Err(VerbsError::Limit { .. })));
}

#[test]
fn destroy_qp_xrc_waits_for_its_sends_alone() {
    let fake = one_device();
    let Extended {
        mut sender,
        sends,
        receiver,
        ends,
        queues,
        domain,
    } = extended(&fake);
    let (now, late) = moments();
    let mut teardown = Teardown::begin(sends, 1, now, Duration::from_secs(1));
    assert_eq!(teardown.verdict(now), Verdict::Draining);
    for completion in sender.poll() {
        teardown.handle_completion(&completion);
    }
    assert_eq!(teardown.verdict(late), Verdict::Drained);
    drop((teardown, sender, receiver, ends, queues, domain));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}
