//! Fields of messages that nodes send each other: integers, little-endian, and texts behind their
//! length.
//!
//! Reading takes from the front and names the field in its error. Whether bytes may be left over at the
//! end is for the message to say.
#![forbid(unsafe_code)]

use std::{ops::RangeInclusive, sync::Arc};

/// The defect of a field. Always the fault of the one who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each value is")]
pub enum FieldError {
    #[error("{field} needs {needed} bytes and {left} are left")]
    Truncated {
        field: &'static str,
        needed: usize,
        left: usize,
    },
    #[error("{field} is {length} long, above the limit of {max}")]
    TooLong {
        field: &'static str,
        length: usize,
        max: usize,
    },
    #[error("{field} cannot be {value}")]
    UnknownValue { field: &'static str, value: u64 },
    #[error("{field} is given twice")]
    Repeated { field: &'static str },
    #[error("{field} is not UTF-8")]
    NotText { field: &'static str },
    #[error("{length} bytes are behind the end of {field}")]
    Trailing { field: &'static str, length: usize },
}

/// A value that is a field of a message, or several fields in a row.
pub trait WireField: Sized {
    /// Reads the value. An error calls it `name`; a value of several fields names these instead.
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError>;

    /// Appends the value.
    fn write(&self, out: &mut Vec<u8>);
}

/// A way to write values of one type that has bounds of its own: a range of integers, [`AtMost`],
/// [`ListOf`].
pub trait FieldCodec<T> {
    /// Reads the value. An error calls it `name`.
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<T, FieldError>;

    /// Appends the value.
    fn write(&self, value: &T, out: &mut Vec<u8>);
}

/// Takes fields off the front of a message.
#[derive(Debug)]
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Takes this many bytes.
    #[inline]
    pub fn bytes(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], FieldError> {
        let left = self.0.len();
        let taken = self.0.split_off(..needed);
        taken.ok_or(FieldError::Truncated {
            field,
            needed,
            left,
        })
    }

    /// Reads the number of the entries that follow, at most `max`.
    pub fn count(&mut self, field: &'static str, max: usize) -> Result<usize, FieldError> {
        let length = usize::from(u8::read(self, field)?);
        match length > max {
            true => Err(FieldError::TooLong { field, length, max }),
            false => Ok(length),
        }
    }

    /// Reads a byte string of at most `max` bytes behind its `u16` length.
    pub fn string(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], FieldError> {
        let length = usize::from(u16::read(self, field)?);
        if length > max {
            return Err(FieldError::TooLong { field, length, max });
        }
        self.bytes(field, length)
    }
}

/// Appends at most `max` bytes of a byte string behind their length.
pub fn write_string(out: &mut Vec<u8>, bytes: &[u8], max: usize) {
    debug_assert!(max <= usize::from(u16::MAX));
    let kept = &bytes[..bytes.len().min(max)];
    (kept.len() as u16).write(out);
    out.extend_from_slice(kept);
}

/// Returns as many whole characters of `text` as fit into `max` bytes.
#[must_use]
pub fn cut(text: &str, max: usize) -> &str {
    let mut fits = (0..=max.min(text.len())).rev();
    let end = fits.find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Texts of at most so many bytes; of a longer one, as many characters are written as fit.
#[derive(Clone, Copy, Debug)]
pub struct AtMost(pub usize);

impl<T: AsRef<str> + for<'a> From<&'a str>> FieldCodec<T> for AtMost {
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<T, FieldError> {
        let text = std::str::from_utf8(from.string(name, self.0)?);
        text.map(T::from)
            .map_err(|_| FieldError::NotText { field: name })
    }

    fn write(&self, value: &T, out: &mut Vec<u8>) {
        write_string(out, cut(value.as_ref(), self.0).as_bytes(), self.0);
    }
}

/// Lists of at most so many values behind their number, which is a byte, each in this way.
#[derive(Clone, Copy, Debug)]
pub struct ListOf<C>(pub usize, pub C);

impl<T, C: FieldCodec<T>> FieldCodec<Vec<T>> for ListOf<C> {
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<Vec<T>, FieldError> {
        let count = from.count(name, self.0)?;
        (0..count).map(|_| self.1.read(from, name)).collect()
    }

    fn write(&self, value: &Vec<T>, out: &mut Vec<u8>) {
        debug_assert!(value.len() <= self.0);
        out.push(value.len() as u8);
        value.iter().for_each(|one| self.1.write(one, out));
    }
}

/// The way in which the type itself is written.
#[derive(Clone, Copy, Debug)]
pub struct AsItself;

impl<T: WireField> FieldCodec<T> for AsItself {
    #[inline]
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<T, FieldError> {
        T::read(from, name)
    }

    #[inline]
    fn write(&self, value: &T, out: &mut Vec<u8>) {
        value.write(out);
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl WireField for $integer {
            #[inline]
            fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
                WireField::read(from, name).map(Self::from_le_bytes)
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                self.to_le_bytes().write(out);
            }
        }

        impl FieldCodec<$integer> for RangeInclusive<$integer> {
            #[inline]
            fn read(
                &self,
                from: &mut FieldReader<'_>,
                name: &'static str,
            ) -> Result<$integer, FieldError> {
                let value = <$integer>::read(from, name)?;
                match self.contains(&value) {
                    true => Ok(value),
                    false => Err(FieldError::UnknownValue { field: name, value: value.into() }),
                }
            }

            #[inline]
            fn write(&self, value: &$integer, out: &mut Vec<u8>) {
                value.write(out);
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl<const N: usize> WireField for [u8; N] {
    #[inline]
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        let mut array = [0; N];
        array.copy_from_slice(from.bytes(name, N)?);
        Ok(array)
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

/// A byte that is 0 or 1.
impl WireField for bool {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        (0..=1).read(from, name).map(|flag: u8| flag == 1)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl<T: WireField> WireField for Arc<T> {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        T::read(from, name).map(Arc::new)
    }

    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }
}

/// Defines structs that are read and written as their fields, in this order, each with the name that
/// errors give it. A field may have a [`FieldCodec`] of its own, in brackets.
///
/// ```
/// use ibex_base::field::{AtMost, FieldReader, WireField};
///
/// ibex_base::wire_structs! {
///     /// A place at a table.
///     pub struct Seat {
///         /// Its number.
///         pub number: u16 = "seat number" [1..=400],
///         /// Who has it.
///         pub guest: String = "guest" [AtMost(64)],
///     }
/// }
///
/// let seat = Seat { number: 7, guest: "Ada".to_owned() };
/// let mut bytes = Vec::new();
/// seat.write(&mut bytes);
/// assert_eq!(bytes, [7, 0, 3, 0, b'A', b'd', b'a']);
/// assert_eq!(Seat::read(&mut FieldReader(&bytes), "seat"), Ok(seat));
/// bytes[0] = 0;
/// let error = Seat::read(&mut FieldReader(&bytes), "seat").expect_err("no such seat");
/// assert_eq!(error.to_string(), "seat number cannot be 0");
/// ```
#[macro_export]
macro_rules! wire_structs {
    (@codec) => {
        $crate::field::AsItself
    };
    (@codec $codec:expr) => {
        $codec
    };
    ($($(#[$meta:meta])* $vis:vis struct $type:ident {
        $($(#[$doc:meta])* $field_vis:vis $field:ident: $field_type:ty
            = $name:literal $([$codec:expr])?),* $(,)?
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $type {
            $($(#[$doc])* $field_vis $field: $field_type),*
        }

        impl $crate::field::WireField for $type {
            fn read(
                from: &mut $crate::field::FieldReader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::field::FieldError> {
                use $crate::field::FieldCodec;
                Ok(Self {
                    $($field: $crate::wire_structs!(@codec $($codec)?).read(from, $name)?),*
                })
            }

            fn write(&self, out: &mut Vec<u8>) {
                use $crate::field::FieldCodec;
                $($crate::wire_structs!(@codec $($codec)?).write(&self.$field, out);)*
            }
        }
    )*};
}

/// Has enums read and written as a byte, by their numbers.
#[macro_export]
macro_rules! wire_numbers {
    ($($type:ident { $($variant:ident = $number:literal),* $(,)? })*) => {$(
        impl $crate::field::WireField for $type {
            fn read(
                from: &mut $crate::field::FieldReader<'_>,
                name: &'static str,
            ) -> Result<Self, $crate::field::FieldError> {
                match <u8 as $crate::field::WireField>::read(from, name)? {
                    $($number => Ok(Self::$variant),)*
                    number => Err($crate::field::FieldError::UnknownValue {
                        field: name,
                        value: number.into(),
                    }),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.push(match self { $(Self::$variant => $number),* });
            }
        }
    )*};
}
