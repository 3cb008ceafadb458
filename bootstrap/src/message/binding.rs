//! *Binding*: the first message behind an authenticated handshake of TLS.

use super::MessageError;
use super::field::{FieldReader, FieldWriter};

/// The end's view of what was said in clear. If the two views differ, a Hello was changed on its
/// way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The SHA-256 of both Hellos as they were on the wire, the dialer's first.
    pub hellos: [u8; 32],
}

impl Binding {
    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Binding, MessageError> {
        Ok(Binding {
            hellos: fields.array("hash of the Hellos")?,
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(&self.hellos);
    }
}
