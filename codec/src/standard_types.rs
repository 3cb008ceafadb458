//! The standard library's types that messages are made of: their structure ([`Schema`]) and, where
//! rkyv carries them whole, their part in messages of the codec `Rkyv` (`MessagePart`).
//!
//! Two types share a description only where one is the borrowed form of the
//! other; otherwise each has its own name, since codecs may store them
//! differently.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8,
    NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "rkyv")]
use crate::MessagePart;
use crate::{Describer, Schema};

macro_rules! atom_schemas {
    ($($type:ty),* $(,)?) => {$(
        impl Schema for $type {
            fn describe(to: &mut Describer) {
                to.atom(stringify!($type));
            }
        }
    )*};
}

macro_rules! atom_parts {
    ($($type:ty),* $(,)?) => {$(
        #[cfg(feature = "rkyv")]
        impl MessagePart for $type {
            const IS_RECURSIVE: bool = false;
        }
    )*};
}

macro_rules! atoms {
    ($($all:tt)*) => {
        atom_schemas! { $($all)* }
        atom_parts! { $($all)* }
    };
}

atoms! {
    u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char,
    NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128,
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128,
    String, Duration,
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6,
}

// rkyv would cut them to 32 bits.
atom_schemas!(usize, isize, NonZeroUsize, NonZeroIsize);
atom_parts!(str);

impl Schema for str {
    fn describe(to: &mut Describer) {
        String::describe(to);
    }
}

impl<T: Schema> Schema for [T] {
    fn describe(to: &mut Describer) {
        Vec::<T>::describe(to);
    }
}

impl<T: Schema + ?Sized> Schema for &T {
    fn describe(to: &mut Describer) {
        T::describe(to);
    }
}

impl<T: Schema + ToOwned + ?Sized> Schema for Cow<'_, T> {
    fn describe(to: &mut Describer) {
        T::describe(to);
    }
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    fn describe(to: &mut Describer) {
        to.array(N, T::describe);
    }
}

/// A marker takes no room in any format, whatever it marks.
impl<T: ?Sized> Schema for PhantomData<T> {
    fn describe(to: &mut Describer) {
        to.atom("PhantomData");
    }
}

macro_rules! compound_schemas {
    ($($name:ident<$($part:ident $(: $sized:tt $sized_bound:ident)?),*> $(but $other:ident)?;)*) => {$(
        impl<$($part: Schema $(+ $sized $sized_bound)?,)* $($other)?> Schema
            for $name<$($part,)* $($other)?>
        {
            fn describe(to: &mut Describer) {
                to.compound(stringify!($name), &[$($part::describe),*]);
            }
        }
    )*};
}

macro_rules! compound_parts {
    ($($name:ident<$($part:ident $(: $sized:tt $sized_bound:ident)?),*> $(but $other:ident)?;)*) => {$(
        #[cfg(feature = "rkyv")]
        impl<$($part: MessagePart $(+ $sized $sized_bound)?,)* $($other)?> MessagePart
            for $name<$($part,)* $($other)?>
        {
            const IS_RECURSIVE: bool = false $(| $part::IS_RECURSIVE)*;
        }
    )*};
}

macro_rules! compounds {
    ($($all:tt)*) => {
        compound_schemas! { $($all)* }
        compound_parts! { $($all)* }
    };
}

// A parameter after `but` changes no bytes: a map's hasher.
compounds! {
    Box<T: ?Sized>;
    Rc<T: ?Sized>;
    Arc<T: ?Sized>;
    Option<T>;
    Result<T, E>;
    BTreeSet<T>;
    BTreeMap<K, V>;
    HashSet<T> but S;
    HashMap<K, V> but S;
}

// Their part depends on whether the elements take bytes.
compound_schemas!(Vec<T>; VecDeque<T>; Range<T>;);

macro_rules! tuples {
    ($($($part:ident)*;)*) => {$(
        impl<$($part: Schema),*> Schema for ($($part,)*) {
            fn describe(to: &mut Describer) {
                to.tuple(&[$($part::describe),*]);
            }
        }

        #[cfg(feature = "rkyv")]
        impl<$($part: MessagePart),*> MessagePart for ($($part,)*) {
            const IS_RECURSIVE: bool = false $(| $part::IS_RECURSIVE)*;
            const TAKES_BYTES: bool = false $(| $part::TAKES_BYTES)*;
        }
    )*};
}

tuples! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
    A B C D E F G H I J K L;
}
