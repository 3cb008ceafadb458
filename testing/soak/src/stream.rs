//! The two ends of a stream: messages that follow from their numbers, reported to the checker
//! before they are sent, and before they are acknowledged.
#![forbid(unsafe_code)]

use std::{thread, time::Duration};

use ibex::{
    Counts, Message, OpenError, OpenErrorKind, Peer, Raw, Receiver, RecvError, RecvErrorKind,
    SendErrorKind, Sender, WaitErrorKind,
};
use ibex_harness::draw::Draw;

use crate::{
    fact::{AT_ONCE, Fact, Feed, Side},
    payload,
};

/// The names of a session's channels.
pub(crate) const UP: &str = "up";
pub(crate) const DOWN: &str = "down";

/// Returns the stream of messages to the hub, which the connecting process sends.
pub(crate) fn up_of(session: u64) -> u64 {
    session << 1
}

pub(crate) fn down_of(up: u64) -> u64 {
    up | 1
}

/// The end of a stream, in order or by an error.
#[derive(Debug)]
pub(crate) struct Over;

/// Opens an end of a channel. Without memory it tries again, since the peer waits for the channel
/// as long as the session lives. Returns `None` if the session is over.
fn opened<T>(process: u64, feed: &Feed, open: impl Fn() -> Result<T, OpenError>) -> Option<T> {
    loop {
        match open() {
            Ok(end) => return Some(end),
            Err(error) => match error.kind() {
                OpenErrorKind::SessionOver => return None,
                OpenErrorKind::Memory => {
                    feed.tell(Fact::Refused { process });
                    thread::sleep(PAUSE);
                }
                _ => panic!("{error}"),
            },
        }
    }
}

/// The sending end.
pub(crate) struct Outgoing<'a> {
    sender: Sender<[u8], Raw>,
    stream: u64,
    process: u64,
    feed: &'a Feed,
    draw: Draw,
    rarity: u64,
    accepted: u64,
    acknowledged: u64,
    bytes: Vec<u8>,
}

impl<'a> Outgoing<'a> {
    /// Opens the end. Returns `None` if the session is over.
    pub(crate) fn open(
        peer: &Peer,
        name: &str,
        stream: u64,
        process: u64,
        rarity: u64,
        feed: &'a Feed,
    ) -> Option<Self> {
        let sender = opened(process, feed, || peer.channel(name).codec::<Raw>().sender())?;
        feed.tell(Fact::Began {
            stream,
            side: Side::Sender,
            process,
        });
        let draw = Draw::new(stream);
        Some(Self {
            sender,
            stream,
            process,
            feed,
            draw,
            rarity,
            accepted: 0,
            acknowledged: 0,
            bytes: Vec::new(),
        })
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Reports a few messages, then sends them.
    pub(crate) fn send_some(&mut self) -> Result<(), Over> {
        let lengths: Vec<usize> = (0..self.draw.of(1..AT_ONCE as u64))
            .map(|_| payload::draw_length(&mut self.draw, self.rarity))
            .collect();
        let (stream, bytes) = (self.stream, &mut self.bytes);
        let mut facts = Vec::with_capacity(lengths.len());
        for (sequence, length) in (self.accepted + 1..).zip(&lengths) {
            payload::write(stream, sequence, *length, bytes);
            let checksum = payload::checksum(bytes);
            facts.push(Fact::Sending {
                stream,
                sequence,
                checksum,
            });
        }
        self.feed.tell_all(&facts);
        for length in lengths {
            payload::write(stream, self.accepted + 1, length, &mut self.bytes);
            self.send_one()?;
        }
        self.look_at_acknowledgements();
        Ok(())
    }

    fn send_one(&mut self) -> Result<(), Over> {
        loop {
            match self.sender.send(&self.bytes) {
                Ok(sequence) => {
                    assert_eq!(sequence, self.accepted + 1);
                    self.accepted = sequence;
                    return Ok(());
                }
                // Nothing was sent, and the channel continues.
                Err(error) if error.kind() == SendErrorKind::Memory => {
                    self.feed.tell(Fact::Refused {
                        process: self.process,
                    });
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(self.broke(error.counts())),
            }
        }
    }

    fn look_at_acknowledgements(&mut self) {
        let up_to = self.sender.acked();
        if up_to > self.acknowledged {
            self.acknowledged = up_to;
            self.feed.tell(Fact::Acknowledged {
                stream: self.stream,
                up_to,
            });
        }
    }

    /// Waits until everything is acknowledged, and ends in order.
    pub(crate) fn close(mut self) {
        match self.sender.wait_acked(self.accepted) {
            Ok(()) => self.feed.tell(Fact::Closed {
                stream: self.stream,
                accepted: self.accepted,
            }),
            Err(error) if error.kind() == WaitErrorKind::Unacknowledged => {
                panic!("stream {:x}: {error}", self.stream)
            }
            Err(error) => drop(self.broke(error.counts())),
        }
    }

    /// Reports the end of the channel, with the counts of its error if it has any.
    fn broke(&mut self, counts: Option<Counts>) -> Over {
        let Counts {
            sent,
            received,
            acknowledged,
            ..
        } = counts.unwrap_or_else(|| self.sender.counts());
        self.feed.tell(Fact::SendBroke {
            stream: self.stream,
            accepted: self.accepted,
            sent,
            received,
            acknowledged,
        });
        Over
    }
}

/// The receiving end.
pub(crate) struct Incoming<'a> {
    receiver: Receiver<[u8], Raw>,
    stream: Option<u64>,
    process: u64,
    feed: &'a Feed,
    /// Messages that were reported and not acknowledged.
    held: Vec<Message<[u8], Raw>>,
}

impl<'a> Incoming<'a> {
    /// Opens the end. Returns `None` if the session is over. Without a given stream, the first
    /// message names it.
    pub(crate) fn open(
        peer: &Peer,
        name: &str,
        stream: Option<u64>,
        process: u64,
        feed: &'a Feed,
    ) -> Option<Self> {
        let receiver = opened(process, feed, || {
            peer.channel(name).codec::<Raw>().receiver()
        })?;
        if let Some(stream) = stream {
            feed.tell(Fact::Began {
                stream,
                side: Side::Receiver,
                process,
            });
        }
        Some(Self {
            receiver,
            stream,
            process,
            feed,
            held: Vec::new(),
        })
    }

