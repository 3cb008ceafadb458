//! Tests of what errors of handshakes say.

use super::*;

#[test]
fn one_attempt_is_told_as_one() {
    let refused = |attempts, waited| {
        let error = DialError::Refused {
            address: "replica:7000".to_owned(),
            waited,
            attempts,
            last: "10.0.0.2:7000: connection refused".to_owned(),
        };
        error.to_string()
    };
    assert_eq!(
        refused(1, Duration::ZERO),
        "replica:7000: nobody listens there, the connection was refused (10.0.0.2:7000: \
         connection refused); start the peer, or check host, port and firewall"
    );
    assert_eq!(
        refused(12, Duration::new(3, 1_815_137)),
        "replica:7000: nobody listens there, connections were refused for 3.002s (12 attempts; \
         the last: 10.0.0.2:7000: connection refused); start the peer, or check host, port and \
         firewall"
    );
    let unresolved = DialError::Unresolved {
        address: "replica:7000".to_owned(),
        waited: Duration::from_millis(20),
        attempts: 1,
        source: io::ErrorKind::NotFound.into(),
    };
    assert_eq!(
        unresolved.to_string(),
        "replica:7000: the host name was not found for 20ms (1 attempt; entity not found); \
         check the name and the resolver"
    );
    let cancelled = DialError::Cancelled {
        address: "replica:7000".to_owned(),
        waited: Duration::new(1, 1_815_137),
    };
    assert_eq!(
        cancelled.to_string(),
        "replica:7000: connecting was cancelled after 1.002s, as this node is closing"
    );
}

#[test]
fn an_address_that_is_taken_is_named_once() {
    let address: Address = "127.0.0.1:7000".parse().expect("an address");
    let error = BindError {
        address,
        action: "binding",
        source: io::ErrorKind::AddrInUse.into(),
    };
    assert_eq!(
        error.to_string(),
        "cannot listen on 127.0.0.1:7000: binding failed: address in use; somebody \
         listens there already, perhaps this process: choose another port"
    );
}

#[test]
fn where_a_name_led_is_told_and_an_address_is_named_once() {
    let text = |address: &str| {
        DialError::Handshake {
            address: address.to_string(),
            peer: "127.0.0.1:7000".parse().expect("an address"),
            source: HandshakeError::Closing,
        }
        .to_string()
    };
    let why = "the node there is being closed and begins no session";
    assert_eq!(text("127.0.0.1:7000"), format!("127.0.0.1:7000: {why}"));
    assert_eq!(
        text("replica:7000"),
        format!("replica:7000 (at 127.0.0.1:7000): {why}")
    );
}

#[test]
fn a_cause_that_the_text_tells_is_not_told_again_as_the_source() {
    use std::error::Error;

    let address = || "replica:7000".to_string();
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let socket: Address = "127.0.0.1:7000".parse().expect("an address");
    let problem = || Problem::Environment {
        action: "accept",
        source: refused(),
    };
    let errors: [Box<dyn Error>; 6] = [
        Box::new(DialError::InvalidAddress {
            address: address(),
            source: refused(),
        }),
        Box::new(DialError::Handshake {
            address: address(),
            peer: socket,
            source: HandshakeError::Closing,
        }),
        Box::new(DialError::Environment {
            address: address(),
            action: "connect",
            source: refused(),
        }),
        Box::new(BindError {
            address: socket,
            action: "binding",
            source: refused(),
        }),
        Box::new(problem()),
        Box::new(HandshakeFailure {
            address: Some(socket),
            problem: problem(),
        }),
    ];
    for error in errors {
        assert!(error.source().is_none(), "{error}");
    }
}

#[test]
fn an_invalid_address_error_shows_how_an_address_looks() {
    use std::net::ToSocketAddrs;

    let error = "replica".to_socket_addrs().unwrap_err();
    let form = "give host:port, such as 127.0.0.1:7000";
    let next_step = |error| BindError::next_step("replica", error);
    assert_eq!(next_step(&error), form);
    let refused = io::Error::from_raw_os_error(22); // EINVAL
    assert_ne!(next_step(&refused), form);
    let short = io::Error::from_raw_os_error(24); // EMFILE
    assert_eq!(next_step(&short), MORE_DESCRIPTORS);
    let of_vsock = BindError::next_step("vsock:7000", &io::ErrorKind::InvalidInput.into());
    assert_eq!(of_vsock, "give vsock:CID:PORT, such as vsock:3:7000");
}
