//! Reports what a fork means for registered memory, by the kernel, libibverbs and the
//! environment. ibex reads this state and never changes it: calling `ibv_fork_init` is up to
//! the program or another library.
#![forbid(unsafe_code)]

use std::{env, fmt, sync::Arc};

use crate::{ForkStatus, provider::Provider};

/// A report for programs that fork. Its `Display` is one line.
///
/// ibex itself keeps the memory that it registers from children; the status is about the
/// queues, which libibverbs registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkReport {
    /// The answer of `ibv_is_fork_initialized` about this process.
    pub status: ForkStatus,
    /// `RDMAV_FORK_SAFE` or `IBV_FORK_SAFE` is set: libibverbs calls `ibv_fork_init` itself.
    pub fork_safe: bool,
    /// `RDMAV_HUGEPAGES_SAFE` is set: libibverbs then asks for the size of pages. ibex does not
    /// need it, since it has no memory of hugetlbfs.
    pub huge_pages_safe: bool,
}

impl ForkReport {
    /// Reads the state of this process.
    #[must_use]
    pub fn now(provider: &Arc<dyn Provider>) -> Self {
        Self::of(provider, |name| env::var_os(name).is_some())
    }

    /// Logs the consequence of a fork for a device that was opened: a warning if a fork is not
    /// [safe](ForkStatus::is_safe).
    pub fn log(&self, device: &str) {
        const WHAT: &str = "a fork of this process beside an RDMA device";
        match self.status.is_safe() {
            true => tracing::info!(device, fork = %self, "{WHAT}"),
            false => ibex_base::warn_limited!(device, device, fork = %self, "{WHAT}"),
        }
    }

    pub(crate) fn of(provider: &Arc<dyn Provider>, is_set: impl Fn(&str) -> bool) -> Self {
        Self {
            status: provider.fork_status(),
            fork_safe: is_set("RDMAV_FORK_SAFE") || is_set("IBV_FORK_SAFE"),
            huge_pages_safe: is_set("RDMAV_HUGEPAGES_SAFE"),
        }
    }
}

impl fmt::Display for ForkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |is_set| if is_set { "is set" } else { "is not set" };
        write!(
            f,
            "{}; RDMAV_FORK_SAFE {}, RDMAV_HUGEPAGES_SAFE {}",
            self.status,
            said(self.fork_safe),
            said(self.huge_pages_safe)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ibex_harness::events::Each;
    use tracing::{Event, Level, subscriber};

    use super::*;
    use crate::provider::fake::{FakeDevice, FakeProvider};

    #[test]
    fn a_fork_that_is_not_known_to_be_safe_is_a_warning() {
        let levels = Arc::<Mutex<Vec<Level>>>::default();
        let kept = levels.clone();
        let log =
            Each(move |event: &Event<'_>| kept.lock().unwrap().push(*event.metadata().level()));
        subscriber::with_default(log, || {
            for raw in 0..4 {
                let status = ForkStatus::from_raw(raw);
                let report = ForkReport {
                    status,
                    fork_safe: false,
                    huge_pages_safe: false,
                };
                report.log("mlx5_0");
            }
        });
        // The levels for: disabled, enabled, unneeded, unknown.
        let expected = [Level::WARN, Level::INFO, Level::INFO, Level::WARN];
        assert_eq!(*levels.lock().unwrap(), expected);
    }

    #[test]
    fn the_variables_and_the_status_are_one_line() {
        let provider = FakeProvider::new(Vec::<FakeDevice>::new()).provider();
        let report = ForkReport::of(&provider, |name| name == "IBV_FORK_SAFE");
        assert_eq!(
            report.to_string(),
            "safe, by the kernel (IBV_FORK_UNNEEDED); RDMAV_FORK_SAFE is set, \
             RDMAV_HUGEPAGES_SAFE is not set"
        );
        let report = ForkReport {
            status: ForkStatus::from_raw(0),
            ..ForkReport::of(&provider, |name| name == "RDMAV_HUGEPAGES_SAFE")
        };
        assert_eq!(
            report.to_string(),
            "not safe for the queues of libibverbs (IBV_FORK_DISABLED): set RDMAV_FORK_SAFE=1 if \
             the program forks, also where the child calls exec at once; posix_spawn and vfork \
             are safe; RDMAV_FORK_SAFE is not set, RDMAV_HUGEPAGES_SAFE is set"
        );
        assert_eq!(ForkStatus::from_raw(9), ForkStatus::Unknown(9));
    }
}
