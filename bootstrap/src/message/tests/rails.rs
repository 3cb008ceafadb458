//! Rails in the endpoint of a queue pair.

use super::*;

#[test]
fn rails_come_back_as_they_were_and_stand_behind_the_other_fields() {
    for count in 0..=3 {
        let message = HandshakeMessage::Endpoint(Endpoint::Verbs(with_rails(count)));
        let bytes = bytes_of(&message);
        assert_eq!(parse_message(&bytes), Ok(message.clone()));
        // A later version's fields follow the rails.
        let grown = [&*bytes, &[0xee; 40]].concat();
        assert_eq!(parse_message(&grown), Ok(message.clone()));
        for length in bytes.len() - usize::from(count) * 44..bytes.len() {
            let cut = parse_message(&bytes[..length]);
            assert!(
                matches!(cut, Err(MessageError::Field(FieldError::Truncated { .. }))),
                "{count} rails cut to {length}: {cut:?}"
            );
        }
    }
    let bytes = bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(with_rails(1))));
    let rail: String = bytes[bytes.len() - 45..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        rail,
        concat!(
            "01",       // one rail
            "00010000", // queue pair
            "56341200", // packet sequence
            "0700",     // lid
            "00000000000000000000000000000000",
            "02",               // RoCE v2
            "0010",             // mtu
            "76",               // 3 reads made, 7 served
            "0180",             // partition key
            "00100000007f0000", // the probe's address
            "21436587",         // and its key
        )
    );
}

#[test]
fn rails_that_cannot_be_are_refused() {
    let mut four = bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(with_rails(0))));
    *four.last_mut().expect("the number of rails") = 4;
    four.extend([0; 4 * 44]);
    let too_many = MessageError::Field(FieldError::TooLong {
        field: "rail count",
        length: 4,
        max: 3,
    });
    assert_eq!(parse_message(&four), Err(too_many));
    type Set = fn(&mut QueuePairAddress, u32);
    let impossible: [(&str, Set, &[u32]); 3] = [
        (
            "queue pair number",
            |address, value| address.queue_pair = value,
            &[0, 1, 1 << 24],
        ),
        (
            "packet sequence",
            |address, value| address.packet_sequence = value,
            &[1 << 24],
        ),
        (
            "mtu",
            |address, value| address.mtu_bytes = value as u16,
            &[0, 1500],
        ),
    ];
    for (field, set, values) in impossible {
        for &value in values {
            let mut endpoint = with_rails(3);
            set(&mut endpoint.rails[2].address, value);
            let refused = MessageError::Field(FieldError::UnknownValue {
                field,
                value: value.into(),
            });
            assert_eq!(parsed(endpoint), Err(refused));
        }
    }
}