    /// Returns the stream, once a message has arrived.
    pub(crate) fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// Takes the messages that have arrived.
    pub(crate) fn take_some(&mut self) -> Result<(), Over> {
        while self.held.len() < AT_ONCE - 1 {
            match self.receiver.try_recv() {
                Ok(message) => self.held.push(message),
                Err(nothing) if nothing.is_transient() => break,
                Err(error) if error.kind() == RecvErrorKind::Memory => {
                    self.was_refused();
                    break;
                }
                Err(error) => return Err(self.over(&error)),
            }
        }
        self.settle();
        Ok(())
    }

    /// Waits for a message, and takes those that have arrived with it.
    pub(crate) fn wait_for_some(&mut self) -> Result<(), Over> {
        loop {
            match self.receiver.recv() {
                Ok(message) => {
                    self.held.push(message);
                    return self.take_some();
                }
                Err(error) if error.kind() == RecvErrorKind::Memory => self.was_refused(),
                Err(error) => return Err(self.over(&error)),
            }
        }
    }

    /// Reports that an arrived message could not be mapped; it can be taken later.
    fn was_refused(&self) {
        self.feed.tell(Fact::Refused {
            process: self.process,
        });
        thread::sleep(PAUSE);
    }

    /// Takes all messages until the end.
    pub(crate) fn drain(mut self) {
        while self.wait_for_some().is_ok() {}
    }

    /// Reports the messages that were taken, then acknowledges them.
    fn settle(&mut self) {
        let Some(first) = self.held.first() else {
            return;
        };
        let process = self.process;
        let mut facts = Vec::with_capacity(AT_ONCE);
        let stream = *self.stream.get_or_insert_with(|| {
            let stream = payload::stream_of(first).expect("every message has a head");
            facts.push(Fact::Began {
                stream,
                side: Side::Receiver,
                process,
            });
            stream
        });
        facts.extend(self.held.iter().map(|message| Fact::Received {
            stream,
            sequence: message.sequence(),
            checksum: payload::checksum(message),
        }));
        self.feed.tell_all(&facts);
        self.held.drain(..).for_each(Message::ack);
    }

    fn over(&mut self, error: &RecvError) -> Over {
        self.settle();
        let Some(stream) = self.stream else {
            return Over;
        };
        self.feed.tell(match error.kind() {
            RecvErrorKind::Ended => Fact::Ended { stream },
            RecvErrorKind::Disconnected | RecvErrorKind::NotOpened => Fact::ReceiveBroke {
                stream,
                received: error
                    .counts()
                    .map_or(self.receiver.received(), |counts| counts.received),
            },
            _ => panic!("stream {stream:x}: {error}"),
        });
        Over
    }
}

/// The pause before another attempt.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
