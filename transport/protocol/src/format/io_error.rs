//! Errors of values that a program gives, as errors of [`std::io`].
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};

use super::trace_context::InvalidTraceContext;

/// Keeps the error within.
impl From<InvalidTraceContext> for io::Error {
    fn from(error: InvalidTraceContext) -> Self {
        Self::new(ErrorKind::InvalidInput, error)
    }
}
