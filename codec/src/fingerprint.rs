//! The 128-bit name of a message format, and the hash that makes it.
//!
//! The hash is FNV-1a. It has to tell honest mistakes apart, such as a field that moved or grew,
//! among the few formats that two programs ever compare. For that, 128 bits of any well-mixed hash
//! are plenty. It does not have to resist an attacker: a peer that lies about its fingerprint gains
//! nothing, because every payload is checked when it arrives. Ten lines that never change were
//! therefore preferred to a dependency whose next version might.

#![forbid(unsafe_code)]

use std::fmt;

/// The value that both ends of a channel compare: equal if and only if the structure of the
/// message type and its codec are (but for a collision in 128 bits).
///
/// The fingerprint covers field names, their order and types all the way down, variant names and
/// discriminants, and the codec with the properties of its build. It does not cover module paths,
/// crate names, compiler versions or the names of the types themselves: a type may be moved or
/// renamed on one side alone. If a user gives a type a name in place of its structure
/// (`#[ibex(schema_name = ..)]`), the fingerprint covers that name, and nothing behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// FNV-1a with 128 bits, one byte after the other.
#[derive(Debug)]
pub(crate) struct Fnv1a(u128);

impl Fnv1a {
    pub(crate) fn new() -> Self {
        Self(OFFSET_BASIS)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }

    pub(crate) fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.to_be_bytes())
    }
}

// Both constants are from http://www.isthe.com/chongo/tech/comp/fnv/, "FNV parameters" (also RFC
// 9923, section 5).
const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        let hash = |text: &str| {
            let mut hash = Fnv1a::new();
            hash.update(text.as_bytes());
            hash.finish().to_string()
        };
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash("a"), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(hash("foobar"), "343e1662793c64bf6f0d3597ba446f18");
    }

    #[test]
    fn debug_shows_what_display_shows() {
        let fingerprint = Fingerprint([0x0a; 16]);
        assert_eq!(
            format!("{fingerprint:?}"),
            "Fingerprint(0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a)"
        );
    }
}
