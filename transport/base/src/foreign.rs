//! Calls of a program's code on threads of ibex.
#![forbid(unsafe_code)]

use std::{
    any::Any,
    mem,
    panic::{self, AssertUnwindSafe},
};

use crate::Escaped;

/// Calls the program's code. A panic there does not end the calling thread, which serves others as
/// well.
///
/// # Errors
///
/// The text of the panic, if the code panicked. Whatever the code changed stays as it is.
pub fn call_foreign<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(code)).map_err(text)
}

#[cold]
fn text(cause: Box<dyn Any + Send>) -> String {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    let text = Escaped(text.unwrap_or("of another type than text")).to_string();
    // The drop of the cause is foreign code as well, and may panic in turn.
    mem::forget(cause);
    text
}
