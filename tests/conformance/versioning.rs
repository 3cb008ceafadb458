//! Programs of several releases, whose message type has changed in between.
//!
//! A release opens its end with the versions that it knows: one, or the newer of two and the older.
//! The two processes run one build here, and differ in the types that they open with;
//! `tests/rolling_upgrade.rs` has two builds.

use futures_util::StreamExt;
use ibex::{
    Message, OpenErrorKind, Peer, Pod, Receiver, RecvErrorKind, Schema, Select, SendError,
    SendErrorKind, Sender, VersionedReceiver, VersionedSender, Versions,
    bytemuck::{self, Zeroable},
};

use crate::common::{
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("every_pair_of_releases", every_pair_of_releases),
    Scenario::new("versions_of_two_alignments", versions_of_two_alignments),
    Scenario::new("no_version_in_common", no_version_in_common),
    Scenario::new("settled_when_the_peer_opens", settled_when_the_peer_opens),
    Scenario::new("versions_that_are_one", versions_that_are_one),
    Scenario::new("versions_of_tasks", versions_of_tasks),
    Scenario::new("versions_selected", versions_selected),
];

#[ibex::message]
#[rkyv(derive(Debug))]
#[derive(Debug)]
struct EntryV1 {
    offset: u64,
    data: Vec<u8>,
}

#[ibex::message]
#[rkyv(derive(Debug))]
#[derive(Debug)]
struct EntryV2 {
    offset: u64,
    term: u64,
    data: Vec<u8>,
}

#[ibex::message]
#[rkyv(derive(Debug))]
#[derive(Debug)]
struct EntryV3 {
    position: u64,
    term: u64,
    data: Vec<u8>,
}

impl EntryV1 {
    fn at(offset: u64) -> Self {
        let data = vec![1; offset as usize % 100];
        Self { offset, data }
    }

    fn check(entry: &Message<Self>, offset: u64) {
        assert_eq!(entry.offset.to_native(), offset);
        assert_eq!(entry.data, vec![1; offset as usize % 100]);
    }
}

impl EntryV2 {
    fn at(offset: u64) -> Self {
        let data = vec![2; offset as usize % 100];
        let term = !offset;
        Self { offset, term, data }
    }

    fn check(entry: &Message<Self>, offset: u64) {
        let read = (entry.offset.to_native(), entry.term.to_native());
        assert_eq!(read, (offset, !offset));
        assert_eq!(entry.data, vec![2; offset as usize % 100]);
    }
}

// ---- Releases ------------------------------------------------------------------------

/// The versions that a program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// The first version alone.
    Old,
    /// The second, and the first for peers that know no other.
    New,
    /// The second alone: no host runs the old program any more.
    Later,
}

const RELEASES: [Release; 3] = [Release::Old, Release::New, Release::Later];

/// Returns the version that a sender and a receiver of these releases agree on.
fn settled(sender: Release, receiver: Release) -> Option<u8> {
    match (sender, receiver) {
        (Release::Old, Release::Later) | (Release::Later, Release::Old) => None,
        (Release::Old, _) | (_, Release::Old) => Some(1),
        _ => Some(2),
    }
}

/// Either end of every pair of releases, opened in either order, sending in either direction.
fn every_pair_of_releases(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    for sender in RELEASES {
        for receiver in RELEASES {
            for (dialer_sends, sender_first) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let name = format!("{sender:?} to {receiver:?}, {dialer_sends}, {sender_first}");
                let we_send = stage.is_dialer() == dialer_sends;
                let we_are_first = we_send == sender_first;
                let expected = settled(sender, receiver);
                if we_send {
                    if !we_are_first {
                        stage.rendezvous("the receiver is open", &node);
                    }
                    let mut end = AnySender::open(&peer, &name, sender);
                    if we_are_first {
                        stage.rendezvous("the sender is open", &node);
                    }
                    end.send_some(expected);
                } else {
                    if !we_are_first {
                        stage.rendezvous("the sender is open", &node);
                    }
                    let mut end = AnyReceiver::open(&peer, &name, receiver);
                    if we_are_first {
                        stage.rendezvous("the receiver is open", &node);
                    }
                    end.receive_some(expected);
                }
            }
        }
    }
    stage.rendezvous("done", &node);
}

