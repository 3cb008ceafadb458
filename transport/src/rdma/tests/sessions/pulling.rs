//! Large messages that are read from their sender's memory, and the end of the right to read there.

use std::time::Duration;

use ibex_protocol::{
    format::control::CloseReason,
    transfer::rendezvous::{LARGE_PER_CHANNEL, WRITE_BYTES},
};
use ibex_verbs::{
    abi::{access_flags, wr_opcode},
    provider::fake::{Call, FakeDevice, FaultScript, PostedBind, PostedSend},
};
use rustix::io::Errno;

use super::*;

mod declined;

pub(super) fn reads(stage: &Stage) -> Vec<PostedSend> {
    let is_read = |send: &PostedSend| send.opcode == wr_opcode::RDMA_READ;
    stage.fake.posted().into_iter().filter(is_read).collect()
}

/// Returns the bindings of windows since the record of sends was last cleared, with their queue
/// pairs.
pub(super) fn offers(stage: &Stage) -> Vec<(u32, PostedBind)> {
    let posted = stage.fake.posted().into_iter();
    posted
        .filter_map(|send| Some((send.queue_pair, send.bind?)))
        .collect()
}

/// Returns how many of those let the peer read now.
pub(super) fn open_offers(stage: &Stage) -> usize {
    let offers = offers(stage).into_iter();
    let is_open = |(pair, bind): &(u32, PostedBind)| stage.fake.lets_read(*pair, bind);
    offers.filter(is_open).count()
}

/// Returns how many sends of a queue pair are held back, and how many of them are reads.
pub(super) fn held(stage: &Stage, pair: u32) -> (usize, usize) {
    let held = stage.fake.held_sends(pair);
    let is_read = |send: &&PostedSend| send.opcode == wr_opcode::RDMA_READ;
    (held.len(), held.iter().filter(is_read).count())
}

fn length(send: &PostedSend) -> usize {
    let lengths = send.entries.iter().map(|entry| entry.length as usize);
    lengths.sum()
}

pub(super) const LONG: usize = 3 * WRITE_BYTES;

/// Returns a channel with a message that is offered, of which the receiver's engine does not know.
pub(super) fn offered(stage: &Stage) -> (SendHandle, ReceiveHandle) {
    let (mut sender, receiver) = stage.channel("offered", WINDOW);
    send(&mut sender, 3, LONG);
    while open_offers(stage) == 0 {
        stage.nodes[0].runtime.poll_ready();
    }
    (sender, receiver)
}

/// Checks that a later message is read too.
pub(super) fn check_goes_on(stage: &Stage) {
    let (mut sender, mut receiver) = stage.channel("goes on", WINDOW);
    stage.fake.forget_posted();
    send(&mut sender, 4, 100_000);
    stage.settle();
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), payload(4, 100_000));
    assert_eq!((reads(stage).len(), open_offers(stage)), (1, 0));
}

#[test]
fn a_large_message_is_read_where_it_lies() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("large", WINDOW);
    let bytes = 2 * WRITE_BYTES + 5;
    stage.fake.forget_posted();
    send(&mut sender, 1, bytes);
    send(&mut sender, 2, 10);
    stage.settle();
    let reads = reads(&stage);
    let lengths: Vec<_> = reads.iter().map(length).collect();
    assert_eq!(lengths, [WRITE_BYTES, WRITE_BYTES, 5]);
    let [(_, offer)] = offers(&stage)[..] else {
        panic!("one message, one window");
    };
    // The peer may read this message, and nothing else.
    assert_eq!(offer.bytes, bytes as u64);
    assert_eq!(offer.access, access_flags::REMOTE_READ);
    assert_eq!(reads[0].remote, (offer.address, offer.key));
    assert_eq!(open_offers(&stage), 0, "the message is taken");
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[0].bytes(), payload(1, bytes));
    assert_eq!(messages[1].bytes(), payload(2, 10));
    let target = reads[0].entries[0].addr as usize;
    assert_eq!(messages[0].bytes().as_ptr().addr(), target);
    let [ours, theirs] = stage.stats();
    assert_eq!((ours.rendezvous_sent, theirs.rendezvous_received), (1, 1));
    assert_eq!((ours.bytes_copied, theirs.bytes_copied), (0, 0));
    assert_eq!((ours.rdma_writes, theirs.rdma_writes), (0, 0));
    check_goes_on(&stage);
}

/// A file is mapped for reading alone, so it cannot have windows: it goes in chunks from where it
/// lies.
#[test]
fn a_slice_of_a_mapped_file_is_sent_in_chunks() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("file", WINDOW);
    let message = payload(1, 300_000);
    let slice = mapped(&message);
    sender.send_region((&slice).into(), Patience::None).unwrap();
    stage.settle();
    assert_eq!(offers(&stage).len(), 0);
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), message);
    assert_eq!(stage.stats()[0].bytes_copied, 0);
    check_goes_on(&stage);
}

