//! Errors that say by `Debug` what they say by `Display`.

/// Has the error types named say by [`Debug`](std::fmt::Debug) what they say by
/// [`Display`](std::fmt::Display): a `main` that returns an error, and `unwrap`, print it by
/// `Debug`, and a reader is to find the diagnosis, not the fields of a value. As such
/// a type's `Display` tells of its sources too, nothing is lost.
///
/// ```
/// #[derive(thiserror::Error)]
/// #[error("the disk at {address} is full; delete something")]
/// struct Full { address: u64 }
///
/// ibex_base::debug_as_display!(Full);
///
/// assert_eq!(format!("{:?}", Full { address: 7 }), "the disk at 7 is full; delete something");
/// ```
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
