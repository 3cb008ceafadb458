//! Large messages that are written into granted memory, and their possible failures.

use std::collections::VecDeque;

use ibex_protocol::transfer::rendezvous::WRITE_BYTES;
use ibex_verbs::{
    abi::{send_flags, wr_opcode},
    provider::fake::{Call, PostedSend},
};
use rustix::io::Errno;

use super::*;
use crate::session::EndCause;

/// Returns settings for two nodes that trust each other.
fn trusting() -> PortSettings {
    PortSettings {
        grants_memory: true,
        ..settings()
    }
}

fn is_write(send: &PostedSend) -> bool {
    send.opcode == wr_opcode::RDMA_WRITE
}

/// Returns the writes among the sends since the record of sends was last cleared.
fn writes(stage: &Stage) -> Vec<PostedSend> {
    let posted = stage.fake.posted();
    posted.into_iter().filter(is_write).collect()
}

/// Returns the bytes of a write.
fn length(write: &PostedSend) -> usize {
    write
        .entries
        .iter()
        .map(|entry| entry.length as usize)
        .sum()
}

fn why(receiver: &mut ReceiveHandle) -> EndCause {
    match receiver.poll() {
        Err(error) => end_cause(&error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_large_message_is_written_where_it_is_read() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("large", WINDOW);
    let bytes = 2 * WRITE_BYTES + 5;
    stage.fake.forget_posted();
    send(&mut sender, 1, bytes);
    send(&mut sender, 2, 10);
    stage.settle();
    let writes = writes(&stage);
    let lengths: Vec<_> = writes.iter().map(length).collect();
    assert_eq!(lengths, [WRITE_BYTES, WRITE_BYTES, 5]);
    assert!(
        writes
            .iter()
            .all(|write| write.flags & send_flags::SIGNALED != 0)
    );
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[0].bytes(), payload(1, bytes));
    assert_eq!(messages[1].bytes(), payload(2, 10));
    // The message is read where its first byte was written.
    let landed = writes[0].remote.0 as usize;
    assert_eq!(messages[0].bytes().as_ptr().addr(), landed);
    let [ours, theirs] = stage.stats();
    assert_eq!((ours.rdma_writes, ours.rdma_bytes), (3, bytes as u64));
    assert_eq!((ours.rendezvous_sent, theirs.rendezvous_received), (1, 1));
    assert_eq!((ours.bytes_copied, theirs.bytes_copied), (0, 0));
}

#[test]
fn a_message_of_256_mib_arrives_in_place() {
    let stage = Stage::with(trusting());
    let bytes = 256 << 20;
    let (mut sender, mut receiver) = stage.open_for(0, "longest", WINDOW, bytes as u64);
    stage.settle();
    sender
        .send(Some(bytes), Patience::None, |slot| {
            slot[bytes - 1].write(0x5a);
            Ok(bytes)
        })
        .unwrap();
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[0].bytes().len(), bytes);
    assert_eq!(messages[0].bytes().last(), Some(&0x5a));
    let landed = writes(&stage)[0].remote.0 as usize;
    assert_eq!(messages[0].bytes().as_ptr().addr(), landed);
    let [ours, theirs] = stage.stats();
    assert_eq!(ours.rdma_writes, (bytes / WRITE_BYTES) as u64);
    assert_eq!(theirs.bytes_copied, 0);
}

#[test]
fn memory_is_registered_once_and_used_again() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("again", WINDOW);
    let mut regions = Vec::new();
    for number in 0..50 {
        send(&mut sender, number, 300_000);
        send(&mut sender, number, 200_000);
        stage.settle();
        assert_eq!(consume(&mut receiver), 2);
        stage.settle();
        regions.push(stage.fake.alive()["memory regions"]);
    }
    assert_eq!(regions[10], regions[49], "{regions:?}");
}

