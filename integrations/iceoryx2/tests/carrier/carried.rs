//! Promises that the published tests do not cover.

use std::{iter, time::Duration};

use ibex::{Driver, Node, NodeBuilder, Raw};
use ibex_harness::draw::Draw;
use ibex_iceoryx2::{ChannelError, IbexCarrier, IbexChannel, Monitor, StartError};
use ibex_integrations_testing::Over;
use iceoryx2_bb_testing::libtest_mimic::Trial;
use iceoryx2_link_carrier::{Announcement, Carrier, Channel, Frame};
use iceoryx2_link_conformance_tests::testing::descriptor;

use crate::suites::{WATCHDOG, wait_until};

type Test = fn(NodeBuilder);

const TESTS: [(&str, Test); 8] = [
    ("a_full_peer_holds_up_nobody", a_full_peer_holds_up_nobody),
    (
        "a_frame_that_nobody_takes_is_an_error",
        a_frame_that_nobody_takes_is_an_error,
    ),
    (
        "peers_that_know_each_other_get_a_frame_once",
        peers_that_know_each_other_get_a_frame_once,
    ),
    ("a_peer_comes_again", a_peer_comes_again),
    (
        "a_carrier_leaves_and_its_node_stays",
        a_carrier_leaves_and_its_node_stays,
    ),
    ("strange_words_stop_nobody", strange_words_stop_nobody),
    ("many_changes_arrive_in_order", many_changes_arrive_in_order),
    (
        "a_closed_node_carries_nothing",
        a_closed_node_carries_nothing,
    ),
];

/// Returns a trial for each, called `/fabric/carried/test`.
pub(crate) fn trials(over: Over) -> impl Iterator<Item = Trial> {
    TESTS.into_iter().map(move |(name, test)| {
        let name = format!("/{over}/carried/{name}");
        Trial::test(name, move || {
            let [_, builder] = over.builders();
            test(builder);
            Ok(())
        })
    })
}

fn a_full_peer_holds_up_nobody(builder: NodeBuilder) {
    let (mut a, address) = carrier(&builder, &[]);
    let (mut slow, _) = carrier(&builder, &[&address]);
    let (mut quick, _) = carrier(&builder, &[&address]);
    let mut from = open(&mut a);
    let (mut unread, mut read) = (open(&mut slow), open(&mut quick));
    let monitor = a.monitor();
    eventually("both have it open", || reached(&monitor) == 2);

    // Several times the window of 64 KiB, and few enough for every fabric to carry in time.
    const FRAMES: u64 = 300;
    let mut frame = [0; 1 << 10];
    for number in 0..FRAMES {
        frame[..8].copy_from_slice(&number.to_le_bytes());
        send(&mut from, &frame);
        assert_eq!(next(&mut read), frame, "frame {number}");
    }
    let service = monitor.stats().services.remove(0);
    assert_eq!(service.sent + service.dropped, 2 * FRAMES, "{service:?}");
    assert!(service.dropped > 0, "{service:?}");

    // A late reader gets the oldest frames, all that were sent to it.
    for number in 0..service.sent - FRAMES {
        assert_eq!(next(&mut unread)[..8], number.to_le_bytes());
    }
    // There is room again.
    eventually("a later frame finds room", || {
        send(&mut from, b"again");
        receive(&mut unread).is_some()
    });
}

fn a_frame_that_nobody_takes_is_an_error(builder: NodeBuilder) {
    let (mut a, address) = carrier(&builder, &[]);
    let (mut b, _) = carrier(&builder.max_message_bytes(4 << 10), &[&address]);
    let (mut from, mut to) = (open(&mut a), open(&mut b));
    let monitor = a.monitor();
    eventually("it is open", || reached(&monitor) == 1);
    let payload = &[0; (4 << 10) + 1];
    let sent = from.send(Frame {
        header: &[],
        payload,
    });
    let error = sent.expect_err("the peer takes less");
    assert!(matches!(error, ChannelError::TooLong(_)), "{error}");
    assert!(error.to_string().contains("max_message_bytes"), "{error}");
    send(&mut from, &payload[1..]);
    assert_eq!(next(&mut to).len(), 4 << 10);
}

