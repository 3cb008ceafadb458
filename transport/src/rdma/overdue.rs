//! Overdue receives: posted receives that have not completed and never will.
//!
//! A queue pair that is destroyed before it was drained takes the buffers with it that it had taken
//! from a shared receive queue: the library drops its completions, if the device made any. Nothing
//! says how many these are, or which.
//!
//! Devices hand a shared queue's buffers out in the order in which they were posted. A buffer is
//! *overdue* if it was posted before that end and is still out when all buffers posted then have
//! been used twice. Once would do, except for messages whose first packet has come and whose last
//! is on its way.
//!
//! No device promises that order. So an overdue buffer is replaced, and never used again before it
//! completes after all. A wrong guess costs one of the spare buffers until then.
//!
//! Until then the queue is shorter by the lost buffers. A peer that sends to an empty queue is
//! asked by the device to try again. The queue cannot run dry unnoticed, because the device tells
//! when little is left.
#![forbid(unsafe_code)]

/// Looks for overdue buffers, one look after the other.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    look: Option<Look>,
    /// The number of the posting that came behind the last queue pair's end.
    latest: u64,
}

/// A look that waits for its time.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Receives with a lower number are overdue.
    before: u64,
    /// Number of posted receives at which the look is due.
    at: u64,
}

/// How often all that is posted is gone through before a look.
const ROUNDS: u64 = 2;

impl Overdue {
    /// A queue pair has gone behind so many postings, of which so many are out.
    pub(super) fn begin(&mut self, posted: u64, outstanding: u32) {
        self.latest = posted;
        self.look.get_or_insert(Look::new(posted, outstanding));
    }

    /// The number of the posting before which all are suspect, while there is something to
    /// look for.
    pub(super) fn before(&self) -> Option<u64> {
        self.look.map(|look| look.before)
    }

    /// Returns the number below which receives are overdue, once it is time for the look. `posted`
    /// receives were posted so far, and `outstanding` are out. Queue pairs that went meanwhile are
    /// looked for next.
    pub(super) fn poll(&mut self, posted: u64, outstanding: u32) -> Option<u64> {
        let look = self.look.take_if(|look| look.at <= posted)?;
        if self.latest > look.before {
            self.look = Some(Look::new(posted, outstanding));
        }
        Some(look.before)
    }
}

impl Look {
    fn new(before: u64, outstanding: u32) -> Self {
        Self {
            before,
            at: before + ROUNDS * u64::from(outstanding),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_waits_for_two_rounds_and_is_followed_by_one_for_later_ends() {
        let mut overdue = Overdue::default();
        assert_eq!(overdue.poll(1000, 10), None, "nothing is looked for");
        overdue.begin(1000, 10);
        assert_eq!(overdue.before(), Some(1000));
        overdue.begin(1015, 10);
        assert_eq!(overdue.poll(1019, 10), None);
        assert_eq!(overdue.poll(1020, 10), Some(1000));
        // The second was in the middle of it.
        assert_eq!(overdue.poll(1039, 10), None);
        assert_eq!(overdue.poll(1040, 10), Some(1020));
        assert_eq!((overdue.poll(9999, 10), overdue.before()), (None, None));
    }
}
