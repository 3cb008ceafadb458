//! *Refusal*: the end of a handshake, with the reason.

use super::field::{FieldReader, FieldWriter};
use super::{MessageError, Text};
use crate::negotiate::End;
use crate::places::SessionLimit;

/// The sender's diagnosis, so that both logs have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In words.
    pub reason: Text,
    /// As a value too, where a limit of the sender's is the reason.
    pub limit: Option<(End, SessionLimit)>,
}

impl Refusal {
    /// Nothing but words.
    #[must_use]
    pub fn in_words(words: &str) -> Refusal {
        Refusal {
            reason: Text::new(words),
            limit: None,
        }
    }

    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Refusal, MessageError> {
        let reason = fields.text("reason")?;
        let limit_of: fn(u32) -> SessionLimit = match fields.u8("refusal code")? {
            PER_PEER => SessionLimit::PerPeer,
            PER_NODE => SessionLimit::PerNode,
            // Nothing, or what only a later version knows: the words say it.
            _ => {
                return Ok(Refusal {
                    reason,
                    limit: None,
                });
            }
        };
        let end = match fields.u8("end of the limit")? {
            DIALER => End::Dialer,
            _ => End::Acceptor,
        };
        let limit = limit_of(fields.u32("session limit")?);
        Ok(Refusal {
            reason,
            limit: Some((end, limit)),
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text(&self.reason);
        let Some((end, limit)) = self.limit else {
            fields.u8(IN_WORDS);
            return;
        };
        let (code, limit) = match limit {
            SessionLimit::PerPeer(limit) => (PER_PEER, limit),
            SessionLimit::PerNode(limit) => (PER_NODE, limit),
        };
        fields.u8(code);
        fields.u8(match end {
            End::Dialer => DIALER,
            End::Acceptor => ACCEPTOR,
        });
        fields.u32(limit);
    }
}

const IN_WORDS: u8 = 0;
const PER_PEER: u8 = 1;
const PER_NODE: u8 = 2;
const DIALER: u8 = 0;
const ACCEPTOR: u8 = 1;
