//! Many senders and one receiver: real sessions, the broker of the receiving engine, and wires with
//! a delay.
//!
//! Every sender has all its messages ready, one to a frame. After each step the receiver's memory
//! is counted: everything on its way to it must have a place, whatever the sessions and the broker
//! believe.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use ibex_harness::draw::Draw;
use ibex_protocol::{
    credit::{
        broker::{BrokerSettings, CreditAction, CreditBroker},
        reserved_buffer::reserved_buffers,
    },
    format::{
        channel_window::ChannelWindow,
        control::{ChannelSpec, Role},
        counters::Counters,
        frame::{FrameHeader, FrameKind},
        message_version::MessageVersion,
        record::{RecordHeader, RecordKind, first_position, record_size},
    },
    framing::{Carriage, LEAST_BUFFER_BYTES},
    session::{
        Arrival, Body, DataPath, RecordSource, Run, Session, SessionConfig, SessionEvent, WireTerms,
    },
};

use super::{Checked, ensure};

/// The receiver's engine, and all its senders.
struct Crowd {
    random: Draw,
    now: u64,
    delay_steps: u64,
    carriage: Carriage,
    settings: BrokerSettings,
    broker: CreditBroker,
    peers: Vec<Peer>,
    /// The index of the sender that the feeding program visits next.
    hand: usize,
}

/// A sender, and its session at the receiver.
struct Peer {
    there: Session,
    here: Session,
    ring: Ring,
    up: Wire,
    down: Wire,
    life: Life,
    is_open: bool,
    received: u64,
    recalls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Sends its next message as soon as it can, until this many are published.
    Busy(u64),
    /// Like [`Busy`](Self::Busy), but [its program](Crowd::feed) publishes a few messages at a
    /// time.
    Fed(u64),
    /// Stays connected and sends nothing.
    Silent,
    Gone,
}

/// Frames on their way, each with the step at which it arrives.
#[derive(Default)]
struct Wire {
    frames: VecDeque<(u64, Vec<u8>)>,
    /// The number of frames carried so far.
    carried: u64,
}

/// Records of one length in a window, generated when they are read.
#[derive(Default)]
struct Ring {
    taken: u64,
    released: u64,
    published: u64,
}

impl RecordSource for Ring {
    fn take_run(&mut self, _: u32, batch: usize, single: usize) -> Option<Run> {
        let bytes = record_size(MESSAGE_BYTES, ALIGNMENT);
        let position = first_position(ALIGNMENT) + self.taken * bytes as u64;
        let fits = self.has_records(0) && bytes <= batch.max(single);
        self.taken += u64::from(fits);
        fits.then_some(Run {
            position,
            bytes,
            records: 1,
            announcement: 0,
        })
    }

    fn has_records(&mut self, _: u32) -> bool {
        self.taken < self.published.min(self.released + WINDOW)
    }

    fn forget_block(&mut self, _: u32, _: u64) {
        unreachable!("no memory is granted");
    }
}

impl Crowd {
    fn new(seed: u64, carriage: Carriage, settings: BrokerSettings) -> Self {
        Self {
            random: Draw::new(seed),
            now: 0,
            delay_steps: 8,
            carriage,
            settings,
            broker: CreditBroker::new(settings),
            peers: Vec::new(),
            hand: 0,
        }
    }

    fn join(&mut self, life: Life) {
        let config = |dialed, our_credit, peer_credit| SessionConfig {
            wires: WireTerms {
                carriage: self.carriage,
                our_credit,
                peer_credit,
                ..WireTerms::STREAM
            },
            dialed,
            max_channels: 2,
            data_path: DataPath::Framed,
            resumes: false,
        };
        // The way back has all the room that it needs.
        let mut there = Session::new(config(true, PLENTY, 0));
        let mut here = Session::new(config(false, 0, PLENTY));
        there
            .open(Role::Sender, "data", spec())
            .expect("its first end");
        here.open(Role::Receiver, "data", spec())
            .expect("its first end");
        self.broker
            .join(self.peers.len() as u64)
            .expect("no more sessions than there may be");
        self.peers.push(Peer {
            there,
            here,
            ring: Ring::default(),
            up: Wire::default(),
            down: Wire::default(),
            life,
            is_open: false,
            received: 0,
            recalls: 0,
        });
    }

    /// Moves every peer once, beginning at a random one.
    fn step(&mut self) -> Checked {
        let first = self.random.below(self.peers.len() as u64) as usize;
        for index in 0..self.peers.len() {
            let index = (first + index) % self.peers.len();
            self.receive(index)?;
            self.share(index);
            self.send_back(index);
            self.peers[index].run(self.now, self.delay_steps, &mut self.random)?;
        }
        self.now += 1;
        self.check()
    }

