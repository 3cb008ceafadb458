//! Messages as bytes: there and back, cut short, grown longer, and garbage.

use proptest::prelude::*;

use super::*;
use crate::fabric::{Fabric, FabricOffer, Policy, VerbsDevice};
use crate::identity::{NodeIdentity, Secret};
use crate::integrity::Integrity;
use crate::limits::Limits;
use crate::party::Party;
use crate::places::SessionLimit;

mod bounds;
mod rails;

/// Returns a message of each kind, with every optional part present.
fn one_of_each() -> Vec<HandshakeMessage> {
    let verbs = VerbsEndpoint {
        address: QueuePairAddress {
            queue_pair: 0xff_ffff,
            packet_sequence: 0x12_3456,
            lid: 7,
            gid: [0xfe; 16],
            gid_type: GidKind::RoceV2,
            mtu_bytes: 4096,
        },
        max_inline_bytes: 220,
        max_send_sge: 30,
        max_receive_sge: 30,
        abilities: PairAbilities {
            immediate: true,
            read_depth: 3,
            read_resources: 5,
        },
        partition_key: 0x8001,
        rails: Vec::new(),
        receive_buffer_bytes: 4096,
        credit: 64,
    };
    let shm = ShmEndpoint {
        token: Secret::new([6; 32]),
    };
    vec![
        HandshakeMessage::Hello(Hello {
            versions: VersionRange {
                oldest: Version { major: 1, minor: 2 },
                newest: Version { major: 3, minor: 4 },
            },
            features: 1 << 63,
            security: SecurityMode::Unknown(9),
            nonce: [5; 16],
        }),
        HandshakeMessage::Offer(offer()),
        HandshakeMessage::Choice(FabricChoice {
            fabric: Fabric::Shm,
            reason: Text::new("shm: same host, same user"),
        }),
        HandshakeMessage::Endpoint(Endpoint::Shm(shm)),
        HandshakeMessage::Endpoint(Endpoint::Tcp),
        HandshakeMessage::Endpoint(Endpoint::Verbs(verbs)),
        HandshakeMessage::Unavailable(Unavailable {
            fabric: Fabric::Verbs,
            reason: Text::new("no device"),
        }),
        HandshakeMessage::Ready(Ready::ALONE),
        HandshakeMessage::Ready(Ready {
            process: Some(3),
            session: Some(SessionSecrets {
                id: [1; 16],
                resume: Secret::new([2; 32]),
            }),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal::in_words("no")),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("too many"),
            cause: Some(RefusalCause::Limit(
                Party::Acceptor,
                SessionLimit::PerPeer(7),
            )),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("too many"),
            cause: Some(RefusalCause::Limit(Party::Dialer, SessionLimit::PerNode(8))),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("gone"),
            cause: Some(RefusalCause::Resume(ResumeRefusal::NoSuchSession)),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("false"),
            cause: Some(RefusalCause::Resume(ResumeRefusal::WrongProof)),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("old"),
            cause: Some(RefusalCause::Resume(ResumeRefusal::OldEpoch)),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("closing"),
            cause: Some(RefusalCause::Closing),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("other bytes"),
            cause: Some(RefusalCause::Garbled),
        }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("not there"),
            cause: Some(RefusalCause::NotOverFabric),
        }),
        HandshakeMessage::Resume(Resume {
            session: ResumedSession {
                session_id: [1; 16],
                epoch: 0x0203,
                fabric: Fabric::Tcp,
            },
            proof: [4; 32],
        }),
        HandshakeMessage::Resumed(Resumed { proof: [5; 32] }),
        HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new("no files"),
            cause: Some(RefusalCause::Descriptors(Party::Acceptor, 64)),
        }),
    ]
}

fn offer() -> Offer {
    let fabric = |kind, policy, device| FabricOffer {
        device,
        ..FabricOffer::new(kind, policy)
    };
    let device = VerbsDevice {
        hardware: true,
        name: "mlx5_0".to_string(),
    };
    Offer {
        requires_encryption: false,
        name: Text::default(),
        identity: NodeIdentity([1; 16]),
        incarnation: 2,
        host: HostTags {
            boot: [3; 16],
            network: [4; 16],
            pid_namespace: [5; 16],
            user: [6; 16],
        },
        limits: Limits::default(),
        integrity: Integrity::Off,
        fabrics: vec![
            fabric(Fabric::Shm, Policy::Require, None),
            fabric(Fabric::Tcp, Policy::Forbid, None),
            fabric(Fabric::Verbs, Policy::Prefer, Some(device)),
        ],
    }
}

/// Returns the message without its length prefix, which is checked, and without a checksum.
fn bytes_of(message: &HandshakeMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    let length = u16::from_le_bytes([bytes[0], bytes[1]]);
    assert_eq!(usize::from(length), bytes.len() - 2);
    bytes.split_off(2)
}

