//! The layout of the messages: their fields in order, each with the name that errors give it, and the
//! numbers of what a field names. *Refusal* and *Endpoint*, and the list of fabrics, have layouts
//! that depend on their content, beside their types.

use super::endpoint::{GidKind, ShmEndpoint};
use super::field::{FieldReader, WireField, write_string};
use super::{
    Binding, FabricChoice, Hello, HostTags, MessageError, Offer, Ready, Resume, Resumed,
    SessionSecrets, Unavailable, Version, VersionRange,
};
use crate::fabric::{Fabric, Policy};
use crate::identity::{NodeIdentity, Secret};
use crate::integrity::Integrity;
use crate::limits::Limits;

/// Reads and writes a struct as its fields, in the order of the table. A text may have a bound of its
/// own.
macro_rules! fields {
    (@read $from:ident $name:literal) => {
        WireField::read($from, $name)?
    };
    (@read $from:ident $name:literal $most:expr) => {
        $from.text($name, $most)?
    };
    (@write $out:ident $value:expr) => {
        $value.write($out)
    };
    (@write $out:ident $value:expr, $most:expr) => {
        write_string($out, $value.as_str().as_bytes(), $most)
    };
    ($($type:ident { $($field:ident: $name:literal $([$most:expr])?),* $(,)? })*) => {$(
        impl WireField for $type {
            fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, MessageError> {
                Ok(Self { $($field: fields!(@read from $name $($most)?)),* })
            }

            fn write(&self, out: &mut Vec<u8>) {
                $(fields!(@write out self.$field $(, $most)?);)*
            }
        }
    )*};
}

/// Reads and writes an enum as a number.
macro_rules! numbers {
    ($($type:ident { $($variant:ident = $number:literal),* $(,)? })*) => {$(
        impl $type {
            /// Returns the number that stands for this in a message.
            pub(crate) fn to_wire(self) -> u8 {
                match self { $(Self::$variant => $number),* }
            }

            /// Returns what `number` stands for; `None` for one of a later version.
            pub(crate) fn from_wire(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        numbers!($type);
    )*};
    ($type:ident) => {
        impl WireField for $type {
            fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
                let number = u8::read(from, name)?;
                Self::from_wire(number).ok_or(MessageError::UnknownValue {
                    field: name,
                    value: number.into(),
                })
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.push(self.to_wire());
            }
        }
    };
}

fields! {
    Hello {
        versions: "version",
        features: "features",
        security: "security mode",
        nonce: "nonce",
    }
    VersionRange { oldest: "version", newest: "version" }
    Version { major: "version", minor: "version" }
    Binding { hellos: "hash of the Hellos" }
    Offer {
        identity: "identity",
        incarnation: "incarnation",
        host: "host",
        limits: "limits",
        integrity: "integrity",
        fabrics: "fabrics",
        requires_encryption: "encryption",
        name: "node name" [Offer::MAX_NAME_BYTES],
    }
    HostTags {
        boot: "tag of the host",
        network: "tag of the network namespace",
        pid_namespace: "tag of the pid namespace",
        user: "tag of the user",
    }
    Limits {
        channels: "channel limit",
        session_credit_bytes: "session credit",
        max_frame_bytes: "frame limit",
    }
    FabricChoice { fabric: "fabric kind", reason: "reason" }
    Unavailable { fabric: "fabric kind", reason: "reason" }
    ShmEndpoint { token: "token" }
    Ready { process: "process", session: "session flag" }
    SessionSecrets { id: "session id", resume: "resume secret" }
    Resume { session_id: "session id", epoch: "epoch", fabric: "fabric kind", proof: "proof" }
    Resumed { proof: "proof" }
}

numbers!(Fabric);
numbers! {
    Policy { Auto = 0, Require = 1, Prefer = 2, Forbid = 3 }
    Integrity { Auto = 0, On = 1, Off = 2 }
    GidKind { Infiniband = 0, RoceV1 = 1, RoceV2 = 2 }
}

impl WireField for NodeIdentity {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        WireField::read(from, name).map(Self)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}

impl WireField for Secret {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        WireField::read(from, name).map(Self::new)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.expose().write(out);
    }
}

/// The number of a process; 0 for none.
impl WireField for Option<u32> {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        Ok(Some(u32::read(from, name)?).filter(|number| *number != 0))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.unwrap_or(0).write(out);
    }
}

/// A flag, and the secrets if there are any.
impl WireField for Option<SessionSecrets> {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, MessageError> {
        let is_there = bool::read(from, name)?;
        is_there.then(|| WireField::read(from, name)).transpose()
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(secrets) = self {
            secrets.write(out);
        }
    }
}
