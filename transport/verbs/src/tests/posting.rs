//! Each posted request, field by field, and batches with their doorbells.

use rustix::io::Errno;

use super::*;
use crate::{
    CompletionKind, PushError, QueuePairState, RECEIVE_BATCH, ScatterEntry, SendRequest,
    abi::{send_flags, wr_opcode},
    provider::fake::{Call, FaultScript},
};

#[test]
fn a_batch_is_one_list_with_one_doorbell() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(4);
    put(&one.sends, 0, b"head tail");

    let seam = [one.sends.entry(0..5), one.sends.entry(5..9)];
    let plain = [one.sends.entry(100..164)];
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &seam)).unwrap();
    batch
        .push(
            &SendRequest::send(send_id(1), &plain)
                .with_immediate(0x0102_0304)
                .solicited()
                .fenced(),
        )
        .unwrap();
    batch
        .push(&SendRequest::send(send_id(2), &[]).signaled())
        .unwrap();
    assert_eq!(batch.len(), 3);
    assert_eq!(batch.post(), Ok(3));

    assert_eq!(fake.doorbells().0, 1);
    let posted = fake.posted();
    assert!(posted.iter().all(|send| send.doorbell == 1));
    assert!(
        posted
            .iter()
            .all(|send| send.queue_pair == one.pair.number())
    );
    let ids: Vec<_> = posted
        .iter()
        .map(|send| WorkId::from_raw(send.wr_id))
        .collect();
    assert_eq!(ids, [send_id(0), send_id(1), send_id(2)]);
    let flags: Vec<_> = posted.iter().map(|send| send.flags).collect();
    let second = send_flags::SOLICITED | send_flags::FENCE;
    assert_eq!(flags, [0, second, send_flags::SIGNALED]);
    let opcodes: Vec<_> = posted.iter().map(|send| send.opcode).collect();
    let with_immediate = wr_opcode::SEND_WITH_IMM;
    assert_eq!(opcodes, [wr_opcode::SEND, with_immediate, wr_opcode::SEND]);
    assert_eq!(posted[1].immediate, 0x0102_0304_u32.to_be());

    // Two pieces across the seam, with the region's key; their bytes arrive as one message.
    let base = one.sends.base().as_ptr().addr() as u64;
    let pieces: Vec<_> = posted[0]
        .entries
        .iter()
        .map(|e| (e.addr, e.length))
        .collect();
    assert_eq!(pieces, [(base, 5), (base + 5, 4)]);
    assert_eq!(posted[0].entries[0].lkey, posted[1].entries[0].lkey);
    assert_eq!(get(&other.receives, 0, 9), b"head tail");

    let arrived: Vec<_> = other
        .poll()
        .iter()
        .map(|wc| {
            let done = wc.outcome().unwrap();
            (wc.id().slot(), done.kind, done.bytes, done.immediate)
        })
        .collect();
    let kind = CompletionKind::Receive;
    assert_eq!(
        arrived,
        [
            (0, kind, 9, None),
            (1, kind, 64, Some(0x0102_0304)),
            (2, kind, 0, None),
        ]
    );
    // One of three requests is signaled, so one completion covers all of them.
    let done = one.poll();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].id(), send_id(2));
    assert_eq!(done[0].outcome().unwrap().kind, CompletionKind::Send);
    one.pair.retire_sends(3);
    assert_eq!(one.pair.outstanding_sends(), 0);
}

#[test]
fn inline_bytes_are_copied_and_need_no_registration() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(1);
    fake.hold_sends(true);
    let mut text = *b"as it was posted";
    let entries = [ScatterEntry::unregistered(&text)];
    let mut batch = one.pair.send_batch();
    let request = SendRequest::send(send_id(0), &entries).inline().signaled();
    batch.push(&request).unwrap();
    batch.post().unwrap();
    text.fill(0);
    fake.hold_sends(false);
    assert_eq!(get(&other.receives, 0, 16), b"as it was posted");
    let posted = &fake.posted()[0];
    assert_eq!(posted.flags, send_flags::INLINE | send_flags::SIGNALED);
    assert_eq!(posted.inline.as_deref(), Some(&b"as it was posted"[..]));
}

