//! The structure of the standard library's types that messages are made of.
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
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::{Describer, Schema};

macro_rules! atoms {
    ($($type:ty),* $(,)?) => {$(
        impl Schema for $type {
            fn describe(to: &mut Describer) {
                to.atom(stringify!($type));
            }
        }
    )*};
}

atoms! {
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, bool, char,
    NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize,
    String, Duration,
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6,
}

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

macro_rules! compounds {
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

// A parameter after `but` changes no bytes: a map's hasher.
compounds! {
    Box<T: ?Sized>;
    Rc<T: ?Sized>;
    Arc<T: ?Sized>;
    Option<T>;
    Result<T, E>;
    Vec<T>;
    VecDeque<T>;
    BTreeSet<T>;
    BTreeMap<K, V>;
    HashSet<T> but S;
    HashMap<K, V> but S;
}

macro_rules! tuples {
    ($($($part:ident)*;)*) => {$(
        impl<$($part: Schema),*> Schema for ($($part,)*) {
            fn describe(to: &mut Describer) {
                to.tuple(&[$($part::describe),*]);
            }
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
