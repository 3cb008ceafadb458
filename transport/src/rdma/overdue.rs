//! Overdue receives: posted receives that have not completed and never will.
//!
//! A queue pair that is destroyed before it was drained loses the buffers that it had taken from a
//! shared receive queue: the library drops its completions, if the device made any. Nothing reports
//! how many buffers are lost, or which.
//!
//! Devices hand out a shared queue's buffers in the order in which they were posted. A buffer is
//! *overdue* if it was posted before the queue pair's end and is still outstanding when all buffers
//! posted at that time have been used twice. Once would suffice, except for messages whose first
//! packet has arrived and whose last is in flight.
//!
//! No device guarantees that order. So an overdue buffer is replaced, and not used again unless it
//! completes after all. A wrong guess costs one of the spare buffers until then.
//!
//! Until the lost buffers are replaced, the queue is shorter by their number. The device asks a
//! peer that sends to an empty queue to try again. The queue cannot run dry unnoticed, because the
//! device reports when few buffers are left.
#![forbid(unsafe_code)]

/// The looks for overdue buffers, one after the other.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    check: Option<OverdueCheck>,
    /// The number of postings at the last queue pair's end.
    latest: u64,
}

/// A check that is not due yet.
#[derive(Clone, Copy, Debug)]
struct OverdueCheck {
    /// Receives with a lower number are overdue.
    before: u64,
    /// Number of posted receives at which the check is due.
    at: u64,
}

/// Number of times that all posted buffers are used before a check.
const ROUNDS: u64 = 2;

impl Overdue {
    /// Notes that a queue pair has gone after `posted` postings, of which `outstanding` have not
    /// completed.
    pub(super) fn begin(&mut self, posted: u64, outstanding: u32) {
        self.latest = posted;
        self.check
            .get_or_insert(OverdueCheck::new(posted, outstanding));
    }

    /// Returns the number of the posting before which all are suspect, while a check is pending.
    pub(super) fn before(&self) -> Option<u64> {
        self.check.map(|check| check.before)
    }

    /// Returns the number below which receives are overdue, once the check is due. `posted` receives
    /// were posted so far, and `outstanding` have not completed. The next check covers queue pairs
    /// that went meanwhile.
    pub(super) fn poll(&mut self, posted: u64, outstanding: u32) -> Option<u64> {
        let check = self.check.take_if(|check| check.at <= posted)?;
        if self.latest > check.before {
            self.check = Some(OverdueCheck::new(posted, outstanding));
        }
        Some(check.before)
    }
}

impl OverdueCheck {
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
        // The second queue pair ended while the first check was pending.
        assert_eq!(overdue.poll(1039, 10), None);
        assert_eq!(overdue.poll(1040, 10), Some(1020));
        assert_eq!((overdue.poll(9999, 10), overdue.before()), (None, None));
    }
}