fn peers_that_know_each_other_get_a_frame_once(builder: NodeBuilder) {
    let (first, second) = (node(&builder), node(&builder));
    let (of_first, of_second) = (address(&first), address(&second));
    // Each has the other's address, twice, and its own.
    let all = [&of_first, &of_second, &of_second, &of_first];
    let mut a = IbexCarrier::new(first, all).expect("a carrier");
    let mut b = IbexCarrier::new(second, all).expect("a carrier");
    let (mut from, mut to) = (open(&mut a), open(&mut b));
    let (of_a, of_b) = (a.monitor(), b.monitor());
    eventually("they meet", || reached(&of_a) == 1 && reached(&of_b) == 1);
    for number in 0..100_u64 {
        send(&mut from, &number.to_le_bytes());
        assert_eq!(next(&mut to), number.to_le_bytes());
        send(&mut to, &number.to_le_bytes());
        assert_eq!(next(&mut from), number.to_le_bytes());
    }
    assert_eq!((receive(&mut from), receive(&mut to)), (None, None));
    let peers = |monitor: &Monitor| monitor.stats().peers.len();
    assert_eq!((peers(&of_a), peers(&of_b)), (1, 1));
}

fn a_peer_comes_again(builder: NodeBuilder) {
    let (mut listener, address) = carrier(&builder, &[]);
    offer(&mut listener, "first/life");
    let (mut dialer, _) = carrier(&builder, &[&address]);
    eventually("the offer arrives", || offers(&dialer) == ["first/life"]);
    let mut from = open(&mut dialer);

    drop(listener);
    eventually("the offer goes with its carrier", || {
        offers(&dialer).is_empty()
    });
    send(&mut from, b"to nobody");

    let (mut listener, _) = carrier(&builder.listen(address), &[]);
    offer(&mut listener, "second/life");
    let mut to = open(&mut listener);
    let monitor = dialer.monitor();
    eventually("it is dialed again", || reached(&monitor) == 1);
    eventually("it offers again", || offers(&dialer) == ["second/life"]);
    send(&mut from, b"to its second life");
    assert_eq!(next(&mut to), b"to its second life");
}

fn a_carrier_leaves_and_its_node_stays(builder: NodeBuilder) {
    let shared = node(&builder);
    let mut first = IbexCarrier::new(shared.clone(), NOBODY).expect("a carrier");
    offer(&mut first, "first");
    let (dialer, _) = carrier(&builder, &[&address(&shared)]);
    eventually("the offer arrives", || offers(&dialer) == ["first"]);
    drop(first);
    eventually("it is withdrawn", || offers(&dialer).is_empty());

    let mut second = IbexCarrier::new(shared.clone(), NOBODY).expect("another carrier");
    offer(&mut second, "second");
    eventually("the session goes on", || offers(&dialer) == ["second"]);
    assert_eq!(shared.stats().sessions.len(), 1, "it is the same one");
}

fn strange_words_stop_nobody(builder: NodeBuilder) {
    let (mut a, address) = carrier(&builder, &[]);
    let (mut b, _) = carrier(&builder, &[&address]);
    let stranger = node(&builder);
    let at_a = stranger.connect(&*address).expect("a session");
    let stream = at_a.channel("iceoryx2-link/1").codec::<Raw>();
    let stream = stream.max_message_bytes(4 << 10).sender::<[u8]>();
    let mut stream = stream.expect("a stream");
    // The words are the same each time.
    let mut draw = Draw::new(1);
    for _ in 0..2000 {
        let length = draw.below(64);
        let word: Vec<u8> = (0..length).map(|_| draw.below(8) as u8).collect();
        stream.send(&word).expect("it is read");
    }
    stream.close().expect("all have arrived");

    offer(&mut b, "of a friend");
    eventually("others go on", || offers(&a) == ["of a friend"]);
    let (mut from, mut to) = (open(&mut a), open(&mut b));
    let monitor = a.monitor();
    eventually("they meet", || reached(&monitor) == 1);
    send(&mut from, b"as if nothing had been");
    assert_eq!(next(&mut to), b"as if nothing had been");
}

