//! Counters of an RDMA port: whether it carried anything, and whether a peer ever found no receive
//! posted.
//!
//! The device counts, not a library. Soft-RoCE and hardware use different names, and a device may
//! lack a counter, which is `None` then.

#![forbid(unsafe_code)]

use std::{fs, path::Path};

/// A reading of a port's counters, or the increase between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCounters {
    /// Sends and writes that the port executed.
    pub sends: Option<u64>,
    /// Number of times that this port told a peer that it had no receive for its message (RNR NAK).
    pub not_ready_told: Option<u64>,
    /// Number of times that a peer told this port so.
    pub not_ready_heard: Option<u64>,
}

impl PortCounters {
    /// Reads the counters from a port's folder `hw_counters`.
    pub(crate) fn read(folder: &Path) -> Self {
        let one = |names: &[&str]| {
            let mut found = names.iter().map(|name| folder.join(name));
            let text = found.find_map(|path| fs::read_to_string(path).ok())?;
            text.trim().parse().ok()
        };
        Self {
            sends: one(&["rdma_sends"]),
            not_ready_told: one(&["send_rnr_err", "out_of_buffer"]),
            not_ready_heard: one(&["rcvd_rnr_err", "rnr_nak_retry_err"]),
        }
    }

    /// Returns the increase from an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let rise = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            sends: rise(self.sends, earlier.sends),
            not_ready_told: rise(self.not_ready_told, earlier.not_ready_told),
            not_ready_heard: rise(self.not_ready_heard, earlier.not_ready_heard),
        }
    }

    /// Returns whether either end found no receive posted, as far as the port counts that.
    #[must_use]
    pub fn was_not_ready(&self) -> bool {
        let is_some = |count: Option<u64>| count.is_some_and(|count| count > 0);
        is_some(self.not_ready_told) || is_some(self.not_ready_heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a folder like the kernel's, with these files.
    fn reading(name: &str, files: &[(&str, &str)]) -> PortCounters {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("a file");
        }
        let counters = PortCounters::read(&folder);
        fs::remove_dir_all(&folder).expect("it is ours");
        counters
    }

    #[test]
    fn each_kind_of_device_is_read_by_its_own_names() {
        let soft = [
            ("rdma_sends", "7\n"),
            ("send_rnr_err", "1\n"),
            ("rcvd_rnr_err", "2\n"),
        ];
        let hard = [("out_of_buffer", "3\n"), ("rnr_nak_retry_err", "4\n")];
        let (soft, hard) = (reading("soft", &soft), reading("hard", &hard));
        assert_eq!(soft.sends, Some(7));
        assert_eq!(
            (soft.not_ready_told, soft.not_ready_heard),
            (Some(1), Some(2))
        );
        assert_eq!(hard.sends, None);
        assert_eq!(
            (hard.not_ready_told, hard.not_ready_heard),
            (Some(3), Some(4))
        );
    }

    #[test]
    fn only_a_rise_counts_and_an_absent_counter_is_no_rise() {
        let before = reading("before", &[("rdma_sends", "7"), ("send_rnr_err", "1")]);
        let after = reading("after", &[("rdma_sends", "9"), ("send_rnr_err", "1")]);
        let rise = after.since(before);
        assert_eq!((rise.sends, rise.not_ready_heard), (Some(2), None));
        assert!(after.was_not_ready() && !rise.was_not_ready());
    }
}
