//! A node of the simulation: a session, its ends, and the bytes on their way in and out.
//!
//! The node does what a connection does over a socket, and nothing else.
#![forbid(unsafe_code)]

mod eager_blocks;
mod reading;
mod wires;

use std::{collections::BTreeMap, sync::Arc};

use ibex_harness::draw::{Draw, mix};
use ibex_protocol::{
    format::{
        channel_window::ChannelWindow,
        control::{ChannelSpec, CloseReason, Role},
        message_version::MessageVersion,
    },
    framing::Carriage,
    session::{CannotOpen, DataPath, Session, SessionConfig, SessionEvent, WireTerms},
    transfer::{eager_write::EAGER_BLOCKS_PER_CHANNEL, rendezvous::RemoteMemory},
};

use super::{
    Checked, Coverage, Fault, Faults, Side,
    coverage::pair_of,
    ensure,
    ledger::Ledger,
    options::SimOptions,
    receiver::Receiver,
    sender::{Rings, Sender},
};

/// A session and its host.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) side: Side,
    options: SimOptions,
    pub(super) session: Session,
    pub(super) senders: BTreeMap<u32, Sender>,
    pub(super) receivers: BTreeMap<u32, Receiver>,
    /// Large messages that may have memory and have none yet: receiving end and sequence.
    pub(super) wanted: Vec<(u32, u64)>,
    /// Blocks that were granted ahead.
    eager_blocks: eager_blocks::EagerBlocks,
    pub(super) life: Life,
    pub(super) has_received_goodbye: bool,

    // The wires.
    /// The epoch of the wires that it has joined.
    pub(super) epoch: u64,
    pub(super) stage: Stage,
    wires: WireTerms,
    /// Set if the peer has newer wires already.
    pub(super) is_behind: bool,
    inbound: wires::Inbound,
    outbound: wires::Outbound,
    reading: reading::Reading,
    /// Frames carried over the wires of this epoch.
    pub(super) carried: Carried,
    /// Ends whose rings had records at the last check; a field only to keep its memory.
    with_records: Vec<u32>,
    /// The last control frame that arrived.
    last_control: Vec<u8>,
    /// Draws for the wires and for the order of channels.
    random: Draw,

    // The record of the run.
    pub(super) counts: Counts,
    /// A hash of everything that was sent and handed out, in order.
    pub(super) trace: u64,
}

/// The phase of a session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Channels open and close.
    Up,
    /// A side sends goodbye: published messages still go out, and nothing new begins.
    Ending,
}

/// The position of a node between old wires and new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Live,
    Suspended,
    /// New wires are there, and the peer has not said yet what it knows.
    Resuming,
    /// The session has not begun, and nothing happens to it.
    Before,
}

/// Frames over the wires of one epoch, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) charged_out: u64,
    pub(super) charged_in: u64,
    pub(super) frames_out: u64,
    pub(super) frames_in: u64,
}

/// Counts of a node's actions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) opened: u64,
    pub(super) mismatched: u64,
    /// Channels whose sender gave up.
    pub(super) aborted: u64,
    pub(super) frames: u64,
    pub(super) handed_out: u64,
    pub(super) large: u64,
    /// Large messages that were written.
    pub(super) written: u64,
    /// Large messages that were read.
    pub(super) read: u64,
    /// Number of times that a large message's grant waited for others to be released.
    pub(super) grants_waited: u64,
    /// Messages that arrived in blocks.
    pub(super) landed: u64,
    /// Blocks that were returned.
    pub(super) returned: u64,
    pub(super) out_of_credit: u64,
    /// Records that were sent alone, bypassing the queue of ready channels.
    pub(super) lone: u64,
    /// Lone records that were handled as such at the first check.
    pub(super) lone_in: u64,
    /// Number of times that the session resumed over new wires.
    pub(super) resumed: u64,
    /// Records that were sent again.
    pub(super) replayed: u64,
    /// Handshakes behind which the first frames had already arrived.
    pub(super) leftovers: u64,
    /// Faults by the application and the engine.
    pub(super) faults: Faults,
    pub(super) coverage: Coverage,
}

