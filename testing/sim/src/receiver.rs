//! A receiving end of the simulation: arrivals, guards dropped in any order, counters.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use ibex_harness::draw::Draw;
use ibex_protocol::{
    format::{
        counters::Counters,
        message_extension::MessageExtension,
        record::{self, LargeAnnouncement, RecordHeader},
    },
    session::Agreed,
    transfer::rendezvous::LARGE_PER_CHANNEL,
};

use super::{
    Checked, Side, ensure,
    ledger::{Ledger, Message},
};

/// A receiving end and its handle.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) name: String,
    /// The side that sends.
    sender_side: Side,
    /// The agreed terms, once both ends are open.
    agreed: Option<Agreed>,
    pub(super) peer_end: Option<u32>,
    /// The handle is gone.
    pub(super) is_closed: bool,
    /// The channel does not fit, or did not end in order.
    pub(super) is_over: bool,
    pub(super) is_answered: bool,
    /// The last message of the channel, once the sender has closed.
    last: Option<u64>,

    // Arrivals.
    arrived: u64,
    position: u64,
    /// Messages that the application has not taken, in order.
    waiting: VecDeque<Arrived>,

    // Messages that were handed out.
    /// Messages behind the released prefix, in order.
    cells: VecDeque<Cell>,
    /// Messages whose guards live, in no order.
    held: Vec<u64>,
    counters: Counters,
    /// Bytes of large messages that have memory or wait for it, up to their release.
    large_bytes: u64,
}

#[derive(Debug)]
struct Arrived {
    sequence: u64,
    /// The ring position behind its record.
    behind: u64,
    large: Option<Large>,
}

#[derive(Debug)]
struct Large {
    length: u64,
    /// Set if the message is in a block that was granted ahead.
    has_landed: bool,
    is_wanted: bool,
    is_granted: bool,
    placed: u64,
    /// Set if the sender is to announce the end of the write.
    awaits_word: bool,
    /// Set if the message is read from the sender's memory.
    is_read: bool,
}

#[derive(Debug)]
struct Cell {
    behind: u64,
    /// Bytes of memory granted for the message.
    large_bytes: u64,
    state: CellState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellState {
    Held,
    Dropped,
    Acknowledged,
}

impl Receiver {
    pub(super) fn new(side: Side, name: String) -> Self {
        Self {
            name,
            sender_side: side.other(),
            agreed: None,
            peer_end: None,
            is_closed: false,
            is_over: false,
            is_answered: false,
            last: None,
            arrived: 0,
            position: 0,
            waiting: VecDeque::new(),
            cells: VecDeque::new(),
            held: Vec::new(),
            counters: Counters::default(),
            large_bytes: 0,
        }
    }

    pub(super) fn open(&mut self, peer_end: u32, agreed: Agreed) {
        self.position = record::first_position(agreed.alignment as usize);
        self.counters.released_position = self.position;
        self.agreed = Some(agreed);
        self.peer_end = Some(peer_end);
        self.is_answered = true;
    }

    pub(super) fn message(&self, sequence: u64) -> Message {
        let end = self.peer_end.unwrap_or_default();
        Message {
            side: self.sender_side,
            end,
            sequence,
        }
    }

    // ---- Arrivals --------------------------------------------------------------------

