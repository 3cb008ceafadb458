//! What one reading of the nodes gives: families of samples.

use ibex::stats::Histogram;

use crate::table::Metric;

/// A metric with all of its samples, no two of which have the same labels.
#[derive(Clone, Debug)]
pub struct Family {
    /// The metric.
    pub metric: &'static Metric,
    /// The samples, ordered by their labels.
    pub samples: Vec<(Labels, Value)>,
}

/// The labels of a sample: names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(pub Vec<(&'static str, String)>);

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or gauge; nanoseconds if the unit of the metric is seconds.
    Number(u64),
    /// Of a histogram of durations.
    Histogram(Histogram),
}

impl Labels {
    /// Adds a label, if it has a value.
    pub(crate) fn with(mut self, name: &'static str, value: Option<impl Into<String>>) -> Self {
        if let Some(value) = value {
            self.0.push((name, value.into()));
        }
        self
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let label = self.0.iter().find(|(one, _)| *one == name);
        label.map(|(_, value)| value.as_str())
    }
}