impl Node {
    pub(super) fn new(side: Side, options: &SimOptions, random: Draw) -> Self {
        let wires = WireTerms {
            carriage: options.carriage,
            ..WireTerms::STREAM
        };
        Self {
            side,
            options: options.clone(),
            session: Session::new(config(side, options, wires)),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            wanted: Vec::new(),
            eager_blocks: eager_blocks::EagerBlocks::default(),
            life: Life::Up,
            has_received_goodbye: false,
            epoch: 0,
            stage: Stage::Before,
            wires,
            is_behind: false,
            inbound: wires::Inbound::default(),
            outbound: wires::Outbound::default(),
            reading: reading::Reading::default(),
            carried: Carried::default(),
            with_records: Vec::new(),
            last_control: Vec::new(),
            random,
            counts: Counts::default(),
            trace: side as u64,
        }
    }

    pub(super) fn note(&mut self, word: u64) {
        self.trace = mix(self.trace ^ word);
    }

    // ---- Wires -----------------------------------------------------------------------

    /// Begins the session over these wires.
    pub(super) fn begin(&mut self, wires: WireTerms) {
        self.session = Session::new(config(self.side, &self.options, wires));
        self.wires = wires;
        self.stage = Stage::Live;
    }

    /// Takes over the wires from the handshake, which wrote `written` bytes. `leftover` are the
    /// bytes that arrived behind the peer's part of it.
    pub(super) fn take_over(&mut self, written: u64, leftover: Vec<u8>) {
        self.counts.leftovers += u64::from(!leftover.is_empty());
        self.outbound = wires::Outbound::behind(written);
        self.inbound = wires::Inbound::beginning_with(leftover);
    }

    /// Suspends the session: its wires are broken, and nothing more arrives over them.
    pub(super) fn suspend(&mut self) {
        self.stage = Stage::Suspended;
        self.session.suspend();
        self.counts.faults.count(Fault::Purge, self.is_writing());
        // No bytes of the old wires may be handled after this side says how much it has.
        self.inbound = wires::Inbound::default();
        self.outbound = wires::Outbound::default();
        for sender in self.senders.values_mut() {
            sender.wires_broke();
        }
        self.stop_reading();
    }

    /// Joins new wires.
    pub(super) fn join(&mut self, epoch: u64, wires: WireTerms, ledger: &Ledger) -> Checked {
        ensure!(
            epoch > self.epoch,
            "wires {epoch} are joined behind wires {}",
            self.epoch
        );
        self.epoch = epoch;
        self.stage = Stage::Resuming;
        self.wires = wires;
        self.carried = Carried::default();
        self.eager_blocks.grants_are_over();
        for receiver in self.receivers.values_mut() {
            receiver.begin_anew(wires.writes);
        }
        self.session.resume(wires);
        self.handle_events(ledger)?;
        Ok(())
    }

    /// Checks that a session without wires has nothing to send, whatever its handles want.
    pub(super) fn idle(&mut self, ledger: &Ledger) -> Checked {
        self.poll_rings()?;
        let is_due = self.session.is_due();
        let frame = self
            .session
            .poll_transmit(&mut Rings(&mut self.senders), 0, &mut Vec::new());
        ensure!(
            frame.is_none() && !is_due,
            "a session without wires has a frame: {frame:?}"
        );
        self.handle_events(ledger)
    }

    /// Returns whether it has written to the peer's memory without a completion yet.
    pub(super) fn is_writing(&self) -> bool {
        self.outbound.has_writes()
    }

    /// Returns the carriage of its frames.
    pub(super) fn carriage(&self) -> Carriage {
        self.wires.carriage
    }

    /// Returns whether it has sent and received goodbye.
    pub(super) fn has_parted(&self) -> bool {
        self.has_received_goodbye && self.session.outgoing.sent_goodbye() && self.is_flushed()
    }

