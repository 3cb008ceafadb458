//! *Ready*: this end has everything it needs.

use super::MessageError;
use super::field::{FieldReader, FieldWriter};
use crate::identity::Secret;

/// The last message of both ends: the dialer's first, then the
/// acceptor's, with the session's secrets. Nothing else ever carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The sender's process, told only to a peer for which the number means the same process.
    pub process: Option<u32>,
    /// The acceptor's half.
    pub session: Option<SessionSecrets>,
}

/// A session's name, and the secret that proves the right to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSecrets {
    /// The session's name.
    pub id: [u8; 16],
    /// The key of the proof that a later connection belongs to this session.
    pub resume: Secret,
}

impl Ready {
    /// The message that says nothing else.
    pub const ALONE: Ready = Ready {
        process: None,
        session: None,
    };

    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Ready, MessageError> {
        let process = Some(fields.u32("process")?).filter(|process| *process != 0);
        let session = match fields.u8("session flag")? {
            0 => None,
            _ => Some(SessionSecrets {
                id: fields.array("session id")?,
                resume: Secret::new(fields.array("resume secret")?),
            }),
        };
        Ok(Ready { process, session })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u32(self.process.unwrap_or(0));
        fields.u8(u8::from(self.session.is_some()));
        if let Some(session) = &self.session {
            fields.bytes(&session.id);
            fields.bytes(session.resume.expose());
        }
    }
}
