//! A frame that stays incomplete: the peer has stopped in the middle of it, or bytes of it were
//! lost on the way, and both ends would then wait for ever.
//!
//! The two cases look the same, so the peer is asked a question that it answers as soon as it runs.
//! A stopped peer that continues first sends the rest of the frame, and no harm is done. If bytes
//! were lost, the answer runs into the frame, whose check then fails. A gap may be longer than an
//! answer: when answers have filled a part of it and the frame stops growing again, more questions
//! are asked at once.
#![forbid(unsafe_code)]

/// The state that the looks at a connection share, about one look a second.
#[derive(Debug, Default)]
pub(super) struct CutFrame {
    /// Bytes and complete frames that had arrived at the last look, which found a part of a frame
    /// after them.
    seen: Option<(u64, u64)>,
    /// Number of questions in the last round for the same frame.
    asked: u32,
    /// Looks that found no more bytes since then.
    looks: u32,
}

/// A look's result: whether a frame is cut, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// No frame is incomplete.
    Whole,
    /// A frame is incomplete; more of it may have arrived at the next look.
    Cut,
    /// A frame stays incomplete; the peer is to be asked this number of questions.
    Ask(u32),
}

impl CutFrame {
    /// Checks whether an incomplete frame has grown. `bytes` and complete `frames` have arrived in
    /// total.
    pub(super) fn look(&mut self, is_in_frame: bool, bytes: u64, frames: u64) -> Finding {
        if !is_in_frame {
            *self = Self::default();
            return Finding::Whole;
        }
        let before = self.seen.replace((bytes, frames));
        if before != Some((bytes, frames)) {
            let is_same = before.is_some_and(|(_, whole)| whole == frames);
            *self = Self {
                seen: self.seen,
                asked: if is_same { self.asked } else { 0 },
                looks: 0,
            };
            return Finding::Cut;
        }
        let looks = self.looks;
        self.looks = looks.saturating_add(1);
        if looks == 0 {
            self.asked = (self.asked * MORE).clamp(1, MOST_AT_ONCE);
            return Finding::Ask(self.asked);
        }
        // The question may be lost as well, so it is repeated.
        match looks.is_power_of_two() {
            true => Finding::Ask(1),
            false => Finding::Cut,
        }
    }
}

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
        let mut cut = CutFrame::default();
        for bytes in 0..100 {
            assert_eq!(cut.look(true, bytes, 7), Finding::Cut);
        }
        assert_eq!(cut.look(false, 100, 8), Finding::Whole);
    }

    #[test]
    fn a_peer_that_has_stopped_is_asked_ever_more_seldom() {
        let mut cut = CutFrame::default();
        assert_eq!(cut.look(true, 10, 7), Finding::Cut);
        let asked = (0..1000).filter(|_| cut.look(true, 10, 7) != Finding::Cut);
        assert_eq!(asked.count(), 11);
        // The frame grows again.
        assert_eq!(cut.look(true, 11, 8), Finding::Cut);
        assert_eq!(cut.look(true, 11, 8), Finding::Ask(1));
    }

    #[test]
    fn a_hole_of_any_length_is_filled_soon() {
        for hole in [1, 23, 24, 25, 1000, MAX_FRAME_BYTES as u64] {
            let (mut cut, mut come, mut looks) = (CutFrame::default(), 0, 0);
            while come < hole {
                looks += 1;
                if let Finding::Ask(times) = cut.look(true, come, 7) {
                    come += u64::from(times) * CHECKED_HEADER_BYTES as u64;
                }
            }
            assert!(looks <= 12, "{hole}: {looks}");
        }
    }
}