    /// Lets the receiver take what has arrived, and release it at once.
    fn receive(&mut self, index: usize) -> Checked {
        let peer = &mut self.peers[index];
        if peer.life == Life::Gone {
            return Ok(());
        }
        while let Some(bytes) = peer.up.take(self.now) {
            if let Arrival::Records { records, .. } = handle(&mut peer.here, &bytes)? {
                peer.received += records;
                let size = record_size(MESSAGE_BYTES, ALIGNMENT) as u64;
                let counters = Counters {
                    received: peer.received,
                    released: peer.received,
                    released_position: first_position(ALIGNMENT) + peer.received * size,
                    ..Counters::default()
                };
                peer.here.released(1, &counters);
            }
            while peer.here.poll_event().is_some() {}
        }
        Ok(())
    }

    /// Does the part of a connection: reports events to the broker, and carries out its decisions.
    fn share(&mut self, index: usize) {
        self.report(index);
        let peers = &mut self.peers;
        loop {
            let used = |session| peers[session as usize].here.credit.used();
            let Some(action) = self.broker.poll_action(used) else {
                return;
            };
            match action {
                CreditAction::Give {
                    session,
                    credit,
                    term,
                } => peers[session as usize].here.give(credit, term),
                CreditAction::Recall { session, credit } => {
                    let peer = &mut peers[session as usize];
                    peer.recalls += 1;
                    peer.here.recall(credit);
                    let report = peer.here.credit.take_report();
                    self.broker.report(session, report);
                }
            }
        }
    }

    fn report(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        if peer.life == Life::Gone {
            return;
        }
        let report = peer.here.credit.take_report();
        self.broker.report(index as u64, report);
    }

    fn send_back(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let delay = self.random.below(self.delay_steps + 1);
        peer.down
            .fill(&mut peer.here, &mut Ring::default(), self.now + delay);
        self.report(index);
    }

    fn end(&mut self, index: usize) {
        self.peers[index].life = Life::Gone;
        self.peers[index].up.frames.clear();
        self.broker.leave(index as u64);
        self.share_all();
    }

    fn share_all(&mut self) {
        (0..self.peers.len()).for_each(|index| self.share(index));
    }

    /// Checks that the receiver has room for everything on its way.
    fn check(&self) -> Checked {
        ensure!(self.broker.is_sound(), "more is lent than there is");
        let mut on_their_way = 0;
        for (index, peer) in self.peers.iter().enumerate() {
            let (cost, talk) = peer.up.cost(self.carriage);
            let held = self.broker.held(index as u64);
            ensure!(
                cost <= held,
                "{cost} on its way from {index}, which holds {held}"
            );
            ensure!(
                talk <= reserved_buffers(false),
                "{talk} frames of talk on their way"
            );
            on_their_way += cost + talk;
        }
        ensure!(
            on_their_way <= self.settings.capacity,
            "{on_their_way} on their way to {}",
            self.settings.capacity
        );
        Ok(())
    }

    /// Steps until all busy senders have sent everything. Returns the counts of each when the first
    /// was done.
    fn run(&mut self, steps: u64) -> Checked<Vec<u64>> {
        let mut shares = None;
        for _ in 0..steps {
            self.step()?;
            let mut done = self.peers.iter().filter_map(Peer::is_done);
            if shares.is_none() && done.any(|is_done| is_done) {
                let busy = self.peers.iter().filter(|peer| peer.is_done().is_some());
                shares = Some(busy.map(|peer| peer.received).collect());
            }
            if self.peers.iter().filter_map(Peer::is_done).all(|done| done) {
                return shares.ok_or("nobody is busy".to_owned());
            }
        }
        let stuck: Vec<_> = (0..self.peers.len())
            .filter(|&index| self.peers[index].is_done() == Some(false))
            .map(|index| (index, self.peers[index].received))
            .collect();
        Err(format!("not done after {steps} steps: {stuck:?}"))
    }

    /// Lets the program that feeds all senders visit the next one, and publish a few messages.
    fn feed(&mut self) {
        let peer = &mut self.peers[self.hand];
        if let Life::Fed(messages) = peer.life
            && peer.is_open
        {
            let room = peer.ring.released + WINDOW;
            peer.ring.published = messages.min(room).min(peer.ring.published + AT_A_TIME);
        }
        self.hand = (self.hand + 1) % self.peers.len();
    }

