//! Dialing what is not an ibex node: each a typed error that says what was
//! found and what to do.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use common::dialing::dial;
use common::{LONG, Listening, dial_node_1, node};
use ibex_bootstrap::handshake::HandshakeStep;
use ibex_bootstrap::{Acceptor, DialError, HandshakeError, Problem};

/// A server that reads lines and answers them, as HTTP, SMTP or Redis do. It
/// has its address and serves one connection.
fn line_server(greeting: &'static [u8], answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(greeting).unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() {
            line.push(byte[0]);
            if byte == *b"\n" {
                stream.write_all(answer).unwrap();
                // Waits until the dialer hangs up.
                let _ = stream.read_to_end(&mut line);
            }
        }
    });
    address
}

#[test]
fn an_http_server_is_recognised_by_its_answer() {
    let address = line_server(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let error = dial_node_1(&address).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{address}: the other end does not speak the ibex protocol: it sent \
             \"HTTP/1.1 400 Bad Request\\r\\n\\r\\n\", an HTTP server's answer; check the address \
             and the port"
        )
    );
}

#[test]
fn an_ssh_server_is_recognised_by_its_greeting() {
    let address = line_server(b"SSH-2.0-OpenSSH_9.6\r\n", b"");
    let error = dial_node_1(&address).unwrap_err();
    assert!(
        matches!(&error, DialError::Handshake { source: HandshakeError::NotIbex { seen }, .. }
            if seen.starts_with("SSH-2.0")),
        "{error}"
    );
}

#[test]
fn a_server_that_accepts_and_falls_silent_is_named_with_the_step() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut hasty = node(1);
    hasty.handshake_timeout = Duration::from_millis(150);
    let error = dial(&address, &hasty, LONG).unwrap_err();
    assert!(
        matches!(error, DialError::Handshake {
            source: HandshakeError::Silent { step: HandshakeStep::Hello, waited }, ..
        } if waited >= hasty.handshake_timeout),
        "{error}"
    );
}

/// Returns the error of a call that ends by its time-out. Doubles the time-out until the call has
/// had time for as many attempts as `is_it` wants to see, since the machine may be slow.
fn dial_in_vain(
    address: &str,
    mut timeout: Duration,
    is_it: impl Fn(&DialError) -> bool,
) -> DialError {
    loop {
        let error = dial(address, &node(1), timeout).unwrap_err();
        timeout *= 2;
        if is_it(&error) || timeout > LONG {
            return error;
        }
    }
}

#[test]
fn a_server_that_hangs_up_each_time_is_nobody_in_the_end() {
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closing.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in closing.incoming() {
            drop(stream);
        }
    });
    let error = dial_in_vain(&address, Duration::from_millis(200), |error| {
        matches!(error, DialError::Nobody { attempts: 2.., .. })
    });
    let DialError::Nobody { last, .. } = error else {
        panic!("not Nobody: {error}");
    };
    assert!(
        last.contains("closed the connection before its Hello"),
        "{last}"
    );
}

#[test]
fn an_attempt_without_time_for_an_answer_says_nothing_of_the_peer() {
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closing.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // The first connection of each call is hung up on, and the second is not answered.
        let mut held = Vec::new();
        for (number, stream) in closing.incoming().enumerate() {
            match number % 2 {
                0 => drop(stream),
                _ => held.push(stream),
            }
        }
    });
    let error = dial_in_vain(&address, Duration::from_millis(700), |error| {
        matches!(error, DialError::Nobody { attempts: 2, .. })
    });
    let DialError::Nobody { last, .. } = error else {
        panic!("not Nobody: {error}");
    };
    assert!(
        last.contains("closed the connection before its Hello") && last.contains("cut short"),
        "{last}"
    );
}

#[test]
fn nobody_there_is_an_error_after_the_timeout_and_not_before() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let timeout = Duration::from_millis(300);
    let error = dial_in_vain(&port.to_string(), timeout, |error| {
        matches!(error, DialError::Refused { attempts: 2.., .. })
    });
    let DialError::Refused { waited, last, .. } = &error else {
        panic!("not Refused: {error}");
    };
    assert!(*waited + Duration::from_millis(10) >= timeout, "{waited:?}");
    assert!(last.contains("refused"), "{last}");
    let said = error.to_string();
    assert!(said.contains("nobody listens there"), "{said}");
    assert!(said.contains("start the peer, or check"), "{said}");
    assert_eq!(said.matches(&port.to_string()).count(), 1, "{said}");
}

#[test]
fn an_endless_timeout_is_no_overflow() {
    let listening = Listening::with(node(2));
    let mut local = node(1);
    local.handshake_timeout = Duration::MAX;
    dial(&listening.address, &local, Duration::MAX).unwrap();
}

#[test]
fn dialing_an_invalid_address_fails_at_once() {
    for address in ["replica", "", "replica:port", "replica:70000"] {
        let error = dial_node_1(address).unwrap_err();
        assert!(
            matches!(error, DialError::InvalidAddress { .. }),
            "{address:?}: {error}"
        );
    }
}

#[test]
fn a_name_that_nobody_knows_is_an_error_in_the_end() {
    let timeout = Duration::from_millis(100);
    let error = dial("no-such-host.invalid:1", &node(1), timeout).unwrap_err();
    assert!(matches!(error, DialError::Unresolved { .. }), "{error}");
}

#[test]
fn a_browser_at_the_listener_is_told_nothing_and_reported() {
    let listening = Listening::with(node(2));
    let mut browser = std::net::TcpStream::connect(&listening.address).unwrap();
    browser
        .write_all(b"GET / HTTP/1.1\r\nHost: replica\r\n\r\n")
        .unwrap();
    let failure = listening.failures.recv_timeout(LONG).unwrap();
    assert_eq!(failure.address, Some(browser.local_addr().unwrap().into()));
    assert!(matches!(
        failure.problem,
        Problem::Handshake(HandshakeError::NotIbex { .. })
    ));
    let mut answer = Vec::new();
    let _ = browser.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
}

#[test]
fn an_error_says_that_the_port_is_in_use() {
    let first = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(1)).unwrap();
    let error = Acceptor::bind(first.local_addr(), node(2)).err().unwrap();
    let expected = "; somebody listens there already, perhaps this process: choose another port";
    assert!(error.to_string().ends_with(expected), "{error}");
}
