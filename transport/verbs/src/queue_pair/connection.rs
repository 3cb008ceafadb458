//! The connection of a queue pair: its settings with their reasons, and what the two ends tell
//! each other.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::{
    AddressVector, DeviceAttributes, FirstSequence, GlobalRoute, LocalPort, Mtu, QueuePairState,
    ReadLimits, RemoteEndpoint, VerbsError, abi::queue_pair_attributes::QueuePairAttributes,
};

/// The settings of a reliable connection.
///
/// See [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
///
/// With the defaults, the loss of a peer is noticed after 7 × 67 ms ≈ 0.5 s at the earliest;
/// devices may wait up to four times their time-out, so after 2 s at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    path_mtu: Option<Mtu>,
    timeout_code: u8,
    retry_count: u8,
    rnr_retry: u8,
    rnr_timer_code: u8,
    service_level: u8,
    traffic_class: u8,
    reads: ReadLimits,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            path_mtu: None,
            // The time-out is 4.096 µs << 14 = 67 ms.
            timeout_code: 14,
            retry_count: 6,
            rnr_retry: 7,
            // The time is 1.28 ms.
            rnr_timer_code: 14,
            service_level: 0,
            traffic_class: 0,
            // The least that devices agree on. It limits neither sends nor writes.
            reads: ReadLimits {
                depth: 1,
                resources: 1,
            },
        }
    }
}

impl ConnectionSettings {
    setters! {
        /// Sets the payload per packet. Default: the smaller of what the two ports carry now.
        /// Connecting fails if it is larger than a port carries.
        pub fn path_mtu(mtu: Mtu): path_mtu = Some(mtu);
        /// Sets the traffic class of the global route. Default: 0. On RoCE v2 its upper six bits are
        /// the DSCP, by which switches tell lossless traffic.
        pub fn traffic_class(class: u8): traffic_class = class;
        /// Sets the number of reads and atomics that this end has outstanding; more wait in the send
        /// queue. Default: 1. With 0 the connection carries none of this end. At most what the device
        /// has (`max_initiator_depth`) and the peer serves are used.
        pub fn read_depth(reads: u8): reads.depth = reads;
        /// Sets the number of the peer's reads and atomics that this end serves at a time. Default: 1.
        /// Each takes memory of the device. With 0 the connection carries none of the peer. At most what
        /// the device has (`max_responder_resources`) and the peer does are used.
        pub fn read_resources(reads: u8): reads.resources = reads;
    }

