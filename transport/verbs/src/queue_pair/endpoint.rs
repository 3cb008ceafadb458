//! Reading our end of a connection from its device, and checking it against the peer's.
#![forbid(unsafe_code)]

use crate::{Device, GidEntry, LinkLayer, LocalPort, PartitionKey, RemoteEndpoint, VerbsError};

impl LocalPort {
    /// Reads a port, which has to be active, and finds a GID again by its value.
    ///
    /// # Errors
    /// [`VerbsError`] if the port is not active, or no longer has that GID.
    pub fn with_gid(
        device: &Device,
        port: u8,
        wanted: impl Fn(&GidEntry) -> bool,
    ) -> Result<Self, VerbsError> {
        Self::in_partition(device, port, None, wanted)
    }

    /// Reads a port, which has to be active, and finds a GID and a partition again by their
    /// values; without a `key` it is the partition of the table's first key.
    ///
    /// # Errors
    /// The errors of [`with_gid`](Self::with_gid), and if the port is not in the partition.
    pub fn in_partition(
        device: &Device,
        port: u8,
        key: Option<PartitionKey>,
        wanted: impl Fn(&GidEntry) -> bool,
    ) -> Result<Self, VerbsError> {
        let attributes = device.query_active_port(port)?;
        let present = device.gids(port)?;
        let found = present
            .iter()
            .filter(|entry| wanted(entry))
            .filter_map(|entry| entry.preference().map(|rank| (rank, *entry)))
            .min_by_key(|(rank, entry)| (*rank, entry.index));
        match found {
            Some((_, gid)) => Ok(Self {
                number: port,
                attributes,
                gid,
                partition: device.partition(port, key)?,
            }),
            None => Err(VerbsError::NoUsableGid {
                device: device.name().to_owned(),
                port,
                netdev: None,
                present,
            }),
        }
    }
}

impl RemoteEndpoint {
    /// Checks that two ends can talk at all.
    ///
    /// # Errors
    /// [`VerbsError::DifferentGidTypes`], [`VerbsError::OtherSubnet`],
    /// [`VerbsError::DifferentPartitions`].
    pub fn check_against(&self, local: &LocalPort) -> Result<(), VerbsError> {
        if local.is_in_another_subnet(self) && self.gid.floating_lid().is_none() {
            return Err(VerbsError::OtherSubnet {
                ours: local.gid.gid,
                theirs: self.gid,
            });
        }
        if let (LinkLayer::InfiniBand, Some(ours), Some(theirs)) = (
            local.attributes.link_layer,
            local.partition.key,
            self.partition_key,
        ) && !ours.matches(theirs)
        {
            return Err(VerbsError::DifferentPartitions { ours, theirs });
        }
        let ours = local.gid.gid_type;
        // An InfiniBand port numbers its GIDs 0 like RoCE v1 does in older kernels, so on
        // InfiniBand the link layer decides.
        if local.attributes.link_layer == LinkLayer::InfiniBand || ours == self.gid_type {
            return Ok(());
        }
        Err(VerbsError::DifferentGidTypes {
            ours,
            theirs: self.gid_type,
        })
    }
}
