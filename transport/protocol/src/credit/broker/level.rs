//! The level: how much a session is given at most while others want too.
//!
//! Rule: it moves in steps (all there is, three quarters of it, a half, three eighths and so
//! on), down as soon as it must, and up when a third more sessions would still find room.
#![forbid(unsafe_code)]

/// The level, of what there is.
#[derive(Debug)]
pub(super) struct Level {
    lendable: u64,
    now: u64,
}

impl Level {
    /// Starts at the level at which all sessions get the most.
    pub(super) fn new(lendable: u64) -> Self {
        let now = lendable;
        Self { lendable, now }
    }

    /// There is more or less to share than before. Say next among how many.
    pub(super) fn set_lendable(&mut self, lendable: u64) {
        self.lendable = lendable;
        self.now = self.now.min(lendable);
    }

    pub(super) fn get(&self) -> u64 {
        self.now
    }

    /// Adjusts the level to this many active sessions that share the total, less the `bound` part.
    pub(super) fn share(&mut self, bound: u64, active: u64) {
        let equal = self.lendable.saturating_sub(bound) / active.max(1);
        if equal < self.now {
            self.now = self.step_below(equal);
        } else {
            let roomy = if active <= 1 {
                equal
            } else {
                equal - equal / 4
            };
            self.now = self.now.max(self.step_below(roomy));
        }
    }

    /// The highest step that is not above `credit`.
    fn step_below(&self, credit: u64) -> u64 {
        let mut step = self.lendable;
        while step > credit {
            let quarter_less = step - step / 4;
            if quarter_less <= credit {
                return quarter_less;
            }
            step /= 2;
        }
        step
    }
}