#[test]
fn each_message_comes_back_as_it_was() {
    for message in one_of_each() {
        assert_eq!(parse_message(&bytes_of(&message)), Ok(message));
    }
}

/// Checks the layout of messages that the recorded handshakes do not contain.
#[test]
fn the_rarer_messages_are_laid_out_as_they_were() {
    let hex = |message: &HandshakeMessage| -> String {
        bytes_of(message)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let messages = one_of_each();
    assert_eq!(
        hex(&messages[5]),
        concat!(
            "0403",     // Endpoint, verbs
            "ffffff00", // queue pair
            "56341200", // packet sequence
            "0700",     // lid
            "fefefefefefefefefefefefefefefefe",
            "02",       // RoCE v2
            "0010",     // mtu
            "dc000000", // inline
            "1e00",
            "1e00",     // scatter-gather entries
            "00100000", // receive buffers
            "40000000", // credit
            "57",       // immediate data, 3 reads made, 5 served
            "0180",     // partition key
            "00",       // no rails
        )
    );
    assert_eq!(hex(&messages[6]), "050309006e6f20646576696365");
    assert_eq!(hex(&messages[9]), "0702006e6f00");
    assert_eq!(hex(&messages[10]), "070800746f6f206d616e79010107000000");
    assert_eq!(hex(&messages[12]), "070400676f6e6503");
    assert_eq!(hex(&messages[13]), "07050066616c736504");
    let last = messages.last().map(hex);
    assert_eq!(last.as_deref(), Some("0708006e6f2066696c65730a0140000000"));
    assert_eq!(hex(&messages[14]), "0703006f6c6405");
    assert_eq!(hex(&messages[16]), "070b006f7468657220627974657308");
    let identity = [1; 16].map(|byte: u8| format!("{byte:02x}")).concat();
    let tags = [[3; 16], [4; 16], [5; 16], [6; 16]].concat();
    let tags: String = tags.iter().map(|byte: &u8| format!("{byte:02x}")).collect();
    let expected = [
        "02",
        &identity,
        "0200000000000000",   // incarnation
        &tags,                // of the host, the network and pid namespaces, the user
        "00040000",           // channels
        "0000100000000000",   // credit
        "00000100",           // frame
        "02",                 // integrity: off
        "03",                 // fabrics
        "01010000",           // shm, required
        "02030000",           // tcp, forbidden
        "0302",               // verbs, preferred
        "0900",               // 9 bytes of capabilities:
        "0106006d6c78355f30", // hardware, "mlx5_0"
        "00",                 // no need of encryption
        "0000",               // and no name
    ];
    assert_eq!(hex(&messages[1]), expected.concat());
}

/// The checksum is CRC-32/ISCSI: its check value, and that of the message behind two Hellos.
#[test]
fn a_message_ends_with_its_checksum() {
    assert_eq!(checksum(ALONE, b"123456789"), 0xe306_9283);
    assert_eq!(checksum([b"12", b"345"], b"6789"), 0xe306_9283);
    let message = HandshakeMessage::Ready(Ready::ALONE);
    let mut bytes = vec![0xee];
    message.write_checked([b"one", b"other"], &mut bytes);
    assert_eq!(bytes[..5], [0xee, 10, 0, 6, 0]);
    let expected = checksum([b"one", b"other"], &[10, 0, 6, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[9..], expected.to_le_bytes());
}

#[test]
fn a_message_cut_anywhere_is_an_error_that_names_a_field() {
    for message in one_of_each() {
        let bytes = bytes_of(&message);
        for length in 1..bytes.len() {
            let cut = parse_message(&bytes[..length]);
            assert!(
                matches!(cut, Err(MessageError::Field(FieldError::Truncated { .. }))),
                "{:?} cut to {length}: {cut:?}",
                message.kind()
            );
        }
    }
    assert_eq!(parse_message(&[]), Err(MessageError::Empty));
}

#[test]
fn bytes_that_a_later_version_adds_to_a_message_are_ignored() {
    for message in one_of_each() {
        let mut bytes = bytes_of(&message);
        bytes.extend([0xee; 40]);
        assert_eq!(parse_message(&bytes), Ok(message));
    }
}

#[test]
fn capabilities_of_shared_memory_come_back_as_they_were() {
    let (mut denied, mut crossing) = (offer(), offer());
    denied.fabrics[0].is_denied = true;
    crossing.fabrics[0].crosses_users = true;
    crossing.fabrics[0].has_directory = true;
    for offer in [denied, crossing] {
        let message = HandshakeMessage::Offer(offer);
        assert_eq!(parse_message(&bytes_of(&message)), Ok(message));
    }
}

#[test]
fn a_name_comes_back_bounded_and_escaped() {
    let named = |name: &[u8]| {
        let mut bytes = bytes_of(&HandshakeMessage::Offer(offer()));
        bytes.truncate(bytes.len() - 2);
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
        parse_message(&bytes)
    };
    let offered = |name: &str| {
        let name = Text::new(name);
        HandshakeMessage::Offer(Offer { name, ..offer() })
    };
    assert_eq!(named(b"replica-2"), Ok(offered("replica-2")));
    let message = offered("replica-2");
    assert_eq!(parse_message(&bytes_of(&message)), Ok(message));
    let hostile = named("a\nb\u{202e}\u{2028}\x1b[2J".as_bytes());
    assert_eq!(hostile, Ok(offered(r"a\nb\u{202e}\u{2028}\u{1b}[2J")));
    assert!(named(&[0xff; 64]).is_ok());
    let too_long = MessageError::Field(FieldError::TooLong {
        field: "node name",
        length: 65,
        max: 64,
    });
    assert_eq!(named(&[b'x'; 65]), Err(too_long));
}

fn verbs_endpoint() -> VerbsEndpoint {
    match one_of_each().remove(5) {
        HandshakeMessage::Endpoint(Endpoint::Verbs(endpoint)) => endpoint,
        other => panic!("not the verbs endpoint: {other:?}"),
    }
}

/// Returns an endpoint with that many rails.
fn with_rails(count: u8) -> VerbsEndpoint {
    let mut endpoint = verbs_endpoint();
    let rail = |number| VerbsRail {
        address: QueuePairAddress {
            queue_pair: 0x100 + u32::from(number),
            gid: [number; 16],
            ..endpoint.address
        },
        abilities: PairAbilities {
            immediate: false,
            read_depth: 3,
            read_resources: 7,
        },
        partition_key: 0x8001,
        probe_address: 0x7f00_0000_1000,
        probe_key: 0x8765_4321,
    };
    endpoint.rails = (0..count).map(rail).collect();
    endpoint
}

fn parsed(endpoint: VerbsEndpoint) -> Result<HandshakeMessage, MessageError> {
    parse_message(&bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(
        endpoint,
    ))))
}

