//! The table of settings: one row for each, from which its setter, its check, its documentation and
//! what `ibex config explain` shows follow.
//!
//! A row is a method's documentation and signature. At the place in the documentation where default
//! and range belong, it has them as attributes:
//!
//! ```text
//! /// Limits how long `connect` tries.
//! #[default(10 s)] #[range(1 ms..)]
//! /// A longer time-out tolerates peers that start later.
//! pub fn connect_timeout(timeout: Duration);
//! ```
//!
//! - An amount is a number with its unit: `s`, `ms`, `us`, `byte`, `bytes`, `KiB`, `MiB`, `GiB`,
//!   `TiB` or none. Another default is an expression and its text: `None => "no name"`.
//! - A range is `1..=64` or `10 ms..`. A range without an end is for times. A text, `"the device's
//!   ports"`, is checked by the row's body or when the node is made.
//! - Numbers of bytes, messages and calls are `u64`; those of things that a node or a device has,
//!   such as sessions, channels and buffers, are `u32`.
//! - A row that ends in `;` stores its argument in the field of its name; `(bytes: u64 as
//!   Option<u64>)` says that the field has another type. A row may have a body instead, which stores
//!   the argument after it was checked.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "verbs"),
    allow(
        unused_macro_rules,
        reason = "only settings of RDMA are counted in microseconds"
    )
)]

/// A setting as `ibex config explain` shows it.
#[derive(Clone, Copy, Debug)]
pub struct SettingRow {
    /// The builder that has the method.
    pub builder: &'static str,
    /// The method.
    pub name: &'static str,
    /// `bytes`, `time`, or nothing.
    pub unit: &'static str,
    /// The default.
    pub default: &'static str,
    /// The values that it may have, or nothing.
    pub range: &'static str,
    /// The variable of the environment that overrides the setting, and its values.
    pub variable: Option<(&'static str, &'static str)>,
    /// The method's documentation.
    pub documentation: &'static str,
}

