//! *Offer*: a node's identity, its limits and its fabrics.

use ibex_base::field::{AtMost, FieldCodec, FieldError, FieldReader, WireField, write_string};

use super::layout::Lenient;
use super::{Ready, SessionSecrets, Text};
use crate::fabric::{Fabric, FabricOffer, VerbsDevice};
use crate::host_tags::HostTags;
use crate::identity::{Incarnation, NodeIdentity};
use crate::integrity::Integrity;
use crate::limits::Limits;

ibex_base::wire_structs! {
    /// A node's part in the choice of a fabric.
    pub struct Offer {
        /// The node's identity. Two nodes that dial each other at once decide by it which of the two
        /// sessions stays.
        pub identity: NodeIdentity = "identity",
        /// The run of the node.
        pub incarnation: Incarnation = "incarnation",
        /// The host that the node runs on, as far as it can tell, hashed.
        pub host: HostTags = "host",
        /// The node's limits.
        pub limits: Limits = "limits",
        /// The node's wish for payload checksums.
        pub integrity: Integrity = "integrity",
        /// The node's fabrics, each kind at most once.
        pub fabrics: Vec<FabricOffer> = "fabrics" [Fabrics],
        /// Set if the node's sessions use no fabric that another host can read.
        pub requires_encryption: bool = "encryption" [Lenient],
        /// The name that the node gives itself, for people; empty if it has none.
        pub name: Text = "node name" [AtMost(Offer::MAX_NAME_BYTES)],
    }
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
    pub fn fabric(&self, kind: Fabric) -> Option<&FabricOffer> {
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
        let verbs = |fabric: &&mut FabricOffer| fabric.kind == Fabric::Verbs;
        if let Some(fabric) = self.fabrics.iter_mut().find(verbs) {
            (fabric.device, fabric.no_device) = match found {
                Ok(device) => (Some(device), None),
                Err(why) => (None, Some(why)),
            };
        }
    }
}

/// Each fabric has its capabilities behind their length, so that one of a later version is skipped.
struct Fabrics;

impl FieldCodec<Vec<FabricOffer>> for Fabrics {
    fn read(
        &self,
        from: &mut FieldReader<'_>,
        _: &'static str,
    ) -> Result<Vec<FabricOffer>, FieldError> {
        let mut fabrics = Vec::new();
        for _ in 0..from.count("fabric count", Offer::MAX_FABRICS)? {
            let kind = u8::read(from, "fabric kind")?;
            let mut policy = FieldReader(from.bytes("fabric policy", 1)?);
            let capabilities = from.string("fabric capabilities", MAX_CAPABILITY_BYTES)?;
            let Ok(kind) = Fabric::read(&mut FieldReader(&[kind]), "fabric kind") else {
                continue;
            };
            if fabrics.iter().any(|known: &FabricOffer| known.kind == kind) {
                return Err(FieldError::Repeated { field: "fabric" });
            }
            let has = |capability| kind == Fabric::Shm && capabilities.contains(&capability);
            let has_device = kind == Fabric::Verbs && !capabilities.is_empty();
            let device = || WireField::read(&mut FieldReader(capabilities), "device");
            fabrics.push(FabricOffer {
                device: has_device.then(device).transpose()?,
                is_denied: has(DENIED),
                crosses_users: has(CROSSES_USERS),
                has_directory: has(HAS_DIRECTORY),
                ..FabricOffer::new(kind, WireField::read(&mut policy, "fabric policy")?)
            });
        }
        Ok(fabrics)
    }

    fn write(&self, fabrics: &Vec<FabricOffer>, out: &mut Vec<u8>) {
        debug_assert!(fabrics.len() <= Offer::MAX_FABRICS);
        out.push(fabrics.len() as u8);
        for fabric in fabrics {
            let mut capabilities = Vec::new();
            if let Some(device) = &fabric.device {
                device.write(&mut capabilities);
            }
            let own = [
                (fabric.is_denied, DENIED),
                (fabric.crosses_users, CROSSES_USERS),
                (fabric.has_directory, HAS_DIRECTORY),
            ];
            capabilities.extend(own.iter().filter(|(has, _)| *has).map(|(_, byte)| byte));
            fabric.kind.write(out);
            fabric.policy.write(out);
            write_string(out, &capabilities, MAX_CAPABILITY_BYTES);
        }
    }
}

impl WireField for VerbsDevice {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, FieldError> {
        Ok(Self {
            hardware: Lenient.read(from, "verbs hardware flag")?,
            // The name is shown to people and never opened.
            name: FieldCodec::<Text>::read(&DEVICE_NAME, from, "verbs device name")?.to_string(),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.hardware.write(out);
        DEVICE_NAME.write(&self.name, out);
    }
}

const DEVICE_NAME: AtMost = AtMost(Offer::MAX_DEVICE_NAME_BYTES);

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
