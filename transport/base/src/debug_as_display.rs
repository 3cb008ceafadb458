//! Errors whose `Debug` output is their `Display` output.

/// Makes the [`Debug`](std::fmt::Debug) output of the named error types their
/// [`Display`](std::fmt::Display) output. A `main` that returns an error, and `unwrap`, print it by
/// `Debug`, and the reader should find the diagnosis and not the fields of a value. The `Display`
/// of such a type includes its sources, so nothing is lost.
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
