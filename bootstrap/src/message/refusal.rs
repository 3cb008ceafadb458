//! *Refusal*: the end of a handshake, with the reason.

use std::fmt;

use ibex_base::field::{FieldError, FieldReader, WireField};

use super::Text;
use crate::party::Party;
use crate::places::SessionLimit;

/// The sender's diagnosis, so that both logs have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeRefusal {
    /// The reason in words.
    pub reason: Text,
    /// The reason as a value, for a peer that may have to act on it.
    pub cause: Option<RefusalCause>,
}

/// A reason that is more than words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// The named end has as many sessions as its limit allows.
    Limit(Party, SessionLimit),
    /// The process of the named end may open this many files, too few for another session.
    Descriptors(Party, u32),
    /// The session does not resume.
    Resume(ResumeRefusal),
    /// The session does not resume over the requested fabric; the words say why.
    NotOverFabric,
    /// The sender accepts no new session any more.
    Closing,
    /// The bytes that the receiver of this refusal had sent arrived damaged.
    Garbled,
}

/// The reason why an acceptor does not resume a session over a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResumeRefusal {
    /// The peer never had the session, or it has ended there.
    NoSuchSession,
    /// The dialer does not have the session's secret.
    WrongProof,
    /// The peer has begun that epoch or a later one.
    OldEpoch,
    /// The asking or the answering end is authenticated under another identity than when the
    /// session began.
    OtherIdentity,
}

impl HandshakeRefusal {
    /// Makes a refusal of words alone.
    #[must_use]
    pub fn in_words(words: &str) -> HandshakeRefusal {
        HandshakeRefusal {
            reason: Text::new(words),
            cause: None,
        }
    }
}

/// The words, and the number of the cause. Causes with a limit name the end that has it, and the
/// limit.
impl WireField for HandshakeRefusal {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, FieldError> {
        let reason = WireField::read(from, "reason")?;
        let code = u8::read(from, "refusal code")?;
        let limit: fn(Party, u32) -> RefusalCause = match code {
            PER_PEER => |end, limit| RefusalCause::Limit(end, SessionLimit::PerPeer(limit)),
            PER_NODE => |end, limit| RefusalCause::Limit(end, SessionLimit::PerNode(limit)),
            DESCRIPTORS => RefusalCause::Descriptors,
            // There may be no cause, or one that only a later version knows: the words say it.
            code => {
                let known = WITHOUT_LIMIT.iter().find(|(number, _)| *number == code);
                let cause = known.map(|(_, cause)| *cause);
                return Ok(Self { reason, cause });
            }
        };
        let end = match u8::read(from, "end of the limit")? {
            DIALER => Party::Dialer,
            _ => Party::Acceptor,
        };
        let cause = Some(limit(end, WireField::read(from, "session limit")?));
        Ok(Self { reason, cause })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.reason.write(out);
        let (code, end, limit) = match self.cause {
            Some(RefusalCause::Limit(end, SessionLimit::PerPeer(limit))) => (PER_PEER, end, limit),
            Some(RefusalCause::Limit(end, SessionLimit::PerNode(limit))) => (PER_NODE, end, limit),
            Some(RefusalCause::Descriptors(end, limit)) => (DESCRIPTORS, end, limit),
            cause => {
                let known = WITHOUT_LIMIT
                    .iter()
                    .find(|(_, known)| Some(*known) == cause);
                return out.push(known.map_or(IN_WORDS, |(number, _)| *number));
            }
        };
        out.extend([
            code,
            if end == Party::Dialer {
                DIALER
            } else {
                ACCEPTOR
            },
        ]);
        limit.write(out);
    }
}

impl fmt::Display for ResumeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResumeRefusal::NoSuchSession => "there is no such session, or it has ended",
            ResumeRefusal::WrongProof => "the proof of the session's secret is wrong",
            ResumeRefusal::OldEpoch => "that epoch of it has begun before",
            ResumeRefusal::OtherIdentity => {
                "an end is authenticated as another than the one that began the session"
            }
        })
    }
}

/// The numbers of the causes that have no limit.
const WITHOUT_LIMIT: [(u8, RefusalCause); 7] = [
    (3, RefusalCause::Resume(ResumeRefusal::NoSuchSession)),
    (4, RefusalCause::Resume(ResumeRefusal::WrongProof)),
    (5, RefusalCause::Resume(ResumeRefusal::OldEpoch)),
    (6, RefusalCause::NotOverFabric),
    (7, RefusalCause::Closing),
    (8, RefusalCause::Garbled),
    (9, RefusalCause::Resume(ResumeRefusal::OtherIdentity)),
];
const IN_WORDS: u8 = 0;
const PER_PEER: u8 = 1;
const PER_NODE: u8 = 2;
const DESCRIPTORS: u8 = 10;
const DIALER: u8 = 0;
const ACCEPTOR: u8 = 1;
