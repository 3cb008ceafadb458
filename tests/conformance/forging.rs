//! Bytes that claim to be a message and are not. Each gives one error that names it, and the
//! channel continues.
//!
//! The hostile end has a codec of its own with another's schema. Fingerprints compare claims, so
//! they match; the receiver's codec checks the bytes.

use std::{marker::PhantomData, mem::MaybeUninit, thread};

use ibex::{
    Codec, RecvError, RecvErrorKind, Rkyv, Serde, WaitErrorKind,
    codec::{EncodeError, Invalid, SchemaInfo, SlotWriter},
};
use serde::{Deserialize, Serialize};

use crate::common::{
    scenario::{Scenario, Side},
    stage::{LONG, Stage},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("forged_messages", forged_messages),
    Scenario::new("forged_values", forged_values),
    Scenario::new("nothing_but_forgeries", nothing_but_forgeries),
];

#[ibex::message]
#[rkyv(derive(Debug))]
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    offset: u64,
    data: Vec<u8>,
}

/// Writes any bytes and claims that they are an [`Entry`] by `C`.
struct Forger<C>(PhantomData<C>);

impl<C: Codec<Entry>> Codec<[u8]> for Forger<C> {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        C::alignment()
    }

    fn schema() -> SchemaInfo {
        C::schema()
    }

    fn size(value: &[u8]) -> Option<usize> {
        Some(value.len())
    }

    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(value)?)
    }

    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

/// Returns a valid message with the offset `offset`.
fn honest<C: Codec<Entry>>(offset: u64) -> Vec<u8> {
    let entry = Entry {
        offset,
        data: vec![offset as u8; 100],
    };
    let mut memory = [MaybeUninit::uninit(); 200];
    let mut slot = SlotWriter::new(&mut memory);
    C::encode(&entry, &mut slot).expect("room for one");
    slot.written().to_vec()
}

/// Returns bytes that are no archive of an [`Entry`]: none, too few, meaningless ones, and archives
/// that point and reach beyond themselves. The root lies at the end; its last words are the
/// position of the vector's bytes and their number.
fn forgeries() -> Vec<Vec<u8>> {
    let honest = honest::<Rkyv>(1);
    let (root, points_to, length) = (honest.len() - 16, honest.len() - 8, honest.len() - 4);
    let mut before_the_start = honest.clone();
    before_the_start[points_to..length].copy_from_slice(&i32::MIN.to_le_bytes());
    let mut behind_the_end = honest.clone();
    behind_the_end[points_to..length].copy_from_slice(&i32::MAX.to_le_bytes());
    let mut too_long = honest.clone();
    too_long[length..].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut longer_by_all = honest.clone();
    longer_by_all[length..].copy_from_slice(&(honest.len() as u32).to_le_bytes());
    vec![
        Vec::new(),
        vec![0],
        vec![0xff; 16],
        vec![0xff; 4096],
        // These bytes are longer than the ring, so that they travel as a large message.
        vec![0xff; 5 << 20],
        honest[..honest.len() - 1].to_vec(),
        honest[..root].to_vec(),
        before_the_start,
        behind_the_end,
        too_long,
        longer_by_all,
    ]
}