    /// Takes the records of a frame; `arrival_offset` is their offset in arrival memory.
    pub(super) fn take_records(
        &mut self,
        first_sequence: u64,
        records: u64,
        arrival_offset: usize,
        body: &[u8],
        ledger: &Ledger,
    ) -> Checked {
        let Some(Agreed {
            window, alignment, ..
        }) = self.agreed
        else {
            return Err(format!(
                "records arrive on {:?}, which is not open",
                self.name
            ));
        };
        let alignment = alignment as usize;
        ensure!(
            !self.is_closed,
            "records are handed to {:?}, whose handle is gone",
            self.name
        );
        ensure!(
            first_sequence == self.arrived + 1,
            "message {first_sequence} of {:?} arrives behind {}",
            self.name,
            self.arrived
        );
        let mut at = 0;
        while at < body.len() {
            let word = body[at..].first_chunk().ok_or("a record is cut")?;
            let header = RecordHeader::from_word(u64::from_le_bytes(*word))
                .and_then(Result::ok)
                .ok_or("a record has no header")?;
            let payload = &body[at + 8..][..header.length as usize];
            let is_aligned = (arrival_offset + at + 8).is_multiple_of(alignment);
            ensure!(
                is_aligned,
                "a payload of {:?} lies at {}",
                self.name,
                arrival_offset + at + 8
            );
            let size = record::record_size(payload.len(), alignment);
            self.arrived += 1;
            self.position += size as u64;
            let message = self.message(self.arrived);
            let (inside, extension) = match header.kind.is_extended() {
                true => MessageExtension::split(payload).map_err(|error| error.to_string())?,
                false => (payload, MessageExtension::default()),
            };
            ensure!(
                extension.trace.is_none(),
                "{message:?} has {extension:?} beside it"
            );
            ledger.check_header(message, extension.header)?;
            let large = match header.kind.is_large() {
                false => {
                    ledger.check(message, inside.len() as u64, 0, inside)?;
                    None
                }
                true => {
                    let (length, eager_block) =
                        LargeAnnouncement::parse(inside).ok_or("an announcement is cut")?;
                    Some(Large {
                        length,
                        has_landed: eager_block.is_some(),
                        is_wanted: eager_block.is_some(),
                        is_granted: false,
                        placed: eager_block.map_or(0, |_| length),
                        awaits_word: false,
                        is_read: false,
                    })
                }
            };
            let (sequence, behind) = (self.arrived, self.position);
            self.waiting.push_back(Arrived {
                sequence,
                behind,
                large,
            });
            at += size;
        }
        ensure!(
            self.arrived == first_sequence + records - 1,
            "a frame has not {records} records"
        );
        let (messages, bytes) = (
            self.arrived - self.counters.released,
            self.position - self.counters.released_position,
        );
        ensure!(
            messages <= window.messages && bytes <= window.bytes,
            "{messages} messages and {bytes} bytes of {:?} are out: more than {window:?}",
            self.name
        );
        let large = self
            .waiting
            .iter()
            .filter(|arrived| !arrived.is_whole())
            .count();
        ensure!(
            large <= LARGE_PER_CHANNEL,
            "{large} large messages of {:?}",
            self.name
        );
        Ok(())
    }

    /// Returns the next large message for which memory may be requested, within `limit` bytes in
    /// all, and marks it as wanted.
    pub(super) fn next_wanted(&mut self, limit: u64) -> Option<u64> {
        let has_some = self.large_bytes > 0;
        let mut large = self
            .waiting
            .iter_mut()
            .filter_map(|arrived| Some((arrived.sequence, arrived.large.as_mut()?)));
        let (sequence, next) = large.find(|(_, large)| !large.is_wanted)?;
        if has_some && self.large_bytes + next.length > limit {
            return None;
        }
        next.is_wanted = true;
        self.large_bytes += next.length;
        Some(sequence)
    }

    /// Returns whether a large message waits for others to be released.
    pub(super) fn grant_waits(&self) -> bool {
        let mut large = self
            .waiting
            .iter()
            .filter_map(|arrived| arrived.large.as_ref());
        large.any(|large| !large.is_wanted)
    }

    /// Grants memory to a large message, for chunks or for writes. Returns its length.
    pub(super) fn grant(&mut self, sequence: u64, is_written: bool) -> Option<u64> {
        let large = self.large_mut(sequence)?;
        large.is_granted = true;
        large.awaits_word = is_written;
        Some(large.length)
    }

    /// Returns the length of a large message.
    pub(super) fn length_of(&mut self, sequence: u64) -> Option<u64> {
        Some(self.large_mut(sequence)?.length)
    }

    /// Has memory for a large message that it reads.
    pub(super) fn reads(&mut self, sequence: u64) {
        if let Some(large) = self.large_mut(sequence) {
            (large.is_granted, large.is_read) = (true, true);
        }
    }

    /// Gives up the memory of messages that a device wrote to. Returns those messages.
    pub(super) fn withdraw(&mut self) -> Vec<u64> {
        let cut = self.waiting.iter_mut();
        let cut = cut.filter(|arrived| !arrived.is_whole());
        let mut withdrawn = Vec::new();
        for arrived in cut {
            if let Some(large) = &mut arrived.large
                && (large.is_read || large.awaits_word)
            {
                (large.is_granted, large.is_read) = (false, false);
                (large.awaits_word, large.placed) = (false, 0);
                withdrawn.push(arrived.sequence);
            }
        }
        withdrawn
    }

    /// Begins on new wires: a message that arrived in part comes again from its beginning.
    pub(super) fn begin_anew(&mut self, writes: bool) {
        let cut = self
            .waiting
            .iter_mut()
            .filter(|arrived| !arrived.is_whole());
        for large in cut.filter_map(|arrived| arrived.large.as_mut()) {
            large.placed = 0;
            large.awaits_word &= writes;
        }
    }

    /// Notes that the sender has written a large message.
    pub(super) fn written(&mut self, sequence: u64) -> Checked {
        let message = self.message(sequence);
        let large = self.large_mut(sequence).ok_or("nothing is to be written")?;
        ensure!(
            large.placed == large.length,
            "{message:?} is said to be written at {} of {}",
            large.placed,
            large.length
        );
        large.awaits_word = false;
        Ok(())
    }

