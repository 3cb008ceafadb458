//! Large messages that arrive in regions of the program: read or written there by a device, and the end
//! of the right to write there.

use ibex_protocol::transfer::rendezvous::WRITE_BYTES;
use ibex_ring::memory::ProvidedRegion;
use ibex_verbs::{
    abi::{access_flags, wr_opcode},
    provider::fake::{Call, PostedSend},
};
use rustix::io::Errno;

use super::{
    pulling::{offered, reads},
    resuming::trusting,
    *,
};
use crate::wire::{LargeWanted, ProvidedRegions};

/// A message of several pieces.
const LONG: usize = 3 * WRITE_BYTES;
/// The length of a region, longer than the message, and not whole pages.
const REGION: usize = LONG + 77;

fn writes(stage: &Stage) -> Vec<PostedSend> {
    let is_write = |send: &PostedSend| send.opcode == wr_opcode::RDMA_WRITE;
    stage.fake.posted().into_iter().filter(is_write).collect()
}

/// Returns a region that is full of other bytes, and its address.
fn region() -> (Region, usize) {
    let mut region = Region::zeroed(REGION).unwrap();
    region.get_mut().unwrap().fill(0xee);
    let address = region.as_ptr().addr();
    (region, address)
}

fn provide(receiver: &mut ReceiveHandle) -> usize {
    let (region, address) = region();
    assert!(receiver.provide(region).is_ok());
    address
}

/// Turns the engines until a device is about to read or write the first piece of a message, which is held
/// back with all behind it. Returns the device's queue pair.
fn hold_at_first_piece(stage: &Stage) -> u32 {
    let moves = [wr_opcode::RDMA_READ, wr_opcode::RDMA_WRITE];
    stage.fake.hold_sends(true);
    for turn in 0..100_000 {
        stage.nodes[turn % 2].runtime.poll_ready();
        for pair in stage.queue_pairs() {
            match stage.fake.held_sends(pair).first() {
                Some(send) if moves.contains(&send.opcode) => return pair,
                Some(_) => stage.fake.release(pair, 1),
                None => {}
            }
        }
    }
    panic!("no message begins");
}

/// Takes the only message, which is `number` of this length, out in its region.
fn in_region(receiver: &mut ReceiveHandle, number: u64, length: usize) -> Region {
    let message = receiver.poll().unwrap().expect("it has arrived");
    assert_eq!(message.bytes(), payload(number, length));
    let (region, taken) = message.into_region().expect("it lies in a region");
    assert_eq!(taken, length);
    assert!(region.is_free());
    assert_eq!(region[..length], payload(number, length));
    assert!(region[length..].iter().all(|&byte| byte == 0xee));
    region
}

#[test]
fn a_message_is_read_into_a_region_which_is_registered_once() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("region", WINDOW);
    let address = provide(&mut receiver);
    let mut registered = None;
    for number in 1..=4 {
        stage.fake.forget_posted();
        send(&mut sender, number, LONG);
        stage.settle();
        let reads = reads(&stage);
        assert_eq!(reads.len(), 3);
        assert_eq!(reads[0].entries[0].addr as usize, address);
        let now = stage.fake.registered_bytes();
        assert_eq!(*registered.get_or_insert(now), now, "registered again");
        let region = in_region(&mut receiver, number, LONG);
        assert!(receiver.provide(region).is_ok());
    }
    assert_eq!(stage.stats().map(|stats| stats.bytes_copied), [0, 0]);
    let regions = || stage.fake.alive()["memory regions"];
    let before = regions();
    drop(receiver);
    assert_eq!(regions(), before - 1, "the region goes with its receiver");
}

/// Messages are sent from a region that others came into, by one registration.
#[test]
fn what_was_read_into_a_region_is_sent_on_from_there() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("there", WINDOW);
    let (mut sends_on, mut takes_on) = stage.open(1, "on", WINDOW);
    stage.settle();
    // The ring is registered with the first message.
    send(&mut sends_on, 0, 10);
    stage.settle();
    assert_eq!(consume(&mut takes_on), 1);
    provide(&mut receiver);
    send(&mut sender, 1, LONG);
    stage.settle();
    let region = in_region(&mut receiver, 1, LONG);
    let before = stage.fake.registered_bytes();
    provide(&mut takes_on);
    let slice = region.slice(..LONG);
    sends_on
        .send_region((&slice).into(), Patience::None)
        .unwrap();
    let grown = stage.fake.registered_bytes() - before;
    assert_eq!(grown, 0, "the region is registered already");
    stage.settle();
    in_region(&mut takes_on, 1, LONG);
    drop(slice);
    assert!(region.is_free());
    assert_eq!(stage.stats().map(|stats| stats.bytes_copied), [0, 0]);
}

