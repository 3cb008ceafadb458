//! The places of messages in a log and in the channel of the present session.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use ibex_core::Counts;

/// The position up to which a log was sent, and its messages that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct LogProgress {
    /// The position up to which the log was sent.
    sent: u64,
    /// The position up to which the far end has the log, as far as is known.
    acked: u64,
    /// Messages that may still be acknowledged, oldest first.
    unacked: VecDeque<Unacked>,
}

#[derive(Clone, Copy, Debug)]
struct Unacked {
    /// The message's place in the channel.
    message: u64,
    /// The log's position behind it.
    end: u64,
}

impl LogProgress {
    /// Notes that the far end has the log up to `position`, and that its channel is new.
    pub(super) fn resume(&mut self, position: u64) {
        *self = Self {
            sent: position,
            acked: position,
            unacked: VecDeque::new(),
        };
    }

    /// Notes that `message` of the channel took the log up to `end`.
    pub(super) fn sent(&mut self, message: u64, end: u64) {
        self.sent = end;
        self.unacked.push_back(Unacked { message, end });
    }

    /// Checks whether it is time to [`settle`](Self::settle). The counts lie with the peer, so they
    /// are not read for each message.
    pub(super) fn is_full(&self) -> bool {
        self.unacked.len() == self.unacked.capacity()
    }

    /// Forgets messages that are acknowledged, and those that never will be. A receiver reports an
    /// acknowledgement no later than the release of its message, so a message that had been
    /// released `earlier` and is not acknowledged `now` was dropped.
    pub(super) fn settle(&mut self, earlier: Counts, now: Counts) {
        while let Some(&Unacked { message, end }) = self.unacked.front() {
            if message <= now.acknowledged {
                self.acked = end;
            } else if message > earlier.released {
                break;
            }
            self.unacked.pop_front();
        }
        if self.unacked.len() * 2 > self.unacked.capacity() {
            self.unacked.reserve(self.unacked.capacity());
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.sent
    }

    /// The far end's position, now that its channel has these counts.
    pub(super) fn acked(&self, counts: Counts) -> u64 {
        let acked = self
            .unacked
            .partition_point(|one| one.message <= counts.acknowledged);
        let last = acked
            .checked_sub(1)
            .and_then(|index| self.unacked.get(index));
        last.map_or(self.acked, |one| one.end)
    }

    /// Returns the message of the channel whose acknowledgement says that the far end has the log
    /// up to `position`, if it was sent and may be acknowledged.
    pub(super) fn message_at(&self, position: u64) -> Option<u64> {
        let index = self.unacked.partition_point(|one| one.end < position);
        self.unacked.get(index).map(|one| one.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(released: u64, acknowledged: u64) -> Counts {
        Counts {
            released,
            acknowledged,
            ..Counts::default()
        }
    }

    /// Three messages of 10 positions each, behind position 100.
    fn three() -> LogProgress {
        let mut progress = LogProgress::default();
        progress.resume(100);
        for message in 1..=3 {
            progress.sent(message, 100 + 10 * message);
        }
        progress
    }

    #[test]
    fn acknowledged_messages_move_the_position_of_the_far_end() {
        let mut progress = three();
        assert_eq!(progress.position(), 130);
        assert_eq!(progress.acked(counts(0, 0)), 100);
        assert_eq!(progress.acked(counts(2, 2)), 120);
        progress.settle(counts(1, 1), counts(2, 2));
        assert_eq!(progress.acked(counts(2, 2)), 120);
        assert_eq!(progress.unacked.len(), 1);
    }

    #[test]
    fn a_position_belongs_to_the_message_that_reaches_it() {
        let progress = three();
        for (position, message) in [(101, 1), (110, 1), (111, 2), (130, 3)] {
            assert_eq!(progress.message_at(position), Some(message));
        }
        assert_eq!(progress.message_at(131), None);
    }

    #[test]
    fn messages_that_the_receiver_dropped_are_forgotten_and_acknowledge_nothing() {
        let mut progress = three();
        progress.settle(counts(3, 1), counts(3, 1));
        assert!(progress.unacked.is_empty());
        assert_eq!(progress.acked(counts(3, 1)), 110);
    }

    #[test]
    fn a_full_list_has_room_once_it_is_settled() {
        let mut progress = LogProgress::default();
        for message in 1..10_000 {
            if progress.is_full() {
                progress.settle(counts(0, 0), counts(0, 0));
            }
            let allocated = progress.unacked.capacity();
            progress.sent(message, message);
            assert!(message == 1 || progress.unacked.capacity() == allocated);
        }
    }

    #[test]
    fn a_release_that_is_newer_than_the_acknowledgement_forgets_nothing() {
        let mut progress = three();
        progress.settle(counts(0, 0), counts(3, 1));
        assert_eq!(progress.acked(counts(3, 3)), 130);
    }

    #[test]
    fn a_far_end_that_lost_its_log_takes_the_position_back() {
        let mut progress = three();
        progress.settle(counts(3, 3), counts(3, 3));
        progress.resume(0);
        assert_eq!((progress.position(), progress.acked(counts(0, 0))), (0, 0));
    }
}