    /// Takes bytes of a large message.
    pub(super) fn place(
        &mut self,
        sequence: u64,
        offset: u64,
        bytes: &[u8],
        ledger: &Ledger,
    ) -> Checked {
        let message = self.message(sequence);
        let Some(large) = self.large_mut(sequence).filter(|large| large.is_granted) else {
            return Err(format!(
                "bytes of {message:?} arrive, for which no memory was granted"
            ));
        };
        ensure!(
            large.placed == offset,
            "{message:?} goes on at {offset}, not {}",
            large.placed
        );
        large.placed += bytes.len() as u64;
        let length = large.length;
        ensure!(
            large.placed <= length,
            "{message:?} grows beyond its {length} bytes"
        );
        ledger.check(message, length, offset, bytes)
    }

    fn large_mut(&mut self, sequence: u64) -> Option<&mut Large> {
        self.waiting
            .iter_mut()
            .find(|arrived| arrived.sequence == sequence)?
            .large
            .as_mut()
    }

    /// Notes that the sender closed behind message `last`.
    pub(super) fn sender_closed(&mut self, last: u64, ledger: &Ledger) -> Checked {
        self.last = Some(last);
        if self.is_closed {
            return Ok(());
        }
        let published = self
            .peer_end
            .map_or(0, |end| ledger.published(self.sender_side, end));
        let arrived = self.received();
        ensure!(
            last == published && last == arrived,
            "{:?} was closed behind message {last}: published {published}, received {arrived}",
            self.name
        );
        Ok(())
    }

    /// Returns the number of messages that are here as a whole, without a gap.
    pub(super) fn received(&self) -> u64 {
        let gap = self.waiting.iter().find(|arrived| !arrived.is_whole());
        gap.map_or(self.arrived, |arrived| arrived.sequence - 1)
    }

    // ---- The application -------------------------------------------------------------

    pub(super) fn is_usable(&self) -> bool {
        self.agreed.is_some() && !self.is_closed && !self.is_over
    }

    /// Takes the next message, if there is one.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.waiting.front().filter(|arrived| arrived.is_whole())?;
        let Arrived {
            sequence,
            behind,
            large,
        } = self.waiting.pop_front()?;
        let granted = large.filter(|large| !large.has_landed);
        self.cells.push_back(Cell {
            behind,
            large_bytes: granted.map_or(0, |large| large.length),
            state: CellState::Held,
        });
        self.held.push(sequence);
        Some(sequence)
    }

    /// Drops or acknowledges a random guard. Returns whether there was one.
    pub(super) fn settle(&mut self, random: &mut Draw, acknowledge_per_mille: u64) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let at = random.below(self.held.len() as u64) as usize;
        let sequence = self.held.swap_remove(at);
        let is_acknowledged = random.chance(acknowledge_per_mille);
        let state = if is_acknowledged {
            CellState::Acknowledged
        } else {
            CellState::Dropped
        };
        self.cells[(sequence - self.counters.released - 1) as usize].state = state;
        while let Some(cell) = self
            .cells
            .front()
            .filter(|cell| cell.state != CellState::Held)
        {
            let counters = &mut self.counters;
            counters.released += 1;
            counters.released_position = cell.behind;
            counters.acknowledgement_ended |= cell.state == CellState::Dropped;
            counters.acknowledged += u64::from(!counters.acknowledgement_ended);
            self.large_bytes -= cell.large_bytes;
            self.cells.pop_front();
        }
        true
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            received: self.received(),
            ..self.counters
        }
    }

    /// Checks what the session reported to the sender on this end's behalf.
    pub(super) fn check_told(&self, notified: &Counters) -> Checked {
        let now = self.counters();
        ensure!(
            notified.received <= now.received
                && notified.released <= now.released
                && notified.released_position <= now.released_position
                && notified.acknowledged <= now.acknowledged
                && notified.acknowledgement_ended <= now.acknowledgement_ended,
            "the sender of {:?} was told {notified:?}, the truth is {now:?}",
            self.name
        );
        Ok(())
    }

    /// Returns whether every message that the sender published was handed out and released.
    pub(super) fn is_done(&self, ledger: &Ledger) -> bool {
        let published = self
            .peer_end
            .map_or(0, |end| ledger.published(self.sender_side, end));
        self.counters.released == published
    }

    /// Returns whether the sender has closed, so that no more will arrive.
    pub(super) fn is_closed_there(&self) -> bool {
        self.last.is_some()
    }
}

impl Arrived {
    fn is_whole(&self) -> bool {
        self.large
            .as_ref()
            .is_none_or(|large| large.placed == large.length && !large.awaits_word)
    }
}
