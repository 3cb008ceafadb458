//! Faults of a run, counted by kind, since a fault that never happens shows nothing.
#![forbid(unsafe_code)]

use std::{fmt, ops::AddAssign};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes arrive steps after they were written.
    Delay,
    /// A wire takes only a part of a write.
    Cut,
    /// A wire is full and takes nothing.
    Full,
    /// A wire stalls.
    Stall,
    /// A side dies without a goodbye.
    Crash,
    /// The last bytes that a dead side wrote are lost.
    Loss,
    /// A session sends goodbye while channels are busy.
    Goodbye,
    /// An engine recalls credit.
    Recall,
    /// Wires break, and a part of the bytes on them arrives.
    Break,
    /// Wires break before both ends have exchanged what they know.
    BreakAgain,
    /// A side sends over broken wires.
    Void,
    /// The completion of a write never arrives.
    Purge,
    /// Memory is written although the writer has new wires.
    LateWrite,
    /// New wires have less credit at first than the old ones.
    LostBuffers,
    /// New wires are of another kind.
    FailOver,
    /// No new wires exist before a side gives up.
    Outage,
    /// A connection reaches the accepting side after a newer one, or after the end of its session.
    LateConnection,
    /// The dialing side learns that its session is over.
    Refused,
    /// The dialing side gives an attempt up, and makes another.
    GivenUp,
    /// The other side is dead when the dialing side dials.
    Unanswered,
    /// A connection breaks in the middle of a handshake.
    MeetingCut,
    /// A side sees the end of a handshake, and the other does not.
    OneSided,
    /// A side dies in the middle of a handshake.
    DeathInMeeting,
    /// A handshake takes too long.
    Expired,
    /// A queue pair, a device or a Unix socket is unavailable.
    NoPair,
    /// A stranger without the secret dials.
    Stranger,
    /// An impostor without the secret answers.
    Impostor,
    /// A side restarts after its death.
    Restart,
    /// An engine stops for a while.
    Stop,
    /// A side's clock jumps.
    Leap,
    /// A control message arrives twice.
    Duplicate,
    /// A control message arrives with other bytes.
    Malformed,
    /// Memory for large messages runs out.
    Drought,
    /// A program takes no messages for a long time.
    Slow,
    /// Channels are served in another order.
    Reorder,
}

/// Counts of each kind of fault.
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
    /// Starts with no faults.
    fn default() -> Self {
        Self([0; Fault::ALL.len()])
    }
}

impl Faults {
    /// Counts a fault if it has happened.
    pub(super) fn count(&mut self, fault: Fault, has_happened: bool) {
        self.0[fault as usize] += u64::from(has_happened);
    }

    /// Returns every kind with its count.
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
