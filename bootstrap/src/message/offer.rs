//! *Offer*: a node's identity, its limits and its fabrics.

use ibex_base::Escaped;

use super::field::{FieldReader, FieldWriter};
use super::{MessageError, Ready, SessionSecrets, Text};
use crate::fabric::{FabricKind, FabricOffer, Policy, VerbsDevice};
use crate::host_tags::HostTags;
use crate::identity::{Incarnation, NodeIdentity};
use crate::integrity::Integrity;
use crate::limits::Limits;

/// A node's part in the choice of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node's identity. Two nodes that dial each other at once decide by it which of the two
    /// sessions stays.
    pub identity: NodeIdentity,
    /// The run of the node.
    pub incarnation: Incarnation,
    /// The host that the node runs on, as far as it can tell, hashed.
    pub host: HostTags,
    /// The node's limits.
    pub limits: Limits,
    /// The node's wish for payload checksums.
    pub integrity: Integrity,
    /// The node's fabrics, each kind at most once.
    pub fabrics: Vec<FabricOffer>,
    /// Set if the node's sessions use no fabric that another host can read.
    pub requires_encryption: bool,
    /// The name that the node gives itself, for people; empty if it has none.
    pub name: Text,
}

impl Offer {
    /// Most fabrics in one offer, known kinds or not.
    pub const MAX_FABRICS: usize = 16;
    /// Longest name of a device, in bytes: `IBV_SYSFS_NAME_MAX` of
    /// infiniband/verbs.h.
    pub const MAX_DEVICE_NAME_BYTES: usize = 64;
    /// Longest name of a node, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;

    /// Returns the entry for `kind`, if the node has the fabric at all.
    pub fn fabric(&self, kind: FabricKind) -> Option<&FabricOffer> {
        self.fabrics.iter().find(|offer| offer.kind == kind)
    }

    /// Tells whether the sockets by which the two nodes share memory are in a directory. They are in
    /// the network namespace of both, if that is one.
    pub(crate) fn meets_in_directory(&self, other: &Offer) -> bool {
        !self.host.same_network(&other.host)
    }

    /// Tells whether both nodes are known to run as one user.
    pub(crate) fn is_of_user(&self, other: &Offer) -> bool {
        self.host.same_user(&other.host)
    }

    /// Tells whether both offers are of one run of one node.
    pub(crate) fn is_of_run(&self, other: &Offer) -> bool {
        (self.identity, self.incarnation) == (other.identity, other.incarnation)
    }

    /// Returns this end's *Ready* to the end with the offer `theirs`. It names the process if that
    /// end has shown that the number means the same to it.
    pub(crate) fn ready(&self, theirs: &Offer, pid: u32, session: Option<SessionSecrets>) -> Ready {
        let process = self.host.share_pids(&theirs.host).then_some(pid);
        Ready { process, session }
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
            host: HostTags {
                boot: fields.array("tag of the host")?,
                network: fields.array("tag of the network namespace")?,
                pid_namespace: fields.array("tag of the pid namespace")?,
                user: fields.array("tag of the user")?,
            },
            limits: Limits {
                channels: fields.u32("channel limit")?,
                session_credit_bytes: fields.u64("session credit")?,
                max_frame_bytes: fields.u32("frame limit")?,
            },
            integrity: parse_integrity(&mut fields)?,
            fabrics: Vec::new(),
            requires_encryption: false,
            name: Text::default(),
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
        offer.requires_encryption = fields.u8("encryption")? != 0;
        let name = fields.string("node name", Offer::MAX_NAME_BYTES)?;
        offer.name = Text::new(&String::from_utf8_lossy(name));
        Ok(offer)
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(&self.identity.0);
        fields.u64(self.incarnation);
        let host = &self.host;
        for tag in [host.boot, host.network, host.pid_namespace, host.user] {
            fields.bytes(&tag);
        }
        fields.u32(self.limits.channels);
        fields.u64(self.limits.session_credit_bytes);
        fields.u32(self.limits.max_frame_bytes);
        fields.u8(self.integrity.to_wire());
        debug_assert!(self.fabrics.len() <= Offer::MAX_FABRICS);
        fields.u8(self.fabrics.len() as u8);
        for fabric in &self.fabrics {
            write_fabric(fabric, fields);
        }
        fields.u8(u8::from(self.requires_encryption));
        fields.string(self.name.as_str().as_bytes(), Offer::MAX_NAME_BYTES);
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
    let has = |capability| kind == FabricKind::Shm && capabilities.contains(&capability);
    Ok(Some(FabricOffer {
        device,
        is_denied: has(DENIED),
        crosses_users: has(CROSSES_USERS),
        has_directory: has(HAS_DIRECTORY),
        ..FabricOffer::new(kind, policy)
    }))
}

fn parse_device(mut fields: FieldReader<'_>) -> Result<VerbsDevice, MessageError> {
    let hardware = fields.u8("verbs hardware flag")? != 0;
    let name = fields.string("verbs device name", Offer::MAX_DEVICE_NAME_BYTES)?;
    // The name is shown to people and never opened.
    let name = Escaped(&String::from_utf8_lossy(name)).to_string();
    Ok(VerbsDevice { hardware, name })
}

fn write_fabric(fabric: &FabricOffer, fields: &mut FieldWriter<'_>) {
    let mut capabilities = Vec::new();
    if let Some(device) = &fabric.device {
        let mut fields = FieldWriter::new(&mut capabilities);
        fields.u8(u8::from(device.hardware));
        fields.string(device.name.as_bytes(), Offer::MAX_DEVICE_NAME_BYTES);
    }
    let own = [
        (fabric.is_denied, DENIED),
        (fabric.crosses_users, CROSSES_USERS),
        (fabric.has_directory, HAS_DIRECTORY),
    ];
    capabilities.extend(own.iter().filter(|(has, _)| *has).map(|(_, byte)| byte));
    fields.u8(fabric.kind.to_wire());
    fields.u8(fabric.policy.to_wire());
    fields.string(&capabilities, MAX_CAPABILITY_BYTES);
}

/// The mark of a fabric that is denied to its node.
const DENIED: u8 = 1;

/// The capability of shared memory with processes of other users.
const CROSSES_USERS: u8 = 2;

/// The capability of meeting nodes of other network namespaces in a directory.
const HAS_DIRECTORY: u8 = 3;

/// Most bytes of a fabric's capabilities, as room for later versions within a bounded message: 16
/// fabrics of 200 bytes stay below 4 KiB.
const MAX_CAPABILITY_BYTES: usize = 200;

const _: () = assert!(
    Offer::MAX_FABRICS * (MAX_CAPABILITY_BYTES + 4) + 160 + 3 + Offer::MAX_NAME_BYTES
        <= super::MAX_MESSAGE_BYTES
);
const _: () = assert!(Offer::MAX_DEVICE_NAME_BYTES + 3 <= MAX_CAPABILITY_BYTES);
