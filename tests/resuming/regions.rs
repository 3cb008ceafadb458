//! Messages from and into regions over connections that break: they are sent again from where they lie,
//! to where they were to arrive.

use std::thread;

use ibex::{Fabric, Peer, Raw, Receiver, Region, Sender};

use super::{LONG, LONGER, SHORT, builder, join, pair, wait_until};

/// Bytes of which each says where it lies.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 / 3) as u8).collect()
}

const LENGTH: usize = 3 << 20;

/// Opens a channel, and carries its first message.
fn channel(peer: &Peer, other: &Peer) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
    let mut sender = peer.channel("bytes").codec::<Raw>().sender().unwrap();
    let receiver = other.channel("bytes").codec::<Raw>().receiver();
    let mut receiver: Receiver<[u8], Raw> = receiver.unwrap();
    sender.send(b"first").unwrap();
    assert_eq!(receiver.recv().unwrap()[..], b"first"[..]);
    (sender, receiver)
}

#[test]
fn a_region_is_held_until_its_message_has_arrived() {
    let (_here, peer, proxy, _there, other) = pair();
    let (mut sender, mut receiver) = channel(&peer, &other);

    let region = Region::from(bytes(LENGTH));
    for round in 1..=3 {
        // The message is announced, and perhaps begun, over a connection that breaks.
        proxy.hold(true);
        let header = [round as u8; 256];
        sender
            .send_region((&header, &region.slice(round..)))
            .unwrap();
        sender
            .send_region((&header[..9], &region.slice(..9)))
            .unwrap();
        proxy.cut_off();
        wait_until(|| peer.is_suspended() && other.is_suspended());
        assert!(!region.is_free(), "it has not arrived");
        proxy.hold(false);
        proxy.mend();
        let message = receiver.recv().unwrap();
        assert_eq!(message[..], region[round..]);
        assert_eq!(message.header(), header);
        drop(message);
        let message = receiver.recv().unwrap();
        assert_eq!(
            (&message[..], message.header()),
            (&region[..9], &header[..9])
        );
        drop(message);
        sender.flush().unwrap();
        match round % 2 {
            0 => assert!(region.wait_free(LONG)),
            _ => smol::block_on(region.wait_free_async()),
        }
    }
    assert_eq!(region.into_vec().unwrap(), bytes(LENGTH));
}

#[test]
fn a_session_that_is_given_up_gives_its_regions_back() {
    let here = builder(Fabric::Tcp).session_timeout(SHORT);
    let there = builder(Fabric::Tcp).session_timeout(LONGER);
    let (_here, peer, proxy, _there, other) = join(here, there);
    let (mut sender, _receiver) = channel(&peer, &other);
    let region = Region::from(bytes(LENGTH));
    proxy.hold(true);
    sender.send_region(&region.slice(..)).unwrap();
    assert!(!region.is_free(), "it has not arrived");
    proxy.cut_off();
    assert!(region.wait_free(LONG));
    assert!(peer.is_gone());
    assert_eq!(region.into_vec().unwrap(), bytes(LENGTH));
}

/// Each message is cut at another place, and arrives again in the region in which it had begun, or in the
/// one that waits beside it.
#[test]
fn a_message_that_is_cut_arrives_in_a_region_all_the_same() {
    let (_here, peer, proxy, _there, other) = pair();
    let (mut sender, mut receiver) = channel(&peer, &other);
    for _ in 0..2 {
        receiver.provide(Region::zeroed(LENGTH).unwrap()).unwrap();
    }
    for round in 1..=10 {
        let slice = Region::from(bytes(LENGTH)).slice(round..);
        let (resumes, before) = (other.stats().resumes, other.stats().bytes_received);
        sender.send_region(&slice).unwrap();
        // Every other time the message has begun before the cut.
        if round % 2 == 0 {
            wait_until(|| other.stats().bytes_received > before + 100_000);
        }
        proxy.cut();
        wait_until(|| other.stats().resumes > resumes);
        let message = receiver.recv().unwrap();
        assert!(message[..] == slice[..], "round {round}");
        let (region, length) = message.into_region().expect("there were two");
        assert!(region[..length] == slice[..]);
        receiver.provide(region).unwrap();
        sender.flush().unwrap();
    }
    assert_eq!(receiver.take_regions().len(), 2, "none is lost");
}

/// A message that is given up in the middle leaves its region to the receiver.
#[test]
fn a_region_of_an_incomplete_message_comes_back() {
    let here = builder(Fabric::Tcp).session_timeout(SHORT);
    let there = builder(Fabric::Tcp).session_timeout(SHORT);
    let (_here, peer, proxy, _there, other) = join(here, there);
    let (mut sender, mut receiver) = channel(&peer, &other);
    for _ in 0..2 {
        receiver.provide(Region::zeroed(LENGTH).unwrap()).unwrap();
    }
    let before = other.stats().bytes_received;
    sender.send(&bytes(LENGTH)).unwrap();
    wait_until(|| other.stats().bytes_received > before + 100_000);
    proxy.cut_off();
    // On a fast machine, all of it may have come before the cut.
    let came = receiver.iter().filter(Result::is_ok).count();
    assert!(other.is_gone());
    let mut regions = receiver.take_regions();
    while regions.len() + came < 2 {
        thread::yield_now();
        regions.extend(receiver.take_regions());
    }
    assert!(regions.iter().all(Region::is_free));
}
