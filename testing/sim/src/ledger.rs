//! Published messages, which the simulation knows on behalf of both sides, and no session knows.
#![forbid(unsafe_code)]

use std::{collections::BTreeMap, sync::OnceLock};

use ibex_harness::draw::mix;

use super::{Checked, Side, ensure};

/// The lengths of all messages ever published, by sending end.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    channels: BTreeMap<(Side, u32), Vec<Lengths>>,
}

/// The lengths of a message and of the header beside it, both of which are its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) body: u64,
    pub(super) header: usize,
}

impl Ledger {
    /// Notes the next message of a sending end and returns its sequence.
    pub(super) fn publish(&mut self, side: Side, end: u32, lengths: Lengths) -> u64 {
        let published = self.channels.entry((side, end)).or_default();
        published.push(lengths);
        published.len() as u64
    }

    /// Returns the number of messages that a sending end published.
    pub(super) fn published(&self, side: Side, end: u32) -> u64 {
        self.channels
            .get(&(side, end))
            .map_or(0, |lengths| lengths.len() as u64)
    }

    /// Checks a part of an arrived message, from byte `offset` on.
    pub(super) fn check(
        &self,
        message: Message,
        length: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Checked {
        let Message { end, sequence, .. } = message;
        let published = self.lengths(message);
        ensure!(
            published.is_some_and(|published| published.body == length),
            "message {sequence} of end {end} arrives with {length} bytes, published: {published:?}"
        );
        ensure!(
            message.part(offset, bytes.len()) == bytes,
            "{} bytes from {offset} of message {sequence} of end {end} are not what was sent",
            bytes.len()
        );
        Ok(())
    }

    /// Checks the header beside an arrived message; empty if it has none.
    pub(super) fn check_header(&self, message: Message, header: &[u8]) -> Checked {
        let published = self.lengths(message);
        ensure!(
            published.is_some_and(|published| published.header == header.len())
                && message.part(0, header.len()) == header,
            "{message:?} arrives with the header {header:?}, published: {published:?}"
        );
        Ok(())
    }

    fn lengths(&self, message: Message) -> Option<Lengths> {
        let published = self.channels.get(&(message.side, message.end))?;
        published.get(message.sequence as usize - 1).copied()
    }
}

/// The identity of a message, from which its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) side: Side,
    /// The sending end.
    pub(super) end: u32,
    pub(super) sequence: u64,
}

impl Message {
    /// Returns `length` bytes of the message from `offset` on.
    pub(super) fn part(&self, offset: u64, length: usize) -> &'static [u8] {
        static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
        let noise = NOISE.get_or_init(|| {
            (0..NOISE_BYTES as u64 / 8)
                .flat_map(|word| mix(word).to_le_bytes())
                .collect()
        });
        let end = u64::from(self.end) * 2 + self.side as u64;
        let start = (mix(self.sequence << 20 | end) as usize) % (NOISE_BYTES - MAX_LENGTH);
        &noise[start + offset as usize..][..length]
    }
}

/// Enough bytes that different messages begin at different ones.
const NOISE_BYTES: usize = 1 << 19;
/// The longest message that a simulation sends.
const MAX_LENGTH: usize = 1 << 18;
