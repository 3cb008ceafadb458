//! The histograms of a node, by what they measure and by the name of its channel or service.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use ibex_base::sync::lock;

use super::NodeState;
use crate::histogram::{Histogram, Recorder};

/// What a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Measured {
    /// Calls of this node's callers whose request was sent: from the beginning of the call, with
    /// its wait for a turn, to the reply, the error, or the drop of the call. A stream of replies
    /// is one call. Each try of a call that is tried again counts.
    Calls,
    /// Calls that this node's handlers answered: from the arrival of the request at the service to
    /// the answer, or the drop of the request.
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
    /// The durations.
    pub durations: Histogram,
}

/// The histograms of a node.
#[derive(Debug, Default)]
pub(crate) struct Histograms(Mutex<BTreeMap<Key, Arc<Recorder>>>);

type Key = (Measured, Arc<str>);

impl Histograms {
    fn of(&self, measured: Measured, name: &str) -> Arc<Recorder> {
        let mut recorders = lock(&self.0);
        let key: Key = (measured, name.into());
        if let Some(recorder) = recorders.get(&key) {
            return recorder.clone();
        }
        let names = recorders.keys().filter(|(kind, _)| *kind == measured);
        let key = match names.count() < MOST_NAMES {
            true => key,
            false => (measured, OTHER.into()),
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
        Some(histograms.of(measured, name))
    }

    /// Returns what was recorded so far.
    #[must_use]
    pub fn histograms(&self) -> Vec<NodeHistogram> {
        let Some(histograms) = self.histograms.get() else {
            return Vec::new();
        };
        let recorders = lock(&histograms.0).clone();
        let recorders = recorders.into_iter();
        let histograms = recorders.map(|((measured, name), recorder)| NodeHistogram {
            measured,
            name: name.as_ref().to_owned(),
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_beyond_the_limit_share_a_histogram() {
        let histograms = Histograms::default();
        for number in 0..2 * MOST_NAMES {
            let recorder = histograms.of(Measured::Calls, &format!("service {number}"));
            recorder.record(Duration::from_micros(1));
        }
        let again = histograms.of(Measured::Calls, "service 3");
        again.record(Duration::from_micros(1));
        let waits = histograms.of(Measured::AckWaits, "service 99");
        waits.record(Duration::from_micros(1));
        let recorders = lock(&histograms.0);
        let count = |name: &str, kind| recorders[&(kind, name.into())].snapshot().count();
        assert_eq!(count("service 3", Measured::Calls), 2);
        assert_eq!(count(OTHER, Measured::Calls), MOST_NAMES as u64);
        assert_eq!(count("service 99", Measured::AckWaits), 1);
        assert_eq!(recorders.len(), MOST_NAMES + 2);
    }
}