/// Sends messages of many lengths, some of which are held for a while.
#[test]
fn churn_keeps_the_registered_memory_bounded() {
    const MESSAGES: u64 = 10_000;
    const LONGEST: usize = 300_000;
    const HELD: usize = 5;
    let settings = PortSettings {
        eager_blocks: 0,
        ..trusting()
    };
    let stage = Stage::with(settings);
    let (mut sender, mut receiver) = stage.channel("churn", WINDOW);
    let opened = stage.fake.registered_bytes();
    let (mut regions, mut regions_at_first) = (0, 0);
    let mut held = VecDeque::new();
    for number in 1..=MESSAGES {
        let length = 65_000 + (number as usize * 7919) % (LONGEST - 65_000);
        let encode = |slot: &mut [MaybeUninit<u8>]| {
            slot[length - 1].write(number as u8);
            Ok(length)
        };
        sender.send(Some(length), Patience::None, encode).unwrap();
        stage.settle();
        let message = receiver.poll().unwrap().expect("it was sent");
        assert_eq!(message.bytes().len(), length);
        assert_eq!(message.bytes()[length - 1], number as u8);
        held.push_back(message);
        if held.len() > HELD {
            held.pop_front();
        }
        regions = regions.max(stage.fake.alive()["memory regions"]);
        if number == MESSAGES / 10 {
            regions_at_first = regions;
        }
        // Both sides keep no more than their pools do.
        let large = stage.fake.registered_bytes() - opened;
        assert!(large <= (2 * 32 * LONGEST) as u64, "{large}");
    }
    assert_eq!(regions, regions_at_first, "more behind the first tenth");
    let [ours, theirs] = stage.stats();
    assert_eq!(ours.rendezvous_sent, MESSAGES);
    assert_eq!(theirs.rendezvous_received, MESSAGES);
}

#[test]
fn a_peer_that_is_not_trusted_is_granted_nothing() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("stranger", WINDOW);
    send(&mut sender, 1, 100_000);
    stage.settle();
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), payload(1, 100_000));
    assert!(writes(&stage).is_empty());
    assert_eq!(stage.stats()[1].bytes_copied, 100_000);
    // The peer's queue pair accepts no write, whatever key is used.
    let opened = stage.fake.modifications();
    let allowed = opened.iter().map(|change| change.attributes.access_flags);
    assert!(allowed.into_iter().all(|access| access == 0));
}

#[test]
fn a_message_whose_memory_cannot_be_registered_goes_in_chunks() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("chunks", WINDOW);
    // The sender's own ring and message come first.
    send(&mut sender, 1, 10);
    send(&mut sender, 2, 100_000);
    stage.fake.refuse(Call::Register, Errno::NOMEM);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[1].bytes(), payload(2, 100_000));
    assert!(writes(&stage).is_empty());
    // The next message gets the registration that was refused to this one.
    drop(messages);
    send(&mut sender, 3, 100_000);
    stage.settle();
    assert_eq!(writes(&stage).len(), 1);
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), payload(3, 100_000));
}

#[test]
fn records_of_other_channels_pass_a_large_message() {
    let stage = Stage::with(trusting());
    let (mut large, mut takes_large) = stage.channel("large", WINDOW);
    let (mut small, mut takes_small) = stage.channel("small", WINDOW);
    send(&mut large, 1, 8 * WRITE_BYTES);
    hold_at_grant(&stage);
    stage.fake.forget_posted();
    send(&mut small, 1, 40);
    stage.settle();
    // At most as many writes as may be in flight precede the frame.
    assert!(stage.fake.posted().iter().any(|send| !is_write(send)));
    assert!(writes(&stage).len() <= 3);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(consume(&mut takes_small), 1);
    assert_eq!(consume(&mut takes_large), 1);
}

/// Holds back all sends from the moment at which memory for the announced message is granted.
fn hold_at_grant(stage: &Stage) {
    let regions = || stage.fake.alive()["memory regions"];
    let before = regions();
    stage.settle_until(|| regions() > before, || stage.fake.hold_sends(true));
}

/// Returns a channel with a half-written message; the sends are held back.
fn half_written(stage: &Stage) -> (SendHandle, ReceiveHandle) {
    let (mut sender, receiver) = stage.channel("half", WINDOW);
    send(&mut sender, 1, 3 * WRITE_BYTES);
    hold_at_grant(stage);
    stage.fake.release(stage.queue_pairs()[0], 1);
    (sender, receiver)
}

