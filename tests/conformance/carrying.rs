//! Messages of every size, of every codec, and with any bytes.

use std::panic::{self, AssertUnwindSafe};

use ibex::{
    Codec, Fabric, Pod, Raw, SendErrorKind, Serde, SerdeBorrowed,
    codec::{EncodeError, Invalid, SchemaInfo, SlotWriter},
    serde_bytes,
};
use ibex_protocol::format::record::{RecordHeader, RecordKind};
use serde::{Deserialize, Serialize};

use crate::common::{
    payload,
    scenario::{Scenario, Side, Span},
    stage::{Stage, receiver, sender},
    stream::{assert_ended, receive_all, send_all},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("every_size", every_size),
    Scenario::new("every_size_in_a_stream", every_size_in_a_stream),
    Scenario::new("huge", huge).on(Span::EachFabric),
    Scenario::new("codecs", codecs),
    Scenario::new("future_header_words", future_header_words),
    Scenario::new("encoding_fails", encoding_fails),
    Scenario::new("too_deep", too_deep),
];

/// Returns sizes around every boundary: a word, a cache line, a page, a frame, a chunk, half the
/// ring, the ring, and far beyond. If each byte takes long, only a few of the long ones.
fn sizes(stage: &Stage) -> Vec<usize> {
    const RING: usize = 1 << 20;
    let around = |size: usize, by: usize| size - by..=size + by;
    let mut sizes = vec![0, 1, 7, 8, 9];
    for range in [
        around(64, 9),
        around(4096, 1),
        around(32 << 10, 1),
        65_510..=65_546,
    ] {
        sizes.extend(range);
    }
    for border in [128 << 10, RING / 2, RING] {
        let is_near = |size: &usize| matches!(size.abs_diff(border), 0 | 1 | 7..=9 | 16 | 17);
        let all = around(border, 17);
        sizes.extend(all.filter(|size| !stage.is_emulated() || is_near(size)));
    }
    sizes.extend([2 * RING, 5 << 20, 3, 0]);
    sizes
}

/// Each size by itself: the next message is sent when this one is acknowledged.
fn every_size(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let sizes = sizes(stage);
    let length = |sequence: u64| sizes[sequence as usize - 1];
    let last = sizes.len() as u64;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "sizes");
            for sequence in 1..=last {
                let bytes = payload::numbered(sequence, length(sequence));
                sender.send(&bytes).expect("sent");
                sender
                    .wait_acked(sequence)
                    .unwrap_or_else(|error| panic!("{} bytes: {error}", bytes.len()));
            }
            if stage.security().is_some() && stage.fabric() == Fabric::Verbs {
                // The listener lets authenticated dialers write.
                assert!(peer.stats().rendezvous_sent > 0, "{:?}", peer.stats());
            }
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "sizes");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// All sizes in one stream, large and small mixed.
fn every_size_in_a_stream(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let sizes = sizes(stage);
    let last = sizes.len() as u64;
    // 7 shares no factor with the number of sizes, so every size occurs once.
    assert_ne!(last % 7, 0);
    let length = |sequence: u64| sizes[(sequence * 7 % last) as usize];
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "sizes");
            send_all(&mut sender, last, length);
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "sizes");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// A message far longer than a window, with small ones around it.
fn huge(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let bytes = if cfg!(debug_assertions) {
        16 << 20
    } else if stage.is_emulated() {
        64 << 20
    } else {
        256 << 20
    };
    let length = |sequence| if sequence == 2 { bytes } else { 100 };
    let channel = peer.channel("huge").codec::<Raw>();
    let channel = channel.max_message_bytes(bytes as u64);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender().expect("a sender");
            send_all(&mut sender, 3, length);
            sender.wait_acked(3).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = channel.receiver().expect("a receiver");
            receive_all(&mut receiver, 3, length);
            assert_ended(receiver);
        }
    }
}

/// A message that uses everything an archive points to.
#[ibex::message]
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    offset: u64,
    name: String,
    parts: Vec<Vec<u8>>,
    before: Option<Box<u64>>,
}

/// A message that borrows, in either direction.
#[derive(Debug, PartialEq, Serialize, Deserialize, ibex::Schema)]
struct Slice<'a> {
    name: &'a str,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
}

fn entry(offset: u64) -> Entry {
    Entry {
        offset,
        name: format!("entry {offset}"),
        parts: (0..offset % 5)
            .map(|part| payload::numbered(part, part as usize * 11))
            .collect(),
        before: offset.checked_sub(2).map(Box::new),
    }
}

