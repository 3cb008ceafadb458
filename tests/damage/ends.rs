//! Both ends of a stream of numbered messages, in any of the codecs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use ibex::{Peer, Raw, Receiver, RecvErrorKind, Sender, Serde, serde_bytes};
use serde::{Deserialize, Serialize};

use crate::content::{self, Lengths};

/// The message of the rkyv and serde streams.
#[ibex::message]
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    number: u64,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
}

/// A channel in one direction.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) number: u64,
    pub(crate) lengths: Lengths,
    /// Messages that the receiver has acknowledged, or has received.
    pub(crate) acked: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) is_over: Arc<AtomicBool>,
}

impl Stream {
    pub(crate) fn new(number: u64, lengths: Lengths, is_over: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            number,
            lengths,
            acked: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            is_over: is_over.clone(),
        })
    }

    fn content(&self, number: u64) -> Vec<u8> {
        content::of_message(self.number, number, self.lengths)
    }

    /// Checks a message that was handed out.
    fn check(&self, expected: u64, number: u64, data: &[u8]) {
        assert_eq!(number, expected, "stream {}", self.number);
        let stream = self.number;
        assert!(
            data == self.content(expected),
            "message {expected} of stream {stream} is another"
        );
        self.acked.store(expected, Ordering::Release);
    }

    fn name(&self) -> String {
        format!("stream-{}", self.number)
    }
}

/// The codec of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Codec {
    Raw,
    Rkyv,
    Serde,
}

enum AnySender {
    Raw(Sender<[u8], Raw>),
    Rkyv(Sender<Entry>),
    Serde(Sender<Entry, Serde>),
}

/// Sends until `is_over`, then waits until all has arrived.
pub(crate) fn send(peer: &Peer, codec: Codec, stream: &Stream) {
    let name = stream.name();
    let channel = peer.channel(&name).window_bytes(WINDOW_BYTES);
    let mut sender = match codec {
        Codec::Raw => AnySender::Raw(channel.codec::<Raw>().sender().unwrap()),
        Codec::Rkyv => AnySender::Rkyv(channel.sender().unwrap()),
        Codec::Serde => AnySender::Serde(channel.codec::<Serde>().sender().unwrap()),
    };
    let mut number = 0;
    while !stream.is_over.load(Ordering::Relaxed) {
        number += 1;
        let data = stream.content(number);
        let sent = match &mut sender {
            AnySender::Raw(sender) => sender.send(&data[..]),
            AnySender::Rkyv(sender) => sender.send(&Entry { number, data }),
            AnySender::Serde(sender) => sender.send(&Entry { number, data }),
        };
        assert_eq!(sent.unwrap(), number);
        stream.sent.store(number, Ordering::Relaxed);
        if number.is_multiple_of(ACKED_EVERY) {
            let acked = match &mut sender {
                AnySender::Raw(sender) => sender.wait_acked(number),
                AnySender::Rkyv(sender) => sender.wait_acked(number),
                AnySender::Serde(sender) => sender.wait_acked(number),
            };
            acked.unwrap();
            assert!(stream.acked.load(Ordering::Acquire) >= number);
        }
    }
    let closed = match sender {
        AnySender::Raw(sender) => sender.close(),
        AnySender::Rkyv(sender) => sender.close(),
        AnySender::Serde(sender) => sender.close(),
    };
    closed.unwrap();
}

enum AnyReceiver {
    Raw(Receiver<[u8], Raw>),
    Rkyv(Receiver<Entry>),
    Serde(Receiver<Entry, Serde>),
}

/// Receives messages until the sender ends.
pub(crate) fn receive(peer: &Peer, codec: Codec, stream: &Stream) {
    let name = stream.name();
    let channel = peer.channel(&name).window_bytes(WINDOW_BYTES);
    let mut receiver = match codec {
        Codec::Raw => AnyReceiver::Raw(channel.codec::<Raw>().receiver().unwrap()),
        Codec::Rkyv => AnyReceiver::Rkyv(channel.receiver().unwrap()),
        Codec::Serde => AnyReceiver::Serde(channel.codec::<Serde>().receiver().unwrap()),
    };
    for expected in 1.. {
        let taken = match &mut receiver {
            AnyReceiver::Raw(receiver) => receiver.recv().map(|message| {
                stream.check(expected, expected, &message);
                message.ack();
            }),
            AnyReceiver::Rkyv(receiver) => receiver.recv().map(|message| {
                stream.check(expected, message.number.to_native(), &message.data);
                message.ack();
            }),
            AnyReceiver::Serde(receiver) => receiver.recv().map(|message| {
                stream.check(expected, message.number, &message.data);
                message.ack();
            }),
        };
        match taken {
            Ok(()) => {}
            Err(error) if error.kind() == RecvErrorKind::Ended => {
                assert_eq!(expected - 1, stream.sent.load(Ordering::Relaxed));
                return;
            }
            Err(error) => panic!("stream {}, message {expected}: {error}", stream.number),
        }
    }
}

/// Opens channel after channel, each for one message, until `is_over`. Returns the number.
pub(crate) fn open(from: &Peer, to: &Peer, is_over: &AtomicBool) -> u64 {
    let mut opened = 0;
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("open-{opened}");
        let mut sender = from.sender::<u64>(&name).unwrap();
        let mut receiver = to.receiver::<u64>(&name).unwrap();
        sender.send(&opened).unwrap();
        let message = receiver.recv().unwrap();
        assert_eq!(*message, opened);
        message.ack();
        sender.wait_acked(1).unwrap();
        opened += 1;
    }
    opened
}

/// Small, so that the sender waits for the receiver.
const WINDOW_BYTES: u64 = 256 << 10;
const ACKED_EVERY: u64 = 64;