const ENTRIES: u64 = 20;

enum AnySender {
    Old(Sender<EntryV1>),
    New(VersionedSender<EntryV2, EntryV1>),
    Later(Sender<EntryV2>),
}

impl AnySender {
    fn open(peer: &Peer, name: &str, release: Release) -> Self {
        let channel = peer.channel(name);
        match release {
            Release::Old => Self::Old(channel.sender().expect("a sender")),
            Release::New => Self::New(channel.versioned_sender().expect("a sender")),
            Release::Later => Self::Later(channel.sender().expect("a sender")),
        }
    }

    fn send_some(&mut self, expected: Option<u8>) {
        match (self, expected) {
            (Self::Old(sender), Some(1)) => send_first(sender),
            (Self::Later(sender), Some(2)) => send_second(sender),
            (Self::New(sender), Some(version)) => {
                match (sender.opened(LONG).expect("the peer opens"), version) {
                    (Versions::Older(sender), 1) => send_first(sender),
                    (Versions::Newer(sender), 2) => send_second(sender),
                    (other, _) => panic!("{other:?} instead of version {version}"),
                }
            }
            (Self::Old(sender), None) => is_mismatch(&sender.send(&EntryV1::at(1))),
            (Self::Later(sender), None) => is_mismatch(&sender.send(&EntryV2::at(1))),
            (_, expected) => panic!("nobody has version {expected:?} here"),
        }
    }
}

fn is_mismatch(sent: &Result<u64, SendError>) {
    assert!(
        matches!(&sent, Err(error) if error.kind() == SendErrorKind::Mismatch),
        "{sent:?}"
    );
}

fn send_first(sender: &mut Sender<EntryV1>) {
    for offset in 1..=ENTRIES {
        sender.send(&EntryV1::at(offset)).expect("sent");
    }
    sender.wait_acked(ENTRIES).expect("acknowledged");
}

fn send_second(sender: &mut Sender<EntryV2>) {
    for offset in 1..=ENTRIES {
        sender.send(&EntryV2::at(offset)).expect("sent");
    }
    sender.wait_acked(ENTRIES).expect("acknowledged");
}

enum AnyReceiver {
    Old(Receiver<EntryV1>),
    New(VersionedReceiver<EntryV2, EntryV1>),
    Later(Receiver<EntryV2>),
}

impl AnyReceiver {
    fn open(peer: &Peer, name: &str, release: Release) -> Self {
        let channel = peer.channel(name);
        match release {
            Release::Old => Self::Old(channel.receiver().expect("a receiver")),
            Release::New => Self::New(channel.versioned_receiver().expect("a receiver")),
            Release::Later => Self::Later(channel.receiver().expect("a receiver")),
        }
    }

    fn receive_some(&mut self, expected: Option<u8>) {
        if expected.is_none() {
            let error = match self {
                Self::Old(receiver) => receiver.recv().map(drop),
                Self::New(receiver) => receiver.recv().map(drop),
                Self::Later(receiver) => receiver.recv().map(drop),
            };
            assert!(
                matches!(&error, Err(error) if error.kind() == RecvErrorKind::Mismatch),
                "{error:?}"
            );
            return;
        }
        for offset in 1..=ENTRIES {
            let version = match self {
                Self::Old(receiver) => {
                    let entry = receiver.recv().expect("an entry");
                    EntryV1::check(&entry, offset);
                    entry.ack();
                    1
                }
                Self::Later(receiver) => {
                    let entry = receiver.recv().expect("an entry");
                    EntryV2::check(&entry, offset);
                    entry.ack();
                    2
                }
                Self::New(receiver) => {
                    let entry = receiver.recv().expect("an entry");
                    assert_eq!(entry.sequence(), offset);
                    let version = match &entry {
                        Versions::Older(entry) => {
                            EntryV1::check(entry, offset);
                            1
                        }
                        Versions::Newer(entry) => {
                            EntryV2::check(entry, offset);
                            2
                        }
                    };
                    entry.ack();
                    version
                }
            };
            assert_eq!(Some(version), expected);
        }
        let ended = match self {
            Self::Old(receiver) => receiver.next().map(|more| more.is_none()),
            Self::New(receiver) => receiver.next().map(|more| more.is_none()),
            Self::Later(receiver) => receiver.next().map(|more| more.is_none()),
        };
        assert!(ended.expect("an orderly end"));
    }
}

