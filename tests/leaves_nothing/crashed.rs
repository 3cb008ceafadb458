//! A listener and a thousand clients that crash: before their first byte, after each byte of the
//! handshake, with an unused session, with channels, and in mid-stream.
//!
//! The clients of a round are one process, which is killed when all of them have reached their
//! place. So in each round a process also loses twenty sessions at once.

use std::{thread, time::Duration};

use ibex::{Driver, Node, Peer, Raw, Receiver, RecvErrorKind, Sender};
use ibex_harness::proxy::Proxy;

use crate::{
    belongings::{Belongings, anonymous_kib},
    processes::{Party, Setup},
};

pub(crate) fn go_on_serving(party: &mut Party) {
    let mut settled = None;
    let mut anonymous_before = 0;
    for round in 0..rounds(party.setup) {
        if round > 0 {
            // The listener continues: it serves a healthy client as before.
            party.meet_the_next();
        }
        party.other.say(round);
        serve(party);
        party.meet();
        party.other.kill();
        while let Ok(peer) = party.node.accept_timeout(MOMENT) {
            hear_to_the_end(&peer);
        }
        let left = Belongings::settle(party, settled.as_ref());
        match &settled {
            Some(settled) => assert!(
                left.is_within(settled),
                "round {round} left something behind: {left:?}, beside {settled:?}"
            ),
            None if round + 1 == WARM_UP => {
                settled = Some(left);
                anonymous_before = anonymous_kib();
            }
            None => {}
        }
    }
    let anonymous = anonymous_kib();
    assert!(
        anonymous <= anonymous_before + SLACK_KIB,
        "memory was left behind: {anonymous} KiB, and {anonymous_before} KiB before"
    );
}

/// Converses briefly with the healthy client.
fn serve(party: &Party) {
    let (mut receiver, mut sender) = (receiver(&party.peer, "there"), sender(&party.peer, "back"));
    for _ in 0..MESSAGES {
        let message = receiver.recv().expect("a message");
        sender.send(&message).expect("sent");
        message.ack();
    }
    sender.close().expect("delivered");
}

/// Receives the messages that a client sent before it crashed. The client may be gone already.
fn hear_to_the_end(peer: &Peer) {
    let there = peer.channel("there").codec::<Raw>().receiver::<[u8]>();
    let Ok(mut receiver) = there else {
        return;
    };
    loop {
        match receiver.recv() {
            Ok(message) => message.ack(),
            Err(end) if end.kind() == RecvErrorKind::Disconnected => {
                let counts = end.counts().expect("how far it came");
                assert_eq!(counts.received, receiver.received());
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

// ---- The crashing process ----------------------------------------------------------------

pub(crate) fn be_in_every_phase(party: &mut Party) {
    let round: u64 = party.other.hear();
    converse(party);
    let address = party.peer.address();
    let node = party.setup.node().build().expect("a node");
    // Threads and everything that they hold end with the process.
    let node: &Node = Box::leak(Box::new(node));
    let is_odd = u64::from(party.setup.driver == Driver::Threads);
    let up_to = round * HALF_WAY;
    for place in up_to..up_to + HALF_WAY {
        let (lap, place) = (place / PLACES, place % PLACES);
        let bytes = 2 * place + (is_odd + lap) % 2;
        let proxy = Proxy::start(address.inet().expect("of TCP")).expect("a proxy");
        // Nothing that the client sends behind these bytes arrives.
        proxy.lose(1, false, bytes as usize, u64::MAX);
        thread::spawn(move || node.connect(proxy.address()));
    }
    for client in 0..CLIENTS - HALF_WAY {
        let peer = node.connect(address).expect("a session");
        if client % 3 > 0 {
            let (sender, receiver) = (sender(&peer, "there"), receiver(&peer, "back"));
            thread::spawn(move || in_use(sender, receiver, client % 3 == 2));
        }
    }
    party.meet();
    thread::park();
}

/// Plays the healthy client, until the kill.
fn converse(party: &Party) {
    let (mut sender, mut receiver) = (sender(&party.peer, "there"), receiver(&party.peer, "back"));
    for number in 0..MESSAGES {
        sender.send(&number.to_le_bytes()).expect("sent");
        assert_eq!(
            receiver.recv().expect("an answer")[..],
            number.to_le_bytes()
        );
    }
    assert!(receiver.next().expect("an orderly end").is_none());
}

/// Keeps channels open, perhaps with messages on their way.
fn in_use(mut sender: Sender<[u8], Raw>, receiver: Receiver<[u8], Raw>, sends: bool) {
    // The receiver stays open.
    let _receiver = receiver;
    while sends && sender.send(&[7; 1000]).is_ok() {}
    thread::park();
}

fn sender(peer: &Peer, name: &str) -> Sender<[u8], Raw> {
    peer.channel(name).codec::<Raw>().sender().expect("an end")
}

fn receiver(peer: &Peer, name: &str) -> Receiver<[u8], Raw> {
    peer.channel(name)
        .codec::<Raw>()
        .receiver()
        .expect("an end")
}

/// Returns the number of rounds: enough for a thousand clients if nothing is slow.
fn rounds(setup: Setup) -> u64 {
    setup.count(50, 10)
}

/// Clients of a round beside the healthy one.
const CLIENTS: u64 = 20;
/// Clients that do not complete the handshake, each two bytes further than the one before. The
/// second half of the rounds, and the other driver, cover the bytes in between. In the last rounds
/// of a half some do complete it, since the handshake has no more bytes.
const HALF_WAY: u64 = 10;
/// The places at which they stop, in half of the rounds.
const PLACES: u64 = 250;
const MESSAGES: u64 = 20;
/// Rounds after which a node has everything that it keeps.
const WARM_UP: u64 = 3;
/// The time after which no further client is expected.
const MOMENT: Duration = Duration::from_millis(30);
/// The most that the heap may grow after the warm-up, as free pieces of it stay apart: about 300
/// KiB over tcp. One leaked page per client would be 3700 KiB.
const SLACK_KIB: u64 = 1024;