#[test]
fn a_slice_of_pages_of_its_own_is_read_where_it_lies() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("own", WINDOW);
    let mut region = Region::zeroed(1_000_000).unwrap();
    for seed in [1, 2] {
        stage.fake.forget_posted();
        let message = payload(seed, 300_000);
        region.get_mut().unwrap()[5000..305_000].copy_from_slice(&message);
        let slice = region.slice(5000..305_000);
        sender.send_region((&slice).into(), Patience::None).unwrap();
        stage.settle();
        let [(_, offer)] = offers(&stage)[..] else {
            panic!("one message, one window");
        };
        let place = slice.as_ptr().addr() as u64;
        assert_eq!((offer.address, offer.bytes), (place, 300_000));
        assert_eq!(offer.access, access_flags::REMOTE_READ);
        assert_eq!(open_offers(&stage), 0, "the message is taken");
        assert_eq!(take(&mut receiver).unwrap()[0].bytes(), message);
        drop(slice);
        assert!(region.is_free(), "the engine needs the slice no more");
    }
    assert_eq!(stage.stats()[0].bytes_copied, 0);
    check_goes_on(&stage);
}

#[test]
fn messages_of_many_channels_are_read_in_both_directions_a_few_pieces_at_a_time() {
    let stage = Stage::with(reading());
    let mut channels: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .enumerate()
        .map(|(at, name)| stage.open(at % 2, name, WINDOW))
        .collect();
    stage.settle();
    let sent = |round: u64, at: usize| payload(round, 100_000 + 150_000 * at);
    for round in 0..5 {
        stage.fake.hold_sends(true);
        for (at, (sender, _)) in channels.iter_mut().enumerate() {
            for message in [&sent(round, at)[..], b"small", &sent(round, at), b"short"] {
                try_send(sender, message).unwrap();
            }
        }
        let mut most = [0; 2];
        for _ in 0..400 {
            for (at, node) in stage.nodes.iter().enumerate() {
                node.runtime.poll_ready();
                let pair = stage.queue_pairs()[at];
                let (_, waiting) = held(&stage, pair);
                most[at] = most[at].max(waiting);
                stage.fake.release(pair, 1);
            }
        }
        assert!(most.iter().all(|&most| (2..=3).contains(&most)), "{most:?}");
        stage.fake.hold_sends(false);
        stage.settle();
        for (at, (_, receiver)) in channels.iter_mut().enumerate() {
            let messages = take(receiver).unwrap();
            let bytes: Vec<_> = messages.iter().map(RawMessage::bytes).collect();
            assert_eq!(
                bytes,
                [&sent(round, at)[..], b"small", &sent(round, at), b"short"]
            );
        }
        stage.settle();
    }
    assert_eq!(open_offers(&stage), 0);
    for stats in stage.stats() {
        assert!(stats.rendezvous_sent > 10 && stats.rendezvous_received > 10);
    }
}

/// Both engines sleep while the device reads, and are woken when it has.
#[test]
fn messages_are_read_while_both_sides_sleep() {
    for driver in [Driver::Threads, Driver::Caller] {
        let stage = Stage::driven(driver, one_device(), reading());
        let (mut sender, mut receiver) = stage.open(0, "stream", WINDOW);
        let within = || Patience::at_most(Duration::from_secs(300));
        let sending = std::thread::spawn(move || {
            for number in 0..100 {
                let bytes = payload(number, LONG);
                let sent = sender.send(Some(LONG), within(), |slot| fill(slot, &bytes));
                sent.unwrap();
            }
            sender.wait_received(100, within()).unwrap();
            sender
        });
        for number in 0..100 {
            let message = receiver.receive(within()).unwrap();
            assert!(message.bytes() == payload(number, LONG));
        }
        let sender = sending.join().unwrap();
        assert_eq!(stage.stats()[1].rendezvous_received, 100);
        drop((sender, receiver));
        for node in &stage.nodes {
            let _ = node.runtime.close(Duration::ZERO);
        }
    }
}

#[test]
fn memory_is_registered_once_and_windows_are_used_again() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("again", WINDOW);
    let mut alive = Vec::new();
    for number in 0..50 {
        send(&mut sender, number, 300_000);
        send(&mut sender, number, 200_000);
        stage.settle();
        assert_eq!(consume(&mut receiver), 2);
        stage.settle();
        alive.push(stage.fake.alive());
    }
    assert_eq!(alive[10], alive[49]);
    assert_eq!(alive[0]["memory windows"], alive[49]["memory windows"]);
    assert_eq!(stage.stats()[1].bytes_copied, 0);
}

