//! Messages of medium size, which are written into blocks that were granted ahead.

use std::time::Duration;

use ibex_protocol::transfer::eager_write::{
    EAGER_BLOCK_HEAD_BYTES, EAGER_BLOCK_MESSAGE_BYTES, EAGER_BLOCKS_PER_CHANNEL,
    EAGER_BLOCKS_PER_SESSION, EagerBlockId,
};
use ibex_verbs::{
    abi::{send_flags, wr_opcode},
    provider::fake::{FakeDevice, Modification, PostedSend},
};

use super::*;
use crate::{clock::StoppedClock, session::EndCause};

/// Returns two nodes that trust each other, on a device that `device` changes.
fn trusting_on(device: fn(&mut FakeDevice)) -> Stage {
    let fake = one_device();
    fake.change(DEVICE, device);
    let settings = PortSettings {
        grants_memory: true,
        ..settings()
    };
    Stage::on(fake, settings)
}

fn trusting() -> Stage {
    trusting_on(|_| ())
}

const NO_IMMEDIATE: fn(&mut FakeDevice) = |device| device.has_immediate = false;
const ONE_PIECE: fn(&mut FakeDevice) = |device| device.attributes.max_entries = 1;

/// Returns the sends of the first node since the record of sends was last cleared, without the
/// session's own control messages.
fn posted(stage: &Stage) -> Vec<PostedSend> {
    let queue_pair = stage.queue_pairs()[0];
    let is_talk = |send: &PostedSend| {
        let head = send.inline.as_ref().and_then(|bytes| bytes.get(4..8));
        head == Some(&[0; 4])
    };
    let posted = stage.fake.posted().into_iter();
    posted
        .filter(|send| send.queue_pair == queue_pair && !is_talk(send))
        .collect()
}

fn length(send: &PostedSend) -> usize {
    let entries = send.entries.iter().map(|entry| entry.length as usize);
    entries.sum()
}

/// Returns an open channel whose sender has its blocks.
fn active(stage: &Stage, name: &str) -> (SendHandle, ReceiveHandle) {
    let (mut sender, mut receiver) = stage.channel(name, WINDOW);
    send(&mut sender, 1, 10_000);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    stage.settle();
    stage.fake.forget_posted();
    (sender, receiver)
}

fn blocks(stage: &Stage) -> u32 {
    stage.nodes[1].rdma_port.eager_blocks()
}