/// Each forgery comes between two valid messages.
fn forged_messages(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let forgeries = forgeries();
    match stage.side {
        Side::Dialer => {
            let mut sender = peer
                .channel("entries")
                .codec::<Forger<Rkyv>>()
                .sender::<[u8]>()
                .expect("a sender");
            sender.send(&honest::<Rkyv>(1)).expect("sent");
            for forgery in &forgeries {
                let sequence = sender.send(forgery).expect("sent");
                sender.send(&honest::<Rkyv>(sequence + 1)).expect("sent");
            }
            // The invalid message was not acknowledged, and the sender learns which one it was.
            match sender.wait_acked(3) {
                Err(error)
                    if error.kind() == WaitErrorKind::Unacknowledged
                        && error.sequence() == Some(2) => {}
                other => panic!("{other:?} about a forgery"),
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = peer.receiver::<Entry>("entries").expect("a receiver");
            let check_honest = |sequence: u64, receiver: &mut ibex::Receiver<Entry>| {
                let message = receiver.recv().expect("a valid message");
                assert_eq!(message.sequence(), sequence);
                assert_eq!(message.offset.to_native(), sequence);
                assert_eq!(message.data.len(), 100);
                assert!(message.data.iter().all(|&byte| byte == sequence as u8));
                message.ack();
            };
            check_honest(1, &mut receiver);
            for number in 0..forgeries.len() as u64 {
                let sequence = 2 * number + 2;
                let error = match number % 3 {
                    0 => receiver.recv().expect_err("a forgery"),
                    1 => match receiver.recv_timeout(LONG).expect_err("a forgery") {
                        error if !error.is_transient() => error,
                        other => panic!("{other:?} instead of a forgery"),
                    },
                    _ => loop {
                        match receiver.try_recv().expect_err("a forgery") {
                            error if !error.is_transient() => break error,
                            _ => thread::yield_now(),
                        }
                    },
                };
                check_corrupt(&error, sequence, &peer.address().to_string());
                check_honest(sequence + 1, &mut receiver);
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// Forged bytes of decoded values give an error that names the type.
fn forged_values(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let whole = honest::<Serde>(1);
    let forgeries = [
        Vec::new(),
        // The lengths are beyond the end, without an end, and up to the end.
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01".to_vec(),
        vec![0xff; 5 << 20],
        vec![0x01; 5 << 20],
        whole[..whole.len() - 1].to_vec(),
        [&whole[..], b"\0"].concat(),
    ];
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("entries").codec::<Forger<Serde>>();
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            for forgery in &forgeries {
                let sequence = sender.send(forgery).expect("sent");
                sender.send(&honest::<Serde>(sequence + 1)).expect("sent");
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let channel = peer.channel("entries").codec::<Serde>();
            let mut receiver = channel.receiver::<Entry>().expect("a receiver");
            for sequence in (1..).step_by(2).take(forgeries.len()) {
                let error = receiver.recv().expect_err("a forgery");
                check_corrupt(&error, sequence, &peer.address().to_string());
                assert!(error.to_string().contains("Entry"), "{error}");
                let value = receiver.recv().expect("a valid message");
                assert_eq!((value.offset, value.data.len()), (sequence + 1, 100));
                value.ack();
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// A forgery is released once it was reported, so any number of them blocks nothing; and each is
/// reported once.
fn nothing_but_forgeries(stage: &mut Stage) {
    const WINDOW: u64 = 8;
    let (_node, peer) = stage.meet();
    let last = stage.count(1000);
    match stage.side {
        Side::Dialer => {
            let mut sender = peer
                .channel("entries")
                .window_messages(WINDOW)
                .codec::<Forger<Rkyv>>()
                .sender::<[u8]>()
                .expect("a sender");
            for _ in 0..last {
                sender.send(&[0xff; 100]).expect("sent");
            }
            sender.send(&honest::<Rkyv>(last + 1)).expect("sent");
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = peer.receiver::<Entry>("entries").expect("a receiver");
            let mut messages = receiver.iter();
            for sequence in 1..=last {
                let error = messages.next().expect("it goes on").expect_err("a forgery");
                check_corrupt(&error, sequence, &peer.address().to_string());
            }
            let message = messages
                .next()
                .expect("it goes on")
                .expect("a valid message");
            assert_eq!(message.sequence(), last + 1);
            drop(message);
            assert!(messages.next().is_none());
        }
    }
}

/// Checks that the error names the peer, the message, the problem and the consequence.
fn check_corrupt(error: &RecvError, expected: u64, address: &str) {
    let said = error.to_string();
    assert_eq!(error.kind(), RecvErrorKind::Corrupt, "{said}");
    let (channel, sequence) = (error.channel(), error.sequence());
    assert_eq!((channel, sequence), (Some("entries"), Some(expected)));
    let peer = error.peer().expect("the error names it");
    assert!(peer.contains(address), "{said}");
    for part in [
        address,
        "\"entries\"",
        &expected.to_string(),
        "is not valid: ",
        "goes on",
    ] {
        assert!(said.contains(part), "no \"{part}\" in: {said}");
    }
}