#[test]
fn a_receiver_that_goes_ends_the_right_to_read() {
    let stage = Stage::with(reading());
    let (sender, receiver) = offered(&stage);
    drop(receiver);
    stage.settle();
    assert!(reads(&stage).is_empty());
    assert_eq!(open_offers(&stage), 0);
    drop(sender);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn an_aborted_message_may_be_read_until_it_is_taken() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = offered(&stage);
    sender.break_off(CloseReason::Aborted);
    stage.nodes[0].runtime.poll_ready();
    assert_eq!(open_offers(&stage), 1);
    stage.settle();
    let message = receiver.poll().unwrap().expect("it was sent");
    assert_eq!(message.bytes(), payload(3, LONG));
    assert_eq!(open_offers(&stage), 0);
    drop((message, sender, receiver));
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn the_end_of_the_session_ends_the_right_to_read() {
    let stage = Stage::with(reading());
    let offered = offered(&stage);
    let [dies, _] = stage.queue_pairs();
    stage.fake.fail_receive(dies, 5, 0);
    stage.settle();
    assert_eq!(open_offers(&stage), 0);
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
    assert_eq!(stage.fake.alive().get("memory windows"), None);
    drop(offered);
}

#[test]
fn a_node_that_is_closed_waits_for_a_message_that_is_being_read() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("goodbye", WINDOW);
    send(&mut sender, 1, 20 * WRITE_BYTES);
    let [closes, answers] = stage.nodes.each_ref().map(|node| node.runtime.clone());
    let closing = std::thread::spawn(move || closes.close(Duration::from_secs(300)));
    while !closing.is_finished() {
        answers.poll_ready();
    }
    assert_eq!(closing.join().unwrap().undelivered, []);
    while answers.poll_ready() {}
    let message = receiver.poll().unwrap().unwrap();
    assert_eq!(message.bytes(), payload(1, 20 * WRITE_BYTES));
    assert_eq!(open_offers(&stage), 0);
}

/// A receiver may go while its device reads. The sender learns of that when nothing is read any more:
/// otherwise a read would find no key, which ends the session.
#[test]
fn a_receiver_that_goes_while_it_reads_breaks_nothing() {
    let stage = Stage::with(reading());
    let (mut sender, receiver) = stage.channel("goes", WINDOW);
    send(&mut sender, 1, 8 * WRITE_BYTES);
    let [_, reads_of] = stage.queue_pairs();
    stage.settle_until(|| open_offers(&stage) > 0, || stage.fake.hold_sends(true));
    for _ in 0..50 {
        stage.nodes[1].runtime.poll_ready();
        stage.nodes[0].runtime.poll_ready();
        stage.fake.release(stage.queue_pairs()[0], 1);
    }
    let under_way = held(&stage, reads_of).1;
    assert!(under_way > 0);
    drop(receiver);
    stage.nodes[1].runtime.poll_ready();
    let behind = held(&stage, reads_of);
    assert_eq!(
        behind,
        (under_way, under_way),
        "nothing goes behind the reads"
    );
    let pool = stage.nodes[1].runtime.large_pool.kept();
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(
        stage.nodes[1].runtime.large_pool.kept(),
        pool,
        "it is the device's"
    );
    assert_eq!(open_offers(&stage), 0);
    drop(sender);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn a_peer_that_never_reads_holds_two_messages_of_a_channel() {
    let stage = Stage::with(reading());
    let (mut sender, receiver) = offered(&stage);
    for number in 4..10 {
        let _ = try_send(&mut sender, &payload(number, LONG));
        while stage.nodes[0].runtime.poll_ready() {}
    }
    assert_eq!(open_offers(&stage), LARGE_PER_CHANNEL);
    drop((sender, receiver));
    stage.settle();
    assert_eq!(open_offers(&stage), 0);
}

/// Holds back the reads of a message of this length.
pub(super) fn half_read(stage: &Stage, bytes: usize) -> (SendHandle, ReceiveHandle) {
    let (mut sender, receiver) = stage.channel("half", WINDOW);
    send(&mut sender, 1, bytes);
    let [sends, reads] = stage.queue_pairs();
    stage.settle_until(|| open_offers(stage) > 0, || stage.fake.hold_sends(true));
    while held(stage, reads).1 == 0 {
        stage.nodes[0].runtime.poll_ready();
        stage.nodes[1].runtime.poll_ready();
        stage.fake.release(sends, 1);
    }
    (sender, receiver)
}

pub(super) fn why(receiver: &mut ReceiveHandle) -> EndCause {
    match receiver.poll() {
        Err(error) => end_cause(&error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_beyond_its_message_fails_at_the_device_and_ends_the_session() {
    let past: [fn(&mut PostedSend); 3] = [
        |read| read.remote.0 += 2 * WRITE_BYTES as u64 + 1,
        |read| read.remote.0 -= 1,
        |read| read.remote.1 ^= 1,
    ];
    for change in past {
        let stage = Stage::with(reading());
        let (_sender, mut receiver) = half_read(&stage, LONG);
        let [_, reads] = stage.queue_pairs();
        stage.fake.forge(reads, change);
        stage.fake.hold_sends(false);
        stage.settle();
        let EndCause::PeerGone { why, .. } = why(&mut receiver) else {
            panic!("the session is over");
        };
        assert!(why.contains("memory is not granted"), "{why}");
        assert_eq!(open_offers(&stage), 0);
        // A read that is still in flight finds no memory that another message gets.
        let pools = stage
            .nodes
            .each_ref()
            .map(|node| node.runtime.large_pool.kept());
        assert_eq!(pools[1], 0);
    }
}