/// Writes the setters of a builder, and the table of its settings, from rows.
///
/// `const TABLE in BUILDER, |self| PLACE` stores in the fields of a struct, whose `Default` has the
/// values; a row's default is documentation alone. `struct NAME;` before it also makes the struct,
/// with a field for each row, whose `Default` is the rows'.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        pub(crate) struct $Struct:ident;
        const $TABLE:ident in $Builder:ident $(<$($param:ident),+>)?, |$self:ident| $place:expr;
        $(
            $(#[doc = $before:literal])*
            #[default($($default:tt)+)] $(#[range($($range:tt)+)])?
            $(#[doc = $after:literal])*
            pub fn $name:ident($argument:ident: $type:ty $(as $field:ty)?);
        )+
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $Struct {
            $(pub(crate) $name: $crate::setting::stored!($type $(as $field)?),)+
        }

        impl Default for $Struct {
            fn default() -> Self {
                Self { $($name: $crate::setting::amount!($($default)+),)+ }
            }
        }

        $crate::setting::settings! {
            const $TABLE in $Builder $(<$($param),+>)?, |$self| $place;
            $(
                $(#[doc = $before])*
                #[default($($default)+)] $(#[range($($range)+)])?
                $(#[doc = $after])*
                pub fn $name($argument: $type);
            )+
        }
    };
    (
        const $TABLE:ident in $Builder:ident $(<$($param:ident),+>)?, |$self:ident| $place:expr;
        $(
            $(#[doc = $before:literal])*
            #[default($($default:tt)+)] $(#[range($($range:tt)+)])?
            $(#[doc = $after:literal])*
            $(#[cfg($($cfg:tt)+)])?
            pub fn $name:ident $signature:tt $(-> Self $body:block)? $(;)?
        )+
    ) => {
        impl $(<$($param),+>)? $Builder $(<$($param),+>)? {
            pub(crate) const $TABLE: &[$crate::setting::SettingRow] = &[$(
                $(#[cfg($($cfg)+)])?
                $crate::setting::row!(
                    $Builder, $name, [$($default)+], [$($($range)+)?], $($before)*, $($after)*
                )
            ),+];
            $($crate::setting::setter! {
                $(#[doc = $before])*
                #[doc = $crate::setting::sentence!([$($default)+], [$($($range)+)?])]
                $(#[doc = $after])*
                $(#[cfg($($cfg)+)])?
                $name $signature [$($($range)+)?] |$self| $place, $($body)?
            })+
        }
    };
}

/// Writes a setter that stores its argument, or one with a body.
macro_rules! setter {
    (
        $(#[$attribute:meta])*
        $name:ident ($argument:ident: $type:ty) [$($range:tt)*] |$self:ident| $place:expr,
    ) => {
        $(#[$attribute])*
        pub fn $name(mut $self, $argument: $type) -> Self {
            $self.note($crate::setting::within!(stringify!($name), $argument, $($range)*));
            $place.$name = $argument.into();
            $self
        }
    };
    (
        $(#[$attribute:meta])*
        $name:ident ($($signature:tt)+) [] |$unused:ident| $place:expr, $body:block
    ) => {
        $(#[$attribute])*
        pub fn $name($($signature)+) -> Self $body
    };
    (
        $(#[$attribute:meta])*
        $name:ident (mut $self:ident, $argument:ident: $type:ty) [$($range:tt)+]
            |$unused:ident| $place:expr, $body:block
    ) => {
        $(#[$attribute])*
        pub fn $name(mut $self, $argument: $type) -> Self {
            $self.note($crate::setting::within!(stringify!($name), $argument, $($range)+));
            $body
        }
    };
}

/// Makes a [`SettingRow`].
macro_rules! row {
    (
        $Builder:ident, $name:ident, [$($default:tt)+], [$($range:tt)*],
        $($before:literal)*, $($after:literal)*
    ) => {
        $crate::setting::SettingRow {
            builder: stringify!($Builder),
            name: stringify!($name),
            unit: $crate::setting::unit_name!($($range)*),
            default: $crate::setting::amount_text!($($default)+),
            range: $crate::setting::range_text!($($range)*),
            variable: None,
            documentation: concat!(
                $($before, "\n",)*
                $crate::setting::sentence!([$($default)+], [$($range)*]), "\n",
                $($after, "\n",)*
            ),
        }
    };
}

/// Gives the type of a row's field.
#[rustfmt::skip]
macro_rules! stored {
    ($type:ty) => { $type };
    ($type:ty as $field:ty) => { $field };
}

/// Gives the sentences of the documentation about default and range.
macro_rules! sentence {
    ([$($default:tt)+], []) => {
        concat!(" Default: ", $crate::setting::amount_text!($($default)+), ".")
    };
    ([$($default:tt)+], [$($range:tt)+]) => {
        concat!(
            " Default: ", $crate::setting::amount_text!($($default)+),
            ". Range: ", $crate::setting::range_text!($($range)+), "."
        )
    };
}

/// Gives the value of an amount.
#[rustfmt::skip]
macro_rules! amount {
    ($n:literal s) => { ::std::time::Duration::from_secs($n) };
    ($n:literal ms) => { ::std::time::Duration::from_millis($n) };
    ($n:literal us) => { ::std::time::Duration::from_micros($n) };
    ($n:literal KiB) => { $n << 10 };
    ($n:literal MiB) => { $n << 20 };
    ($n:literal GiB) => { $n << 30 };
    ($n:literal TiB) => { $n << 40 };
    ($n:literal $(byte)? $(bytes)?) => { $n };
    ($value:expr => $text:literal) => { $value };
}

/// Gives the text of an amount.
macro_rules! amount_text {
    ($n:literal us) => { concat!($n, " µs") };
    ($n:literal $($unit:ident)?) => { concat!($n $(, " ", stringify!($unit))?) };
    ($value:expr => $text:literal) => { $text };
}

/// Gives the text of a range.
macro_rules! range_text {
    () => { "" };
    ($text:literal) => { $text };
    ($least:literal $($unit:ident)? ..) => {
        concat!($crate::setting::amount_text!($least $($unit)?), " or longer")
    };
    ($least:literal $($of_least:ident)? ..= $most:literal $($unit:ident)?) => {
        concat!(
            $crate::setting::amount_text!($least $($of_least)?), " to ",
            $crate::setting::amount_text!($most $($unit)?)
        )
    };
}

/// Checks an argument against a range, if there is one that is not checked by the row's body.
macro_rules! within {
    ($name:expr, $value:expr, $($text:literal)?) => { Ok(()) };
    ($name:expr, $value:expr, $least:literal $($unit:ident)? ..) => {
        $crate::setting::SettingError::check(
            $name,
            $value,
            $crate::setting::amount!($least $($unit)?)..,
            $crate::setting::unit!($($unit)?),
        )
    };
    (
        $name:expr, $value:expr,
        $least:literal $($of_least:ident)? ..= $most:literal $($unit:ident)?
    ) => {
        $crate::setting::SettingError::check(
            $name,
            $value,
            $crate::setting::amount!($least $($of_least)?)
                ..=$crate::setting::amount!($most $($unit)?),
            $crate::setting::unit!($($unit)?),
        )
    };
}

/// Gives what makes a value with this unit out of a number.
#[rustfmt::skip]
macro_rules! unit {
    () => { $crate::setting::SettingValue::count };
    (s) => { $crate::setting::SettingValue::Time };
    (ms) => { $crate::setting::SettingValue::Time };
    (us) => { $crate::setting::SettingValue::Time };
    ($bytes:ident) => { $crate::setting::SettingValue::bytes };
}

/// Gives the name of a range's unit.
#[rustfmt::skip]
macro_rules! unit_name {
    ($($text:literal)?) => { "" };
    ($least:literal s $($rest:tt)+) => { "time" };
    ($least:literal ms $($rest:tt)+) => { "time" };
    ($least:literal us $($rest:tt)+) => { "time" };
    ($least:literal ..= $most:literal) => { "" };
    ($($range:tt)+) => { "bytes" };
}

pub(crate) use {
    amount, amount_text, range_text, row, sentence, setter, settings, stored, unit, unit_name,
    within,
};
