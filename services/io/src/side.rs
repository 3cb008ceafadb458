//! The facts of a stream that its halves know: its side, and how long its pieces are.

/// The side of a stream that opens its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Connecting,
    Listening,
}

/// The longest message that is accepted as a piece of a stream. Only slices of regions are written
/// in pieces of this length; other writers cut theirs shorter.
pub(super) const MOST_PIECE_BYTES: usize = 1 << 20;