#[test]
fn a_trusted_peer_writes_into_a_region_until_its_message_is_handed_out() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("region", WINDOW);
    for number in 1..=3 {
        stage.fake.forget_posted();
        let address = provide(&mut receiver);
        send(&mut sender, number, LONG);
        stage.settle();
        let writes = writes(&stage);
        assert_eq!(writes[0].remote.0 as usize, address);
        let (at, key) = writes[0].remote;
        assert!(
            stage.fake.is_registered(key, at),
            "nobody has the message yet"
        );
        let region = in_region(&mut receiver, number, LONG);
        assert!(!stage.fake.is_registered(key, at), "the peer has the key");
        drop(region);
    }
    assert_eq!(stage.stats().map(|stats| stats.bytes_copied), [0, 0]);
}

/// Then the peer may write there for ever, so the program gets a copy, and the memory is used no more.
#[test]
fn a_region_whose_key_the_device_does_not_end_is_copied() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("region", WINDOW);
    let address = provide(&mut receiver);
    send(&mut sender, 1, LONG);
    stage.settle();
    let (at, key) = writes(&stage)[0].remote;
    stage.fake.refuse(Call::Deregister, Errno::INVAL);
    let region = in_region(&mut receiver, 1, LONG);
    assert!(stage.fake.is_registered(key, at));
    assert_ne!(region.as_ptr().addr(), address);
}

/// The peer goes on to write by the key that it was granted, behind the message's end.
#[test]
fn a_peer_that_writes_behind_its_message_changes_nothing() {
    let stage = Stage::with(trusting());
    let (mut sender, mut receiver) = stage.channel("region", WINDOW);
    provide(&mut receiver);
    send(&mut sender, 1, LONG);
    stage.settle();
    let old = writes(&stage)[0].remote;
    let region = in_region(&mut receiver, 1, LONG);
    send(&mut sender, 2, LONG);
    let regions = || stage.fake.alive()["memory regions"];
    let before = regions();
    stage.settle_until(|| regions() > before, || stage.fake.hold_sends(true));
    let [pair, _] = stage.queue_pairs();
    let next = stage.fake.held_sends(pair);
    assert_eq!(next[0].opcode, wr_opcode::RDMA_WRITE);
    stage.fake.forge(pair, |write| write.remote = old);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(region[..LONG], payload(1, LONG));
    // The write had no key, which ends the session.
    let refused = try_send(&mut sender, &[1]).unwrap_err();
    let why = refused.to_string();
    assert!(why.contains("memory is not granted"), "{why}");
}

#[test]
fn memory_on_the_heap_is_copied_into_and_never_registered() {
    for settings in [reading(), trusting()] {
        let stage = Stage::with(settings);
        let (mut sender, mut receiver) = stage.channel("heap", WINDOW);
        let vec = vec![0xee; REGION];
        let address = vec.as_ptr().addr();
        receiver.provide(Region::from(vec)).unwrap();
        send(&mut sender, 1, LONG);
        stage.settle();
        let region = in_region(&mut receiver, 1, LONG);
        assert_eq!(region.as_ptr().addr(), address);
        assert_eq!(stage.stats()[1].bytes_copied, LONG as u64);
        assert!(reads(&stage).is_empty() && writes(&stage).is_empty());
        assert_eq!(region.into_vec().unwrap().len(), REGION);
    }
}

#[test]
fn a_region_that_cannot_be_registered_is_copied_into_and_not_tried_again() {
    for settings in [reading(), trusting()] {
        let is_offered = !settings.grants_memory;
        let stage = Stage::with(settings);
        let (mut sender, mut receiver) = stage.channel("refused", WINDOW);
        // The sender's own memory is registered before.
        send(&mut sender, 1, LONG);
        stage.settle();
        drop(take(&mut receiver).unwrap());
        stage.settle();
        let copied = stage.stats()[1].bytes_copied;
        provide(&mut receiver);
        stage.fake.refuse(Call::Register, Errno::NOMEM);
        send(&mut sender, 2, LONG);
        stage.settle();
        let region = in_region(&mut receiver, 2, LONG);
        assert_eq!(stage.stats()[1].bytes_copied, copied + LONG as u64);
        receiver.provide(region).unwrap();
        send(&mut sender, 3, LONG);
        stage.settle();
        let region = in_region(&mut receiver, 3, LONG);
        assert_eq!(stage.stats()[1].bytes_copied, copied + 2 * LONG as u64);
        // There is nothing to do for it outside the turn.
        let waiting = Arc::new(ProvidedRegions::default());
        let region = ProvidedRegion::new(region).expect("a free region is fit");
        waiting.add(region).expect("there is room for one");
        let kept = stage.nodes[1].session.kept_for_arrival(LargeWanted {
            sequence: 4,
            length: LONG as u64,
            is_offered,
            region: waiting.take(LONG as u64),
        });
        assert!(kept.is_ok());
    }
}

