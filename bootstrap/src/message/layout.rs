//! How messages are written beside the tables of their fields: the numbers of what a field names, and
//! fields of bootstrap's own. *Refusal*, *Endpoint* and the list of fabrics have layouts that depend on
//! their content, beside their types.

use ibex_base::field::{AtMost, FieldCodec, FieldError, FieldReader, WireField, write_string};

use super::Text;
use super::endpoint::GidKind;
use crate::fabric::Policy;
use crate::identity::{NodeIdentity, Secret};
use crate::integrity::Integrity;

ibex_base::wire_numbers! {
    Policy { Auto = 0, Require = 1, Prefer = 2, Forbid = 3 }
    Integrity { Auto = 0, On = 1, Off = 2 }
    GidKind { Infiniband = 0, RoceV1 = 1, RoceV2 = 2 }
}

impl WireField for NodeIdentity {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        WireField::read(from, name).map(Self)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

impl WireField for Secret {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        WireField::read(from, name).map(Self::new)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.expose().write(out);
    }
}

impl WireField for Text {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        AtMost(Text::MAX_BYTES).read(from, name)
    }

    fn write(&self, out: &mut Vec<u8>) {
        AtMost(Text::MAX_BYTES).write(self, out);
    }
}

impl FieldCodec<Text> for AtMost {
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<Text, FieldError> {
        let bytes = from.string(name, self.0)?;
        Ok(Text::new(&String::from_utf8_lossy(bytes)))
    }

    fn write(&self, value: &Text, out: &mut Vec<u8>) {
        write_string(out, value.as_str().as_bytes(), self.0);
    }
}

/// A flag of which a later version may use further bits.
pub(crate) struct Lenient;

impl FieldCodec<bool> for Lenient {
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<bool, FieldError> {
        Ok(u8::read(from, name)? != 0)
    }

    fn write(&self, value: &bool, out: &mut Vec<u8>) {
        value.write(out);
    }
}

/// A value behind a flag that says whether there is one.
pub(super) struct Flagged;

impl<T: WireField> FieldCodec<Option<T>> for Flagged {
    fn read(
        &self,
        from: &mut FieldReader<'_>,
        name: &'static str,
    ) -> Result<Option<T>, FieldError> {
        let is_there = Lenient.read(from, name)?;
        is_there.then(|| T::read(from, name)).transpose()
    }

    fn write(&self, value: &Option<T>, out: &mut Vec<u8>) {
        value.is_some().write(out);
        if let Some(value) = value {
            value.write(out);
        }
    }
}

/// A number that is 0 where there is none.
pub(super) struct UnlessZero;

impl FieldCodec<Option<u32>> for UnlessZero {
    fn read(
        &self,
        from: &mut FieldReader<'_>,
        name: &'static str,
    ) -> Result<Option<u32>, FieldError> {
        Ok(Some(u32::read(from, name)?).filter(|number| *number != 0))
    }

    fn write(&self, value: &Option<u32>, out: &mut Vec<u8>) {
        value.unwrap_or(0).write(out);
    }
}
