//! *Refusal*: the end of a handshake, with the reason.

use std::fmt;

use super::field::{FieldReader, FieldWriter};
use super::{MessageError, Text};
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

    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<HandshakeRefusal, MessageError> {
        let reason = fields.text("reason")?;
        let cause = match fields.u8("refusal code")? {
            PER_PEER => Some(parse_limit(fields, SessionLimit::PerPeer)?),
            PER_NODE => Some(parse_limit(fields, SessionLimit::PerNode)?),
            DESCRIPTORS => {
                let (end, limit) = parse_end_and_limit(fields)?;
                Some(RefusalCause::Descriptors(end, limit))
            }
            NO_SUCH_SESSION => Some(RefusalCause::Resume(ResumeRefusal::NoSuchSession)),
            WRONG_PROOF => Some(RefusalCause::Resume(ResumeRefusal::WrongProof)),
            OLD_EPOCH => Some(RefusalCause::Resume(ResumeRefusal::OldEpoch)),
            OTHER_IDENTITY => Some(RefusalCause::Resume(ResumeRefusal::OtherIdentity)),
            NOT_OVER_FABRIC => Some(RefusalCause::NotOverFabric),
            CLOSING => Some(RefusalCause::Closing),
            GARBLED => Some(RefusalCause::Garbled),
            // There is no cause, or one that only a later version knows: the words say it.
            _ => None,
        };
        Ok(HandshakeRefusal { reason, cause })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text(&self.reason);
        let (code, end, limit) = match self.cause {
            None => return fields.u8(IN_WORDS),
            Some(RefusalCause::Resume(refusal)) => return fields.u8(refusal.to_wire()),
            Some(RefusalCause::NotOverFabric) => return fields.u8(NOT_OVER_FABRIC),
            Some(RefusalCause::Closing) => return fields.u8(CLOSING),
            Some(RefusalCause::Garbled) => return fields.u8(GARBLED),
            Some(RefusalCause::Limit(end, SessionLimit::PerPeer(limit))) => (PER_PEER, end, limit),
            Some(RefusalCause::Limit(end, SessionLimit::PerNode(limit))) => (PER_NODE, end, limit),
            Some(RefusalCause::Descriptors(end, limit)) => (DESCRIPTORS, end, limit),
        };
        fields.u8(code);
        fields.u8(match end {
            Party::Dialer => DIALER,
            Party::Acceptor => ACCEPTOR,
        });
        fields.u32(limit);
    }
}

fn parse_limit(
    fields: FieldReader<'_>,
    limit: fn(u32) -> SessionLimit,
) -> Result<RefusalCause, MessageError> {
    let (end, number) = parse_end_and_limit(fields)?;
    Ok(RefusalCause::Limit(end, limit(number)))
}

fn parse_end_and_limit(mut fields: FieldReader<'_>) -> Result<(Party, u32), MessageError> {
    let end = match fields.u8("end of the limit")? {
        DIALER => Party::Dialer,
        _ => Party::Acceptor,
    };
    Ok((end, fields.u32("session limit")?))
}

impl ResumeRefusal {
    fn to_wire(self) -> u8 {
        match self {
            ResumeRefusal::NoSuchSession => NO_SUCH_SESSION,
            ResumeRefusal::WrongProof => WRONG_PROOF,
            ResumeRefusal::OldEpoch => OLD_EPOCH,
            ResumeRefusal::OtherIdentity => OTHER_IDENTITY,
        }
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

const IN_WORDS: u8 = 0;
const PER_PEER: u8 = 1;
const PER_NODE: u8 = 2;
const NO_SUCH_SESSION: u8 = 3;
const WRONG_PROOF: u8 = 4;
const OLD_EPOCH: u8 = 5;
const NOT_OVER_FABRIC: u8 = 6;
const CLOSING: u8 = 7;
const GARBLED: u8 = 8;
const OTHER_IDENTITY: u8 = 9;
const DESCRIPTORS: u8 = 10;
const DIALER: u8 = 0;
const ACCEPTOR: u8 = 1;