#[test]
fn memory_of_a_write_that_never_ends_is_deregistered_and_used_no_more() {
    let stage = Stage::with(trusting());
    let (_sender, mut receiver) = half_written(&stage);
    let write = writes(&stage).pop().unwrap();
    let (address, key) = write.remote;
    assert!(stage.fake.is_registered(key, address));
    let [dies, _] = stage.queue_pairs();
    stage.fake.fail_send(dies, 12, 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(matches!(why(&mut receiver), EndCause::PeerGone { .. }));
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
    // Writes that are still in flight find no key, and no message lands there again.
    assert!(!stage.fake.is_registered(key, address));
    assert_eq!(stage.nodes[1].runtime.granted_pool.kept(), 0);
}

#[test]
fn while_the_queue_pair_drains_its_memory_is_nobodys() {
    let stage = Stage::with(trusting());
    let (_sender, receiver) = half_written(&stage);
    let (address, key) = writes(&stage).pop().unwrap().remote;
    let [dies, _] = stage.queue_pairs();
    stage.fake.fail_send(dies, 12, 0);
    // The handle is dropped before the engine has noticed the failure and while it handles it.
    drop(receiver);
    assert!(stage.fake.is_registered(key, address));
    assert_eq!(stage.nodes[1].runtime.granted_pool.kept(), 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
    assert!(!stage.fake.is_registered(key, address));
    assert_eq!(stage.nodes[1].runtime.granted_pool.kept(), 0);
}

#[test]
fn a_receiver_that_goes_leaves_its_memory_to_the_sender_until_that_goes() {
    let stage = Stage::with(trusting());
    let (mut sender, receiver) = half_written(&stage);
    let (address, key) = writes(&stage).pop().unwrap().remote;
    drop(receiver);
    let pool = &stage.nodes[1].runtime.granted_pool;
    assert_eq!(pool.kept(), 0);
    stage.fake.hold_sends(false);
    stage.settle();
    let refused = try_send(&mut sender, &[1]);
    assert!(
        matches!(refused, Err(ChannelError::Failed(_))),
        "{refused:?}"
    );
    assert_eq!(pool.kept(), 0, "the sender's end is there");
    drop(sender);
    stage.settle();
    assert_eq!(pool.kept(), 1);
    assert!(
        stage.fake.is_registered(key, address),
        "to be granted again"
    );
    assert!(!stage.nodes[1].session.is_gone());
    // The session continues.
    let (mut sender, mut receiver) = stage.channel("half", WINDOW);
    send(&mut sender, 2, 3 * WRITE_BYTES);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[0].bytes(), payload(2, 3 * WRITE_BYTES));
}

#[test]
fn a_key_that_is_none_ends_the_session_with_the_protocol_as_the_cause() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = half_written(&stage);
    let [dies, _] = stage.queue_pairs();
    stage.fake.fail_send(dies, 10, 0);
    stage.fake.hold_sends(false);
    stage.settle();
    let ChannelError::Failed(error) = try_send(&mut sender, &[1]).unwrap_err() else {
        panic!("the session is over");
    };
    let error = error.to_string();
    assert!(error.contains("the protocol was broken"), "{error}");
    assert!(error.contains("memory is not granted"), "{error}");
    assert!(matches!(why(&mut receiver), EndCause::PeerGone { .. }));
}

#[test]
fn a_goodbye_waits_for_a_message_that_is_being_written() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("goodbye", WINDOW);
    send(&mut sender, 1, 20 * WRITE_BYTES);
    let [closes, answers] = stage.nodes.each_ref().map(|node| node.runtime.clone());
    let closing = std::thread::spawn(move || closes.close(std::time::Duration::from_secs(300)));
    while !closing.is_finished() {
        answers.poll_ready();
    }
    assert_eq!(closing.join().unwrap().undelivered, []);
    while answers.poll_ready() {}
    let message = receiver.poll().unwrap().unwrap();
    assert_eq!(message.bytes(), payload(1, 20 * WRITE_BYTES));
    drop(message);
    assert!(matches!(receiver.poll(), Err(ChannelError::Ended)));
}
