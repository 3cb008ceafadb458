//! The failure of a command or stage. It is only printed, so it consists of its diagnosis.

use std::fmt;

/// A diagnosis for the person in front of the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    /// Creates a failure with this diagnosis.
    pub(crate) fn new(diagnosis: impl Into<String>) -> Self {
        Self(diagnosis.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