    // ---- Handles ---------------------------------------------------------------------

    /// Opens an end, and checks the session's answer, since the node knows whether the end may be
    /// opened. The end knows the oldest `knows` versions, or, with 0, a version that its
    /// counterpart never knows. `window` is the window that it asks for.
    pub(super) fn open(
        &mut self,
        role: Role,
        name: &str,
        knows: usize,
        window: ChannelWindow,
        ledger: &Ledger,
    ) -> Checked<Option<u32>> {
        let is_live = match role {
            Role::Sender => self
                .senders
                .values()
                .any(|end| end.name == name && !end.is_closed),
            Role::Receiver => self
                .receivers
                .values()
                .any(|end| end.name == name && !end.is_closed),
        };
        let is_full = self.session.footprint().ends >= self.options.max_channels;
        let version = |(number, &alignment): (usize, &u32)| MessageVersion {
            fingerprint: [number as u8; 16],
            schema: String::new(),
            alignment,
        };
        let known = self.options.alignments.iter().enumerate().take(knows);
        let mut versions = known.rev().map(version);
        let stranger = (usize::from(u8::MAX) - role as usize, &8);
        let spec = ChannelSpec {
            newest: versions.next().unwrap_or_else(|| version(stranger)),
            older: versions.collect(),
            window,
            max_message_bytes: self.options.max_message_bytes,
            max_unreleased_bytes: u64::MAX,
            is_traced: false,
        };
        let end = match self.session.open(role, name, spec) {
            Ok(end) => end,
            Err(CannotOpen::AlreadyOpen) if is_live => return Ok(None),
            Err(CannotOpen::TooMany { .. }) if is_full => return Ok(None),
            Err(error) => return Err(format!("{role:?} {name:?} cannot be opened: {error}")),
        };
        ensure!(
            !is_live && !is_full,
            "{role:?} {name:?} was opened although it is open"
        );
        let name = name.to_owned();
        match role {
            Role::Sender => {
                self.senders.insert(end, Sender::new(self.side, end, name));
            }
            Role::Receiver => {
                self.receivers.insert(end, Receiver::new(self.side, name));
            }
        }
        self.handle_events(ledger)?;
        Ok(Some(end))
    }

    pub(super) fn close_sender(&mut self, end: u32, ledger: &Ledger) -> Checked {
        if let Some(sender) = self
            .senders
            .get_mut(&end)
            .filter(|sender| !sender.is_closed)
        {
            sender.is_closed = true;
            let reason = parting_after(sender.published);
            self.session
                .ends
                .close_sender(end, sender.published, reason);
        }
        self.handle_events(ledger)
    }

    pub(super) fn close_receiver(&mut self, end: u32, ledger: &Ledger) -> Checked {
        if let Some(receiver) = self.receivers.get_mut(&end).filter(|end| !end.is_closed) {
            receiver.is_closed = true;
            self.wanted.retain(|&(other, _)| other != end);
            self.session
                .close_receiver(end, &receiver.counters(), CloseReason::Dropped);
        }
        self.handle_events(ledger)
    }

    /// Closes all senders and sends goodbye behind their messages, with the program's `reason` if it
    /// ends the session in the middle.
    pub(super) fn end_session(&mut self, reason: Option<&str>, ledger: &Ledger) -> Checked {
        self.life = Life::Ending;
        for end in self.senders.keys().copied().collect::<Vec<_>>() {
            self.close_sender(end, ledger)?;
        }
        self.session.outgoing.say_goodbye(reason.map(Arc::from));
        self.handle_events(ledger)
    }

    /// Requests memory for the large messages of a receiving end, as far as it may have more.
    fn want_large(&mut self, end: u32) {
        let Some(receiver) = self.receivers.get_mut(&end).filter(|end| !end.is_closed) else {
            return;
        };
        while let Some(sequence) = receiver.next_wanted(self.options.large_bytes) {
            self.wanted.push((end, sequence));
        }
        if receiver.grant_waits() {
            self.session.grant_waits(end);
            self.counts.grants_waited += 1;
        }
    }

