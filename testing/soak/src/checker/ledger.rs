//! The comparison of everything sent with everything received. It is pure, so that the checker can
//! be tested with facts that contain faults.
//!
//! A stream is one direction of one session. Within it every message arrives at most once, in order
//! and without a gap. Every message that the sender was told is acknowledged has arrived, and so
//! has every message if the stream ended in order. If it broke, the messages behind the last
//! arrived one are unknown to their sender, and each error's counters are compared to what
//! happened.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::fact::{Fact, Side};

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    // Volume.
    /// Messages that were received.
    pub(crate) messages: u64,
    /// Streams, two of a session.
    pub(crate) streams: u64,
    /// Streams that an error ended at a live end.
    pub(crate) broken: u64,
    /// Streams that lost an end to a kill.
    pub(crate) orphaned: u64,
    /// Messages whose arrival their senders' errors left open.
    pub(crate) unknown: u64,
    /// Nodes, connections, sessions and messages that an error refused.
    pub(crate) refused: u64,
    /// Sessions that were suspended.
    pub(crate) suspensions: u64,
    /// Sessions that were resumed, counted at each end.
    pub(crate) resumes: u64,
    /// Messages that were sent again.
    pub(crate) replayed: u64,

    // Faults.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) reordered: u64,
    /// Messages that differ from the sent ones, or were never sent.
    pub(crate) garbled: u64,
    /// Errors and acknowledgements with false statements.
    pub(crate) lies: u64,
    /// Ends that fell silent although their processes lived on.
    pub(crate) unfinished: u64,
    /// Descriptions of the first faults.
    pub(crate) findings: Vec<String>,
}

impl Verdict {
    /// Returns whether there is no fault.
    pub(crate) fn is_clean(&self) -> bool {
        let Self {
            lost,
            doubled,
            reordered,
            garbled,
            lies,
            unfinished,
            ..
        } = self;
        lost + doubled + reordered + garbled + lies + unfinished == 0
    }
}

/// All streams that are not over yet.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    streams: HashMap<u64, Stream>,
    verdict: Verdict,
}

#[derive(Debug, Default)]
struct Stream {
    // Facts about its messages.
    /// The last announced message.
    announced: u64,
    /// Checksums of messages that have not arrived, in order.
    under_way: VecDeque<u64>,
    /// The highest message that has arrived.
    highest: u64,
    /// Messages below the highest that have not arrived.
    missing: BTreeMap<u64, u64>,

    // Its ends.
    sender: End,
    receiver: End,
}

/// The state of a stream's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Unheard,
    Runs {
        process: u64,
    },
    InOrder {
        count: u64,
    },
    Broke {
        /// Messages that were sent, or received.
        count: u64,
        /// At the sender: messages that it knows were received.
        received: u64,
    },
    Died,
}

impl End {
    fn is_over(self) -> bool {
        !matches!(self, End::Unheard | End::Runs { .. })
    }
}

impl Ledger {
    /// Returns the number of messages received so far.
    pub(crate) fn messages(&self) -> u64 {
        self.verdict.messages
    }

    /// Takes the next fact.
    pub(crate) fn take(&mut self, fact: Fact) {
        match fact {
            Fact::Began {
                stream,
                side,
                process,
            } => {
                self.verdict.streams += u64::from(!self.streams.contains_key(&stream));
                let stream = self.streams.entry(stream).or_default();
                *stream.end(side) = End::Runs { process };
            }
            Fact::Sending {
                stream,
                sequence,
                checksum,
            } => {
                self.with(stream, |stream, _| {
                    assert_eq!(sequence, stream.announced + 1, "messages are told in order");
                    stream.announced = sequence;
                    stream.under_way.push_back(checksum);
                });
            }
            Fact::Received {
                stream,
                sequence,
                checksum,
            } => {
                self.verdict.messages += 1;
                self.with(stream, |stream, found| {
                    stream.received(sequence, checksum, found);
                });
            }
            Fact::Acknowledged { stream, up_to } => {
                self.with(stream, |stream, found| stream.acknowledged(up_to, found));
            }
            Fact::Closed { stream, accepted } => self.with(stream, |stream, found| {
                stream.acknowledged(accepted, found);
                stream.sender = End::InOrder { count: accepted };
            }),
            Fact::SendBroke {
                stream,
                accepted,
                sent,
                received,
                acknowledged,
            } => {
                self.verdict.broken += 1;
                self.verdict.unknown += sent.saturating_sub(received);
                self.with(stream, |stream, found| {
                    if sent != accepted || received > sent || acknowledged > received {
                        found.lie(&format!(
                            "{accepted} were accepted, and the error says {sent} sent, {received} \
                             received, {acknowledged} acknowledged"
                        ));
                    }
                    stream.acknowledged(acknowledged, found);
                    stream.sender = End::Broke {
                        count: sent,
                        received,
                    };
                });
            }
            Fact::Ended { stream } => self.with(stream, |stream, _| {
                stream.receiver = End::InOrder {
                    count: stream.highest,
                };
            }),
            Fact::ReceiveBroke { stream, received } => {
                self.verdict.broken += 1;
                self.with(stream, |stream, found| {
                    let came = stream.highest;
                    if received != came {
                        found.lie(&format!("{came} came, and the error says {received}"));
                    }
                    stream.receiver = End::Broke {
                        count: came,
                        received,
                    };
                });
            }
            Fact::Died { process } => self.died(process),
            Fact::Refused { .. } => self.verdict.refused += 1,
            Fact::Suspended { .. } => self.verdict.suspensions += 1,
            Fact::Resumed { replayed, .. } => {
                self.verdict.resumes += 1;
                self.verdict.replayed += replayed;
            }
        }
    }

