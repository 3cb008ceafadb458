//! Damage to a transcript.

use proptest::{prelude::*, sample::Index};

/// A change of one or two frames.
#[derive(Clone, Debug)]
pub(crate) enum Garble {
    Flip(Index, Index, u8),
    Cut(Index, Index),
    Repeat(Index, Index),
    Drop(Index),
    Swap(Index, Index),
}

impl Garble {
    pub(crate) fn apply(&self, frames: &mut Vec<Vec<u8>>) {
        if frames.is_empty() {
            return;
        }
        let count = frames.len();
        match self {
            Garble::Flip(frame, byte, bits) => {
                let frame = &mut frames[frame.index(count)];
                if !frame.is_empty() {
                    let at = byte.index(frame.len());
                    frame[at] ^= bits;
                }
            }
            Garble::Cut(frame, length) => {
                let frame = &mut frames[frame.index(count)];
                frame.truncate(length.index(frame.len() + 1));
            }
            Garble::Repeat(frame, at) => {
                let again = frames[frame.index(count)].clone();
                frames.insert(at.index(count + 1), again);
            }
            Garble::Drop(frame) => {
                frames.remove(frame.index(count));
            }
            Garble::Swap(one, other) => frames.swap(one.index(count), other.index(count)),
        }
    }
}

pub(crate) fn any_garble() -> impl Strategy<Value = Garble> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), index(), 1..=u8::MAX).prop_map(|(frame, at, bits)| Garble::Flip(frame, at, bits)),
        1 => (index(), index()).prop_map(|(frame, length)| Garble::Cut(frame, length)),
        1 => (index(), index()).prop_map(|(frame, at)| Garble::Repeat(frame, at)),
        1 => index().prop_map(Garble::Drop),
        1 => (index(), index()).prop_map(|(one, other)| Garble::Swap(one, other)),
    ]
}