fn many_changes_arrive_in_order(builder: NodeBuilder) {
    let (mut a, address) = carrier(&builder, &[]);
    let (b, _) = carrier(&builder, &[&address]);
    // The changes are more than may wait for a peer that does not read.
    for number in 0..3000 {
        let name = format!("service/{}", number % 7);
        offer(&mut a, &name);
        withdraw(&mut a, &name);
    }
    offer(&mut a, "service/last");
    eventually("the last counts", || offers(&b) == ["service/last"]);
    let (c, _) = carrier(&builder, &[&address]);
    eventually("who comes later hears the same", || {
        offers(&c) == ["service/last"]
    });
}

fn a_closed_node_carries_nothing(builder: NodeBuilder) {
    let unturned = builder.clone().driver(Driver::Caller).build();
    let refused = IbexCarrier::new(unturned.expect("a node"), NOBODY);
    assert!(matches!(refused, Err(StartError::Driver)), "{refused:?}");

    let shared = node(&builder);
    let mut a = IbexCarrier::new(shared.clone(), NOBODY).expect("a carrier");
    let mut channel = open(&mut a);
    let generation = a.generation();
    let _ = shared.close(Duration::ZERO);
    eventually("the link is told to look", || a.generation() != generation);
    let sent = channel.send(Frame {
        header: &[],
        payload: b"frame",
    });
    assert!(matches!(sent, Err(ChannelError::NotCarried)), "{sent:?}");
    let received = channel.receive(|_| ());
    let says_so = matches!(received, Err(ChannelError::NotCarried));
    assert!(says_so, "{received:?}");
    assert!(a.offers(&mut |_| ()).is_err());
    assert!(a.open_channel(&descriptor(SERVICE, PAYLOAD)).is_err());
}

const NOBODY: iter::Empty<String> = iter::empty();
const SERVICE: &str = "carried/service";
const PAYLOAD: &str = "u64";

fn node(builder: &NodeBuilder) -> Node {
    builder.clone().build().expect("a node")
}

fn address(node: &Node) -> String {
    node.local_addr().expect("it listens").to_string()
}

/// Returns a carrier, and the address at which it listens.
fn carrier(builder: &NodeBuilder, peers: &[&str]) -> (IbexCarrier, String) {
    let node = node(builder);
    let address = address(&node);
    let carrier = IbexCarrier::new(node, peers.iter().copied());
    (carrier.expect("a carrier"), address)
}

fn open(carrier: &mut IbexCarrier) -> IbexChannel {
    let channel = carrier.open_channel(&descriptor(SERVICE, PAYLOAD));
    channel.expect("the node is open")
}

fn offer(carrier: &mut IbexCarrier, service: &str) {
    let descriptor = descriptor(service, PAYLOAD);
    let offered = carrier.announce(Announcement::Offered { descriptor });
    offered.expect("the node is open");
}

fn withdraw(carrier: &mut IbexCarrier, service: &str) {
    let hash = descriptor(service, PAYLOAD).hash;
    let withdrawn = carrier.announce(Announcement::Withdrawn { hash });
    withdrawn.expect("the node is open");
}

fn offers(carrier: &IbexCarrier) -> Vec<String> {
    let mut names = Vec::new();
    let listed = carrier.offers(&mut |offer| names.push(offer.descriptor.name.to_string()));
    listed.expect("the node is open");
    names.sort();
    names
}

fn send(channel: &mut IbexChannel, payload: &[u8]) {
    let header = &[];
    let sent = channel.send(Frame { header, payload });
    sent.expect("it is short enough");
}

/// Waits for the next frame.
fn next(channel: &mut IbexChannel) -> Vec<u8> {
    let mut frame = None;
    eventually("a frame comes", || {
        frame = receive(channel);
        frame.is_some()
    });
    frame.unwrap_or_default()
}

fn receive(channel: &mut IbexChannel) -> Option<Vec<u8>> {
    let received = channel.receive(<[u8]>::to_vec);
    received.expect("the node is open")
}

#[track_caller]
fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(wait_until(WATCHDOG, is_so), "{what}");
}

/// Returns the number of peers that the frames of the only channel reach.
fn reached(monitor: &Monitor) -> usize {
    let services = monitor.stats().services;
    services.first().map_or(0, |service| service.peers.len())
}