#[test]
fn writes_go_where_the_peer_granted() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(1);
    put(&one.sends, 0, b"block");
    let entries = [one.sends.entry(0..5)];
    let target = other.receives.remote(5000);
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::write(send_id(0), &entries, target))
        .unwrap();
    let announced = SendRequest::write(send_id(1), &[], target).with_immediate(9);
    batch.push(&announced.signaled()).unwrap();
    batch.post().unwrap();
    assert_eq!(get(&other.receives, 5000, 5), b"block");
    let arrived = other.poll();
    assert_eq!(arrived.len(), 1);
    let done = arrived[0].outcome().unwrap();
    assert_eq!(
        (done.kind, done.immediate),
        (CompletionKind::ReceiveWrite, Some(9))
    );
    assert_eq!(one.poll()[0].outcome().unwrap().kind, CompletionKind::Write);
    assert_eq!(fake.posted()[0].remote, (target.address, target.rkey));
}

#[test]
fn mistakes_are_told_before_the_device_sees_them() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    let long = [0; 513];
    let most = one.pair.max_inline_bytes();
    let three = [
        one.sends.entry(0..1),
        one.sends.entry(1..2),
        one.sends.entry(2..3),
    ];
    let loose = [ScatterEntry::unregistered(&long)];
    let mut batch = one.pair.send_batch();
    assert_eq!(
        batch.push(&SendRequest::send(send_id(0), &three)),
        Err(PushError::TooManyEntries {
            entries: 3,
            limit: 2
        })
    );
    assert_eq!(
        batch.push(&SendRequest::send(send_id(0), &loose).inline()),
        Err(PushError::InlineTooLong {
            bytes: 513,
            limit: most
        })
    );
    assert_eq!(
        batch.push(&SendRequest::send(send_id(0), &loose)),
        Err(PushError::NotRegistered)
    );
    assert!(batch.is_empty());
    assert_eq!(batch.post(), Ok(0));
    assert_eq!(fake.doorbells().0, 0);
}

#[test]
fn a_full_send_queue_is_known_without_the_device() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    // The peer receives nothing, so no send completes.
    let room = one.pair.send_room();
    assert!(room >= 15);
    for slot in 0..room {
        let mut batch = one.pair.send_batch();
        batch.push(&SendRequest::send(send_id(slot), &[])).unwrap();
        batch.post().unwrap();
    }
    let refused = one
        .pair
        .send_batch()
        .push(&SendRequest::send(send_id(room), &[]));
    assert_eq!(refused, Err(PushError::QueueFull { capacity: room }));
    one.pair.retire_sends(1);
    assert_eq!(one.pair.send_room(), 1);
}

#[test]
fn a_dropped_batch_posts_nothing_and_leaves_nothing_behind() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    let dropped = SendRequest::send(send_id(0), &[]);
    one.pair.send_batch().push(&dropped).unwrap();
    assert!(fake.posted().is_empty());
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(1), &[])).unwrap();
    assert_eq!(batch.post(), Ok(1));
    assert_eq!(WorkId::from_raw(fake.posted()[0].wr_id), send_id(1));
}

#[test]
fn a_device_that_refuses_midway_says_what_was_posted() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    fake.play(&FaultScript::new().refuse(Call::PostSend, 3, Errno::NOMEM));
    let mut batch = one.pair.send_batch();
    for slot in 0..4 {
        batch.push(&SendRequest::send(send_id(slot), &[])).unwrap();
    }
    let error = batch.post().unwrap_err();
    assert_eq!((error.accepted, error.source), (2, Errno::NOMEM));
    assert_eq!(
        error.to_string(),
        "ibv_post_send refused request 3 of 4: Cannot allocate memory (os error 12); \
         2 are posted and the rest is not"
    );
    assert_eq!(one.pair.outstanding_sends(), 2);
}

