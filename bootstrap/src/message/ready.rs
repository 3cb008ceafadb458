//! *Ready*: this end has everything it needs.

use super::MessageError;
use super::field::{FieldReader, FieldWriter};
use crate::identity::Secret;

/// The last message of both ends: the dialer's first and empty, then the
/// acceptor's, with the session's secrets. Nothing else ever carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
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
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Ready, MessageError> {
        let session = match fields.u8("session flag")? {
            0 => None,
            _ => Some(SessionSecrets {
                id: fields.array("session id")?,
                resume: Secret::new(fields.array("resume secret")?),
            }),
        };
        Ok(Ready { session })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u8(u8::from(self.session.is_some()));
        if let Some(session) = &self.session {
            fields.bytes(&session.id);
            fields.bytes(session.resume.expose());
        }
    }
}
