//! The fabrics that a session asks its peer for after its wire broke.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::Fabric;

/// The fabrics over which this end lets a session continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverPolicy {
    /// A single fabric: the one that the session began over, or the only one that it may get.
    Only(Fabric),
    /// Another queue pair for the time `after` from the break on, then the connection for good.
    VerbsThenTcp {
        /// The time for which the session asks for a queue pair.
        after: Duration,
    },
}

impl FailoverPolicy {
    /// Returns the fabric to ask for, at the time `broken_for` after the break of the wire that the
    /// session `was_over`.
    pub(crate) fn wanted(self, broken_for: Duration, was_over: Fabric) -> Fabric {
        match (self, was_over) {
            (FailoverPolicy::Only(fabric), _) => fabric,
            (FailoverPolicy::VerbsThenTcp { after }, Fabric::Verbs) if broken_for < after => {
                Fabric::Verbs
            }
            (FailoverPolicy::VerbsThenTcp { .. }, _) => Fabric::Tcp,
        }
    }

    /// Returns `pause`, shortened so that it ends when the session asks for another fabric.
    pub(crate) fn shorten(self, pause: Duration, broken_for: Duration) -> Duration {
        match self {
            FailoverPolicy::VerbsThenTcp { after } if broken_for < after => {
                pause.min(after - broken_for)
            }
            _ => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn verbs_is_asked_for_until_it_is_time_for_tcp() {
        let ways = |after| FailoverPolicy::VerbsThenTcp { after };
        let nearly = SECOND - Duration::from_nanos(1);
        for (broken_for, wanted) in [
            (Duration::ZERO, Fabric::Verbs),
            (nearly, Fabric::Verbs),
            (SECOND, Fabric::Tcp),
            (Duration::MAX, Fabric::Tcp),
        ] {
            let wants = |was_over| ways(SECOND).wanted(broken_for, was_over);
            assert_eq!(wants(Fabric::Verbs), wanted);
            assert_eq!(wants(Fabric::Tcp), Fabric::Tcp);
        }
        let at_once = ways(Duration::ZERO).wanted(Duration::ZERO, Fabric::Verbs);
        assert_eq!(at_once, Fabric::Tcp);
        for fabric in [Fabric::Shm, Fabric::Tcp, Fabric::Verbs] {
            let only = FailoverPolicy::Only(fabric);
            assert_eq!(only.wanted(Duration::ZERO, fabric), fabric);
            assert_eq!(only.wanted(Duration::MAX, fabric), fabric);
        }
    }

    #[test]
    fn no_pause_is_longer_than_until_then() {
        let ways = FailoverPolicy::VerbsThenTcp { after: SECOND };
        assert_eq!(ways.shorten(SECOND / 4, SECOND / 2), SECOND / 4);
        assert_eq!(ways.shorten(SECOND, SECOND / 2), SECOND / 2);
        assert_eq!(ways.shorten(SECOND, SECOND), SECOND);
        let only = FailoverPolicy::Only(Fabric::Verbs);
        assert_eq!(only.shorten(SECOND, Duration::ZERO), SECOND);
    }
}
