//! The nodes that are watched, and the reading of them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ibex::{Node, WeakNode};

use crate::{
    collected::{Family, Labels, Value},
    ledger::{Ledger, Names},
    table::{Read, TABLE},
};

/// The metrics of one or more nodes, of which the exporters are made.
///
/// It keeps no node alive: a node that is gone has no samples any more. Clones share everything.
///
/// Every counter only rises, whatever sessions and channels end, and the sum over its labels is
/// exact. What a session or channel counted between the last reading and its end, and what is
/// beyond the [limit](Self::limit) of label values, is under `other`.
///
/// ```
/// use ibex::Node;
/// use ibex_metrics::{Metrics, Value};
///
/// # fn main() -> Result<(), ibex::ListenError> {
/// let node = Node::client()?;
/// let metrics = Metrics::new().watch(&node);
/// for family in metrics.read() {
///     for (labels, value) in &family.samples {
///         println!("{} {labels:?} {value:?}", family.metric.name);
///         assert!(matches!(value, Value::Number(_)), "no histograms are kept");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<State>>);

pub(crate) struct State {
    nodes: Vec<(WeakNode, Ledger)>,
    names: Names,
    #[cfg(feature = "metrics")]
    pub(crate) published: crate::deltas::Deltas,
}

impl Metrics {
    /// Creates metrics of no node.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "of no use without a node")]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            nodes: Vec::new(),
            names: Names::default(),
            #[cfg(feature = "metrics")]
            published: crate::deltas::Deltas::default(),
        })))
    }

    /// Adds a node. Its samples have a label `node` if [it was given a
    /// name](ibex::NodeBuilder::name); the numbers of nodes without a name are added up.
    #[must_use]
    pub fn watch(self, node: &Node) -> Self {
        let entry = (node.downgrade(), Ledger::default());
        self.state().nodes.push(entry);
        self
    }

    /// Labels what belongs to a session with its peer: the name that the peer gives itself, or its
    /// address without the port. Default: no such label, because every value of it makes new time
    /// series of all these metrics.
    #[must_use]
    pub fn with_peers(self) -> Self {
        self.state().names.has_peers = true;
        self
    }

    /// Sets how many pairs of channel and peer have labels of their own, over the life of the
    /// program. Default: 256. The pairs that come later share the value `other`, so a peer that
    /// invents names makes no more time series than that.
    #[must_use]
    pub fn limit(self, pairs: usize) -> Self {
        self.state().names.limit = pairs;
        self
    }

    /// Reads all nodes now: each takes some 100 ns for each of its channels. Metrics without any
    /// sample are left out.
    #[must_use]
    pub fn read(&self) -> Vec<Family> {
        self.state().read()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn read(&mut self) -> Vec<Family> {
        let mut samples: Vec<BTreeMap<Labels, Value>> = vec![BTreeMap::new(); TABLE.len()];
        for (node, ledger) in &mut self.nodes {
            let Some(node) = node.upgrade() else {
                continue;
            };
            let stats = node.stats();
            for (metric, labels, value) in ledger.read(&stats, &mut self.names) {
                add(&mut samples[metric], labels, value, &TABLE[metric].read);
            }
        }
        let families = TABLE.iter().zip(samples);
        families
            .filter(|(_, samples)| !samples.is_empty())
            .map(|(metric, samples)| Family {
                metric,
                samples: samples.into_iter().collect(),
            })
            .collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.state().nodes.len();
        f.debug_struct("Metrics")
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}

/// Adds a sample to those with the same labels, of nodes without a name.
fn add(samples: &mut BTreeMap<Labels, Value>, labels: Labels, value: Value, read: &Read) {
    match (samples.get_mut(&labels), value) {
        (Some(Value::Number(sum)), Value::Number(more)) => {
            *sum = match read {
                // The first certificate that expires counts.
                Read::Time(_) => more.min(*sum),
                // Several nodes use one port.
                Read::PortCounters => more.max(*sum),
                _ => *sum + more,
            }
        }
        (Some(Value::Histogram(sum)), Value::Histogram(more)) => sum.merge(&more),
        (_, value) => drop(samples.insert(labels, value)),
    }
}
