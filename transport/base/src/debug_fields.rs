//! The debugging output of a type that shows some of what it has.

/// Implements [`Debug`](std::fmt::Debug) for a type by some fields, each with an expression for its
/// value. There are more, as `..` shows. The parameters of the type need no `Debug`, which `derive`
/// would ask of them.
///
/// ```
/// struct Inbox<T> { name: &'static str, waiting: Vec<T> }
///
/// ibex_base::debug_fields!([T] Inbox<T>: |inbox| name = inbox.name, waiting = inbox.waiting.len());
///
/// let inbox = Inbox::<fn()> { name: "orders", waiting: Vec::new() };
/// assert_eq!(format!("{inbox:?}"), r#"Inbox { name: "orders", waiting: 0, .. }"#);
/// ```
#[macro_export]
macro_rules! debug_fields {
    ([$($generics:tt)*] $name:ident $(<$($argument:tt),+>)?:
        |$value:ident| $($field:ident = $shown:expr),+ $(,)?) => {
        impl<$($generics)*> ::std::fmt::Debug for $name $(<$($argument),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $value = self;
                let mut fields = f.debug_struct(stringify!($name));
                $(fields.field(stringify!($field), &$shown);)+
                fields.finish_non_exhaustive()
            }
        }
    };
}