/// A channel of each codec, in one session.
fn codecs(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let last = stage.count(2_000);
    let sample = |number: u64| [number as f64, 0.5, -1.0];
    // Some messages are longer than the ring.
    let length = |number: u64| match number % 1000 {
        0 => 3 << 20,
        _ => number as usize % 3000,
    };
    match stage.side {
        Side::Dialer => {
            let mut entries = peer.sender::<Entry>("entries").expect("a sender");
            let mut bytes = sender(&peer, "bytes");
            let mut words = peer
                .channel("words")
                .codec::<Pod>()
                .sender::<u64>()
                .expect("a sender");
            let mut samples = peer
                .channel("samples")
                .codec::<Pod>()
                .sender::<[f64]>()
                .expect("a sender");
            let mut values = peer
                .channel("values")
                .codec::<Serde>()
                .sender::<Entry>()
                .expect("a sender");
            let mut slices = peer
                .channel("slices")
                .codec::<SerdeBorrowed>()
                .sender::<Slice<'static>>()
                .expect("a sender");
            for number in 1..=last {
                entries.send(&entry(number)).expect("sent");
                bytes.send(&[number as u8; 3]).expect("sent");
                bytes.send(b"..").expect("sent");
                words.send(&number).expect("sent");
                samples.send(&sample(number)).expect("sent");
                values.send(&entry(number)).expect("sent");
                let data = payload::numbered(number, length(number));
                let (name, data) = (&number.to_string()[..], &data[..]);
                let slice = Slice { name, data };
                slices.borrowing().send(&slice).expect("sent");
            }
            entries.wait_acked(last).expect("acknowledged");
            bytes.wait_acked(2 * last).expect("acknowledged");
            words.wait_acked(last).expect("acknowledged");
            samples.wait_acked(last).expect("acknowledged");
            values.wait_acked(last).expect("acknowledged");
            slices.wait_acked(last).expect("acknowledged");
        }
        Side::Listener => {
            let mut entries = peer.receiver::<Entry>("entries").expect("a receiver");
            let mut bytes = receiver(&peer, "bytes");
            let mut words = peer
                .channel("words")
                .codec::<Pod>()
                .receiver::<u64>()
                .expect("a receiver");
            let mut samples = peer
                .channel("samples")
                .codec::<Pod>()
                .receiver::<[f64]>()
                .expect("a receiver");
            let mut values = peer
                .channel("values")
                .codec::<Serde>()
                .receiver::<Entry>()
                .expect("a receiver");
            let mut slices = peer
                .channel("slices")
                .codec::<SerdeBorrowed>()
                .receiver::<Slice<'static>>()
                .expect("a receiver");
            for number in 1..=last {
                let received = entries.recv().expect("an entry");
                let expected = entry(number);
                assert_eq!(received.offset, number);
                assert_eq!(received.name, expected.name);
                assert_eq!(received.parts.len(), expected.parts.len());
                for (part, expected) in received.parts.iter().zip(&expected.parts) {
                    assert_eq!(part, expected);
                }
                assert_eq!(
                    received.before.as_ref().map(|word| word.to_native()),
                    expected.before.as_deref().copied()
                );
                received.ack();
                let message = bytes.recv().expect("bytes");
                assert_eq!(message[..], [number as u8; 3]);
                message.ack();
                let message = bytes.recv().expect("bytes");
                assert_eq!(&message[..], b"..");
                message.ack();
                let word = words.recv().expect("a word");
                assert_eq!(*word, number);
                word.ack();
                let message = samples.recv().expect("a sample");
                assert_eq!(*message, sample(number));
                message.ack();
                let value = values.recv().expect("a value");
                assert_eq!(*value, entry(number));
                value.ack();
                let message = slices.recv().expect("a slice");
                let slice = message.decode();
                assert_eq!(slice.name, number.to_string());
                assert!(slice.data == payload::numbered(number, length(number)));
                assert!(
                    message
                        .bytes()
                        .as_ptr_range()
                        .contains(&slice.data.as_ptr())
                        || slice.data.is_empty()
                );
                // A detached message has the same value.
                let message = message.into_owned();
                assert_eq!(message.decode().data.len(), length(number));
                message.ack();
            }
        }
    }
}

/// Payloads made of the header words that will stand in their place a lap later: old bytes must
/// never be taken for a record.
fn future_header_words(stage: &mut Stage) {
    const LENGTH: usize = 1000;
    const LAP: u64 = (64 << 10) / (LENGTH as u64 + 8);
    let (_node, peer) = stage.meet();
    let last = stage.count(50_000);
    let words = |sequence: u64| -> Vec<u8> {
        let header = |ahead| RecordHeader {
            kind: RecordKind::Data,
            length: LENGTH as u32,
            sequence_low: (sequence + ahead) as u32,
        };
        let ahead = (0..LENGTH as u64 / 8).map(|place| LAP - 1 + place % 3);
        ahead
            .flat_map(|ahead| header(ahead).to_word().to_le_bytes())
            .collect()
    };
    let channel = peer.channel("words").codec::<Raw>().window_bytes(64 << 10);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            for sequence in 1..=last {
                sender.send(&words(sequence)).expect("sent");
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            for sequence in 1..=last {
                let message = receiver.recv().expect("a message");
                assert_eq!(message.sequence(), sequence);
                assert!(message[..] == words(sequence)[..], "message {sequence}");
            }
            assert_ended(receiver);
        }
    }
}

