//! Looking at a connected queue pair, and changing it.
//!
//! | change | from | to | verb |
//! |---|---|---|---|
//! | [`pause_sends`](QueuePair::pause_sends) | RTS | SQD | `IBV_QPS_SQD` |
//! | [`resume_sends`](QueuePair::resume_sends) | SQD | RTS | `IBV_QPS_RTS` |
//! | [`set_alternate_path`](QueuePair::set_alternate_path) | RTS or SQD | the same | `IBV_QP_ALT_PATH`, `IBV_MIG_REARM` |
//! | [`migrate`](QueuePair::migrate) | RTS or SQD | the same | `IBV_MIG_MIGRATED` |
//! | [`recover_sends`](crate::DatagramQueuePair::recover_sends), unreliable kinds | SQE | RTS | `IBV_QPS_RTS` |
//! | [`fail`](QueuePair::fail) | any | ERR | `IBV_QPS_ERR` |
//!
//! All are calls of
//! [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html). The state SQE is
//! of unreliable queue pairs alone: a reliable one whose send fails is in ERR.
#![forbid(unsafe_code)]

use super::{QueuePair, connection::ConnectionSettings};
use crate::{
    Device,
    abi::{
        attribute_mask::AttributeMask,
        queue_pair_attributes::{AlternatePath, MigrationState, QueuePairAttributes},
        queue_pair_state::QueuePairState,
    },
    error::VerbsError,
    queue_pair::endpoint::{LocalPort, RemoteEndpoint},
};

impl QueuePair {
    /// Lets the send queue begin no more requests; those that were begun are finished. Requests can
    /// be posted and wait. With `tell`, the event `SendQueueDrained` comes when they are finished.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) if the queue pair is not in RTS, or the device refuses.
    pub fn pause_sends(&mut self, tell: bool) -> Result<(), VerbsError> {
        let attributes = QueuePairAttributes {
            drain_event: tell,
            ..QueuePairAttributes::to(QueuePairState::SendQueueDrained)
        };
        let mask = match tell {
            true => AttributeMask::DRAIN_EVENT,
            false => AttributeMask::default(),
        };
        self.modify(&attributes, mask)
    }

    /// Lets the send queue go on after [`pause_sends`](Self::pause_sends). Soft-RoCE goes on when the
    /// next request is posted.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) if the queue pair is not in SQD, or the device refuses,
    /// as it may while requests are not finished
    /// ([`QueriedPair::is_draining`](crate::QueriedPair::is_draining)).
    pub fn resume_sends(&mut self) -> Result<(), VerbsError> {
        let attributes = QueuePairAttributes::to(QueuePairState::ReadyToSend);
        self.modify(&attributes, AttributeMask::default())
    }

    /// Goes on after a failed send, by which the device has brought the queue pair to SQE.
    #[cfg(feature = "all")]
    pub(super) fn recover_sends(&mut self) -> Result<(), VerbsError> {
        let before = self.state;
        self.state = QueuePairState::SendQueueError;
        let recovered = self.resume_sends();
        if recovered.is_err() {
            self.state = before;
        }
        recovered
    }

    /// Gives the connection another way to the same peer, by any two ports of the two devices. When
    /// both ends have set theirs, the device moves to it by itself when the first way fails, and
    /// raises the event `PathMigrated`. InfiniBand only, and only devices with
    /// `IBV_DEVICE_AUTO_PATH_MIG` among their capabilities.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no migration, [`VerbsError`] if the ends do not
    /// fit, and [`ConnectError`](crate::ConnectError) if the device refuses.
    pub fn set_alternate_path(
        &mut self,
        local: &LocalPort,
        remote: &RemoteEndpoint,
        settings: &ConnectionSettings,
    ) -> Result<(), VerbsError> {
        let context = &self.inner.domain.context;
        if context.attributes().capabilities & AUTO_PATH_MIG == 0 {
            return Err(context.lacks(
                "ibv_modify_qp",
                rustix::io::Errno::OPNOTSUPP,
                "automatic path migration (IBV_DEVICE_AUTO_PATH_MIG)",
                "connect another queue pair by the other port",
            ));
        }
        remote.check_against(local)?;
        Device::of(context).check_pkey_index(local.number, local.partition.index)?;
        let attributes = QueuePairAttributes {
            alternate: AlternatePath {
                address: settings.address(local, remote),
                pkey_index: local.partition.index,
                timeout: settings.timeout_code(),
            },
            migration: MigrationState::Rearm,
            ..QueuePairAttributes::to(self.state)
        };
        let mask = AttributeMask::ALTERNATE_PATH | AttributeMask::MIGRATION;
        self.modify(&attributes, mask)
    }

    /// Moves the connection to its alternate path now.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) if the device refuses, as it does before both ends have
    /// set the path.
    pub fn migrate(&mut self) -> Result<(), VerbsError> {
        let attributes = QueuePairAttributes {
            migration: MigrationState::Migrated,
            ..QueuePairAttributes::to(self.state)
        };
        self.modify(&attributes, AttributeMask::MIGRATION)
    }
}

/// `IBV_DEVICE_AUTO_PATH_MIG`.
const AUTO_PATH_MIG: u32 = 1 << 4;
