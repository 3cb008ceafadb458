//! *Choice*: the fabric that the dialer picked, and why.

use super::field::{FieldReader, FieldWriter};
use super::{MessageError, Text};
use crate::fabric::FabricKind;

/// The dialer's decision. The dialer sends it again, with another fabric, if the first fabric's
/// endpoint cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricChoice {
    /// The fabric that is to carry the data.
    pub fabric: FabricKind,
    /// The reason, for the acceptor's log.
    pub reason: Text,
}

impl FabricChoice {
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<FabricChoice, MessageError> {
        Ok(FabricChoice {
            fabric: parse_fabric_kind(&mut fields)?,
            reason: fields.text("reason")?,
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u8(self.fabric.to_wire());
        fields.text(&self.reason);
    }
}

/// The acceptor has no endpoint for the fabric just chosen, or could not connect its queue pair
/// with the dialer's. The dialer then picks another fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The fabric that was chosen.
    pub fabric: FabricKind,
    /// The reason why the fabric cannot be had.
    pub reason: Text,
}

impl Unavailable {
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Unavailable, MessageError> {
        Ok(Unavailable {
            fabric: parse_fabric_kind(&mut fields)?,
            reason: fields.text("reason")?,
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u8(self.fabric.to_wire());
        fields.text(&self.reason);
    }
}

/// Parses a fabric at a place where an unknown one cannot be skipped.
pub(super) fn parse_fabric_kind(fields: &mut FieldReader<'_>) -> Result<FabricKind, MessageError> {
    let kind = fields.u8("fabric kind")?;
    FabricKind::from_wire(kind).ok_or(MessageError::UnknownValue {
        field: "fabric kind",
        value: u32::from(kind),
    })
}