#[test]
fn a_message_takes_the_first_region_with_room_and_none_if_it_is_longer() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("fits", WINDOW);
    let (short, address) = (Region::zeroed(LONG - 1).unwrap(), provide(&mut receiver));
    let short_at = short.as_ptr().addr();
    receiver.provide(short).unwrap();
    provide(&mut receiver);
    for (number, length) in [(1, LONG), (2, LONG - 1), (3, LONG), (4, LONG), (5, 300_000)] {
        send(&mut sender, number, length);
        stage.settle();
    }
    let messages = take(&mut receiver).unwrap();
    let places = messages.into_iter().zip(1..).map(|(message, number)| {
        assert_eq!(message.bytes(), payload(number, message.bytes().len()));
        let region = message.into_region().ok()?.0;
        Some(region.as_ptr().addr())
    });
    let places: Vec<_> = places.collect();
    assert_eq!(places[..2], [Some(address), Some(short_at)]);
    assert!(places[2].is_some_and(|place| place != address));
    assert_eq!(places[3..], [None, None], "no region was left");
    assert!(receiver.take_regions().is_empty());
}

/// A region that is provided while a message arrives is for the next one.
#[test]
fn a_message_that_has_begun_stays_where_it_is() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = offered(&stage);
    hold_at_first_piece(&stage);
    provide(&mut receiver);
    stage.fake.hold_sends(false);
    stage.settle();
    let message = receiver.poll().unwrap().expect("it has arrived");
    assert_eq!(message.bytes(), payload(3, LONG));
    assert!(message.into_region().is_err(), "it had begun");
    send(&mut sender, 4, LONG);
    stage.settle();
    in_region(&mut receiver, 4, LONG);
}

/// While the device reads or the peer's device writes, a region is nobody's, though the receiver goes.
#[test]
fn a_region_outlives_its_receiver_while_a_device_may_write_there() {
    for settings in [reading(), trusting()] {
        let stage = Stage::with(settings);
        let (mut sender, mut receiver) = stage.channel("gone", WINDOW);
        provide(&mut receiver);
        stage.fake.forget_posted();
        send(&mut sender, 1, LONG);
        let regions = || stage.fake.alive()["memory regions"];
        let before = regions();
        hold_at_first_piece(&stage);
        drop(receiver);
        assert_eq!(regions(), before + 1, "the device may write");
        stage.fake.hold_sends(false);
        stage.settle();
        drop(sender);
        stage.settle();
        assert_eq!(regions(), before, "the region is gone");
        assert!(!stage.nodes[1].session.is_gone());
    }
}

#[test]
fn a_region_comes_back_from_a_session_that_ends_and_its_key_is_none() {
    for settings in [reading(), trusting()] {
        let is_written = settings.grants_memory;
        let stage = Stage::with(settings);
        let (mut sender, mut receiver) = stage.channel("broken", WINDOW);
        let address = provide(&mut receiver);
        let waits = provide(&mut receiver);
        send(&mut sender, 1, LONG);
        let dies = hold_at_first_piece(&stage);
        let key = writes(&stage).pop().map(|write| write.remote);
        assert_eq!(key.is_some(), is_written);
        stage.fake.fail_send(dies, 12, 0);
        stage.fake.hold_sends(false);
        stage.settle();
        assert!(receiver.poll().is_err());
        if let Some((at, key)) = key {
            assert!(!stage.fake.is_registered(key, at));
        }
        let regions = receiver.take_regions();
        let places: Vec<_> = regions
            .iter()
            .map(|region| region.as_ptr().addr())
            .collect();
        assert!(
            places == [address, waits] || places == [waits],
            "{places:?}"
        );
        assert!(regions.iter().all(Region::is_free));
    }
}

/// Regions that come back together keep the order in which they were provided.
#[test]
fn regions_of_two_messages_come_back_in_their_order() {
    for settings in [reading(), trusting()] {
        let stage = Stage::with(settings);
        let (mut sender, mut receiver) = stage.channel("order", WINDOW);
        let provided = [(); 3].map(|()| provide(&mut receiver));
        send(&mut sender, 1, LONG);
        send(&mut sender, 2, LONG);
        let dies = hold_at_first_piece(&stage);
        // Both messages have their memory, though nothing moves.
        for node in stage.nodes.iter().cycle().take(20) {
            node.runtime.poll_ready();
        }
        stage.fake.fail_send(dies, 12, 0);
        stage.fake.hold_sends(false);
        stage.settle();
        assert!(receiver.poll().is_err());
        let regions = receiver.take_regions();
        let places: Vec<_> = regions
            .iter()
            .map(|region| region.as_ptr().addr())
            .collect();
        assert_eq!(places, provided);
    }
}

/// No peer can write into a region that this node's device reads messages into, or sends from.
#[test]
fn a_region_for_reads_gives_peers_no_right() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("rights", WINDOW);
    let before = stage.fake.region_accesses().len();
    provide(&mut receiver);
    send(&mut sender, 1, LONG);
    stage.settle();
    in_region(&mut receiver, 1, LONG);
    let remote =
        access_flags::REMOTE_READ | access_flags::REMOTE_WRITE | access_flags::REMOTE_ATOMIC;
    let accesses = &stage.fake.region_accesses()[before..];
    assert!(!accesses.is_empty());
    assert!(accesses.iter().all(|access| access & remote == 0));
}