/// A codec of bytes that writes half and then fails if the first byte says so.
enum Moody {}

const REFUSES: u8 = 1;
const PANICS: u8 = 2;

impl Codec<[u8]> for Moody {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        8
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<[u8]>("moody", &[])
    }

    fn size(_: &[u8]) -> Option<usize> {
        None
    }

    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        let (first, rest) = value.split_at(value.len() / 2);
        slot.write(first)?;
        match value.first() {
            Some(&REFUSES) => Err(EncodeError::Failed("it refuses".into())),
            Some(&PANICS) => panic::resume_unwind(Box::new("it panics")),
            _ => Ok(slot.write(rest)?),
        }
    }

    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

/// Values that cannot be encoded leave no trace: nothing is sent, and nothing is missing.
fn encoding_fails(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let channel = peer.channel("moods").codec::<Moody>();
    // The last two messages are longer than the ring.
    let lengths = [10, 1000, 60_000, 700_000, 2_000_000];
    let last = lengths.len() as u64;
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            for (sequence, length) in (1..).zip(lengths) {
                let refused = sender.send(&vec![REFUSES; length]);
                assert!(
                    matches!(&refused, Err(error) if error.kind() == SendErrorKind::Encode),
                    "{refused:?}"
                );
                let panicked =
                    panic::catch_unwind(AssertUnwindSafe(|| sender.send(&vec![PANICS; length])));
                assert!(panicked.is_err());
                assert_eq!(sender.send(&vec![0xff; length]).expect("sent"), sequence);
                // From here on handles share the channel's lock, which a panic must not keep.
                drop(sender.clone());
            }
            sender.wait_acked(last).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            for (sequence, length) in (1..).zip(lengths) {
                let message = receiver.recv().expect("a message");
                assert_eq!(message.sequence(), sequence);
                assert!(message.len() == length && message.iter().all(|&byte| byte == 0xff));
                message.ack();
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// A message that contains itself.
#[ibex::message]
#[derive(Serialize, Deserialize)]
enum Chain {
    End,
    Link(Box<Chain>),
}

impl Chain {
    fn of(links: usize) -> Self {
        (0..links).fold(Self::End, |rest, _| Self::Link(Box::new(rest)))
    }

    fn links(&self) -> usize {
        match self {
            Self::End => 0,
            Self::Link(rest) => 1 + rest.links(),
        }
    }
}

/// The sender refuses the nesting that its receiver would, so nothing is dropped there.
fn too_deep(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let archived = peer.channel("archived");
    let serialized = peer.channel("serialized").codec::<Serde>();
    // The deepest chain of each codec. `Serde` counts the variant at the end as a level.
    let (most_archived, most_serialized) = (254, 127);
    match stage.side {
        Side::Dialer => {
            let mut archived = archived.sender::<Chain>().expect("a sender");
            let mut serialized = serialized.sender::<Chain>().expect("a sender");
            for over in [1, 2, 100] {
                for refused in [
                    archived.send(&Chain::of(most_archived + over)),
                    serialized.send(&Chain::of(most_serialized + over)),
                ] {
                    let error = refused.expect_err("too deep");
                    assert_eq!(error.kind(), SendErrorKind::Encode, "{error}");
                    assert!(error.to_string().contains("nested deeper than"), "{error}");
                }
            }
            assert_eq!(archived.send(&Chain::of(most_archived)).expect("sent"), 1);
            let sent = serialized.send(&Chain::of(most_serialized));
            assert_eq!(sent.expect("sent"), 1);
            archived.wait_acked(1).expect("acknowledged");
            serialized.wait_acked(1).expect("acknowledged");
        }
        Side::Listener => {
            let mut archived = archived.receiver::<Chain>().expect("a receiver");
            let mut serialized = serialized.receiver::<Chain>().expect("a receiver");
            let message = archived.recv().expect("a message");
            let mut links = 0;
            let mut view = &*message;
            while let ArchivedChain::Link(rest) = view {
                (view, links) = (&**rest, links + 1);
            }
            assert_eq!(links, most_archived);
            message.ack();
            let message = serialized.recv().expect("a message");
            assert_eq!(message.links(), most_serialized);
            message.ack();
            assert!(archived.next().expect("an orderly end").is_none());
            assert!(serialized.next().expect("an orderly end").is_none());
        }
    }
}