    /// Sets the time for an acknowledgement, after which a packet is sent again. Default: 67 ms.
    /// Rounded up to 4.096 µs times a power of two, at most 8796 s. A shorter time notices a lost
    /// packet earlier, but takes a busy peer for a lost one. Each loss costs one time-out, since
    /// RoCE goes back to the lost packet.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] for zero, which would mean for ever, and beyond the range.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, VerbsError> {
        let is_long_enough = |code: &u8| !timeout.is_zero() && timeout_of(*code) >= timeout;
        self.timeout_code = (1..=31).find(is_long_enough).ok_or_else(|| {
            let allowed = "more than 0 and at most 8796 s";
            VerbsError::setting("timeout", format!("{timeout:?}"), allowed)
        })?;
        Ok(self)
    }

    /// Sets the number of times that a packet is sent again before the connection is given up.
    /// Default and most: 6. The field has room for 7, which soft-RoCE takes for "for ever", so
    /// that a dead peer would never be noticed.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] above 6.
    pub fn retry_count(mut self, tries: u8) -> Result<Self, VerbsError> {
        self.retry_count = checked("retry_count", tries, 6, "0 to 6")?;
        Ok(self)
    }

    /// Sets the number of times that a message is sent again to a peer without a receive. Default:
    /// 7, which means for ever. Credits prevent such sends; if they fail, a late message is better
    /// than a dead connection.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] above 7.
    pub fn rnr_retry(mut self, tries: u8) -> Result<Self, VerbsError> {
        self.rnr_retry = checked("rnr_retry", tries, 7, "0 to 7, where 7 is for ever")?;
        Ok(self)
    }

    /// Sets the time that a peer waits before it tries again when we have no receive. Default: 1.28
    /// ms. Rounded up to one of 32 steps from 10 µs to 655 ms. The time only matters if credits
    /// have failed. A shorter time burdens the link with messages that cannot be received.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] beyond 655.36 ms.
    pub fn min_rnr_timer(mut self, timer: Duration) -> Result<Self, VerbsError> {
        let codes = (0..32).filter(|code| rnr_timer_of(*code) >= timer);
        let code = codes.min_by_key(|code| rnr_timer_of(*code));
        self.rnr_timer_code = code.ok_or_else(|| {
            VerbsError::setting("min_rnr_timer", format!("{timer:?}"), "0 to 655.36 ms")
        })?;
        Ok(self)
    }

    /// Sets the service level. Default: 0. On InfiniBand it chooses the virtual lane, on RoCE the
    /// priority within the VLAN.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] above 15.
    pub fn service_level(mut self, level: u8) -> Result<Self, VerbsError> {
        self.service_level = checked("service_level", level, 15, "0 to 15")?;
        Ok(self)
    }

    /// Returns the numbers of reads and atomics that the device allows of those that are set.
    pub(crate) fn read_limits(&self, device: &DeviceAttributes) -> ReadLimits {
        ReadLimits {
            depth: at_most(self.reads.depth, device.max_initiator_depth),
            resources: at_most(self.reads.resources, device.max_responder_resources),
        }
    }

    /// Returns the exact time-out that the device uses.
    #[must_use]
    pub fn actual_timeout(&self) -> Duration {
        timeout_of(self.timeout_code)
    }

    /// Returns the exact RNR timer that the device uses.
    #[must_use]
    pub fn actual_rnr_timer(&self) -> Duration {
        rnr_timer_of(self.rnr_timer_code)
    }

    /// Returns the path MTU between two ports that carry these MTUs now.
    pub(crate) fn mtu_between(&self, ours: Mtu, theirs: Mtu) -> Result<Mtu, VerbsError> {
        let most = ours.min(theirs);
        match self.path_mtu {
            Some(mtu) if mtu > most => Err(VerbsError::setting(
                "path_mtu",
                format!("{mtu} (our port carries {ours}, the peer's {theirs})"),
                "at most what both ports carry now",
            )),
            Some(mtu) => Ok(mtu),
            None => Ok(most),
        }
    }

    /// Returns the way from a port of this end to the peer.
    pub(crate) fn address(&self, local: &LocalPort, remote: &RemoteEndpoint) -> AddressVector {
        let route = local.needs_global_route(remote).then_some(GlobalRoute {
            destination: remote.gid,
            // Entries beyond 8 bits are never chosen (`GidEntry::preference`).
            source_index: local.gid.index as u8,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
            flow_label: 0,
        });
        AddressVector {
            lid: remote.lid_from(local),
            route,
            service_level: self.service_level,
            path_bits: 0,
            port: local.number,
        }
    }

    pub(crate) fn to_receive(
        self,
        local: &LocalPort,
        remote: &RemoteEndpoint,
        mtu: Mtu,
        resources: u8,
    ) -> QueuePairAttributes {
        QueuePairAttributes {
            address: self.address(local, remote),
            path_mtu: mtu,
            destination: remote.queue_pair,
            receive_sequence: remote.first_sequence.get(),
            responder_resources: resources,
            min_rnr_timer: self.rnr_timer_code,
            ..QueuePairAttributes::to(QueuePairState::ReadyToReceive)
        }
    }

    pub(crate) fn to_send(self, first: FirstSequence, depth: u8) -> QueuePairAttributes {
        QueuePairAttributes {
            send_sequence: first.get(),
            timeout: self.timeout_code,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            initiator_depth: depth,
            ..QueuePairAttributes::to(QueuePairState::ReadyToSend)
        }
    }
}

/// Routers that a packet may pass, as for IP. On RoCE the kernel puts the route's own limit in its
/// place (`ib_resolve_unicast_gid_dmac`,
/// [drivers/infiniband/core/verbs.c](https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/verbs.c)).
const HOP_LIMIT: u8 = 64;