    /// Grants memory to one of the large messages.
    pub(super) fn grant(&mut self, at: usize) {
        let (end, sequence) = self.wanted.swap_remove(at);
        if let Some(receiver) = self.receivers.get_mut(&end) {
            // Some messages are granted although they are offered.
            let length = receiver.length_of(sequence).unwrap_or_default();
            if sequence % 4 != 1 && self.session.read_large(end, sequence, length) {
                receiver.reads(sequence);
                return;
            }
            let is_written = self.wires.writes && sequence % 2 == 0;
            let length = receiver.grant(sequence, is_written);
            // The wire finds the end by the address.
            let memory = length.and_then(|length| RemoteMemory::new(end.into(), 0, length));
            match memory.filter(|_| is_written) {
                Some(memory) => self.session.grant_memory(end, sequence, memory),
                None => {
                    let length = length.unwrap_or_default();
                    // The grant is partial at first, as if memory were short, then complete.
                    if sequence % 3 == 0 {
                        self.session.grant(end, sequence, length.div_ceil(2));
                    }
                    self.session.grant(end, sequence, length);
                }
            }
        }
    }

    /// Tells the session the progress of a receiving end's guards.
    pub(super) fn released(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(&end).filter(|end| !end.is_closed) {
            self.session.released(end, &receiver.counters());
        }
        self.want_large(end);
    }

    /// Returns whether the next guard that settles rings, because its sender or a grant waits for
    /// that.
    pub(super) fn is_asked(&self, end: u32) -> bool {
        let receiver = self.receivers.get(&end);
        self.session.ends.is_asked(end) || receiver.is_some_and(Receiver::grant_waits)
    }

    // ---- Events ----------------------------------------------------------------------

    fn handle_events(&mut self, ledger: &Ledger) -> Checked {
        while let Some(event) = self.session.poll_event() {
            self.counts.coverage.note(pair_of(self, &event));
            match event {
                SessionEvent::PeerOpened { .. } => {}
                SessionEvent::Abandoned => return Err("nobody gives the session up".into()),
                SessionEvent::Damaged { .. } => return Err("no bytes are damaged".into()),
                SessionEvent::Draining { .. } => return Err("nobody drains".into()),
                SessionEvent::Replay {
                    end,
                    received,
                    position,
                } => {
                    let sender = self.senders.get_mut(&end).ok_or("no sender goes on")?;
                    sender.replay(received, position)?;
                }
                SessionEvent::Resumed { replayed } => {
                    ensure!(self.stage == Stage::Resuming, "new wires, and none broke");
                    self.stage = Stage::Live;
                    self.counts.resumed += 1;
                    self.counts.replayed += replayed;
                }
                SessionEvent::Opened {
                    end,
                    peer_end,
                    agreed,
                } => {
                    self.counts.opened += 1;
                    if let Some(sender) = self.senders.get_mut(&end) {
                        sender.open(peer_end, agreed);
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        receiver.open(peer_end, agreed);
                    }
                }
                SessionEvent::Mismatched { end, .. } => {
                    self.counts.mismatched += 1;
                    if let Some(sender) = self.senders.get_mut(&end) {
                        (sender.is_over, sender.is_answered) = (true, true);
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        (receiver.is_over, receiver.is_answered) = (true, true);
                    }
                }
                SessionEvent::Counted { end, counters } => {
                    self.senders
                        .get_mut(&end)
                        .ok_or("news for no sender")?
                        .hear(&counters)?;
                    // Unused blocks are returned, as if the channel were idle.
                    if counters.released % 7 == 3 {
                        self.session.return_eager_blocks(end);
                    }
                }
                SessionEvent::Asked { end } => self.released(end),
                SessionEvent::Notified { end, counters } => {
                    let receiver = self.receivers.get(&end).ok_or("news of no receiver")?;
                    receiver.check_told(&counters)?;
                    // From here on the peer may overwrite the released blocks.
                    self.eager_blocks.check_released(end, counters.released)?;
                }
                SessionEvent::PeerClosed {
                    end,
                    reason,
                    final_sequence,
                } => {
                    let expected = match self.receivers.contains_key(&end) {
                        true => parting_after(final_sequence),
                        false => CloseReason::Dropped,
                    };
                    ensure!(
                        reason == expected,
                        "end {end} closes with {reason:?} and not {expected:?}"
                    );
                    if let Some(sender) = self.senders.get_mut(&end) {
                        sender.is_over = true;
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        self.counts.aborted += u64::from(reason == CloseReason::Aborted);
                        receiver.sender_closed(final_sequence, ledger)?;
                    }
                }
                SessionEvent::LargeAnnounced {
                    end,
                    sequence,
                    length,
                    ..
                } => {
                    self.want_large(end);
                    self.grant_eager_blocks(end, sequence, length);
                }
                SessionEvent::EagerBlockReturned { index } => {
                    self.counts.returned += 1;
                    self.eager_blocks.returned(index)?;
                }
                SessionEvent::Forgotten { end } => self.forget(end)?,
                SessionEvent::Goodbye { reason } => self.hear_goodbye(reason.as_deref(), ledger)?,
            }
        }
        Ok(())
    }

