//! The names that libibverbs has for statuses, events and states
//! ([libibverbs/enum_strs.c](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/enum_strs.c)),
//! for programs whose output is compared with that of rdma-core's. `Display` says more. Node types are
//! displayed by these names.
#![forbid(unsafe_code)]

use crate::{AsyncEvent, CompletionStatus, PortEvent, PortState, QueuePairEvent};

impl CompletionStatus {
    /// Returns the name that `ibv_wc_status_str` has for it.
    #[must_use]
    pub fn library_name(self) -> &'static str {
        match self {
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local QP operation error",
            Self::LocalEeContext => "local EE context operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "Work Request Flushed Error",
            Self::MemoryWindowBind => "memory management operation error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::ReceiverNotReady => "RNR retry counter exceeded",
            Self::LocalRddViolation => "local RDD violation error",
            Self::RemoteInvalidReadRequest => "remote invalid RD request",
            Self::RemoteAborted => "aborted error",
            Self::InvalidEeContextNumber => "invalid EE context number",
            Self::InvalidEeContextState => "invalid EE context state",
            Self::Fatal => "fatal error",
            Self::ResponseTimeout => "response timeout error",
            Self::General => "general error",
            Self::TagMatching => "TM error",
            Self::TagMatchingRendezvous => "TM software rendezvous",
            Self::Unknown(0) => "success",
            Self::Unknown(_) => UNKNOWN,
        }
    }
}

impl AsyncEvent {
    /// Returns the name that `ibv_event_type_str` has for it.
    ///
    /// See [`ibv_event_type_str(3)`](https://man7.org/linux/man-pages/man3/ibv_event_type_str.3.html).
    #[must_use]
    pub fn library_name(self) -> &'static str {
        match self {
            Self::QueuePair(_, event) => match event {
                QueuePairEvent::Fatal => "local work queue catastrophic error",
                QueuePairEvent::InvalidRequest => "invalid request local work queue error",
                QueuePairEvent::AccessViolation => "local access violation work queue error",
                QueuePairEvent::Established => "communication established",
                QueuePairEvent::SendQueueDrained => "send queue drained",
                QueuePairEvent::LastRequestReached => "last WQE reached",
                QueuePairEvent::PathMigrated => "path migrated",
                QueuePairEvent::PathMigrationFailed => "path migration request error",
            },
            Self::Port(_, event) => match event {
                PortEvent::Active => "port active",
                PortEvent::Error => "port error",
                PortEvent::GidChange => "GID table change",
                PortEvent::LidChange => "LID change",
                PortEvent::PkeyChange => "P_Key change",
                PortEvent::SubnetManagerChange => "SM change",
                PortEvent::ReregisterWanted => "client reregistration",
                PortEvent::SpeedChange => "Device link speed change",
            },
            Self::CompletionQueueError(_) => "CQ error",
            Self::ReceiveQueueError(_) => "SRQ catastrophic error",
            Self::ReceiveQueueLimit(_) => "SRQ limit reached",
            Self::DeviceFatal => "local catastrophic error",
            Self::WorkQueueFatal => "WQ fatal",
            Self::Unknown(_) => UNKNOWN,
        }
    }
}

impl PortState {
    /// Returns the name that `ibv_port_state_str` has for it.
    ///
    /// See [`ibv_event_type_str(3)`](https://man7.org/linux/man-pages/man3/ibv_event_type_str.3.html).
    #[must_use]
    pub fn library_name(self) -> &'static str {
        match self {
            Self::Nop => "no state change (NOP)",
            Self::Down => "down",
            Self::Initializing => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDeferred => "active defer",
            Self::Unknown(_) => UNKNOWN,
        }
    }
}

const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn wc_status_str_event_type_str_and_port_state_str_have_a_name_for_each() {
        let statuses = (0..24).map(|raw| CompletionStatus::from_raw(raw).library_name());
        let statuses: BTreeSet<_> = statuses.collect();
        assert_eq!(statuses.len(), 24);
        assert!(!statuses.contains(UNKNOWN));
        assert_eq!(CompletionStatus::from_raw(24).library_name(), UNKNOWN);
        assert_eq!(PortState::from_raw(4).library_name(), "active");
        assert_eq!(PortState::from_raw(6).library_name(), UNKNOWN);
        let event = AsyncEvent::Port(1, PortEvent::GidChange);
        assert_eq!(event.library_name(), "GID table change");
    }
}
