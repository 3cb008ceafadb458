//! Bytes that may be lost on their way, so that both ends would wait for ever: a frame, or a record
//! of TLS, stays incomplete, or a call waits for events of the peer and no byte comes.
//!
//! A stopped peer looks the same, so the peer is asked a question that it answers as soon as it
//! runs. A stopped peer that continues first sends the rest of the frame, and no harm is done. If
//! bytes were lost, the answer runs into the frame, whose check then fails; and where a whole frame
//! was lost, the check of the question or of the answer fails, which covers the number of the frame.
//! A gap may be longer than an answer: when answers have filled a part of it and the frame stops
//! growing again, more questions are asked at once. Questions and answers may be lost as well, so a
//! question is repeated at every check.
#![forbid(unsafe_code)]

/// The state that the checks of a connection share, about one check a second.
#[derive(Debug, Default)]
pub(super) struct LostBytes {
    /// Bytes and complete frames that had arrived at the last check, which found that more are
    /// missed.
    seen: Option<(u64, u64)>,
    /// Number of questions in the last round for the same frame.
    asked: u32,
    /// Checks that found no more bytes since then.
    checks: u32,
}

/// A check's result: whether bytes are missed, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// No bytes are missed.
    Nothing,
    /// Bytes are missed; more of them may have arrived at the next check.
    Wait,
    /// Bytes are missed and none comes; the peer is to be asked this number of questions.
    Ask(u32),
}

impl LostBytes {
    /// Checks whether bytes have come that are missed. `bytes` and complete `frames` have arrived in
    /// total.
    pub(super) fn check(&mut self, is_missed: bool, bytes: u64, frames: u64) -> Finding {
        if !is_missed {
            *self = Self::default();
            return Finding::Nothing;
        }
        let before = self.seen.replace((bytes, frames));
        if before != Some((bytes, frames)) {
            let is_same = before.is_some_and(|(_, whole)| whole == frames);
            *self = Self {
                seen: self.seen,
                asked: if is_same { self.asked } else { 0 },
                checks: 0,
            };
            return Finding::Wait;
        }
        let checks = self.checks;
        self.checks = checks.saturating_add(1);
        if checks == 0 {
            self.asked = (self.asked * MORE).clamp(1, MOST_AT_ONCE);
            return Finding::Ask(self.asked);
        }
        // A peer that has stopped for long finds few questions when it continues.
        match checks < STEADY || checks.is_power_of_two() {
            true => Finding::Ask(1),
            false => Finding::Wait,
        }
    }
}

/// Looks at which a question is repeated, before it is repeated ever more seldom.
const STEADY: u32 = 64;
/// Factor by which the number of questions grows from one round to the next, because the answers so
/// far were too few.
const MORE: u32 = 8;
/// Most questions in one round; their answers fill the longest frame.
const MOST_AT_ONCE: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_protocol::format::{frame::MAX_FRAME_BYTES, frame_check::CHECKED_HEADER_BYTES};

    #[test]
    fn a_frame_that_grows_is_left_alone() {
        let mut cut = LostBytes::default();
        for bytes in 0..100 {
            assert_eq!(cut.check(true, bytes, 7), Finding::Wait);
        }
        assert_eq!(cut.check(false, 100, 8), Finding::Nothing);
    }

    #[test]
    fn a_peer_that_has_stopped_is_asked_steadily_and_then_ever_more_seldom() {
        let mut cut = LostBytes::default();
        assert_eq!(cut.check(true, 10, 7), Finding::Wait);
        for _ in 0..STEADY {
            assert_eq!(cut.check(true, 10, 7), Finding::Ask(1));
        }
        let asked = (0..1000).filter(|_| cut.check(true, 10, 7) != Finding::Wait);
        assert_eq!(asked.count(), 5);
        // The frame grows again.
        assert_eq!(cut.check(true, 11, 8), Finding::Wait);
        assert_eq!(cut.check(true, 11, 8), Finding::Ask(1));
    }

    #[test]
    fn a_hole_of_any_length_is_filled_soon() {
        for hole in [1, 23, 24, 25, 1000, MAX_FRAME_BYTES as u64] {
            let (mut cut, mut come, mut checks) = (LostBytes::default(), 0, 0);
            while come < hole {
                checks += 1;
                if let Finding::Ask(times) = cut.check(true, come, 7) {
                    come += u64::from(times) * CHECKED_HEADER_BYTES as u64;
                }
            }
            assert!(checks <= 12, "{hole}: {checks}");
        }
    }
}
