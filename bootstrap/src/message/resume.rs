//! *Resume* and *Resumed*: the wires of a session broke, and this connection is its next.

use super::MessageError;
use super::choice::parse_fabric_kind;
use super::field::{FieldReader, FieldWriter};
use crate::fabric::FabricKind;

/// A dialer's message in place of its *Offer*, to resume a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The session's name.
    pub session_id: [u8; 16],
    /// The epoch that begins; higher than any before it.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: FabricKind,
    /// The proof that the dialer has the session's secret.
    pub proof: [u8; 32],
}

/// The acceptor's answer: the epoch has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The proof that the acceptor has the session's secret.
    pub proof: [u8; 32],
}

impl Resume {
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Resume, MessageError> {
        Ok(Resume {
            session_id: fields.array("session id")?,
            epoch: fields.u64("epoch")?,
            fabric: parse_fabric_kind(&mut fields)?,
            proof: fields.array("proof")?,
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(&self.session_id);
        fields.u64(self.epoch);
        fields.u8(self.fabric.to_wire());
        fields.bytes(&self.proof);
    }
}

impl Resumed {
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Resumed, MessageError> {
        Ok(Resumed {
            proof: fields.array("proof")?,
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(&self.proof);
    }
}
