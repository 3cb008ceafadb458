//! A type for any lifetime, for which Rust has no notation of its own.

#![forbid(unsafe_code)]

/// A type that borrows, and the same type with another lifetime in its place.
///
/// [`derive(Schema)`](derive@crate::Schema) implements it for a type with lifetimes, all of
/// which become the same one. A channel of such messages carries the `'static` form as its
/// type, and its receiver gets the form that borrows from the message.
///
/// ```
/// use ibex_codec::WithLifetime;
///
/// struct Line<'a>(&'a str);
///
/// impl WithLifetime for Line<'_> {
///     type With<'a> = Line<'a>;
/// }
///
/// fn first<'a>(text: &'a str) -> <Line<'static> as WithLifetime>::With<'a> {
///     Line(text.lines().next().unwrap_or(""))
/// }
/// assert_eq!(first("a\nb").0, "a");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to borrow anything",
    label = "has no form for another lifetime",
    note = "`#[derive(ibex::Schema)]` on a type with lifetimes says how it borrows",
    note = "a type that owns what it holds goes by the codec `Serde`"
)]
pub trait WithLifetime {
    /// The type for the lifetime `'a`.
    type With<'a>;
}
