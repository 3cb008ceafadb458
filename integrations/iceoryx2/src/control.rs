//! The words by which carriers report their offers and their open channels to each other.

use iceoryx2::service::service_hash::ServiceHash;
use iceoryx2_link_backend::service_description::{ServiceDescriptor, ServiceTypes};
use serde::{Deserialize, Serialize};

/// A word on a control stream.
///
/// A stream begins with a full account, from `Begin` to `End`. Changes follow, in the order in
/// which they were made. A later account replaces everything that was reported before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// The beginning of a full account.
    Begin,
    /// The account is complete, and counts from now on.
    End,
    /// The sender offers a service.
    Offered(ServiceDescriptor),
    /// The sender no longer offers the service of this hash.
    Withdrawn(ServiceHash),
    /// The sender has opened a channel, which has this number for as long as the carrier lives.
    Opened {
        number: u64,
        descriptor: ServiceDescriptor,
    },
    /// The channel of this number is closed. No other channel gets the number.
    Closed { number: u64 },
}

impl Control {
    /// Returns the bytes of the word, which [`decode`](Self::decode) reads.
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("strings and numbers have a form")
    }

    /// Reads a word that a peer sent.
    ///
    /// # Errors
    ///
    /// [`NotAWord`], for bytes of another kind and for types that no service can have.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NotAWord> {
        let word = postcard::from_bytes(bytes);
        let word = word.map_err(|error| NotAWord::Bytes(error.to_string()))?;
        if let Self::Offered(descriptor) | Self::Opened { descriptor, .. } = &word
            && let ServiceTypes::PublishSubscribe(types) = &descriptor.types
        {
            let checked = types.type_details();
            checked.map_err(|error| NotAWord::Types(error.to_string()))?;
        }
        Ok(word)
    }
}

/// The reason why a peer's bytes are no [`Control`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAWord {
    /// The bytes are of another form.
    #[error("it cannot be read: {0}")]
    Bytes(String),
    /// The bytes describe types that no service can have.
    #[error("no service can have its types: {0}")]
    Types(String),
}

/// The name of the control stream of each direction. Another format has another name.
pub(crate) const STREAM: &str = "iceoryx2-link/1";

/// The most bytes of a word: three names of at most 256 bytes and a hash, with room to spare.
pub(crate) const MAX_WORD_BYTES: u64 = 4096;

/// Returns the name of the ibex channel that carries frames from one channel end to another.
pub(crate) fn frames(from: u64, to: u64) -> String {
    format!("{STREAM}/{from}-{to}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::descriptor;

    #[test]
    fn a_word_is_read_as_it_was_written() {
        let descriptor = descriptor("a/service", "u64");
        let words = [
            Control::Begin,
            Control::Offered(descriptor.clone()),
            Control::Withdrawn(descriptor.hash),
            Control::Opened {
                number: u64::MAX,
                descriptor,
            },
            Control::Closed { number: 7 },
            Control::End,
        ];
        for word in words {
            assert_eq!(Control::decode(&word.encode()).expect("a word"), word);
        }
    }

    #[test]
    fn no_bytes_of_a_peer_do_harm() {
        let good = Control::Offered(descriptor("a/service", "u64")).encode();
        for length in 0..good.len() {
            assert!(Control::decode(&good[..length]).is_err(), "{length} bytes");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                // The changed bytes are another word or none.
                let _ = Control::decode(&bytes);
            }
        }
    }

    #[test]
    fn types_that_no_service_can_have_are_refused() {
        let mut descriptor = descriptor("a/service", "u64");
        if let ServiceTypes::PublishSubscribe(types) = &mut descriptor.types {
            types.payload.alignment = 3;
        }
        let refused = Control::decode(&Control::Offered(descriptor).encode());
        assert!(matches!(refused, Err(NotAWord::Types(_))), "{refused:?}");
    }

    #[test]
    fn the_longest_word_fits() {
        let mut descriptor = descriptor(&"n".repeat(255), &"p".repeat(256));
        if let ServiceTypes::PublishSubscribe(types) = &mut descriptor.types {
            types.user_header.type_name = "h".repeat(256);
        }
        let word = Control::Opened {
            number: u64::MAX,
            descriptor,
        };
        assert!(word.encode().len() as u64 <= MAX_WORD_BYTES);
    }
}
