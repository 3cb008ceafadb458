//! Control messages survive their bytes, and nothing else is one.

use proptest::prelude::*;

use super::*;
use crate::format::{channel_window::ChannelWindow, message_version::MessageVersion};

fn version(number: u8) -> MessageVersion {
    MessageVersion {
        fingerprint: [number; 16],
        schema: "{ offset: u64 }".into(),
        alignment: 16,
    }
}

/// An open with versions behind the first.
fn open_of(older: Vec<MessageVersion>) -> Control {
    let mut open = some_open();
    if let Control::Open { spec, .. } = &mut open {
        Arc::make_mut(spec).older = older;
    }
    open
}

fn encoded(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn some_open() -> Control {
    Control::Open {
        end: 3,
        role: Role::Receiver,
        name: "wal".into(),
        spec: Arc::new(ChannelSpec {
            newest: version(7),
            older: Vec::new(),
            window: ChannelWindow {
                messages: 10,
                bytes: 1000,
            },
            max_message_bytes: 1 << 30,
            max_unreleased_bytes: 1 << 31,
            is_traced: false,
        }),
    }
}

fn some_known(receiver: Option<KnownReceiver>) -> Control {
    Control::Known {
        end: 3,
        state: KnownEnd {
            received_close: true,
            receiver,
        },
    }
}

fn some_memory() -> RemoteMemory {
    RemoteMemory::new(0x7f00_0000_1000, 0xabcd, 1 << 28).unwrap()
}

#[test]
fn memory_that_cannot_be_is_not_granted() {
    let grant = encoded(&Control::GrantMemory {
        channel: 4,
        sequence: 77,
        memory: some_memory(),
    });
    // Fields in order: type, channel, sequence; then address, key, length.
    for (at, value) in [(13, 0), (13, u64::MAX - 9), (25, 0), (25, u64::MAX)] {
        let mut lie = grant.clone();
        lie[at..at + 8].copy_from_slice(&value.to_le_bytes());
        assert!(Control::decode(&lie).is_err(), "{value:#x} at {at}");
    }
}

#[test]
fn every_message_survives_the_wire_and_no_prefix_does() {
    for message in [
        some_open(),
        Control::Close {
            end: 1,
            role: Role::Sender,
            reason: CloseReason::SlotLeaked,
            final_sequence: 9,
        },
        Control::Ask {
            channel: 4,
            ask: Ask {
                received: 1,
                released: 2,
                acknowledged: 3,
            },
        },
        Control::Grant {
            channel: 4,
            sequence: 77,
            bytes: 1 << 20,
        },
        Control::GrantMemory {
            channel: 4,
            sequence: 77,
            memory: some_memory(),
        },
        Control::Offer {
            channel: 4,
            sequence: 77,
            memory: Some(some_memory()),
        },
        Control::Offer {
            channel: 4,
            sequence: 77,
            memory: None,
        },
        Control::OfferRail {
            channel: 4,
            sequence: 77,
            rail: 2,
            key: 0x0102_0304,
        },
        Control::Taken {
            channel: 4,
            sequence: 77,
        },
        Control::GrantEagerBlock {
            channel: 4,
            eager_block: EagerBlockId::from_word(0x0003_fffe),
            memory: some_memory(),
        },
        Control::ReturnEagerBlock {
            channel: 4,
            eager_block: EagerBlockId::from_word(0x0003_ffff),
        },
        Control::Goodbye { reason: None },
        Control::Goodbye {
            reason: Some("".into()),
        },
        Control::Goodbye {
            reason: Some("the job is done".into()),
        },
        Control::Want { granted: 1 << 40 },
        Control::Recall {
            credit: u64::MAX,
            must_ask: true,
        },
        Control::Surrender { credit: 12 },
        Control::Abandoned,
        Control::Draining { is_done: false },
        Control::Draining { is_done: true },
        Control::Query,
        Control::Damaged { times: 1 << 33 },
        some_known(None),
        some_known(Some(KnownReceiver::nothing(16))),
        Control::Resumed { newest_end: 0 },
    ] {
        let mut bytes = encoded(&message);
        assert_eq!(Control::decode(&bytes).as_ref(), Ok(&message));
        for cut in 0..bytes.len() {
            assert!(
                Control::decode(&bytes[..cut]).is_err(),
                "{message:?} cut at {cut}"
            );
        }
        bytes.push(0);
        assert!(Control::decode(&bytes).is_err());
    }
}

/// The handles of this end refuse to open such a channel as well.
#[test]
fn a_channel_has_a_name_of_1_to_255_bytes() {
    let open_as = |name: &str| {
        let mut open = some_open();
        if let Control::Open { name: of_open, .. } = &mut open {
            *of_open = name.into();
        }
        open
    };
    let of = |error| Err(MalformedControl(error));
    let nameless = encoded(&open_as(""));
    let (field, value) = ("length of a channel name", 0);
    let error = FieldError::UnknownValue { field, value };
    assert_eq!(Control::decode(&nameless), of(error));
    for bytes in [1, MAX_NAME_BYTES] {
        let open = open_as(&"x".repeat(bytes));
        assert_eq!(Control::decode(&encoded(&open)).as_ref(), Ok(&open));
    }
    // Fields in order: type, end, role; then the length of the name.
    let mut longer = encoded(&open_as(&"x".repeat(MAX_NAME_BYTES)));
    longer[6..8].copy_from_slice(&(MAX_NAME_BYTES as u16 + 1).to_le_bytes());
    let (field, max) = ("channel name", MAX_NAME_BYTES);
    let length = max + 1;
    let error = FieldError::TooLong { field, length, max };
    assert_eq!(Control::decode(&longer), of(error));
}

#[test]
fn a_channel_that_carries_trace_context_survives_the_wire() {
    for older in [Vec::new(), vec![version(1)], vec![version(1), version(2)]] {
        let mut traced = open_of(older);
        if let Control::Open { spec, .. } = &mut traced {
            Arc::make_mut(spec).is_traced = true;
        }
        let bytes = encoded(&traced);
        assert_eq!(Control::decode(&bytes).as_ref(), Ok(&traced));
        for flags in [2, 255] {
            let mut other = bytes.clone();
            *other.last_mut().expect("the flags") = flags;
            assert!(Control::decode(&other).is_err());
        }
    }
}

#[test]
fn older_versions_survive_the_wire_as_a_whole_or_not_at_all() {
    for count in 1..=MAX_OLDER_VERSIONS as u8 {
        let open = open_of((0..count).map(version).collect());
        let mut bytes = encoded(&open);
        assert_eq!(Control::decode(&bytes).as_ref(), Ok(&open));
        for cut in 0..bytes.len() {
            assert!(Control::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes.push(0);
        assert!(Control::decode(&bytes).is_err());
    }
}

#[test]
fn a_list_of_older_versions_is_bounded() {
    let without = encoded(&some_open());
    // The list and the flag are the last fields.
    let (without, _) = without.split_at(without.len() - 2);
    let one = encoded(&open_of(vec![version(1)]));
    let one = one[without.len() + 1..one.len() - 1].to_vec();
    let list = |count: u8| {
        let versions = one.repeat(count.into());
        Control::decode(&[without, &[count], &versions, &[0]].concat())
    };
    assert!(list(0).is_ok() && list(MAX_OLDER_VERSIONS as u8).is_ok());
    for count in [MAX_OLDER_VERSIONS as u8 + 1, u8::MAX] {
        assert!(list(count).is_err(), "{count}");
    }
    let mut unaligned = [without, &[1], &one, &[0]].concat();
    let alignment = unaligned.len() - 5;
    unaligned[alignment] = 24;
    assert!(Control::decode(&unaligned).is_err());
}

#[test]
fn a_long_schema_is_cut_at_a_character() {
    let mut long = open_of(vec![version(1); MAX_OLDER_VERSIONS]);
    if let Control::Open { spec, .. } = &mut long {
        let spec = Arc::make_mut(spec);
        let versions = std::iter::once(&mut spec.newest).chain(&mut spec.older);
        versions.for_each(|version| version.schema = "ä".repeat(MAX_SCHEMA_BYTES));
    }
    let Ok(Control::Open { spec, .. }) = Control::decode(&encoded(&long)) else {
        panic!()
    };
    assert_eq!(spec.newest.schema, "ä".repeat(MAX_SCHEMA_BYTES / 2));
    for older in &spec.older {
        assert_eq!(older.schema, "ä".repeat(MAX_OLDER_SCHEMA_BYTES / 2));
    }
}

#[test]
fn unknown_flags_in_a_known_message_are_refused() {
    let known = |flags: u8| [encoded(&some_known(None))[..5].to_vec(), vec![flags]].concat();
    assert!(Control::decode(&known(0b001)).is_ok());
    for unknown in [0b100, 0b101, 0b1000] {
        assert!(Control::decode(&known(unknown)).is_err(), "{unknown:#b}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        if let Ok(message) = Control::decode(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }

    /// Decodes lists that are nearly valid, which random bytes hardly ever are.
    #[test]
    fn a_garbled_list_of_versions_is_a_message_or_an_error(
        count in 0..=MAX_OLDER_VERSIONS,
        garbled in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&open_of(vec![version(1); count]));
        for (at, byte) in garbled {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(message) = Control::decode(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }
}
