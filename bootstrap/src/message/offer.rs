//! *Offer*: a node's identity, its limits and its fabrics.

use super::MessageError;
use super::field::{FieldReader, FieldWriter};
use crate::fabric::{FabricKind, FabricOffer, Policy, VerbsDevice};
use crate::identity::{HostHint, Incarnation, NodeIdentity};
use crate::integrity::Integrity;
use crate::local::Limits;

/// A node's part in the choice of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node's identity. Two nodes that dial each other at once decide by it which of the two
    /// sessions stays.
    pub identity: NodeIdentity,
    /// The run of the node.
    pub incarnation: Incarnation,
    /// The host that the node runs on, as far as it can tell.
    pub host: HostHint,
    /// The node's limits.
    pub limits: Limits,
    /// The node's wish for payload checksums.
    pub integrity: Integrity,
    /// The node's fabrics, each kind at most once.
    pub fabrics: Vec<FabricOffer>,
    /// Set if the node's sessions use no fabric that another host can read.
    pub requires_encryption: bool,
}

impl Offer {
    /// Most fabrics in one offer, known kinds or not.
    pub const MAX_FABRICS: usize = 16;
    /// Longest name of a device, in bytes: `IBV_SYSFS_NAME_MAX` of
    /// infiniband/verbs.h.
    pub const MAX_DEVICE_NAME_BYTES: usize = 64;

    /// Returns the entry for `kind`, if the node has the fabric at all.
    pub fn fabric(&self, kind: FabricKind) -> Option<&FabricOffer> {
        self.fabrics.iter().find(|offer| offer.kind == kind)
    }

    /// Tells whether both offers are of one run of one node.
    pub(crate) fn is_of_run(&self, other: &Offer) -> bool {
        (self.identity, self.incarnation) == (other.identity, other.incarnation)
    }

    /// Adds the findings about this node's own device.
    pub(crate) fn set_device(&mut self, found: Result<VerbsDevice, String>) {
        let verbs = |fabric: &&mut FabricOffer| fabric.kind == FabricKind::Verbs;
        if let Some(fabric) = self.fabrics.iter_mut().find(verbs) {
            (fabric.device, fabric.no_device) = match found {
                Ok(device) => (Some(device), None),
                Err(why) => (None, Some(why)),
            };
        }
    }

    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Offer, MessageError> {
        let mut offer = Offer {
            identity: NodeIdentity(fields.array("identity")?),
            incarnation: fields.u64("incarnation")?,
            host: HostHint {
                boot_id: fields.array("boot id")?,
                pid: fields.u32("pid")?,
                uid: fields.u32("uid")?,
                pid_namespace: fields.u64("pid namespace")?,
                network_namespace: fields.u64("network namespace")?,
            },
            limits: Limits {
                channels: fields.u32("channel limit")?,
                session_credit_bytes: fields.u64("session credit")?,
                max_frame_bytes: fields.u32("frame limit")?,
            },
            integrity: parse_integrity(&mut fields)?,
            fabrics: Vec::new(),
            requires_encryption: false,
        };
        let count = usize::from(fields.u8("fabric count")?);
        if count > Offer::MAX_FABRICS {
            return Err(MessageError::TooLong {
                field: "fabric count",
                length: count,
                max: Offer::MAX_FABRICS,
            });
        }
        for _ in 0..count {
            // A fabric of a later version is skipped as a whole, by its length.
            let Some(fabric) = parse_fabric(&mut fields)? else {
                continue;
            };
            if offer.fabric(fabric.kind).is_some() {
                return Err(MessageError::Repeated { field: "fabric" });
            }
            offer.fabrics.push(fabric);
        }
        // A node whose Offer lacks the byte requires no encryption.
        offer.requires_encryption = fields.u8("encryption").is_ok_and(|byte| byte != 0);
        Ok(offer)
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(&self.identity.0);
        fields.u64(self.incarnation);
        fields.bytes(&self.host.boot_id);
        fields.u32(self.host.pid);
        fields.u32(self.host.uid);
        fields.u64(self.host.pid_namespace);
        fields.u64(self.host.network_namespace);
        fields.u32(self.limits.channels);
        fields.u64(self.limits.session_credit_bytes);
        fields.u32(self.limits.max_frame_bytes);
        fields.u8(self.integrity.to_wire());
        debug_assert!(self.fabrics.len() <= Offer::MAX_FABRICS);
        fields.u8(self.fabrics.len() as u8);
        for fabric in &self.fabrics {
            write_fabric(fabric, fields);
        }
        if self.requires_encryption {
            fields.u8(1);
        }
    }
}

fn parse_integrity(fields: &mut FieldReader<'_>) -> Result<Integrity, MessageError> {
    let integrity = fields.u8("integrity")?;
    Integrity::from_wire(integrity).ok_or(MessageError::UnknownValue {
        field: "integrity",
        value: u32::from(integrity),
    })
}

fn parse_fabric(fields: &mut FieldReader<'_>) -> Result<Option<FabricOffer>, MessageError> {
    let kind = fields.u8("fabric kind")?;
    let policy = fields.u8("fabric policy")?;
    let capabilities = fields.string("fabric capabilities", MAX_CAPABILITY_BYTES)?;
    let Some(kind) = FabricKind::from_wire(kind) else {
        return Ok(None);
    };
    let policy = Policy::from_wire(policy).ok_or(MessageError::UnknownValue {
        field: "fabric policy",
        value: u32::from(policy),
    })?;
    let device = match kind {
        FabricKind::Verbs if !capabilities.is_empty() => {
            Some(parse_device(FieldReader::new(capabilities))?)
        }
        _ => None,
    };
    Ok(Some(FabricOffer {
        device,
        ..FabricOffer::new(kind, policy)
    }))
}

fn parse_device(mut fields: FieldReader<'_>) -> Result<VerbsDevice, MessageError> {
    let hardware = fields.u8("verbs hardware flag")? != 0;
    let name = fields.string("verbs device name", Offer::MAX_DEVICE_NAME_BYTES)?;
    // The name is shown to people and never opened. The kernel's names are ASCII, so other bytes
    // are made printable without growing.
    let printable = |byte: &u8| {
        if byte.is_ascii_graphic() {
            char::from(*byte)
        } else {
            '?'
        }
    };
    let name = name.iter().map(printable).collect();
    Ok(VerbsDevice { hardware, name })
}

fn write_fabric(fabric: &FabricOffer, fields: &mut FieldWriter<'_>) {
    let mut capabilities = Vec::new();
    if let Some(device) = &fabric.device {
        let mut fields = FieldWriter::new(&mut capabilities);
        fields.u8(u8::from(device.hardware));
        fields.string(device.name.as_bytes(), Offer::MAX_DEVICE_NAME_BYTES);
    }
    fields.u8(fabric.kind.to_wire());
    fields.u8(fabric.policy.to_wire());
    fields.string(&capabilities, MAX_CAPABILITY_BYTES);
}

/// Most bytes of a fabric's capabilities, as room for later versions within a bounded message: 16
/// fabrics of 200 bytes stay below 4 KiB.
const MAX_CAPABILITY_BYTES: usize = 200;

const _: () =
    assert!(Offer::MAX_FABRICS * (MAX_CAPABILITY_BYTES + 4) + 128 <= super::MAX_MESSAGE_BYTES);
const _: () = assert!(Offer::MAX_DEVICE_NAME_BYTES + 3 <= MAX_CAPABILITY_BYTES);