#[test]
fn what_a_peer_says_of_its_device_and_its_reasons_is_escaped() {
    let mut hostile = offer();
    let planted = "a\nb\u{202e}\u{2028}\x1b[2J";
    let escaped = r"a\nb\u{202e}\u{2028}\u{1b}[2J";
    let name = |offer: &mut Offer, name: &str| {
        let device = offer.fabrics[2].device.as_mut().expect("a device");
        device.name = name.to_owned();
    };
    name(&mut hostile, planted);
    let came = parse_message(&bytes_of(&HandshakeMessage::Offer(hostile.clone())));
    name(&mut hostile, escaped);
    assert_eq!(came, Ok(HandshakeMessage::Offer(hostile)));

    // A refusal: its kind, the text behind its length, and the cause.
    let mut bytes = vec![7];
    bytes.extend((planted.len() as u16).to_le_bytes());
    bytes.extend(planted.as_bytes());
    bytes.push(0);
    match parse_message(&bytes) {
        Ok(HandshakeMessage::Refusal(refusal)) => assert_eq!(refusal.reason.as_str(), escaped),
        other => panic!("not a refusal: {other:?}"),
    }
}

#[test]
fn a_fabric_of_a_later_version_is_skipped() {
    let mut bytes = bytes_of(&HandshakeMessage::Offer(offer()));
    // The count stands behind the kind and the fixed fields.
    let count = 1 + 16 + 8 + 4 * 16 + 4 + 8 + 4 + 1;
    assert_eq!(bytes[count], 3);
    bytes[count] = 4;
    // The need of encryption and the name stand behind the fabrics.
    let end = bytes.len() - 3;
    bytes.splice(end..end, [200, 77, 3, 0, 1, 2, 3]);
    assert_eq!(parse_message(&bytes), Ok(HandshakeMessage::Offer(offer())));
}

#[test]
fn the_longest_words_still_make_a_bounded_message() {
    let reason = Text::new(&"w".repeat(100_000));
    let message = HandshakeMessage::Choice(FabricChoice {
        fabric: Fabric::Tcp,
        reason,
    });
    assert_eq!(parse_message(&bytes_of(&message)), Ok(message));
    let mut wordy = offer();
    wordy.fabrics[2].device = Some(VerbsDevice {
        hardware: true,
        name: "d".repeat(5000),
    });
    assert!(parse_message(&bytes_of(&HandshakeMessage::Offer(wordy))).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = parse_message(&bytes);
    }

    #[test]
    fn any_fields_behind_a_known_kind_parse_or_fail(
        kind in 1..=9u8,
        fields in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(message) = parse_message(&[&[kind], &*fields].concat()) {
            // A message that was understood can be written again.
            prop_assert_eq!(parse_message(&bytes_of(&message)), Ok(message));
        }
    }

    #[test]
    fn one_flipped_byte_parses_or_fails(which in 0..one_of_each().len(), at in any::<prop::sample::Index>(), to: u8) {
        let mut bytes = bytes_of(&one_of_each()[which]);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = parse_message(&bytes);
    }
}
