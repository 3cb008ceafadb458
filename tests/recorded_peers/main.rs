//! Peers that speak another minor version of the protocol: a later one than this node, and
//! an earlier one.
//!
//! What such a peer sends is written down byte by byte in `*.txt`, with a word on each part,
//! from the description of the protocol and not by this code. It is not made anew when the
//! code changes, since nodes that are out there do not change either. It is played over a
//! real connection to a real node: the peer sends three samples, takes three answers,
//! acknowledges them and leaves.
#![forbid(unsafe_code)]

mod recording;

use std::{net::SocketAddr, thread};

use ibex::{
    Codec, Fabric, Node, Peer, Pod, Policy, Schema, VersionedReceiver, VersionedSender, Versions,
    bytemuck::{self, Zeroable},
};
use ibex_bootstrap::message::{Message, MessageKind};
use recording::{Recording, Said};

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, Zeroable, Schema)]
#[bytemuck(crate = "ibex::bytemuck")]
#[repr(C)]
struct SampleV1 {
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, Zeroable, Schema)]
#[bytemuck(crate = "ibex::bytemuck")]
#[repr(C)]
struct SampleV2 {
    number: u64,
    term: u64,
}

/// The node's ends: what it takes from the peer, and what it sends to it.
struct Ends {
    samples: VersionedReceiver<SampleV2, SampleV1, Pod>,
    answers: VersionedSender<SampleV2, SampleV1, Pod>,
}

impl Ends {
    fn open(peer: &Peer) -> Self {
        let channel = |name| peer.channel(name).codec::<Pod>().versions();
        Self {
            samples: channel("samples").receiver().expect("a receiver"),
            answers: channel("answers").sender().expect("a sender"),
        }
    }
}

/// A later minor version, feature bits and fields that nobody here has heard of, and a list
/// of versions of a message type of which the node knows the second.
#[test]
fn a_peer_of_a_later_minor_version() {
    let said = meet(include_str!("minor_1_7.txt"), |peer| {
        let Ends {
            mut samples,
            mut answers,
        } = Ends::open(peer);
        for number in 1..=3 {
            let sample = samples.recv().expect("a sample");
            let Versions::Newer(newer) = &sample else {
                panic!("both know SampleV2: {sample:?}")
            };
            let term = 10 * number;
            assert_eq!(**newer, SampleV2 { number, term });
            sample.ack();
        }
        match answers.opened(PATIENCE).expect("the peer opened it") {
            Versions::Newer(answers) => {
                for number in 1..=3 {
                    let term = 100 * number;
                    answers.send(&SampleV2 { number, term }).expect("sent");
                }
                answers.wait_acked(3).expect("acknowledged");
            }
            other => panic!("both know SampleV2: {other:?}"),
        }
        assert!(samples.next().expect("an orderly end").is_none());
    });
    let expected: Vec<Vec<u8>> = (1..=3_u64)
        .map(|number| [number.to_le_bytes(), (100 * number).to_le_bytes()].concat())
        .collect();
    assert_eq!(said.payloads, expected);
    let fingerprint = |info: ibex::codec::SchemaInfo| info.fingerprint.0;
    for (name, spec) in &said.opened {
        let versions = spec.versions().map(|version| version.fingerprint);
        let known = [
            fingerprint(<Pod as Codec<SampleV2>>::schema()),
            fingerprint(<Pod as Codec<SampleV1>>::schema()),
        ];
        assert!(versions.eq(known), "{name}");
    }
}

/// The first minor version knows no lists of versions, and would refuse one: it is told of the
/// older version, which is the one that its program has.
#[test]
fn a_peer_of_the_first_minor_version() {
    let said = meet(include_str!("minor_1_0.txt"), |peer| {
        let Ends {
            mut samples,
            mut answers,
        } = Ends::open(peer);
        for number in 1..=3 {
            let sample = samples.recv().expect("a sample");
            let Versions::Older(older) = &sample else {
                panic!("the peer knows SampleV1 alone: {sample:?}")
            };
            assert_eq!(**older, SampleV1 { number });
            sample.ack();
        }
        match answers.opened(PATIENCE).expect("the peer opened it") {
            Versions::Older(answers) => {
                for number in 1..=3 {
                    answers.send(&SampleV1 { number }).expect("sent");
                }
                answers.wait_acked(3).expect("acknowledged");
            }
            other => panic!("the peer knows SampleV1 alone: {other:?}"),
        }
        assert!(samples.next().expect("an orderly end").is_none());
    });
    assert_eq!(
        said.payloads,
        [1_u64, 2, 3].map(|number| number.to_le_bytes().to_vec())
    );
    for (name, spec) in &said.opened {
        assert_eq!(spec.older, [], "{name}");
        let known = <Pod as Codec<SampleV1>>::schema().fingerprint.0;
        assert_eq!(spec.newest.fingerprint, known, "{name}");
    }
}

/// Plays a recorded peer to a node, and what the node's application does with it.
fn meet(recording: &'static str, application: impl FnOnce(&Peer)) -> Said {
    let node = Node::builder()
        .fabric(Fabric::Tcp, Policy::Require)
        .listen("127.0.0.1:0")
        .build()
        .expect("a node");
    let address = node.local_addr().expect("it listens");
    let played = thread::spawn(move || play(recording, address));
    let peer = node.accept().expect("the recorded peer");
    assert_eq!(peer.fabric(), Fabric::Tcp);
    application(&peer);
    let report = node.close(PATIENCE);
    assert!(report.undelivered.is_empty(), "{report:?}");
    played
        .join()
        .expect("the node says what the peer waits for")
}

fn play(text: &str, address: SocketAddr) -> Said {
    let mut peer = Recording::open(text, address);
    peer.say("hello");
    peer.hear_magic();
    let hello = peer.hear_message(MessageKind::Hello);
    let Message::Hello(hello) = hello else {
        panic!("{hello:?}")
    };
    assert_eq!(hello.versions, ibex_bootstrap::VersionRange::SUPPORTED);
    peer.say("offer");
    peer.hear_message(MessageKind::Offer);
    peer.say("choice");
    peer.hear_message(MessageKind::Endpoint);
    peer.say("ready");
    peer.hear_message(MessageKind::Ready);

    peer.say("opens");
    peer.hear_until(|said| said.credit > 0 && said.opened.len() == 2);
    peer.say("samples");
    peer.hear_until(|said| said.payloads.len() == 3);
    peer.say("acknowledgement");
    peer.hear_until(|said| said.counters.acknowledged == 3);
    peer.say("end");
    peer.hear_until(|said| said.goodbye);
    assert!(peer.is_over());
    peer.said
}

/// For what the peer does at once.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
