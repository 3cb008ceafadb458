//! The reasons for which an end closes.
#![forbid(unsafe_code)]

use std::fmt;

/// The reason for which an end closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The end's last handle was dropped or closed.
    Dropped,
    /// A loan or permit was leaked, so nothing behind it can be sent.
    SlotLeaked,
    /// Bytes arrived that are no valid message.
    Corrupt,
    /// A message found no room or memory: a receiving end had none for what came, or a group
    /// dropped a sending end that had none for what was to be sent.
    NoRoom,
    /// The sender gave up, by `abort` or a panic, before it had sent everything. There was more to
    /// come.
    Aborted,
    /// The kernel could not read the memory of a message, so that nothing of it and behind it can
    /// be sent.
    Unreadable,
}

ibex_base::wire_numbers! {
    CloseReason { Dropped = 0, SlotLeaked = 1, Corrupt = 2, NoRoom = 3, Aborted = 4, Unreadable = 5 }
}

impl CloseReason {
    /// Every reason, for tests and tables.
    pub const ALL: [CloseReason; 6] = [
        CloseReason::Dropped,
        CloseReason::SlotLeaked,
        CloseReason::Corrupt,
        CloseReason::NoRoom,
        CloseReason::Aborted,
        CloseReason::Unreadable,
    ];
}

/// A sentence whose subject is the node that closed the end.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CloseReason::Dropped => "closed its end of the channel",
            CloseReason::SlotLeaked => "leaked a loan or permit, which closed the channel",
            CloseReason::Corrupt => "closed the channel: it got bytes that are no valid message",
            CloseReason::NoRoom => "closed the channel: there was no room for a message",
            CloseReason::Aborted => "gave up sending, or panicked, before it had sent all",
            CloseReason::Unreadable => {
                "closed the channel: the kernel there could not read the memory of a message \
                 (EFAULT), as of a mapped file that was cut short or whose medium fails"
            }
        })
    }
}