fn why(receiver: &mut ReceiveHandle) -> EndCause {
    match receiver.poll() {
        Err(error) => end_cause(&error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_write_carries_a_message_and_its_announcement() {
    let stage = trusting();
    let (mut sender, mut receiver) = active(&stage, "one");
    assert_eq!(blocks(&stage), EAGER_BLOCKS_PER_CHANNEL as u32);
    for number in 2..20 {
        stage.fake.forget_posted();
        send(&mut sender, number, 20_000);
        stage.settle();
        let posted = posted(&stage);
        let [write] = &posted[..] else {
            panic!("{posted:?}");
        };
        assert_eq!(write.opcode, wr_opcode::RDMA_WRITE_WITH_IMM);
        assert_eq!(length(write), EAGER_BLOCK_HEAD_BYTES + 20_000);
        let messages = take(&mut receiver).unwrap();
        assert_eq!(messages[0].bytes(), payload(number, 20_000));
        // The message is read where it was written.
        let landed = write.remote.0 as usize + EAGER_BLOCK_HEAD_BYTES;
        assert_eq!(messages[0].bytes().as_ptr().addr(), landed);
        drop(messages);
        stage.settle();
    }
    let [ours, theirs] = stage.stats();
    assert_eq!((ours.eager_blocks_sent, theirs.landed), (18, 18));
    assert_eq!((ours.rendezvous_sent, theirs.rendezvous_received), (1, 1));
    assert_eq!((ours.bytes_copied, theirs.bytes_copied), (0, 0));
}

#[test]
fn without_immediate_data_or_two_pieces_the_announcement_goes_behind_the_write() {
    for device in [NO_IMMEDIATE, ONE_PIECE] {
        let stage = trusting_on(device);
        let (mut sender, mut receiver) = active(&stage, "two");
        for number in 2..20 {
            stage.fake.forget_posted();
            send(&mut sender, number, 20_000);
            stage.settle();
            let posted = posted(&stage);
            let [write, send] = &posted[..] else {
                panic!("{posted:?}");
            };
            assert_eq!(write.opcode, wr_opcode::RDMA_WRITE);
            assert_eq!(send.opcode, wr_opcode::SEND);
            assert_eq!(write.doorbell, send.doorbell);
            let messages = take(&mut receiver).unwrap();
            assert_eq!(messages[0].bytes(), payload(number, 20_000));
            let landed = write.remote.0 as usize;
            assert_eq!(messages[0].bytes().as_ptr().addr(), landed);
            drop(messages);
            stage.settle();
        }
        let [ours, theirs] = stage.stats();
        assert_eq!((ours.eager_blocks_sent, theirs.landed), (18, 18));
    }
}

/// Checks how a message of each size is posted, apart from the frames around it.
#[test]
fn the_path_follows_from_the_size() {
    #[derive(Debug, PartialEq)]
    enum Path {
        Inline,
        Eager,
        EagerBlock,
        Rendezvous,
    }
    for device in [|_: &mut FakeDevice| (), NO_IMMEDIATE] {
        let stage = trusting_on(device);
        let (mut sender, mut receiver) = active(&stage, "paths");
        let eager = stage.nodes[0].session.frame_path.eager_bytes();
        for (bytes, path) in [
            (0, Path::Inline),
            (64, Path::Inline),
            (180, Path::Inline),
            (220, Path::Eager),
            (1000, Path::Eager),
            (eager, Path::Eager),
            (eager + 1, Path::EagerBlock),
            (20_000, Path::EagerBlock),
            (EAGER_BLOCK_MESSAGE_BYTES, Path::EagerBlock),
            (EAGER_BLOCK_MESSAGE_BYTES + 1, Path::Rendezvous),
            (1 << 20, Path::Rendezvous),
        ] {
            let before = stage.stats()[0];
            stage.fake.forget_posted();
            send(&mut sender, 1, bytes);
            stage.settle();
            assert_eq!(consume(&mut receiver), 1);
            let posted = posted(&stage);
            let is_write = |send: &&PostedSend| send.opcode == wr_opcode::RDMA_WRITE;
            let lands = |send: &PostedSend| send.opcode == wr_opcode::RDMA_WRITE_WITH_IMM;
            let written = posted.iter().filter(is_write).map(length).sum::<usize>();
            let is_taken = match path {
                Path::Inline => {
                    let is_inline = |send: &PostedSend| send.flags & send_flags::INLINE != 0;
                    posted.iter().all(is_inline)
                }
                Path::Eager => posted
                    .iter()
                    .any(|send| length(send) > bytes && send.inline.is_none()),
                Path::EagerBlock => posted.iter().any(lands) || written == bytes,
                Path::Rendezvous => written == bytes && !posted.iter().any(lands),
            };
            assert!(is_taken, "{bytes} bytes go {path:?}: {posted:?}");
            // The counters agree.
            let after = stage.stats()[0];
            let is_rendezvous = after.rendezvous_sent > before.rendezvous_sent;
            let has_landed = after.eager_blocks_sent > before.eager_blocks_sent;
            assert_eq!(is_rendezvous, path == Path::Rendezvous, "{bytes}");
            assert_eq!(has_landed, path == Path::EagerBlock, "{bytes}");
            let has_written = after.rdma_writes > before.rdma_writes;
            assert_eq!(has_written, is_rendezvous || has_landed);
            stage.settle();
        }
    }
}

/// Sends messages whose sizes take all paths, which are held for a while and released in any order.
#[test]
fn messages_keep_their_order_on_whatever_path() {
    for device in [|_: &mut FakeDevice| (), NO_IMMEDIATE, ONE_PIECE] {
        let stage = trusting_on(device);
        let (mut sender, mut receiver) = stage.channel("mixed", WINDOW);
        let sizes = [10, 8_000, 70_000, 30_000, 3_000, 64 << 10, 300_000, 5_000];
        let mut held = Vec::new();
        let mut next = 1;
        for number in 1..=400 {
            let size = sizes[(number as usize * 7) % sizes.len()] + number as usize % 100;
            let bytes = payload(number, size);
            while try_send(&mut sender, &bytes).is_err() {
                stage.settle();
                for message in take(&mut receiver).unwrap() {
                    held.push((next, message));
                    next += 1;
                }
                while held.len() > 3 {
                    // Messages are released out of order.
                    held.remove(1);
                    held.remove(0);
                }
                check(&held, &sizes);
            }
        }
        while next <= 400 {
            stage.settle();
            for message in take(&mut receiver).unwrap() {
                held.push((next, message));
                next += 1;
            }
            check(&held, &sizes);
            held.remove(0);
        }
        let [ours, theirs] = stage.stats();
        assert!(ours.eager_blocks_sent > 50, "{}", ours.eager_blocks_sent);
        assert_eq!(ours.eager_blocks_sent, theirs.landed);
        assert!(ours.rendezvous_sent > 50);
        assert_eq!(theirs.bytes_copied, 0);
    }

    fn check(held: &[(u64, RawMessage)], sizes: &[usize]) {
        for (number, message) in held {
            let size = sizes[(*number as usize * 7) % sizes.len()] + *number as usize % 100;
            assert_eq!(message.bytes(), payload(*number, size), "{number}");
        }
    }
}

#[test]
fn a_block_is_not_written_while_its_message_is_read() {
    let stage = trusting();
    let (mut sender, mut receiver) = active(&stage, "held");
    let mut held = Vec::new();
    for number in 2..2 + EAGER_BLOCKS_PER_CHANNEL as u64 {
        send(&mut sender, number, 20_000);
        stage.settle();
        held.extend(take(&mut receiver).unwrap());
    }
    // The next message has no block, and waits for its memory as before.
    stage.fake.forget_posted();
    send(&mut sender, 100, 20_000);
    stage.settle();
    assert!(posted(&stage).len() > 2);
    held.extend(take(&mut receiver).unwrap());
    assert_eq!(stage.stats()[0].rendezvous_sent, 2);
    for (message, number) in held
        .iter()
        .zip((2..2 + EAGER_BLOCKS_PER_CHANNEL as u64).chain([100]))
    {
        assert_eq!(message.bytes(), payload(number, 20_000));
    }
    // In whatever order they are released, the blocks belong to the sender again. The sender learns
    // that at the latest when it is short of blocks.
    held.reverse();
    drop(held);
    for number in 101..110 {
        send(&mut sender, number, 20_000);
        stage.settle();
        assert_eq!(consume(&mut receiver), 1);
    }
    let sent = stage.stats()[0];
    assert!(sent.rendezvous_sent <= 3, "{}", sent.rendezvous_sent);
    assert!(
        sent.eager_blocks_sent >= EAGER_BLOCKS_PER_CHANNEL as u64 + 8,
        "{}",
        sent.eager_blocks_sent
    );
}

#[test]
fn blocks_are_bounded_for_a_session_and_for_a_port() {
    let stage = trusting();
    let channels: Vec<_> = (0..EAGER_BLOCKS_PER_SESSION / EAGER_BLOCKS_PER_CHANNEL + 3)
        .map(|number| active(&stage, &number.to_string()))
        .collect();
    assert_eq!(blocks(&stage), EAGER_BLOCKS_PER_SESSION as u32);
    drop(channels);

    let settings = PortSettings {
        grants_memory: true,
        eager_blocks: 5,
        ..settings()
    };
    let stage = Stage::with(settings);
    let channels = [active(&stage, "one"), active(&stage, "other")];
    assert_eq!(blocks(&stage), 5);
    drop(channels);
    stage.settle();
    assert_eq!(blocks(&stage), 0);
    let settings = PortSettings {
        eager_blocks: 0,
        ..settings
    };
    let stage = Stage::with(settings);
    let (mut sender, mut receiver) = active(&stage, "none");
    send(&mut sender, 2, 20_000);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    assert_eq!(stage.stats()[0].rendezvous_sent, 2);
}

#[test]
fn a_channel_that_rests_gives_its_blocks_back() {
    let clock = StoppedClock::stop();
    let stage = trusting();
    let (mut sender, mut receiver) = active(&stage, "rests");
    send(&mut sender, 2, 20_000);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    assert_eq!(blocks(&stage), EAGER_BLOCKS_PER_CHANNEL as u32);
    // Ten seconds cover several looks for silent channels.
    for _ in 0..1000 {
        clock.advance(Duration::from_millis(10));
        stage.settle();
    }
    assert_eq!(blocks(&stage), 0);
    // The channel gets blocks again when it is used.
    for number in 3..6 {
        send(&mut sender, number, 20_000);
        stage.settle();
        assert_eq!(consume(&mut receiver), 1);
        stage.settle();
    }
    assert_eq!(blocks(&stage), EAGER_BLOCKS_PER_CHANNEL as u32);
    assert_eq!(stage.stats()[1].landed, 3);
}

#[test]
fn blocks_of_a_session_that_breaks_are_deregistered() {
    let stage = trusting();
    let (mut sender, mut receiver) = active(&stage, "breaks");
    // One block is being read, another one is being written.
    send(&mut sender, 2, 20_000);
    stage.settle();
    let held = take(&mut receiver).unwrap();
    stage.fake.forget_posted();
    stage.fake.hold_sends(true);
    send(&mut sender, 3, 20_000);
    stage.settle();
    let (address, key) = posted(&stage)[0].remote;
    assert!(stage.fake.is_registered(key, address));
    stage.fake.fail_send(stage.queue_pairs()[0], 12, 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(matches!(why(&mut receiver), EndCause::PeerGone { .. }));
    assert!(!stage.fake.is_registered(key, address));
    // The block that is being read stays.
    assert_eq!(held[0].bytes(), payload(2, 20_000));
    assert_eq!(blocks(&stage), 1);
    drop(held);
    assert_eq!(consume_until_over(&mut receiver), 0);
    drop(receiver);
    stage.settle();
    assert_eq!(blocks(&stage), 0);
}

#[test]
fn a_receiver_that_goes_leaves_its_blocks_to_the_sender_until_that_goes() {
    let stage = trusting();
    let (mut sender, receiver) = active(&stage, "goes");
    stage.fake.hold_sends(true);
    send(&mut sender, 2, 20_000);
    stage.settle();
    drop(receiver);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(blocks(&stage), EAGER_BLOCKS_PER_CHANNEL as u32);
    assert!(matches!(
        try_send(&mut sender, &[1]),
        Err(ChannelError::Failed(_))
    ));
    drop(sender);
    stage.settle();
    assert_eq!(blocks(&stage), 0);
    assert!(!stage.nodes[1].session.is_gone());
    let (mut sender, mut receiver) = active(&stage, "goes");
    send(&mut sender, 3, 20_000);
    stage.settle();
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), payload(3, 20_000));
}

/// A peer that writes where it must not, or claims to have written.
#[test]
fn a_word_of_a_block_that_is_not_the_peers_ends_the_session() {
    for forged in [
        None,
        Some(EagerBlockId {
            index: 0,
            generation: 7,
        }),
        Some(EagerBlockId {
            index: 40,
            generation: 0,
        }),
        Some(EagerBlockId {
            index: 1,
            generation: 0,
        }),
    ] {
        let stage = trusting();
        let (mut sender, mut receiver) = active(&stage, "forged");
        stage.fake.hold_sends(true);
        send(&mut sender, 2, 20_000);
        stage.settle();
        if let Some(forged) = forged {
            let word = forged.to_word().to_be();
            let forge = |send: &mut PostedSend| send.immediate = word;
            stage.fake.forge(stage.queue_pairs()[0], forge);
        }
        stage.fake.hold_sends(false);
        stage.settle();
        match forged {
            None => assert_eq!(consume(&mut receiver), 1),
            Some(_) => {
                let EndCause::PeerGone { why, .. } = why(&mut receiver) else {
                    panic!("the peer broke the protocol");
                };
                assert!(why.contains("broke the protocol"), "{why}");
            }
        }
    }
}

#[test]
fn the_queue_pair_of_a_peer_that_is_not_trusted_lets_nothing_in() {
    let fake = one_device();
    let settings = PortSettings {
        grants_memory: true,
        ..settings()
    };
    let rdma_port = open_port(&fake, settings);
    for is_trusted in [false, true] {
        let before = fake.modifications().len();
        let pair = rdma_port.prepare_for(true, is_trusted).unwrap();
        assert_eq!(pair.grants_memory(), is_trusted);
        let opened = fake.modifications().split_off(before);
        let lets_in = |change: &Modification| change.attributes.access_flags != 0;
        assert_eq!(opened.iter().any(lets_in), is_trusted);
    }
}