// ---- Alignments ----------------------------------------------------------------------

/// The old sample, aligned to 8.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, Zeroable, Schema)]
#[bytemuck(crate = "ibex::bytemuck")]
#[repr(C)]
struct Narrow {
    number: u64,
}

/// The new sample, which has a cache line of its own.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, Zeroable, Schema)]
#[bytemuck(crate = "ibex::bytemuck")]
#[repr(C, align(64))]
struct Wide {
    number: u64,
    rest: [u64; 7],
}

trait Sample: Copy + PartialEq + std::fmt::Debug + bytemuck::Pod + Schema + 'static {
    fn number(number: u64) -> Self;
}

impl Sample for Narrow {
    fn number(number: u64) -> Self {
        Self { number }
    }
}

impl Sample for Wide {
    fn number(number: u64) -> Self {
        Self {
            number,
            rest: [number; 7],
        }
    }
}

type Samples<T> = Sender<[T], Pod>;

/// The smallest ring is filled many times, and some messages are longer than the ring. The place of
/// a record depends on the agreed alignment, which a receiver of two versions learns only then.
fn versions_of_two_alignments(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let last = stage.count(3000);
    let channel = |name: &str| {
        let channel = peer.channel(name).codec::<Pod>();
        channel.window_bytes(64 << 10).window_messages(64)
    };
    let sends = stage.side == Side::Dialer;

    let name = "narrow to both";
    if sends {
        send_samples::<Narrow>(&mut channel(name).sender().expect("a sender"), last);
    } else {
        let both = channel(name);
        let mut receiver = both
            .versioned_receiver::<[Wide], [Narrow]>()
            .expect("a receiver");
        receiver.opened(LONG).expect("the peer opens");
        match receiver.into_receiver() {
            Ok(Versions::Older(receiver)) => receive_samples::<Narrow>(receiver, last),
            other => panic!("{other:?} with a narrow sender"),
        }
    }
    let name = "wide to both";
    if sends {
        send_samples::<Wide>(&mut channel(name).sender().expect("a sender"), last);
    } else {
        let both = channel(name);
        let mut receiver = both
            .versioned_receiver::<[Narrow], [Wide]>()
            .expect("a receiver");
        receiver.opened(LONG).expect("the peer opens");
        match receiver.into_receiver() {
            Ok(Versions::Older(receiver)) => receive_samples::<Wide>(receiver, last),
            other => panic!("{other:?} with a wide sender"),
        }
    }
    let name = "both to narrow";
    if sends {
        let both = channel(name);
        let mut sender = both
            .versioned_sender::<[Wide], [Narrow]>()
            .expect("a sender");
        match sender.opened(LONG).expect("the peer opens") {
            Versions::Older(sender) => send_samples(sender, last),
            other => panic!("{other:?} with a narrow receiver"),
        }
    } else {
        receive_samples::<Narrow>(channel(name).receiver().expect("a receiver"), last);
    }
    let name = "both to both";
    if sends {
        let both = channel(name);
        let mut sender = both
            .versioned_sender::<[Wide], [Narrow]>()
            .expect("a sender");
        match sender.opened(LONG).expect("the peer opens") {
            Versions::Newer(sender) => send_samples(sender, last),
            other => panic!("{other:?} with a receiver of both"),
        }
    } else {
        // The ends disagree about which version is the newer: the sender's order counts.
        let both = channel(name);
        let mut receiver = both
            .versioned_receiver::<[Narrow], [Wide]>()
            .expect("a receiver");
        receiver.opened(LONG).expect("the peer opens");
        match receiver.into_receiver() {
            Ok(Versions::Older(receiver)) => receive_samples::<Wide>(receiver, last),
            other => panic!("{other:?} with a sender of both"),
        }
    }
    stage.rendezvous("done", &node);
}

