//! Faults of a run, counted by kind: a fault that never happens shows nothing.
#![forbid(unsafe_code)]

use std::{fmt, ops::AddAssign};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes arrive steps after they were written.
    Delay,
    /// A wire takes a part of what is written.
    Cut,
    /// A wire is full and takes nothing.
    Full,
    /// A wire stands still.
    Stall,
    /// A side dies without a word.
    Crash,
    /// What it wrote last is lost with it.
    Loss,
    /// A session says goodbye in the middle of everything.
    Goodbye,
    /// An engine recalls credit.
    Recall,
    /// Wires break: what is on them comes in part.
    Break,
    /// They break before both ends have told each other what they know.
    BreakAgain,
    /// A side sends on over broken wires.
    Void,
    /// What was written is never said to be there.
    Purge,
    /// Memory is written although the writer has new wires.
    LateWrite,
    /// New wires have less credit at first than the old ones.
    LostBuffers,
    /// New wires are of another kind.
    FailOver,
    /// There are no new wires before a side gives up.
    Outage,
    /// A connection comes to the side that accepts, which has a newer one, or its session no more.
    LateConnection,
    /// The side that dials hears that its session is over.
    Refused,
    /// The side that dials gives an attempt up, and makes another.
    GivenUp,
    /// Nobody is there when it dials.
    Unanswered,
    /// A connection breaks in the middle of a handshake.
    MeetingCut,
    /// One side hears the end of a handshake, and the other does not.
    OneSided,
    /// A side dies in the middle of a handshake.
    DeathInMeeting,
    /// A handshake takes too long.
    Expired,
    /// A queue pair, a device or a Unix socket cannot be had.
    NoPair,
    /// Somebody calls who knows no secret.
    Stranger,
    /// Somebody answers who knows no secret.
    Impostor,
    /// A side begins anew behind its death.
    Restart,
    /// An engine stands still.
    Stop,
    /// A side's clock leaps.
    Leap,
    /// A control message comes twice.
    Duplicate,
    /// A control message comes with other bytes.
    Malformed,
    /// There is no memory for large messages.
    Drought,
    /// A program takes nothing for long.
    Slow,
    /// Channels are served in another order.
    Reorder,
}

/// How often each kind of fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults([u64; Fault::ALL.len()]);

impl Fault {
    const ALL: [Self; 35] = [
        Self::Delay,
        Self::Cut,
        Self::Full,
        Self::Stall,
        Self::Crash,
        Self::Loss,
        Self::Goodbye,
        Self::Recall,
        Self::Break,
        Self::BreakAgain,
        Self::Void,
        Self::Purge,
        Self::LateWrite,
        Self::LostBuffers,
        Self::FailOver,
        Self::Outage,
        Self::LateConnection,
        Self::Refused,
        Self::GivenUp,
        Self::Unanswered,
        Self::MeetingCut,
        Self::OneSided,
        Self::DeathInMeeting,
        Self::Expired,
        Self::NoPair,
        Self::Stranger,
        Self::Impostor,
        Self::Restart,
        Self::Stop,
        Self::Leap,
        Self::Duplicate,
        Self::Malformed,
        Self::Drought,
        Self::Slow,
        Self::Reorder,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delay => "delays",
            Self::Cut => "short writes",
            Self::Full => "full wires",
            Self::Stall => "stalls",
            Self::Crash => "crashes",
            Self::Loss => "losses",
            Self::Goodbye => "hasty goodbyes",
            Self::Recall => "recalls of credit",
            Self::Break => "breaks",
            Self::BreakAgain => "breaks in the middle of resuming",
            Self::Void => "sendings into the void",
            Self::Purge => "purged completions",
            Self::LateWrite => "late writes",
            Self::LostBuffers => "lost buffers",
            Self::FailOver => "changes of carriage",
            Self::Outage => "sessions given up",
            Self::LateConnection => "late connections",
            Self::Refused => "sessions refused",
            Self::GivenUp => "attempts given up",
            Self::Unanswered => "calls unanswered",
            Self::MeetingCut => "meetings cut",
            Self::OneSided => "one-sided meetings",
            Self::DeathInMeeting => "deaths in meetings",
            Self::Expired => "meetings out of time",
            Self::NoPair => "queue pairs and sockets not had",
            Self::Stranger => "strangers",
            Self::Impostor => "impostors",
            Self::Restart => "restarts",
            Self::Stop => "stopped engines",
            Self::Leap => "clock leaps",
            Self::Duplicate => "duplicate control messages",
            Self::Malformed => "malformed control messages",
            Self::Drought => "exhausted pools",
            Self::Slow => "slow consumers",
            Self::Reorder => "channels out of order",
        })
    }
}

impl Default for Faults {
    /// None.
    fn default() -> Self {
        Self([0; Fault::ALL.len()])
    }
}

impl Faults {
    /// Counts a fault if it has happened.
    pub(super) fn count(&mut self, fault: Fault, has_happened: bool) {
        self.0[fault as usize] += u64::from(has_happened);
    }

    /// Every kind, with how often it happened.
    pub fn by_kind(&self) -> impl Iterator<Item = (Fault, u64)> {
        Fault::ALL.into_iter().zip(self.0)
    }
}

impl AddAssign for Faults {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}
