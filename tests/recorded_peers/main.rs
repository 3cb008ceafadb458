//! Peers that speak another version of the protocol: a later minor version than this node's, and an
//! older major version.
//!
//! The bytes of such a peer are written down in `*.txt`, with a word on each part. They come from
//! the description of the protocol and not from this code, and stay unchanged when the code
//! changes, since deployed nodes do not change either. They are played over a real connection to a
//! real node. The peer of the other minor version sends three samples, takes three answers, acknowledges
//! them and leaves. That of the other major version is refused, whichever end dialed.
#![forbid(unsafe_code)]

mod recording;

use std::{
    net::{SocketAddr, TcpListener},
    thread,
    time::Instant,
};

use ibex::{
    Codec, Fabric, Node, Peer, Pod, Policy, Schema, TraceContext, VersionedReceiver,
    VersionedSender, Versions,
    bytemuck::{self, Zeroable},
};
use ibex_bootstrap::{
    Acceptor, DialError, HandshakeError, Local, NodeIdentity, Problem, Version, VersionRange,
    message::{HandshakeMessage, MessageKind},
};
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

/// The node's ends: those for receiving from the peer, and for sending to it.
struct Ends {
    samples: VersionedReceiver<SampleV2, SampleV1, Pod>,
    answers: VersionedSender<SampleV2, SampleV1, Pod>,
}

impl Ends {
    fn open(peer: &Peer) -> Self {
        // The channels carry trace context if the peer asks for it too.
        let channel = |name| peer.channel(name).codec::<Pod>().trace_context(true);
        Self {
            samples: channel("samples").versioned_receiver().expect("a receiver"),
            answers: channel("answers").versioned_sender().expect("a sender"),
        }
    }
}

/// A later minor version, with unknown feature bits and fields.
#[test]
fn a_peer_of_a_later_minor_version() {
    let said = meet(include_str!("minor_4_1.txt"), |peer| {
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
        assert!(spec.is_traced, "{name}");
        let versions = spec.versions().map(|version| version.fingerprint);
        let known = [
            fingerprint(<Pod as Codec<SampleV2>>::schema()),
            fingerprint(<Pod as Codec<SampleV1>>::schema()),
        ];
        assert!(versions.eq(known), "{name}");
    }
}

/// A peer of the previous major version.
const OLDER: &str = include_str!("minor_3_2.txt");
const ITS_VERSIONS: VersionRange = VersionRange {
    oldest: Version { major: 3, minor: 0 },
    newest: Version { major: 3, minor: 2 },
};

/// Returns whether the node's error names both versions and the remedy.
fn is_diagnosis(error: &HandshakeError) -> bool {
    let theirs = ITS_VERSIONS;
    let ours = VersionRange::SUPPORTED;
    let said = error.to_string();
    *error == HandshakeError::Version { ours, theirs }
        && [ours, theirs]
            .iter()
            .all(|range| said.contains(&range.to_string()))
        && said.contains("update the older of the two")
}

#[test]
fn a_peer_of_an_older_major_version_that_dials_is_refused_in_its_own_way() {
    let address = "127.0.0.1:0".parse().expect("an address");
    let local = Local::new(NodeIdentity([7; 16]), 1);
    let mut acceptor = Acceptor::bind(address, local).expect("a port");
    let address = acceptor.local_addr();
    let played = thread::spawn(move || {
        let mut peer = Recording::open(OLDER, address.inet().expect("of TCP"));
        peer.say("hello");
        // The peer decides by this Hello.
        peer.hear_magic();
        let HandshakeMessage::Hello(hello) = peer.hear_message(MessageKind::Hello) else {
            panic!("no Hello")
        };
        assert_eq!(hello.versions, VersionRange::SUPPORTED);
        // The peer could read this, since its versions skip the bytes behind the words.
        match peer.hear_message(MessageKind::Refusal) {
            HandshakeMessage::Refusal(refusal) => refusal.reason.to_string(),
            other => panic!("{other:?}"),
        }
    });
    let failure = loop {
        acceptor.turn(Instant::now());
        match acceptor.poll_failure() {
            Some(failure) => break failure,
            None => thread::yield_now(),
        }
    };
    let Problem::Handshake(error) = &failure.problem else {
        panic!("{failure}")
    };
    assert!(is_diagnosis(error), "{error}");
    assert_eq!(played.join().expect("it is told"), error.to_string());
}

#[test]
fn a_peer_of_an_older_major_version_that_listens_is_told_apart_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let played = thread::spawn(move || {
        let (wire, _) = listener.accept().expect("the node");
        let mut peer = Recording::over(OLDER, wire);
        peer.hear_magic();
        peer.hear_message(MessageKind::Hello);
        // The peer sends its Hello, finds that the versions do not match, and disconnects.
        peer.say("hello");
    });
    let node = Node::builder().build().expect("a node");
    let error = node.connect(address).expect_err("another version");
    match error.dial_error() {
        Some(DialError::Handshake { peer, source, .. }) => {
            assert_eq!(*peer, address.into());
            assert!(is_diagnosis(source), "{source}");
        }
        _ => panic!("{error}"),
    }
    played.join().expect("the node says Hello");
}

/// Plays a recorded peer to a node, and runs the node's application.
fn meet(recording: &'static str, application: impl FnOnce(&Peer)) -> Said {
    let node = Node::builder()
        .fabric(Fabric::Tcp, Policy::Require)
        .trace_context(|| TraceContext::new([1; 16], [2; 8], 1).ok())
        .listen("127.0.0.1:0")
        .build()
        .expect("a node");
    let address = node.local_addr().expect("it listens");
    let played = thread::spawn(move || play(recording, address.inet().expect("of TCP")));
    let peer = node.accept_timeout(PATIENCE).expect("the recorded peer");
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
    let HandshakeMessage::Hello(hello) = hello else {
        panic!("{hello:?}")
    };
    assert_eq!(hello.versions, VersionRange::SUPPORTED);
    peer.say_checked("offer");
    peer.hear_message(MessageKind::Offer);
    peer.say_checked("choice");
    peer.hear_message(MessageKind::Endpoint);
    peer.say_checked("ready");
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

/// The time-out for the peer's immediate actions.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