#[test]
fn sending_before_the_connection_is_refused() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    assert_eq!(end.pair.state(), QueuePairState::Init);
    let mut batch = end.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
    let error = batch.post().unwrap_err();
    assert_eq!((error.accepted, error.source), (0, Errno::INVAL));
    let advice =
        "a queue pair that is not connected refuses sends: call `QueuePair::connect` first";
    assert!(error.to_string().ends_with(advice), "{error}");
    assert_eq!(end.pair.outstanding_sends(), 0);
}

#[test]
fn receives_are_posted_in_batches_to_either_kind_of_queue() {
    for shared in [true, false] {
        let fake = one_device();
        let shape = Shape { shared, ..USUAL };
        let (_one, mut other) = connected(&fake, shape);
        let capacity = other.receive_queue().capacity() as usize;
        assert!(capacity >= 14);
        other.post_receives(capacity);
        assert_eq!(fake.doorbells().1, 1);
        let waiting = match other.receive_queue().tag() {
            Some(tag) => fake.shared_receives(tag),
            None => fake.own_receives(other.pair.number()),
        };
        assert_eq!(waiting.len(), capacity);
        let base = other.receives.base().as_ptr().addr() as u64;
        for (slot, receive) in waiting.iter().enumerate() {
            let id = WorkId::new(Operation::Receive, slot as u32, 0);
            assert_eq!(WorkId::from_raw(receive.wr_id), id);
            let entry = receive.entries[0];
            assert_eq!(
                (entry.addr, entry.length),
                (base + slot as u64 * 1024, 1024)
            );
        }

        let one_more = ReceiveRequest::new(WorkId::new(Operation::Receive, 99, 0), &[]);
        let refused = other.receive_queue().batch().push(&one_more);
        let capacity = capacity as u32;
        assert_eq!(refused, Err(PushError::QueueFull { capacity }));
        other.receive_queue().retire(1);
        assert_eq!(other.receive_queue().outstanding(), capacity - 1);
    }
}

#[test]
fn receives_that_are_refused_midway_are_counted_as_far_as_they_went() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    fake.play(&FaultScript::new().refuse(Call::PostReceive, 4, Errno::NOMEM));
    let entries = [end.receives.entry(0..64)];
    let mut batch = end.shared.as_mut().unwrap().batch();
    for slot in 0..5 {
        let id = WorkId::new(Operation::Receive, slot, 0);
        batch.push(&ReceiveRequest::new(id, &entries)).unwrap();
    }
    let error = batch.post().unwrap_err();
    assert_eq!((error.call, error.accepted), ("ibv_post_srq_recv", 3));
    assert_eq!(end.shared.as_ref().unwrap().outstanding(), 3);
}

#[test]
fn a_refused_receive_of_a_queue_pair_names_the_call_of_its_own_queue() {
    let fake = one_device();
    let mut end = End::new(
        &fake.provider(),
        Shape {
            shared: false,
            ..USUAL
        },
    );
    fake.refuse(Call::PostReceive, Errno::NOMEM);
    let entries = [end.receives.entry(0..64)];
    let mut batch = end.pair.receive_queue().unwrap().batch();
    let id = WorkId::new(Operation::Receive, 0, 0);
    batch.push(&ReceiveRequest::new(id, &entries)).unwrap();
    assert_eq!(batch.post().unwrap_err().call, "ibv_post_recv");
}

#[test]
fn a_batch_has_an_end() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let mut queue = ReceiveQueue::shared(&domain, 255, 1).unwrap();
    let mut batch = queue.batch();
    let id = WorkId::new(Operation::Receive, 0, 0);
    for _ in 0..RECEIVE_BATCH {
        batch.push(&ReceiveRequest::new(id, &[])).unwrap();
    }
    assert_eq!(
        batch.push(&ReceiveRequest::new(id, &[])),
        Err(PushError::BatchFull {
            capacity: RECEIVE_BATCH
        })
    );
}

#[test]
fn only_registered_memory_inside_its_region_can_be_named() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let bytes = end.sends.bytes();
    assert_eq!(end.sends.entry(0..bytes).bytes() as usize, bytes);
    let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        end.sends.entry(1..bytes + 1)
    }));
    assert!(beyond.is_err());
}
