//! Unreliable connections.

use super::*;
use crate::{
    CompletionKind, PushError, QueuePairKind, QueuePairState, RemoteKey, SendRequest, Teardown,
    UnreliableQueuePair, Verdict,
    abi::{attribute_mask::AttributeMask, wr_opcode},
};

fn unreliable(end: &End) -> UnreliableQueuePair {
    let builder = QueuePairBuilder::new(&end.domain, &end.completions)
        .receives(4, 1)
        .remote_access(RegionAccess::REMOTE_WRITE);
    builder
        .build_unreliable(1, ConnectionSettings::default())
        .unwrap()
}

/// Two ends with a queue pair of each kind, of which the unreliable ones are connected.
fn connected_unreliably(fake: &FakeProvider) -> [(End, UnreliableQueuePair); 2] {
    let provider = fake.provider();
    let ends = [End::new(&provider, USUAL), End::new(&provider, USUAL)];
    let [one, other] = ends;
    let (mut here, mut there) = (unreliable(&one), unreliable(&other));
    let (local, first) = (one.local(), FirstSequence::from_random(7));
    let (our, their) = (here.endpoint(first, &local), there.endpoint(first, &local));
    here.connect(first, local, their).unwrap();
    there.connect(first, local, our).unwrap();
    [(one, here), (other, there)]
}

fn post_receive(end: &End, pair: &mut UnreliableQueuePair, bytes: usize) {
    let entries = [end.receives.entry(0..bytes)];
    let id = WorkId::new(Operation::Receive, 3, 0);
    let mut batch = pair.receive_queue().unwrap().batch();
    batch.push(&ReceiveRequest::new(id, &entries)).unwrap();
    batch.post().unwrap();
}

fn send(end: &End, pair: &mut UnreliableQueuePair, bytes: &[u8]) {
    put(&end.sends, 0, bytes);
    let entries = [end.sends.entry(0..bytes.len())];
    let mut batch = pair.send_batch();
    let request = SendRequest::send(send_id(0), &entries);
    batch.push(&request.signaled()).unwrap();
    assert_eq!(batch.post(), Ok(1));
}

#[test]
fn create_qp_uc_has_the_attributes_of_its_kind_alone() {
    let fake = one_device();
    let [(_one, here), _] = connected_unreliably(&fake);
    assert_eq!(here.state(), QueuePairState::ReadyToSend);
    let number = here.number();
    let masks: Vec<_> = fake
        .modifications()
        .iter()
        .filter(|step| step.queue_pair == number)
        .map(|step| step.mask.without(AttributeMask::STATE).to_string())
        .collect();
    assert_eq!(
        masks,
        [
            "ACCESS_FLAGS|PKEY_INDEX|PORT",
            "AV|PATH_MTU|RQ_PSN|DEST_QPN",
            "SQ_PSN"
        ]
    );
}

#[test]
fn post_send_uc_arrives_where_there_is_a_receive_and_is_lost_elsewhere() {
    let fake = one_device();
    let [(mut one, mut here), (mut other, mut there)] = connected_unreliably(&fake);
    send(&one, &mut here, b"lost");
    post_receive(&other, &mut there, 4);
    send(&one, &mut here, b"too long");
    send(&one, &mut here, b"here");
    let sent = one.poll();
    assert!(sent.iter().all(|one| one.outcome().is_ok()) && sent.len() == 3);
    here.retire_sends(3);
    let arrived = other.poll();
    assert_eq!(arrived.len(), 1);
    let completed = arrived[0].outcome().unwrap();
    assert_eq!(
        (completed.kind, completed.bytes),
        (CompletionKind::Receive, 4)
    );
    assert_eq!(get(&other.receives, 0, 4), b"here");
    assert_eq!(there.state(), QueuePairState::ReadyToSend);
}

#[test]
fn post_send_uc_writes_where_it_may_and_is_lost_elsewhere() {
    let fake = one_device();
    let [(mut one, mut here), (mut other, mut there)] = connected_unreliably(&fake);
    post_receive(&other, &mut there, 0);
    put(&one.sends, 0, b"written");
    let entries = [one.sends.entry(0..7)];
    let mut batch = here.send_batch();
    let id = WorkId::new(Operation::Write, 0, 0);
    for place in [other.sends.remote(0), other.receives.remote(100)] {
        batch
            .push(&SendRequest::write(id, &entries, place).with_immediate(9))
            .unwrap();
    }
    batch.post().unwrap();
    assert_eq!(get(&other.receives, 100, 7), b"written");
    assert_eq!(get(&other.sends, 0, 7), [0; 7]);
    assert!(one.poll().is_empty());
    let arrived = other.poll();
    assert_eq!(arrived.len(), 1);
    let completed = arrived[0].outcome().unwrap();
    assert_eq!(completed.kind, CompletionKind::ReceiveWrite);
    assert_eq!(completed.immediate, Some(9));
}

#[test]
fn post_send_uc_refuses_what_only_reliable_connections_do() {
    let fake = one_device();
    let [(_one, mut here), _] = connected_unreliably(&fake);
    let mut batch = here.send_batch();
    let kind = QueuePairKind::Unreliable;
    let invalidate = SendRequest::send_with_invalidate(send_id(0), &[], RemoteKey::from_raw(1));
    let refused = batch.push(&invalidate).unwrap_err();
    let operation = "invalidation";
    assert_eq!(refused, PushError::OtherKind { operation, kind });
    let fenced = batch.push(&SendRequest::send(send_id(0), &[]).fenced());
    let operation = "fence";
    assert_eq!(fenced, Err(PushError::OtherKind { operation, kind }));
    assert_eq!(
        refused.to_string(),
        "a queue pair of the kind unreliable connection (UC) has no invalidation"
    );
    assert_eq!(batch.post(), Ok(0));
    // The device of memory refuses what the types do not let through.
    assert!(!kind.does(wr_opcode::RDMA_READ) && !kind.does(wr_opcode::FETCH_AND_ADD));
}

#[test]
fn destroy_qp_uc_waits_for_its_last_requests() {
    let fake = one_device();
    let [(mut one, mut here), _] = connected_unreliably(&fake);
    post_receive(&one, &mut here, 8);
    let (now, late) = moments();
    let mut teardown = Teardown::begin(here, 1, now, Duration::from_secs(1));
    for completion in one.poll() {
        teardown.handle_completion(&completion);
    }
    assert_eq!(teardown.verdict(late), Verdict::Drained);
}
