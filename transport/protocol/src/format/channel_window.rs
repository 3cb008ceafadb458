//! The window of one channel: how many messages and bytes may be out and not yet released. The
//! window bounds the memory that an application holds at the receiving end.
//!
//! The sending handle keeps to it; the receiving engine checks that it does, because
//! a peer's restraint is no bound on our memory. The receiving side also decides here
//! when it owes the sender changes.
#![forbid(unsafe_code)]

ibex_base::wire_structs! {
    /// The limits that both ends of a channel agreed on when it was opened: the smaller of each.
    #[derive(Copy)]
    pub struct ChannelWindow {
        /// Messages that may be published and not yet released.
        pub messages: u64 = "window" [1..=u64::MAX],
        /// Ring bytes (records with their headers) that may be published and not yet released.
        pub bytes: u64 = "window" [1..=u64::MAX],
    }
}

impl ChannelWindow {
    /// The window that serves two ends that asked for `self` and `other`.
    #[must_use]
    pub fn agree(self, other: Self) -> Self {
        Self {
            messages: self.messages.min(other.messages),
            bytes: self.bytes.min(other.bytes),
        }
    }

    /// Returns whether `arrived` messages and the ring `position` behind them fit beside the
    /// messages that were released.
    #[inline]
    #[must_use]
    pub fn admits(
        &self,
        arrived: u64,
        position: u64,
        released: u64,
        released_position: u64,
    ) -> bool {
        arrived - released <= self.messages && position - released_position <= self.bytes
    }

    /// Returns whether the sender should be notified of releases since the last report: at half a window
    /// owed, or at `every` messages, if that is less. A frame in the other direction carries the
    /// reports for nothing, and a sender that waits asks, so less is never urgent.
    #[inline]
    #[must_use]
    pub fn owes_changes(&self, messages: u64, bytes: u64, every: u64) -> bool {
        messages >= (self.messages / 2).min(every).max(1) || bytes >= self.bytes / 2
    }
}

/// The value of `every` with which [`ChannelWindow::owes_changes`] goes by half windows alone.
pub const HALF_WINDOW: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_one_step_beyond_fails() {
        let window = ChannelWindow {
            messages: 4,
            bytes: 256,
        };
        assert!(window.admits(4, 256, 0, 0));
        assert!(!window.admits(5, 256, 0, 0));
        assert!(!window.admits(4, 257, 0, 0));
        assert!(window.admits(5, 257, 1, 64));
    }

    #[test]
    fn news_are_owed_from_half_a_window_on() {
        let window = ChannelWindow {
            messages: 4,
            bytes: 256,
        };
        assert!(!window.owes_changes(1, 127, HALF_WINDOW));
        assert!(window.owes_changes(2, 0, HALF_WINDOW));
        assert!(window.owes_changes(0, 128, HALF_WINDOW));
        assert!(
            ChannelWindow {
                messages: 1,
                bytes: 64
            }
            .owes_changes(1, 8, HALF_WINDOW)
        );
    }

    #[test]
    fn news_may_be_owed_sooner_and_not_later() {
        let window = ChannelWindow {
            messages: 8,
            bytes: 256,
        };
        assert!(!window.owes_changes(0, 0, 1));
        assert!(window.owes_changes(1, 0, 1));
        assert!(!window.owes_changes(2, 0, 3));
        assert!(window.owes_changes(3, 0, 3));
        assert!(window.owes_changes(4, 0, 100));
    }
}
