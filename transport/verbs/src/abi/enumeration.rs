//! Enumerations of C, each declared by one table.

/// Declares an enumeration with its numbers and texts. A number that is not in the table is `Unknown`;
/// `{}` in its text stands for the number.
macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident($type:ty), $unknown:literal, {
        $($(#[$about:meta])* $variant:ident = $raw:literal $(| $other:literal)*, $text:literal;)*
    }) => {
        $(#[$doc])*
        pub enum $name {
            $($(#[$about])* $variant,)*
            /// A number that this version does not know.
            Unknown($type),
        }

        impl $name {
            /// Translates the C enumeration.
            #[inline]
            #[must_use]
            pub const fn from_raw(raw: $type) -> Self {
                match raw {
                    $($raw $(| $other)* => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// Returns the value of the C enumeration.
            #[inline]
            #[must_use]
            pub const fn to_raw(self) -> $type {
                match self {
                    $(Self::$variant => $raw,)*
                    Self::Unknown(raw) => raw,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Unknown(raw) => f.write_str(&$unknown.replace("{}", &raw.to_string())),
                }
            }
        }
    };
}

pub(crate) use enumeration;
