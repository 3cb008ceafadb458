//! Encoding a value by postcard, within the bounds that its receiver holds it to.
//!
//! `bounded_deserializer.rs` refuses a payload that is nested too deep or has too many elements
//! without bytes. This module counts the same levels and elements, so that the sender of such a
//! message gets an error, and its receiver gets no message. A value that is written as bytes counts
//! as a sequence of numbers, because the receiver's type may be either.

#![forbid(unsafe_code)]

use std::fmt;

use postcard::Error;
use postcard::ser_flavors::Flavor;
use serde::ser::{self, Serialize, Serializer};

use crate::SlotWriter;
use crate::bounded_deserializer::{FREE_ELEMENTS, MAX_NESTING};

/// Writes `value` into the slot. Where the slot overflowed, the error is of no meaning.
#[inline]
pub(crate) fn write<T: Serialize>(
    value: &T,
    slot: &mut SlotWriter<'_>,
) -> Result<(), EncodeFailure> {
    let mut bounded = CountingSerializer {
        postcard: postcard::Serializer {
            output: SlotFlavor(slot),
        },
        levels: MAX_NESTING,
        elements: 0,
        is_too_deep: false,
    };
    let result = value.serialize(&mut bounded);
    // The flag is asked, not the error: an implementation of `Serialize` may have passed over it.
    if bounded.is_too_deep {
        return Err(EncodeFailure::TooDeep);
    }
    result.map_err(EncodeFailure::Postcard)?;
    let elements = bounded.elements;
    match elements > slot.len().saturating_add(FREE_ELEMENTS) {
        true => Err(EncodeFailure::TooManyElements(elements)),
        false => Ok(()),
    }
}

/// The reason why a value was not encoded.
#[derive(Debug)]
pub(crate) enum EncodeFailure {
    Postcard(Error),
    TooDeep,
    TooManyElements(usize),
}

impl fmt::Display for EncodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeFailure::Postcard(Error::SerdeSerCustom) => {
                f.write_str("its `Serialize` refuses the value")
            }
            EncodeFailure::Postcard(Error::SerializeSeqLengthUnknown) => f.write_str(
                "a sequence or map does not say how long it is before its elements (one that \
                 `#[serde(flatten)]` makes cannot)",
            ),
            EncodeFailure::Postcard(other) => other.fmt(f),
            EncodeFailure::TooDeep => write!(
                f,
                "it is nested deeper than {MAX_NESTING} levels, and the receiver would refuse it"
            ),
            EncodeFailure::TooManyElements(elements) => write!(
                f,
                "it has {elements} elements and most of them take no bytes, so the receiver would \
                 refuse it; send their number instead"
            ),
        }
    }
}

/// The place where postcard writes.
struct SlotFlavor<'w, 's>(&'w mut SlotWriter<'s>);

impl Flavor for SlotFlavor<'_, '_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(bytes).map_err(|_| Error::SerializeBufferFull)
    }

    #[inline]
    fn try_push(&mut self, byte: u8) -> Result<(), Error> {
        self.try_extend(&[byte])
    }

    fn finalize(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Postcard's serializer, and what is counted beside it.
struct CountingSerializer<'w, 's> {
    postcard: postcard::Serializer<SlotFlavor<'w, 's>>,
    /// Levels that may still be entered.
    levels: u32,
    /// Elements of sequences and maps so far.
    elements: usize,
    is_too_deep: bool,
}

impl<'w, 's> CountingSerializer<'w, 's> {
    /// Enters levels, until [`Compound::leave`].
    #[inline]
    fn enter(&mut self, levels: u32) -> Result<Compound<'_, 'w, 's>, Error> {
        match self.levels.checked_sub(levels) {
            Some(left) => self.levels = left,
            None => {
                self.is_too_deep = true;
                return Err(Error::SerdeSerCustom);
            }
        }
        Ok(Compound {
            bounded: self,
            levels,
        })
    }

    /// Writes `value` some levels further in.
    #[inline]
    fn nested<T: Serialize + ?Sized>(&mut self, levels: u32, value: &T) -> Result<(), Error> {
        let mut compound = self.enter(levels)?;
        compound.part(value)?;
        compound.leave()
    }

    #[inline]
    fn count(&mut self, elements: Option<usize>) {
        self.elements = self.elements.saturating_add(elements.unwrap_or(0));
    }

    /// Writes the number of an enum's variant, and nothing of its content.
    #[inline]
    fn variant(&mut self, index: u32) -> Result<(), Error> {
        self.postcard.serialize_unit_variant("", index, "")
    }
}

macro_rules! atoms {
    ($($method:ident($value:ident: $type:ty);)*) => {$(
        #[inline]
        fn $method(self, $value: $type) -> Result<(), Error> {
            self.postcard.$method($value)
        }
    )*};
}

impl<'a, 'w, 's> Serializer for &'a mut CountingSerializer<'w, 's> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a, 'w, 's>;
    type SerializeTuple = Compound<'a, 'w, 's>;
    type SerializeTupleStruct = Compound<'a, 'w, 's>;
    type SerializeTupleVariant = Compound<'a, 'w, 's>;
    type SerializeMap = Compound<'a, 'w, 's>;
    type SerializeStruct = Compound<'a, 'w, 's>;
    type SerializeStructVariant = Compound<'a, 'w, 's>;

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    atoms! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_f32(value: f32);
        serialize_f64(value: f64);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_unit_struct(name: &'static str);
    }

    #[inline]
    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.enter(1)?.leave()?;
        self.count(Some(value.len()));
        self.postcard.serialize_bytes(value)
    }

    #[inline]
    fn serialize_none(self) -> Result<(), Error> {
        self.postcard.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        self.postcard.serialize_some(&())?;
        self.nested(1, value)
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), Error> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
    ) -> Result<(), Error> {
        self.variant(index)?;
        self.enter(1)?.leave()
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.nested(1, value)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.variant(index)?;
        self.nested(1, value)
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        self.postcard.serialize_seq(length)?;
        self.count(length);
        self.enter(1)
    }

    #[inline]
    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        self.enter(1)
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Error> {
        self.enter(1)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        self.variant(index)?;
        self.enter(2)
    }

    #[inline]
    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, Error> {
        self.postcard.serialize_map(length)?;
        self.count(length);
        self.enter(1)
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        self.enter(1)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        self.variant(index)?;
        self.enter(2)
    }

    #[inline]
    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<(), Error> {
        self.postcard.collect_str(value)
    }
}

/// A value with parts, between its levels' beginning and end. Postcard writes nothing around parts.
struct Compound<'a, 'w, 's> {
    bounded: &'a mut CountingSerializer<'w, 's>,
    levels: u32,
}

impl Compound<'_, '_, '_> {
    #[inline]
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.bounded)
    }

    #[inline]
    fn leave(self) -> Result<(), Error> {
        self.bounded.levels += self.levels;
        Ok(())
    }
}

macro_rules! compounds {
    ($($kind:ident: $($method:ident($($name:ident)?)),+;)*) => {$(
        impl ser::$kind for Compound<'_, '_, '_> {
            type Ok = ();
            type Error = Error;

            $(
                #[inline]
                fn $method<T: Serialize + ?Sized>(
                    &mut self,
                    $($name: &'static str,)?
                    value: &T,
                ) -> Result<(), Error> {
                    self.part(value)
                }
            )+

            #[inline]
            fn end(self) -> Result<(), Error> {
                self.leave()
            }
        }
    )*};
}

compounds! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(_name);
    SerializeStructVariant: serialize_field(_name);
}