    fn forget(&mut self, end: u32) -> Checked {
        self.eager_blocks.forget(end);
        let sender = self.senders.remove(&end).map(|sender| sender.is_closed);
        let receiver = self
            .receivers
            .remove(&end)
            .map(|receiver| receiver.is_closed);
        ensure!(
            sender.or(receiver) == Some(true),
            "end {end} is forgotten while a handle lives"
        );
        Ok(())
    }

    fn hear_goodbye(&mut self, reason: Option<&str>, ledger: &Ledger) -> Checked {
        ensure!(
            reason.is_none_or(|reason| reason == HASTY),
            "the peer gives another reason: {reason:?}"
        );
        ensure!(!self.has_received_goodbye, "the peer says goodbye twice");
        self.has_received_goodbye = true;
        for receiver in self
            .receivers
            .values()
            .filter(|receiver| receiver.is_usable())
        {
            ensure!(
                receiver.is_closed_there(),
                "the peer says goodbye before it closes {:?}",
                receiver.name
            );
        }
        match self.life {
            Life::Up => self.end_session(None, ledger),
            Life::Ending => Ok(()),
        }
    }

    /// Checks that nothing has grown beyond its bound.
    pub(super) fn check_footprint(&self) -> Checked {
        let footprint = self.session.footprint();
        let limit = self.options.max_channels;
        // For each end these are an open, a close, an ask, two grants of two parts each, and grants
        // of blocks. In addition, there is the exchange over new wires.
        let control = footprint.ends.max(1) * (7 + EAGER_BLOCKS_PER_CHANNEL)
            + usize::from(self.life == Life::Ending)
            + footprint.peer_ends
            + 1;
        ensure!(
            footprint.ends <= limit
                && footprint.peer_ends <= limit
                && footprint.ready <= footprint.ends
                && footprint.changes <= footprint.ends
                && footprint.events == 0
                && footprint.control <= control,
            "a queue has grown beyond its bound: {footprint:?} with {limit} channels"
        );
        Ok(())
    }
}

fn config(side: Side, options: &SimOptions, wires: WireTerms) -> SessionConfig {
    SessionConfig {
        wires,
        dialed: side == Side::Left,
        max_channels: options.max_channels,
        data_path: match options.data_in_band {
            true => DataPath::Framed,
            false => DataPath::Mapped,
        },
        resumes: true,
    }
}

/// Returns a reason for a sender to close behind its last message; some give up.
fn parting_after(last: u64) -> CloseReason {
    match last % 5 {
        3 => CloseReason::Aborted,
        _ => CloseReason::Dropped,
    }
}

/// The reason for which a program ends a busy session.
pub(super) const HASTY: &str = "the program is done";
