//! Why something did not pass. It is only ever printed, so it is its diagnosis.

use std::fmt;

/// A diagnosis for the person in front of the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    /// A failure with this diagnosis.
    pub(crate) fn new(diagnosis: impl Into<String>) -> Self {
        Self(diagnosis.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