/// Returns the number of samples: some messages fill the ring, one is longer, most are short.
fn samples_in(sequence: u64) -> usize {
    match sequence {
        100 => 20_000,
        _ if sequence.is_multiple_of(50) => 400,
        _ => (sequence % 7) as usize,
    }
}

fn send_samples<T: Sample>(sender: &mut Samples<T>, last: u64)
where
    Pod: ibex::Codec<[T]>,
{
    for sequence in 1..=last {
        let samples = vec![T::number(sequence); samples_in(sequence)];
        assert_eq!(sender.send(&samples).expect("sent"), sequence);
    }
    sender.wait_acked(last).expect("acknowledged");
    assert_eq!(sender.released(), last);
}

fn receive_samples<T: Sample>(mut receiver: Receiver<[T], Pod>, last: u64)
where
    Pod: ibex::Codec<[T], View = [T]>,
{
    for sequence in 1..=last {
        let message = receiver.recv().expect("samples");
        assert!(message.as_ptr().is_aligned());
        assert_eq!(message[..], vec![T::number(sequence); samples_in(sequence)]);
        message.ack();
    }
    assert!(receiver.next().expect("an orderly end").is_none());
}

// ---- Incompatible and pending channels -------------------------------------------------

/// Ends that are two releases apart: both get an error that shows everything either knows.
fn no_version_in_common(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let said = match stage.side {
        Side::Dialer => {
            let newest = peer.channel("far");
            let mut sender = newest
                .versioned_sender::<EntryV3, EntryV2>()
                .expect("announced");
            match sender.opened(LONG) {
                Err(error) if error.kind() == SendErrorKind::Mismatch => error.to_string(),
                other => panic!("they have nothing in common: {other:?}"),
            }
        }
        Side::Listener => {
            let mut receiver = peer.receiver::<EntryV1>("far").expect("announced");
            match receiver.recv() {
                Err(error) if error.kind() == RecvErrorKind::Mismatch => error.to_string(),
                other => panic!("they have nothing in common: {other:?}"),
            }
        }
    };
    let (v1, v2, v3) = (
        "{ offset: u64, data",
        "{ offset: u64, term",
        "{ position: u64, term",
    );
    for part in [v1, v2, v3, "\"far\"", "no version", " or ", "update"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    let newer_first = said.find(v3) < said.find(v2);
    assert!(newer_first, "{said}");
    // The session continues.
    stage.rendezvous("refused", &node);
    if stage.is_dialer() {
        AnySender::open(&peer, "near", Release::New).send_some(Some(2));
    } else {
        AnyReceiver::open(&peer, "near", Release::New).receive_some(Some(2));
    }
}

/// There is no version until the peer opens its end, and asking for it loses nothing.
fn settled_when_the_peer_opens(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("late");
            let mut sender = channel
                .versioned_sender::<EntryV2, EntryV1>()
                .expect("announced");
            assert_eq!(sender.name(), "late");
            match sender.opened(MOMENT) {
                Err(error) if error.kind() == SendErrorKind::NotOpened => {}
                other => panic!("nobody opened it: {other:?}"),
            }
            let mut sender = sender.into_sender().expect_err("nobody opened it");
            stage.rendezvous("not open", &node);
            sender.opened(LONG).expect("the peer opens");
            let Ok(Versions::Newer(mut sender)) = sender.into_sender() else {
                panic!("both know the newer")
            };
            send_second(&mut sender);
            drop(sender);

            let channel = peer.channel("late answer");
            let mut receiver = channel
                .versioned_receiver::<EntryV2, EntryV1>()
                .expect("announced");
            assert!(
                matches!(receiver.try_recv(), Err(error) if error.kind() == RecvErrorKind::NotOpened)
            );
            assert!(
                receiver
                    .opened(MOMENT)
                    .is_err_and(|late| late.is_transient())
            );
            let mut receiver = receiver.into_receiver().expect_err("nobody opened it");
            stage.rendezvous("not open either", &node);
            // The first entry decides the version; the rest comes by the plain receiver.
            let first = receiver.recv_timeout(LONG).expect("an entry");
            let Versions::Older(entry) = &first else {
                panic!("{first:?} of a sender that knows the older")
            };
            EntryV1::check(entry, 1);
            first.ack();
            assert_eq!(receiver.counts().received, 1);
            let Ok(Versions::Older(mut receiver)) = receiver.into_receiver() else {
                panic!("the version does not change")
            };
            for (offset, entry) in (2..).zip(&mut receiver) {
                let entry = entry.expect("an entry");
                EntryV1::check(&entry, offset);
                entry.ack();
            }
            assert_eq!(receiver.counts().received, ENTRIES);
        }
        Side::Listener => {
            stage.rendezvous("not open", &node);
            AnyReceiver::open(&peer, "late", Release::New).receive_some(Some(2));
            stage.rendezvous("not open either", &node);
            AnySender::open(&peer, "late answer", Release::Old).send_some(Some(1));
        }
    }
    stage.rendezvous("done", &node);
}

