//! Decoding a value from a peer's bytes: postcard reads the format, and this module bounds the
//! cost.
//!
//! This module adds three things to postcard:
//!
//! - **Depth.** Decoding recurses where the type does. A list of a million links would end the
//!   process by its stack, so decoding stops at [`MAX_NESTING`].
//! - **Elements.** A sequence states its length. Elements that take bytes end with the payload.
//!   Elements that take none (`Vec<()>`) would be made until 2^64, so they are counted: there may
//!   be [`FREE_ELEMENTS`] more of them than the payload has bytes.
//! - **Errors.** postcard drops the text of an error that a type raises; this module keeps it.
//!
//! These bounds limit allocation too: a byte pays for every element but the free ones. A length
//! ahead of its elements is believed as far as serde's own types believe it, which reserve at most
//! 1 MiB for it.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Decodes all of `payload` as a `T`.
pub(crate) fn from_bytes<'de, T: Deserialize<'de>>(payload: &'de [u8]) -> Result<T, InvalidBytes> {
    let bounds = Bounds {
        elements: Cell::new(payload.len().saturating_add(FREE_ELEMENTS)),
        levels: Cell::new(MAX_NESTING),
        refusal: RefCell::new(None),
    };
    let mut postcard = postcard::Deserializer::from_bytes(payload);
    let value = T::deserialize(Bounded::new(&mut postcard, &bounds))?;
    match postcard.finalize() {
        Ok([]) => Ok(value),
        Ok(rest) => Err(InvalidBytes::new(format!("{} bytes follow it", rest.len()))),
        Err(error) => Err(bounds.told(error)),
    }
}

/// The reason why bytes are not a value, in the words of the code that found out.
#[derive(Debug)]
pub(crate) struct InvalidBytes(Box<str>);

impl InvalidBytes {
    #[cold]
    fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for InvalidBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidBytes {}

impl de::Error for InvalidBytes {
    #[cold]
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(text.to_string())
    }
}

/// The remaining allowance of a payload.
struct Bounds {
    elements: Cell<usize>,
    levels: Cell<u32>,
    /// A refusal on its way out through postcard, whose own errors carry no text.
    refusal: RefCell<Option<InvalidBytes>>,
}

impl Bounds {
    #[inline]
    fn spend_element(&self) -> Result<(), InvalidBytes> {
        match self.elements.get().checked_sub(1) {
            Some(left) => {
                self.elements.set(left);
                Ok(())
            }
            None => Err(InvalidBytes::new("it has more elements than bytes")),
        }
    }

    /// Returns a length that was read ahead of its elements, or the number of elements that may
    /// still come if that is less.
    #[inline]
    fn believable(&self, length: Option<usize>) -> Option<usize> {
        length.map(|length| length.min(self.elements.get()))
    }

    /// Runs `work` one level further in.
    #[inline]
    fn nested<T>(&self, work: impl FnOnce() -> Result<T, InvalidBytes>) -> Result<T, InvalidBytes> {
        let levels = self.levels.get();
        if levels == 0 {
            return Err(InvalidBytes::new(format!(
                "it is nested deeper than {MAX_NESTING} levels"
            )));
        }
        self.levels.set(levels - 1);
        let result = work();
        self.levels.set(levels);
        result
    }

    /// Hands a refusal to postcard.
    #[cold]
    fn tell<E: de::Error>(&self, refusal: InvalidBytes) -> E {
        *self.refusal.borrow_mut() = Some(refusal);
        E::custom("")
    }

    /// Returns the meaning of an error that came back from postcard.
    #[cold]
    fn told(&self, error: impl fmt::Display) -> InvalidBytes {
        if let Some(told) = self.refusal.borrow_mut().take() {
            return told;
        }
        let text = error.to_string();
        if text == postcard::Error::WontImplement.to_string() {
            return InvalidBytes::new(
                "its `Deserialize` asks what comes next, and the bytes do not say (`tag`, \
                 `untagged`, `flatten` and values of any kind need a format with names)",
            );
        }
        InvalidBytes::new(text)
    }
}

/// Wraps a deserializer or access of postcard's, or a visitor or seed of a type's, with the bounds
/// that hold for all of them.
struct Bounded<'b, I> {
    inner: I,
    bounds: &'b Bounds,
    /// Set if the number of elements follows from the bytes, not from the type.
    is_counted: bool,
}

impl<'b, I> Bounded<'b, I> {
    #[inline]
    fn new(inner: I, bounds: &'b Bounds) -> Self {
        Self {
            inner,
            bounds,
            is_counted: false,
        }
    }

    #[inline]
    fn counted(inner: I, bounds: &'b Bounds, is_counted: bool) -> Self {
        Self {
            inner,
            bounds,
            is_counted,
        }
    }

    /// Counts an element, if there was another and it counts.
    #[inline]
    fn spent<T>(&self, element: Option<T>) -> Result<Option<T>, InvalidBytes> {
        if self.is_counted && element.is_some() {
            self.bounds.spend_element()?;
        }
        Ok(element)
    }
}

