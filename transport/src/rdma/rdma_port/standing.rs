//! The identifiers that the network has given to a port, and what a change of them means.

use std::{fmt, mem};

use ibex_base::sync::lock;
use ibex_verbs::{Device, GidEntry, Partition, PartitionKey, PortState, VerbsError};

use super::RdmaPort;

/// The identifiers that the network has given to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The LID; 0 on RoCE.
    pub(super) lid: u16,
    /// The queue pairs' partition and the index of its key; `None` if the port is no longer in it.
    pub(super) partition: Option<Partition>,
}

/// The state of a port, compared with what its sessions rely on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortStanding {
    /// The port has not changed.
    AsBefore,
    /// The port has a fault that sessions may or may not survive.
    Doubtful(String),
    /// The port's identifiers have changed, so earlier sessions are cut off.
    Moved(String),
}

impl Standing {
    pub(super) fn of(
        device: &Device,
        port: u8,
        key: Option<PartitionKey>,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            lid: device.query_port(port)?.lid,
            partition: device.partition(port, key).ok(),
        })
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {}, partition ", self.lid)?;
        match self.partition {
            Some(partition) => write!(f, "{partition}"),
            None => f.write_str("none"),
        }
    }
}

impl RdmaPort {
    /// Compares the port, which may have changed, with what its sessions rely on.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    pub(crate) fn check_port(&self) -> Result<PortStanding, VerbsError> {
        let device = self.opened()?.device;
        let now = Standing::of(&device, self.port, self.partition_key)?;
        let mut standing = lock(&self.standing);
        let before = mem::replace(&mut *standing, now);
        if before != now {
            let why = format!("its {before} became {now}");
            return Ok(PortStanding::Moved(self.of_port(&why)));
        }
        let state = device.query_port(self.port)?.state;
        if state != PortState::Active {
            return Ok(PortStanding::Doubtful(
                self.of_port(&format!("it is {state}")),
            ));
        }
        let ours =
            |entry: &GidEntry| (entry.gid, entry.gid_type) == (self.gid.gid, self.gid.gid_type);
        // The GID may have another index now.
        if !device.gids(self.port)?.iter().any(ours) {
            let why = format!("its GID {} is gone", self.gid.gid);
            return Ok(PortStanding::Doubtful(self.of_port(&why)));
        }
        Ok(PortStanding::AsBefore)
    }
}
