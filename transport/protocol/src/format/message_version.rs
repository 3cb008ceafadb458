//! The choice of a channel's message type, if an end knows more than one.
//!
//! Rules:
//!
//! 1. An end offers the versions that it knows, the newest first; most know one.
//! 2. Both ends settle on the first of the *sender's* versions that the receiver knows too. The
//!    choice is a function of both offers and of nothing else, so both ends come to the same
//!    version, whichever end opened first. The sender's order decides, since two programs may
//!    disagree about which of two versions is the newer.
//! 3. A version is known by its fingerprint and its alignment: where records begin and how
//!    they are padded follows from the version that was settled.
//! 4. The settled version holds for the life of the channel.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_base::{
    Escaped,
    field::{AtMost, FieldCodec, FieldError, FieldReader, WireField},
};

use super::control::ChannelSpec;

/// A message type with its codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageVersion {
    /// Structural fingerprint of the message type and its codec.
    pub fingerprint: [u8; 16],
    /// A description of the structure for people; cut when it travels.
    pub schema: String,
    /// Alignment of every payload: a power of two, 8 to 64.
    pub alignment: u32,
}

/// The versions that an end may offer beside its newest.
pub const MAX_OLDER_VERSIONS: usize = 3;

impl MessageVersion {
    /// Returns whether messages of both have the same bytes.
    fn is_same(&self, other: &Self) -> bool {
        (self.fingerprint, self.alignment) == (other.fingerprint, other.alignment)
    }
}

impl fmt::Display for MessageVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The peer's description is what the peer says.
        write!(f, "{} [", Escaped(&self.schema))?;
        let start = &self.fingerprint[..4];
        start.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("]")
    }
}

/// A version whose description has at most so many bytes, and of a longer one the beginning.
pub(super) struct SchemaWithin(pub(super) usize);

impl FieldCodec<MessageVersion> for SchemaWithin {
    fn read(
        &self,
        from: &mut FieldReader<'_>,
        name: &'static str,
    ) -> Result<MessageVersion, FieldError> {
        let version = MessageVersion {
            fingerprint: WireField::read(from, name)?,
            schema: AtMost(self.0).read(from, "schema")?,
            alignment: WireField::read(from, name)?,
        };
        match version.alignment {
            8 | 16 | 32 | 64 => Ok(version),
            other => Err(FieldError::UnknownValue {
                field: "alignment, which is 8, 16, 32 or 64,",
                value: other.into(),
            }),
        }
    }

    fn write(&self, version: &MessageVersion, out: &mut Vec<u8>) {
        version.fingerprint.write(out);
        AtMost(self.0).write(&version.schema, out);
        version.alignment.write(out);
    }
}

/// The version that two ends settle on, if they know one in common (rule 2).
#[must_use]
pub fn settle<'a>(sender: &'a ChannelSpec, receiver: &ChannelSpec) -> Option<&'a MessageVersion> {
    sender
        .versions()
        .find(|ours| receiver.versions().any(|theirs| ours.is_same(theirs)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::channel_window::ChannelWindow;

    /// An end that offers these, written as their fingerprints' bytes.
    fn spec(offered: &[u8]) -> ChannelSpec {
        let version = |&byte: &u8| MessageVersion {
            fingerprint: [byte; 16],
            schema: String::new(),
            alignment: 8,
        };
        let (newest, older) = offered.split_first().expect("an end offers something");
        ChannelSpec {
            newest: version(newest),
            older: older.iter().map(version).collect(),
            window: ChannelWindow {
                messages: 1,
                bytes: 1,
            },
            max_message_bytes: 1,
            max_unreleased_bytes: 1,
            is_traced: false,
        }
    }

    fn settled(sender: &[u8], receiver: &[u8]) -> Option<u8> {
        settle(&spec(sender), &spec(receiver)).map(|version| version.fingerprint[0])
    }

    #[test]
    fn the_highest_common_version_is_settled() {
        for (sender, receiver, expected) in [
            // Old and new processes, in both directions.
            (&[1][..], &[1][..], Some(1)),
            (&[2, 1], &[1], Some(1)),
            (&[1], &[2, 1], Some(1)),
            (&[2, 1], &[2, 1], Some(2)),
            // New processes that have forgotten the oldest version, with processes that have not.
            (&[2], &[2, 1], Some(2)),
            (&[3, 2], &[2, 1], Some(2)),
            (&[2, 1], &[3, 2], Some(2)),
            (&[3, 2, 1], &[4, 2, 1], Some(2)),
            // Processes without a common version.
            (&[3, 2], &[1], None),
            (&[1], &[3, 2], None),
            (&[4, 3], &[2, 1], None),
            // The ends disagree about the order, and the sender's order counts.
            (&[1, 2], &[2, 1], Some(1)),
            (&[2, 1], &[1, 2], Some(2)),
            // Only a broken peer lists a version twice, which has no effect.
            (&[2, 2, 1], &[1, 1], Some(1)),
        ] {
            let settled = settled(sender, receiver);
            assert_eq!(settled, expected, "{sender:?} sends to {receiver:?}");
        }
    }

    #[test]
    fn another_alignment_is_another_version() {
        let mut wider = spec(&[2, 1]);
        wider.newest.alignment = 64;
        assert_eq!(settle(&wider, &wider).map(|v| v.alignment), Some(64));
        assert_eq!(
            settle(&wider, &spec(&[2, 1])).map(|v| v.fingerprint),
            Some([1; 16])
        );
        assert_eq!(settle(&wider, &spec(&[2])), None);
    }

    proptest! {
        /// Against the plain words: of all common versions, the one that is highest with the
        /// sender; and where both sort alike, the highest with both.
        #[test]
        fn nothing_common_is_higher(
            sender in proptest::collection::vec(0..6_u8, 1..=4),
            receiver in proptest::collection::vec(0..6_u8, 1..=4),
        ) {
            let rank = |list: &[u8], version| list.iter().position(|&other| other == version);
            let common = (0..6).filter(|version| receiver.contains(version));
            let highest = common
                .filter_map(|version| Some((rank(&sender, version)?, version)))
                .min()
                .map(|(_, version)| version);
            prop_assert_eq!(settled(&sender, &receiver), highest);

            let (mut sender, mut receiver) = (sender, receiver);
            for list in [&mut sender, &mut receiver] {
                list.sort_unstable_by(|a, b| b.cmp(a));
            }
            prop_assert_eq!(settled(&sender, &receiver), settled(&receiver, &sender));
        }
    }
}