/// Two versions of one structure are refused, since their messages could not be told apart.
fn versions_that_are_one(stage: &mut Stage) {
    #[ibex::message]
    #[derive(Debug)]
    struct Renamed {
        offset: u64,
        data: Vec<u8>,
    }

    let (node, peer) = stage.meet();
    let channel = peer.channel("one");
    let refused = channel
        .versioned_sender::<Renamed, EntryV1>()
        .expect_err("they are the same");
    assert!(
        refused.kind() == OpenErrorKind::SameVersions && refused.to_string().contains("offset")
    );
    assert!(refused.to_string().contains("rename a field"), "{refused}");
    // Nothing was announced.
    stage.rendezvous("refused", &node);
    assert_eq!(peer.incoming(), []);
    let _ = Renamed {
        offset: 0,
        data: Vec::new(),
    };
    let _ = EntryV3 {
        position: 0,
        term: 0,
        data: Vec::new(),
    };
    stage.rendezvous("done", &node);
}

/// Tasks at both ends, which meet either version: a version is agreed while a task waits, futures
/// are dropped in between, and a stream is read to the end.
fn versions_of_tasks(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    for (name, release) in [("old", Release::Old), ("new", Release::New)] {
        match stage.side {
            Side::Dialer => {
                let channel = peer.channel(name);
                let mut sender = channel
                    .versioned_sender::<EntryV2, EntryV1>()
                    .expect("a sender");
                assert!(task::poll_once(&mut sender.opened_async()).is_pending());
                stage.rendezvous("waits", &node);
                task::run(&node, driver, async {
                    for offset in 1..=ENTRIES {
                        let sent = match (sender.opened_async().await.expect("open"), release) {
                            (Versions::Older(sender), Release::Old) => {
                                sender.send_async(&EntryV1::at(offset)).await
                            }
                            (Versions::Newer(sender), Release::New) => {
                                sender.send_async(&EntryV2::at(offset)).await
                            }
                            (other, _) => panic!("{other:?} with {release:?}"),
                        };
                        assert_eq!(sent.expect("sent"), offset);
                    }
                });
                match sender.opened(LONG).expect("open") {
                    Versions::Older(sender) => task::run(&node, driver, sender.flush_async()),
                    Versions::Newer(sender) => task::run(&node, driver, sender.flush_async()),
                }
                .expect("delivered");
            }
            Side::Listener => {
                stage.rendezvous("waits", &node);
                AnyReceiver::open(&peer, name, release).receive_some(match release {
                    Release::Old => Some(1),
                    _ => Some(2),
                });
            }
        }
        stage.rendezvous("sent", &node);
    }
    // In the other direction, the new release receives the messages of either release.
    for (name, release, version) in [("old", Release::Old, 1), ("new", Release::New, 2)] {
        match stage.side {
            Side::Dialer => {
                let channel = peer.channel(name);
                let mut receiver = channel
                    .versioned_receiver::<EntryV2, EntryV1>()
                    .expect("a receiver");
                let first = task::poll_once(&mut receiver.recv_async());
                assert!(first.is_pending(), "nobody has opened it");
                stage.rendezvous("waits", &node);
                task::run(&node, driver, async {
                    let entry = receiver.recv_async().await.expect("an entry");
                    check_entry(&entry, 1, version);
                    entry.ack();
                    let mut entries = receiver.stream();
                    for offset in 2..=ENTRIES {
                        let entry = entries.next().await.expect("more").expect("an entry");
                        check_entry(&entry, offset, version);
                        entry.ack();
                    }
                    assert!(entries.next().await.is_none(), "an orderly end");
                    assert!(entries.next().await.is_none(), "over is over");
                });
                assert_eq!(receiver.counts().acknowledged, ENTRIES);
            }
            Side::Listener => {
                stage.rendezvous("waits", &node);
                AnySender::open(&peer, name, release).send_some(Some(version));
            }
        }
        stage.rendezvous("received", &node);
    }
}