fn checked(setting: &'static str, given: u8, most: u8, allowed: &str) -> Result<u8, VerbsError> {
    match given <= most {
        true => Ok(given),
        false => Err(VerbsError::setting(setting, given, allowed)),
    }
}

fn at_most(wanted: u8, most: u32) -> u8 {
    wanted.min(u8::try_from(most).unwrap_or(u8::MAX))
}

/// Returns the time-out of a code: 4.096 µs times a power of two ([InfiniBand Architecture
/// Specification](https://www.infinibandta.org/ibta-specification/), volume 1, section 9.7.6.1.3).
fn timeout_of(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

/// Returns the RNR timer of a code, in steps of 10 µs ([InfiniBand Architecture
/// Specification](https://www.infinibandta.org/ibta-specification/), volume 1, table 45). Code 0
/// is the longest and not the shortest, which is why it is always set.
fn rnr_timer_of(code: u8) -> Duration {
    const STEPS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * STEPS[usize::from(code)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_what_their_documentation_says() {
        let settings = ConnectionSettings::default();
        assert_eq!(settings.actual_timeout(), Duration::from_nanos(67_108_864));
        assert_eq!(settings.actual_rnr_timer(), Duration::from_micros(1280));
        assert_eq!((settings.retry_count, settings.rnr_retry), (6, 7));
    }

    #[test]
    fn times_are_rounded_up_to_what_a_device_can_say() {
        let settings = ConnectionSettings::default();
        let millis = Duration::from_millis;
        for wanted in [1, 5, 50, 500, 5000].map(millis) {
            let actual = settings.timeout(wanted).unwrap().actual_timeout();
            assert!(wanted <= actual && actual < 2 * wanted, "{actual:?}");
        }
        for wanted in [1, 5, 50, 500].map(millis) {
            let actual = settings.min_rnr_timer(wanted).unwrap().actual_rnr_timer();
            assert!(wanted <= actual && actual < 2 * wanted, "{actual:?}");
        }
        // The code must not be 0, which is the longest time.
        let shortest = settings.min_rnr_timer(Duration::ZERO).unwrap();
        assert_eq!(shortest.actual_rnr_timer(), Duration::from_micros(10));
    }

    #[test]
    fn each_setting_is_checked_when_it_is_set() {
        let settings = ConnectionSettings::default();
        let refused = [
            settings.timeout(Duration::ZERO).unwrap_err(),
            settings.timeout(Duration::from_secs(9000)).unwrap_err(),
            settings.retry_count(7).unwrap_err(),
            settings.rnr_retry(8).unwrap_err(),
            settings.min_rnr_timer(Duration::from_secs(1)).unwrap_err(),
            settings.service_level(16).unwrap_err(),
        ];
        let texts: Vec<_> = refused.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "timeout is 0ns, and can be more than 0 and at most 8796 s",
                "timeout is 9000s, and can be more than 0 and at most 8796 s",
                "retry_count is 7, and can be 0 to 6",
                "rnr_retry is 8, and can be 0 to 7, where 7 is for ever",
                "min_rnr_timer is 1s, and can be 0 to 655.36 ms",
                "service_level is 16, and can be 0 to 15",
            ]
        );
        assert!(settings.retry_count(6).is_ok());
        assert!(settings.rnr_retry(7).is_ok());
        assert!(settings.service_level(15).is_ok());
    }

    #[test]
    fn the_path_takes_the_smaller_mtu_and_no_larger_one() {
        let settings = ConnectionSettings::default();
        let (small, large) = (Mtu::Bytes1024, Mtu::Bytes4096);
        assert_eq!(settings.mtu_between(large, small).unwrap(), small);
        let fixed = settings.path_mtu(Mtu::Bytes512);
        assert_eq!(fixed.mtu_between(large, small).unwrap(), Mtu::Bytes512);
        let refused = settings.path_mtu(large).mtu_between(large, small);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "path_mtu is 4096 (our port carries 4096, the peer's 1024), and can be at most what \
             both ports carry now"
        );
    }

    #[test]
    fn a_sequence_number_has_24_bits() {
        assert_eq!(FirstSequence::from_random(u32::MAX).get(), 0x00ff_ffff);
    }
}