    /// Ends the run: no facts follow.
    pub(crate) fn close(mut self) -> Verdict {
        for (id, stream) in std::mem::take(&mut self.streams) {
            let mut found = Found {
                id,
                verdict: &mut self.verdict,
            };
            stream.close(&mut found);
        }
        self.verdict
    }

    /// Applies `act` to a stream, and forgets the stream if it is over then.
    fn with(&mut self, id: u64, act: impl FnOnce(&mut Stream, &mut Found<'_>)) {
        let mut found = Found {
            id,
            verdict: &mut self.verdict,
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            found.garbled("it is told of and never began, or is over");
            return;
        };
        act(stream, &mut found);
        if stream.sender.is_over() && stream.receiver.is_over() {
            let stream = self.streams.remove(&id).expect("it is there");
            stream.close(&mut found);
        }
    }

    fn died(&mut self, process: u64) {
        let is_of_it = |end: End| end == End::Runs { process };
        let of_it = |(id, stream): (&u64, &Stream)| {
            (is_of_it(stream.sender) || is_of_it(stream.receiver)).then_some(*id)
        };
        let ids: Vec<u64> = self.streams.iter().filter_map(of_it).collect();
        self.verdict.orphaned += ids.len() as u64;
        for id in ids {
            self.with(id, |stream, _| {
                for end in [&mut stream.sender, &mut stream.receiver] {
                    if is_of_it(*end) {
                        *end = End::Died;
                    }
                }
            });
        }
    }
}

impl Stream {
    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Sender => &mut self.sender,
            Side::Receiver => &mut self.receiver,
        }
    }

    fn received(&mut self, sequence: u64, checksum: u64, found: &mut Found<'_>) {
        if sequence == 0 || sequence > self.announced {
            return found.garbled(&format!("message {sequence} came and nobody sent it"));
        }
        if let Some(sent) = self.missing.remove(&sequence) {
            found.reordered(sequence, self.highest);
            return found.compare(sequence, sent, checksum);
        }
        if sequence <= self.highest {
            return found.doubled(sequence, self.highest);
        }
        while self.highest + 1 < sequence {
            self.highest += 1;
            let sent = self.under_way.pop_front().expect("it was announced");
            self.missing.insert(self.highest, sent);
        }
        self.highest = sequence;
        let sent = self.under_way.pop_front().expect("it was announced");
        found.compare(sequence, sent, checksum);
        if let End::Broke { count, .. } | End::InOrder { count } = self.sender
            && sequence > count
        {
            found.lie(&format!(
                "message {sequence} came, of which {count} were sent"
            ));
        }
    }

    /// Notes that the sender knows the receiver's application has handled all messages up to
    /// `up_to`.
    fn acknowledged(&mut self, up_to: u64, found: &mut Found<'_>) {
        if up_to > self.highest {
            let came = self.highest;
            found.lie(&format!("{up_to} are said to be acknowledged, {came} came"));
        }
        let behind = self.missing.split_off(&(up_to + 1));
        found.lost(self.missing.len() as u64, up_to);
        self.missing = behind;
    }

    /// Closes a stream whose ends are over, or fell silent.
    fn close(self, found: &mut Found<'_>) {
        for (end, name) in [(self.sender, "sender"), (self.receiver, "receiver")] {
            if matches!(end, End::Runs { .. }) {
                found.unfinished(name);
            }
        }
        found.lost(self.missing.len() as u64, self.highest);
        let Self { highest: came, .. } = self;
        match (self.sender, self.receiver) {
            (End::InOrder { count }, End::InOrder { .. } | End::Broke { .. })
            | (End::Broke { count, .. }, End::InOrder { .. }) => {
                found.lost(count.saturating_sub(came), count);
            }
            (End::Broke { received, .. }, End::Broke { .. }) if received > came => {
                found.lie(&format!(
                    "the error says that {received} were received, {came} came"
                ));
            }
            _ => {}
        }
        if let End::Broke { count, .. } = self.sender
            && came > count
        {
            found.lie(&format!(
                "the error says that {count} were sent, {came} came"
            ));
        }
    }
}

/// Collects the faults found in a stream.
struct Found<'a> {
    id: u64,
    verdict: &'a mut Verdict,
}

impl Found<'_> {
    fn compare(&mut self, sequence: u64, sent: u64, received: u64) {
        if sent != received {
            self.garbled(&format!("message {sequence} is not what was sent"));
        }
    }

    fn lost(&mut self, count: u64, up_to: u64) {
        if count > 0 {
            self.verdict.lost += count;
            self.say(&format!("{count} of {up_to} messages are lost"));
        }
    }

    fn doubled(&mut self, sequence: u64, highest: u64) {
        self.verdict.doubled += 1;
        self.say(&format!("message {sequence} came again behind {highest}"));
    }

    fn reordered(&mut self, sequence: u64, highest: u64) {
        self.verdict.reordered += 1;
        self.say(&format!("message {sequence} came behind {highest}"));
    }

    fn garbled(&mut self, what: &str) {
        self.verdict.garbled += 1;
        self.say(what);
    }

    fn lie(&mut self, what: &str) {
        self.verdict.lies += 1;
        self.say(what);
    }

    fn unfinished(&mut self, end: &str) {
        self.verdict.unfinished += 1;
        self.say(&format!("its {end} was not heard of again"));
    }

    fn say(&mut self, what: &str) {
        if self.verdict.findings.len() < MOST_FINDINGS {
            self.verdict
                .findings
                .push(format!("stream {:x}: {what}", self.id));
        }
    }
}

const MOST_FINDINGS: usize = 20;
