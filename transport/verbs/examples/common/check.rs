//! The check of messages.

use super::{Outcome, pingpong::Table};

/// What the messages should be.
pub(crate) struct Check {
    changes: bool,
    /// The message that was sent last; empty at first.
    last: Vec<u8>,
    /// What the peer adds to each byte, once it is known.
    step: Option<u8>,
}

impl Check {
    pub(crate) fn new(changes: bool) -> Self {
        Self {
            changes,
            last: Vec::new(),
            step: (!changes).then_some(0),
        }
    }

    /// Writes the first message.
    pub(crate) fn begin(&mut self, table: &Table) {
        self.last = (0..table.options.bytes)
            .map(|place| (place * 7) as u8)
            .collect();
        table.write(&self.last);
    }

    /// Checks the message that has come; the first one of a client may be anything.
    pub(crate) fn verify(&mut self, table: &Table, number: u64) -> Outcome {
        let message = table.read();
        if self.last.is_empty() {
            self.last = message;
            return Ok(());
        }
        let step = *self
            .step
            .get_or_insert(message[0].wrapping_sub(self.last[0]));
        let mut pairs = message.iter().zip(&self.last);
        let wrong = pairs.position(|(new, old)| *new != old.wrapping_add(step));
        match (wrong, step) {
            (None, 0 | 1) => Ok(()),
            _ => Err(format!("message {number} differs at byte {}", wrong.unwrap_or(0)).into()),
        }
    }

    /// Writes the answer to the message that has come.
    pub(crate) fn answer(&mut self, table: &Table) {
        if self.changes {
            let message = table.read();
            self.last = message.iter().map(|byte| byte.wrapping_add(1)).collect();
            table.write(&self.last);
        }
    }
}