fn check_entry(entry: &Versions<Message<EntryV2>, Message<EntryV1>>, offset: u64, version: u8) {
    match (entry, version) {
        (Versions::Older(entry), 1) => EntryV1::check(entry, offset),
        (Versions::Newer(entry), 2) => EntryV2::check(entry, offset),
        _ => panic!("it is not of version {version}"),
    }
}

/// A single call waits for receivers of two versions and of one, and sleeps between the messages.
fn versions_selected(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut old = peer.sender::<EntryV1>("old").expect("a sender");
            let mut new = peer.sender::<EntryV2>("new").expect("a sender");
            let mut plain = peer.sender::<EntryV1>("plain").expect("a sender");
            for offset in 1..=ENTRIES {
                let sequence = old.send(&EntryV1::at(offset)).expect("sent");
                old.wait_acked(sequence).expect("acknowledged");
                let sequence = new.send(&EntryV2::at(offset)).expect("sent");
                new.wait_acked(sequence).expect("acknowledged");
                let sequence = plain.send(&EntryV1::at(offset)).expect("sent");
                plain.wait_acked(sequence).expect("acknowledged");
            }
        }
        Side::Listener => {
            let both = |name: &str| {
                let channel = peer.channel(name);
                channel
                    .versioned_receiver::<EntryV2, EntryV1>()
                    .expect("a receiver")
            };
            let (mut old, mut new) = (both("old"), both("new"));
            let mut plain = peer.receiver::<EntryV1>("plain").expect("a receiver");
            let mut select = Select::new();
            for offset in 1..=ENTRIES {
                // Each message is sent when the one before was acknowledged.
                for expected in 0..3 {
                    let ready = select.ready_timeout(&mut [&mut old, &mut new, &mut plain], LONG);
                    assert_eq!(ready, Some(expected));
                    match expected {
                        0 => {
                            let entry = old.try_recv().expect("it is there");
                            check_entry(&entry, offset, 1);
                            entry.ack();
                        }
                        1 => {
                            let entry = new.try_recv().expect("it is there");
                            check_entry(&entry, offset, 2);
                            entry.ack();
                        }
                        _ => {
                            let entry = plain.try_recv().expect("it is there");
                            EntryV1::check(&entry, offset);
                            entry.ack();
                        }
                    }
                }
            }
        }
    }
    stage.rendezvous("done", &node);
}
