//! The histograms of a node, by what they measure and by the name of its channel or service.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ibex_base::sync::lock;

use super::NodeState;
use crate::histogram::{Histogram, Recorder};

/// What a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Measured {
    /// Calls of this node's callers: from the beginning of the call, with its wait for a turn, to the
    /// reply, the error, or the drop of the call. A stream of replies is one call. Each try of a call
    /// that is tried again counts. A call that is dropped before its request was sent does not.
    Calls,
    /// Calls that this node's handlers got: from the arrival of the request at the service to the
    /// answer, or the drop of the request.
    Handling,
    /// Waits of `wait_acked` and its other forms that ended with the acknowledgement: of senders
    /// and log senders, and of groups for a quorum.
    AckWaits,
}

/// A histogram of a node, in a snapshot of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NodeHistogram {
    /// What the histogram measures.
    pub measured: Measured,
    /// The name of the service or channel. Beyond 64 names of a kind, `other` has the rest.
    pub name: String,
    /// Of calls that failed, the kind of their error, as `CallErrorKind` names it, or `Cancelled` if the
    /// caller dropped the call. `None` for those that succeeded.
    pub error: Option<String>,
    /// The durations.
    pub durations: Histogram,
}

/// The histograms of a node.
#[derive(Debug, Default)]
pub(crate) struct Histograms(Mutex<BTreeMap<Key, Arc<Recorder>>>);

/// What is measured, the name, and the kind of error.
type Key = (Measured, Arc<str>, Option<Box<str>>);

impl Histograms {
    fn of(&self, measured: Measured, name: &str, error: Option<&str>) -> Arc<Recorder> {
        let mut recorders = lock(&self.0);
        let key: Key = (measured, name.into(), error.map(Box::from));
        if let Some(recorder) = recorders.get(&key) {
            return recorder.clone();
        }
        let mut names: Vec<_> = recorders
            .keys()
            .filter(|(kind, ..)| *kind == measured)
            .map(|(_, name, _)| &**name)
            .collect();
        names.dedup();
        let key = match names.contains(&name) || names.len() < MOST_NAMES {
            true => key,
            false => (measured, OTHER.into(), key.2),
        };
        recorders.entry(key).or_default().clone()
    }
}

impl NodeState {
    /// Keeps histograms from now on. Callers, services and senders that were opened before are not
    /// measured.
    pub fn keep_histograms(&self) {
        let _kept = self.histograms.set(Histograms::default());
    }

    /// Returns the recorder of a service or channel, if the node keeps histograms.
    #[must_use]
    pub fn recorder(&self, measured: Measured, name: &str) -> Option<Arc<Recorder>> {
        let histograms = self.histograms.get()?;
        Some(histograms.of(measured, name, None))
    }

    /// Records a call to a service, or one that it handled, that failed by this kind of error.
    pub(super) fn record_failure(
        &self,
        (measured, name): (Measured, &str),
        error: &str,
        took: Duration,
    ) {
        if let Some(histograms) = self.histograms.get() {
            histograms.of(measured, name, Some(error)).record(took);
        }
    }

    /// Returns what was recorded so far.
    #[must_use]
    pub fn histograms(&self) -> Vec<NodeHistogram> {
        let Some(histograms) = self.histograms.get() else {
            return Vec::new();
        };
        let recorders = lock(&histograms.0).clone();
        let recorders = recorders.into_iter();
        let histograms = recorders.map(|((measured, name, error), recorder)| NodeHistogram {
            measured,
            name: name.as_ref().to_owned(),
            error: error.map(String::from),
            durations: recorder.snapshot(),
        });
        histograms.collect()
    }
}

/// A duration that is being measured. Dropping it records nothing.
#[derive(Debug)]
pub struct Stopwatch {
    recorder: Arc<Recorder>,
    since: Instant,
}

impl Stopwatch {
    /// Starts to measure, if there is a recorder.
    #[must_use]
    pub fn start(recorder: Option<&Arc<Recorder>>) -> Option<Self> {
        recorder.map(|recorder| Self {
            recorder: recorder.clone(),
            since: Instant::now(),
        })
    }

    /// Records the time since the start.
    pub fn record(&self) {
        self.recorder.record(self.since.elapsed());
    }
}

/// The names of a kind that have a histogram of their own.
const MOST_NAMES: usize = 64;
/// The name of the histogram of all other names.
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_share_a_histogram_for_each_kind_of_error() {
        let histograms = Histograms::default();
        let record = |measured, name: &str, error: Option<&str>| {
            histograms
                .of(measured, name, error)
                .record(Duration::from_micros(1));
        };
        for number in 0..2 * MOST_NAMES {
            let name = format!("service {number}");
            record(Measured::Calls, &name, None);
            record(Measured::Calls, &name, Some("Lost"));
        }
        record(Measured::Calls, "service 3", None);
        record(Measured::AckWaits, "service 99", None);
        let recorders = lock(&histograms.0);
        let count = |measured, name: &str, error: Option<&str>| {
            recorders[&(measured, name.into(), error.map(Box::from))]
                .snapshot()
                .count()
        };
        assert_eq!(count(Measured::Calls, "service 3", None), 2);
        assert_eq!(count(Measured::Calls, "service 3", Some("Lost")), 1);
        for error in [None, Some("Lost")] {
            assert_eq!(count(Measured::Calls, OTHER, error), MOST_NAMES as u64);
        }
        assert_eq!(count(Measured::AckWaits, "service 99", None), 1);
        assert_eq!(recorders.len(), 2 * (MOST_NAMES + 1) + 1);
    }
}