macro_rules! deserialize {
    ($($method:ident($($name:ident: $type:ty),*) $(counts $counts:tt)?;)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(
            self,
            $($name: $type,)*
            visitor: V,
        ) -> Result<V::Value, InvalidBytes> {
            let is_counted = false $(|| $counts)?;
            let visitor = Bounded::counted(visitor, self.bounds, is_counted);
            let result = self.inner.$method($($name,)* visitor);
            result.map_err(|error| self.bounds.told(error))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = InvalidBytes;

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    deserialize! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq() counts true;
        deserialize_map() counts true;
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }
}

macro_rules! visit {
    ($($method:ident($($value:ident: $type:ty)?);)*) => {$(
        #[inline]
        fn $method<E: de::Error>(self, $($value: $type)?) -> Result<V::Value, E> {
            let result = self.inner.$method::<InvalidBytes>($($value)?);
            result.map_err(|refusal| self.bounds.tell(refusal))
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(value: bool);
        visit_i8(value: i8);
        visit_i16(value: i16);
        visit_i32(value: i32);
        visit_i64(value: i64);
        visit_i128(value: i128);
        visit_u8(value: u8);
        visit_u16(value: u16);
        visit_u32(value: u32);
        visit_u64(value: u64);
        visit_u128(value: u128);
        visit_f32(value: f32);
        visit_f64(value: f64);
        visit_char(value: char);
        visit_str(value: &str);
        visit_borrowed_str(value: &'de str);
        visit_bytes(value: &[u8]);
        visit_borrowed_bytes(value: &'de [u8]);
        visit_none();
        visit_unit();
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self {
            inner: visitor,
            bounds,
            ..
        } = self;
        let result = bounds.nested(|| visitor.visit_some(Bounded::new(inner, bounds)));
        result.map_err(|refusal| bounds.tell(refusal))
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self {
            inner: visitor,
            bounds,
            ..
        } = self;
        let result = bounds.nested(|| visitor.visit_newtype_struct(Bounded::new(inner, bounds)));
        result.map_err(|refusal| bounds.tell(refusal))
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self {
            inner: visitor,
            bounds,
            is_counted,
        } = self;
        let elements = Bounded::counted(inner, bounds, is_counted);
        let result = bounds.nested(|| visitor.visit_seq(elements));
        result.map_err(|refusal| bounds.tell(refusal))
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self {
            inner: visitor,
            bounds,
            is_counted,
        } = self;
        let entries = Bounded::counted(inner, bounds, is_counted);
        let result = bounds.nested(|| visitor.visit_map(entries));
        result.map_err(|refusal| bounds.tell(refusal))
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self {
            inner: visitor,
            bounds,
            ..
        } = self;
        let result = bounds.nested(|| visitor.visit_enum(Bounded::new(inner, bounds)));
        result.map_err(|refusal| bounds.tell(refusal))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let result = self.inner.deserialize(Bounded::new(inner, self.bounds));
        result.map_err(|refusal| self.bounds.tell(refusal))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = InvalidBytes;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, InvalidBytes> {
        let seed = Bounded::new(seed, self.bounds);
        let element = self.inner.next_element_seed(seed);
        self.spent(element.map_err(|error| self.bounds.told(error))?)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.bounds.believable(self.inner.size_hint())
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = InvalidBytes;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, InvalidBytes> {
        let seed = Bounded::new(seed, self.bounds);
        let key = self.inner.next_key_seed(seed);
        self.spent(key.map_err(|error| self.bounds.told(error))?)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, InvalidBytes> {
        let seed = Bounded::new(seed, self.bounds);
        let result = self.inner.next_value_seed(seed);
        result.map_err(|error| self.bounds.told(error))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.bounds.believable(self.inner.size_hint())
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = InvalidBytes;
    type Variant = Bounded<'b, A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), InvalidBytes> {
        let seed = Bounded::new(seed, self.bounds);
        match self.inner.variant_seed(seed) {
            Ok((which, content)) => Ok((which, Bounded::new(content, self.bounds))),
            Err(error) => Err(self.bounds.told(error)),
        }
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = InvalidBytes;

    #[inline]
    fn unit_variant(self) -> Result<(), InvalidBytes> {
        let result = self.inner.unit_variant();
        result.map_err(|error| self.bounds.told(error))
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, InvalidBytes> {
        let seed = Bounded::new(seed, self.bounds);
        let result = self.inner.newtype_variant_seed(seed);
        result.map_err(|error| self.bounds.told(error))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, InvalidBytes> {
        let visitor = Bounded::new(visitor, self.bounds);
        let result = self.inner.tuple_variant(len, visitor);
        result.map_err(|error| self.bounds.told(error))
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidBytes> {
        let visitor = Bounded::new(visitor, self.bounds);
        let result = self.inner.struct_variant(fields, visitor);
        result.map_err(|error| self.bounds.told(error))
    }
}

/// The depth to which decoding may recurse, in structs, sequences, enums and `Some`s within each
/// other. It is the limit of serde_json, and deeper than any message written for the wire. One
/// level takes about 4 KiB of stack without optimization and 1 KiB with it (measured with a struct
/// of 150 bytes of fields). The limit so takes a quarter of the 2 MiB that a thread has.
pub(crate) const MAX_NESTING: u32 = 128;

/// Elements beyond the number of the payload's bytes. Elements that take no bytes have no use in a
/// message, but they are legal. A type whose elements take bytes needs none of these.
pub(crate) const FREE_ELEMENTS: usize = 1024;
