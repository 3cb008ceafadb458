//! Endpoints that cannot be, messages out of turn, and garbage.

use super::*;

/// A dialer whose queue pair is connected, or an acceptor that waits for the dialer's.
fn at_endpoints() -> Meeting {
    let mut meeting = hardware();
    meeting.cut_after = 6;
    meeting.run();
    assert_eq!(meeting.dialer.step(), HandshakeStep::Ready);
    assert_eq!(meeting.acceptor.step(), HandshakeStep::Endpoint);
    meeting
}

fn acceptor_error(mut meeting: Meeting, bytes: &[u8]) -> HandshakeError {
    meeting.acceptor.handle_bytes(bytes);
    meeting.drive_acceptor();
    meeting.acceptor_end.expect("ended").unwrap_err()
}

#[test]
fn an_endpoint_that_cannot_be_ends_the_handshake() {
    let mut broken = devices(1, true).endpoint;
    broken.receive_buffer_bytes = 0;
    let endpoint = HandshakeMessage::Endpoint(Endpoint::Verbs(broken));
    let (step, field) = (HandshakeStep::Endpoint, "receive buffer size");
    let problem = MessageError::Field(FieldError::UnknownValue { field, value: 0 });
    assert_eq!(
        acceptor_error(at_endpoints(), &bytes_of(&endpoint)),
        HandshakeError::Malformed { step, problem }
    );
    // An honest dialer would have noticed this type before it sent the endpoint.
    let mut other = devices(1, true).endpoint;
    other.address.gid_type = GidKind::RoceV1;
    let endpoint = HandshakeMessage::Endpoint(Endpoint::Verbs(other));
    let (field, value) = ("gid type", 1);
    let problem = MessageError::Field(FieldError::UnknownValue { field, value });
    assert_eq!(
        acceptor_error(at_endpoints(), &bytes_of(&endpoint)),
        HandshakeError::Malformed { step, problem }
    );
}

#[test]
fn a_message_out_of_turn_between_endpoints_ends_the_handshake() {
    let endpoint = HandshakeMessage::Endpoint(Endpoint::Verbs(devices(1, true).endpoint));
    let ready = HandshakeMessage::Ready(Ready::ALONE);
    let step = HandshakeStep::Endpoint;
    for message in [&ready, &HandshakeMessage::Endpoint(Endpoint::Tcp)] {
        let kind = message.kind();
        assert_eq!(
            acceptor_error(at_endpoints(), &bytes_of(message)),
            HandshakeError::OutOfTurn { step, kind }
        );
    }
    let twice = [bytes_of(&endpoint), bytes_of(&endpoint)].concat();
    let (step, kind) = (HandshakeStep::Ready, MessageKind::Endpoint);
    assert_eq!(
        acceptor_error(at_endpoints(), &twice),
        HandshakeError::OutOfTurn { step, kind }
    );
}

#[test]
fn only_a_queue_pair_can_become_unavailable_after_ready() {
    let unavailable = |fabric| {
        let reason = crate::message::Text::new("changed its mind");
        bytes_of(&HandshakeMessage::Unavailable(
            crate::message::Unavailable { fabric, reason },
        ))
    };
    let mut meeting = at_endpoints();
    meeting.dialer.handle_bytes(&unavailable(Fabric::Tcp));
    meeting.drive_dialer();
    let (step, kind) = (HandshakeStep::Ready, MessageKind::Unavailable);
    let error = meeting.dialer_end.expect("ended").unwrap_err();
    assert_eq!(error, HandshakeError::OutOfTurn { step, kind });
}

proptest! {
    #[test]
    fn garbage_after_any_step_of_verbs_ends_or_waits(
        delivered in 4..9usize,
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
        as_message: bool,
    ) {
        prop_assert!(hardware().ends_in_spite_of(garbage, as_message, delivered));
    }

    /// An endpoint with any bytes of its own, as the last thing before both are ready.
    #[test]
    fn any_endpoint_is_connected_to_or_ends_the_handshake(
        fields in proptest::collection::vec(any::<u8>(), 47),
    ) {
        let mut meeting = at_endpoints();
        let mut bytes = bytes_of(&HandshakeMessage::Endpoint(Endpoint::Verbs(devices(1, true).endpoint)));
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        // The fields begin behind the length, the kind and the fabric.
        for (byte, other) in bytes[4..].iter_mut().zip(fields) {
            *byte = if other < 32 { other } else { *byte };
        }
        let checksum = checksum(ALONE, &bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(bytes_of(&HandshakeMessage::Ready(Ready::ALONE)));
        meeting.acceptor.handle_bytes(&bytes);
        meeting.drive_acceptor();
        match meeting.acceptor_end.take().expect("ended") {
            Ok(agreement) => {
                prop_assert_eq!(agreement.fabric, Fabric::Verbs);
                let theirs = connected_to(&mut meeting, ACCEPTOR).expect("connected");
                prop_assert!(VerbsEndpoint::CREDIT.contains(&theirs.credit));
                prop_assert_eq!(theirs.address.gid_type, GidKind::RoceV2);
            }
            Err(error) => {
                let broke = matches!(error, HandshakeError::Malformed { .. });
                prop_assert!(broke, "{}", error);
            }
        }
    }
}
