//! Bounds of fields, and values that cannot be.

use super::*;

#[test]
fn each_bound_holds_and_one_beyond_fails() {
    let fabrics = |count: u8| {
        let mut bytes = bytes_of(&HandshakeMessage::Offer(Offer {
            fabrics: Vec::new(),
            ..offer()
        }));
        // The count stands before the need of encryption and the name.
        let end = bytes.len() - 3;
        bytes[end - 1] = count;
        bytes.splice(end..end, [200, 0, 0, 0].repeat(usize::from(count)));
        parse_message(&bytes)
    };
    assert!(fabrics(16).is_ok());
    assert!(matches!(
        fabrics(17),
        Err(MessageError::Field(FieldError::TooLong {
            length: 17,
            max: 16,
            ..
        }))
    ));

    let long = |length| parse_message(&[&[MessageKind::Ready as u8], &*vec![0; length]].concat());
    assert!(long(MAX_MESSAGE_BYTES - 1).is_ok());
    assert_eq!(
        long(MAX_MESSAGE_BYTES),
        Err(MessageError::Oversize { length: 4097 })
    );
}

#[test]
fn values_that_cannot_be_are_refused() {
    let mut endpoint = verbs_endpoint();
    endpoint.address.mtu_bytes = 1500;
    let odd_mtu = bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(
        endpoint.clone(),
    )));
    assert_eq!(
        parse_message(&odd_mtu),
        Err(MessageError::Field(FieldError::UnknownValue {
            field: "mtu",
            value: 1500
        }))
    );
    endpoint.address.mtu_bytes = 1024;
    // Tests each bound, and one beyond it.
    type Set = fn(&mut VerbsEndpoint, u32);
    let bounds: [(&str, Set, [u32; 2], &[u32]); 6] = [
        (
            "queue pair number",
            |endpoint, value| endpoint.address.queue_pair = value,
            [2, 0xff_ffff],
            &[0, 1, 1 << 24],
        ),
        (
            "packet sequence",
            |endpoint, value| endpoint.address.packet_sequence = value,
            [0, 0xff_ffff],
            &[1 << 24],
        ),
        (
            "inline limit",
            |endpoint, value| endpoint.max_inline_bytes = value,
            [0, 64 << 10],
            &[(64 << 10) + 1],
        ),
        (
            "receive sge limit",
            |endpoint, value| endpoint.max_receive_sge = value as u16,
            [1, 0xffff],
            &[0],
        ),
        (
            "receive buffer size",
            |endpoint, value| endpoint.receive_buffer_bytes = value,
            [256, 1 << 20],
            &[255, (1 << 20) + 1],
        ),
        (
            "credit",
            |endpoint, value| endpoint.credit = value,
            [0, 1 << 20],
            &[(1 << 20) + 1],
        ),
    ];
    for (field, set, possible, impossible) in bounds {
        let parsed = |value| {
            let mut changed = endpoint.clone();
            set(&mut changed, value);
            parse_message(&bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(
                changed,
            ))))
        };
        for value in possible {
            assert!(parsed(value).is_ok(), "{field} {value}");
        }
        for &value in impossible {
            assert_eq!(
                parsed(value),
                Err(MessageError::Field(FieldError::UnknownValue {
                    field,
                    value: value.into()
                }))
            );
        }
    }
    assert_eq!(parse_message(&[99]), Err(MessageError::UnknownKind(99)));
    let mut twice = offer();
    twice.fabrics.push(twice.fabrics[0].clone());
    assert_eq!(
        parse_message(&bytes_of(&HandshakeMessage::Offer(twice))),
        Err(MessageError::Field(FieldError::Repeated {
            field: "fabric"
        }))
    );
}