    /// Returns the frames to the receiver and back, for each message.
    fn frames_per_message(&self) -> [f64; 2] {
        let received: u64 = self.peers.iter().map(|peer| peer.received).sum();
        let carried = |wire: fn(&Peer) -> &Wire| {
            let frames: u64 = self.peers.iter().map(|peer| wire(peer).carried).sum();
            frames as f64 / received as f64
        };
        [carried(|peer| &peer.up), carried(|peer| &peer.down)]
    }

    fn recalls(&self) -> u64 {
        self.peers.iter().map(|peer| peer.recalls).sum()
    }
}

impl Peer {
    /// Takes a step of the sender.
    fn run(&mut self, now: u64, delay_steps: u64, random: &mut Draw) -> Checked {
        let (Life::Busy(_) | Life::Fed(_)) = self.life else {
            return Ok(());
        };
        while let Some(bytes) = self.down.take(now) {
            handle(&mut self.there, &bytes)?;
            while let Some(event) = self.there.poll_event() {
                match event {
                    SessionEvent::Opened { .. } => self.is_open = true,
                    SessionEvent::Counted { counters, .. } => {
                        self.ring.released = counters.released;
                    }
                    _ => {}
                }
            }
        }
        if let Life::Busy(messages) = self.life
            && self.is_open
        {
            self.ring.published = messages;
        }
        if self.ring.has_records(0) {
            self.there.ends.mark_ready(1);
        }
        let delay = random.below(delay_steps + 1);
        self.up.fill(&mut self.there, &mut self.ring, now + delay);
        while self.there.poll_event().is_some() {}
        Ok(())
    }

    fn is_done(&self) -> Option<bool> {
        match self.life {
            Life::Busy(messages) | Life::Fed(messages) => Some(self.received >= messages),
            Life::Silent | Life::Gone => None,
        }
    }
}

impl Wire {
    fn take(&mut self, now: u64) -> Option<Vec<u8>> {
        let (arrives, _) = self.frames.front()?;
        if *arrives > now {
            return None;
        }
        self.frames.pop_front().map(|(_, bytes)| bytes)
    }

    /// Sends everything that the session has due.
    fn fill(&mut self, session: &mut Session, ring: &mut Ring, arrives: u64) {
        let last = self.frames.back().map_or(0, |&(arrives, _)| arrives);
        let mut bytes = Vec::new();
        while let Some(body) = session.poll_transmit(ring, 0, &mut bytes) {
            if let Body::Records { bytes: length, .. } = body {
                let word = RecordHeader {
                    kind: RecordKind::Data,
                    length: MESSAGE_BYTES as u32,
                    sequence_low: ring.taken as u32,
                };
                let end = bytes.len() + length;
                bytes.extend_from_slice(&word.to_word().to_le_bytes());
                bytes.resize(end.next_multiple_of(8), 0);
            }
            self.frames
                .push_back((arrives.max(last), std::mem::take(&mut bytes)));
            self.carried += 1;
        }
    }

    /// Returns the cost of the frames on the wire, and the number that are talk.
    fn cost(&self, carriage: Carriage) -> (u64, u64) {
        let headers = self
            .frames
            .iter()
            .filter_map(|(_, bytes)| FrameHeader::parse(bytes).ok().flatten());
        headers.fold((0, 0), |(cost, talk), header| {
            let is_talk = carriage.is_talk(&header);
            (cost + carriage.cost(&header), talk + u64::from(is_talk))
        })
    }
}

fn handle(session: &mut Session, bytes: &[u8]) -> Checked<Arrival> {
    let header = FrameHeader::parse(bytes).map_err(|error| error.to_string())?;
    let header = header.ok_or("half a frame")?;
    ensure!(header.kind != FrameKind::Chunk, "nobody sends chunks");
    session
        .handle_frame(&header, &bytes[..header.length as usize], 0)
        .map_err(|misbehaved| format!("an honest peer is accused: {misbehaved}"))
}

fn spec() -> ChannelSpec {
    ChannelSpec {
        newest: MessageVersion {
            fingerprint: [0; 16],
            schema: String::new(),
            alignment: ALIGNMENT as u32,
        },
        older: Vec::new(),
        window: ChannelWindow {
            messages: WINDOW,
            bytes: 1 << 20,
        },
        max_message_bytes: MESSAGE_BYTES as u64,
        max_unreleased_bytes: u64::MAX,
        is_traced: false,
    }
}

const WINDOW: u64 = 64;
/// Messages that a program publishes at one sender before it turns to the next.
const AT_A_TIME: u64 = 4;
const ALIGNMENT: usize = 8;
/// Length of a message, more than half of the shortest receive buffer.
const MESSAGE_BYTES: usize = 3000;
const SENDERS: u64 = 10_000;
const PLENTY: u64 = 64;

mod claims;
