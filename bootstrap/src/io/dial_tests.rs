//! The order in which a dial tries addresses, with a clock that stands until a test moves it.

use super::*;
use crate::message::MessageError;

/// A dial whose attempts the test answers.
struct Course {
    dial: Dial,
    now: Instant,
}

const TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(5);

fn begin(address: &str, tries_again: bool) -> Course {
    let now = Instant::now();
    let times = (TIMEOUT, HANDSHAKE);
    let dial = Dial::begin(address.to_owned(), tries_again, times, now);
    Course {
        dial: dial.expect("an address"),
        now,
    }
}

fn at(text: &str) -> Address {
    text.parse().expect("an address")
}

fn refused() -> Missed {
    let error = io::Error::from(io::ErrorKind::ConnectionRefused);
    Missed::Connection(NoConnection::Peer(error))
}

fn short() -> Missed {
    let error = io::Error::from_raw_os_error(24); // EMFILE
    Missed::Connection(NoConnection::Shortage("make a socket", error))
}

fn foreign() -> HandshakeError {
    HandshakeError::NotIbex {
        seen: "HTTP/1.1 400".to_owned(),
    }
}

impl Course {
    fn poll(&mut self) -> Action {
        self.dial.poll(self.now, 0)
    }

    /// Resolves the name.
    fn find(&mut self, addresses: &[&str]) {
        assert!(matches!(self.poll(), Action::LookUp));
        assert!(matches!(self.poll(), Action::Wait(_)));
        let found = addresses.iter().map(|text| at(text)).collect();
        self.dial.handle_looked_up(Ok(found), self.now);
    }

    fn tries(&mut self, address: &str) {
        match self.poll() {
            Action::Try(tried) => assert_eq!(tried, at(address)),
            _ => panic!("{address} is not tried"),
        }
    }

    /// Moves the clock to the time that the dial waits for, and returns how long that is.
    fn sleep(&mut self) -> Duration {
        match self.poll() {
            Action::Wait(until) => {
                let slept = until - self.now;
                self.now = until;
                slept
            }
            _ => panic!("there is something to do"),
        }
    }

    fn misses(&mut self, address: &str, missed: Missed) {
        self.dial.handle_missed(at(address), missed, self.now);
    }

    fn ends(&mut self) -> DialError {
        match self.poll() {
            Action::End(error) => error,
            _ => panic!("it goes on"),
        }
    }
}

const FIRST: &str = "[2001:db8::1]:7000";
const SECOND: &str = "[2001:db8::2]:7000";
const THIRD: &str = "192.0.2.1:7000";

#[test]
fn the_families_take_turns_and_an_address_that_is_silent_holds_up_no_other() {
    let mut course = begin("replica:7000", true);
    course.find(&[FIRST, SECOND, THIRD]);
    course.tries(FIRST);
    assert_eq!(course.sleep(), STAGGER);
    course.tries(THIRD);
    assert_eq!(course.sleep(), STAGGER);
    course.tries(SECOND);
    // All are on their way, and there is nothing to do until one of them fails or the time is up.
    assert_eq!(course.sleep(), TIMEOUT - 2 * STAGGER);
}

#[test]
fn an_address_that_refuses_lets_the_next_one_begin_at_once() {
    let mut course = begin("replica:7000", true);
    course.find(&[FIRST, THIRD]);
    course.tries(FIRST);
    course.misses(FIRST, refused());
    course.tries(THIRD);
}

#[test]
fn an_address_that_refuses_is_tried_again_beside_one_that_is_silent() {
    let mut course = begin("replica:7000", true);
    course.find(&[FIRST, THIRD]);
    course.tries(FIRST);
    course.sleep();
    course.tries(THIRD);
    for round in 0..5 {
        course.misses(THIRD, refused());
        let pause = course.sleep();
        assert!(pause <= Duration::from_millis(500), "{round}: {pause:?}");
        // The name may lead elsewhere by now. The silent address is not tried twice at a time.
        course.find(&[FIRST, THIRD]);
        course.tries(THIRD);
    }
}

#[test]
fn an_address_that_the_name_leads_to_later_is_tried() {
    let mut course = begin("replica:7000", true);
    course.find(&[FIRST]);
    course.tries(FIRST);
    course.misses(FIRST, refused());
    course.sleep();
    course.find(&[THIRD]);
    course.tries(THIRD);
}

#[test]
fn a_wrong_answer_counts_once_the_other_addresses_are_known_to_be_nobody() {
    let mut course = begin("localhost:7000", true);
    course.find(&[FIRST, THIRD]);
    course.tries(FIRST);
    course.misses(FIRST, Missed::Handshake(foreign()));
    course.tries(THIRD);
    course.misses(THIRD, refused());
    let error = course.ends();
    assert!(
        matches!(&error, DialError::Handshake { peer, .. } if *peer == at(FIRST)),
        "{error}"
    );
}

/// Answers each attempt at the only address with the next one of `failures`.
fn fail(course: &mut Course, failures: impl IntoIterator<Item = HandshakeError>) {
    for failure in failures {
        while !matches!(course.poll(), Action::Try(_)) {
            course.sleep();
        }
        course.misses(FIRST, Missed::Handshake(failure));
    }
}

/// One of two failures that differ may be the damage of another's bytes, or a slow machine's.
#[test]
fn the_same_failure_twice_ends_a_dial_and_two_that_differ_do_not() {
    let silent = || HandshakeError::Silent {
        step: HandshakeStep::Hello,
        waited: HANDSHAKE,
    };
    let broken = || HandshakeError::Malformed {
        step: HandshakeStep::Hello,
        problem: MessageError::Empty,
    };
    let mut course = begin(FIRST, true);
    fail(&mut course, [silent(), broken(), silent(), silent()]);
    let error = course.ends();
    assert!(
        matches!(&error, DialError::Handshake { source, .. } if *source == silent()),
        "{error}"
    );
}

#[test]
fn a_dial_that_is_not_to_try_again_tries_each_address_once() {
    let mut course = begin("replica:7000", false);
    course.find(&[FIRST, THIRD]);
    course.tries(FIRST);
    course.misses(FIRST, refused());
    course.tries(THIRD);
    course.misses(THIRD, refused());
    let error = course.ends();
    assert!(
        matches!(error, DialError::Refused { attempts: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_shortage_is_waited_out_and_named_in_the_end() {
    let mut course = begin(THIRD, true);
    course.tries(THIRD);
    course.misses(THIRD, short());
    assert_eq!(course.sleep(), REST);
    course.tries(THIRD);
    course.misses(THIRD, short());
    course.now += TIMEOUT;
    let said = course.ends().to_string();
    assert!(
        said.contains("could not make a socket") && said.contains("ulimit -n"),
        "{said}"
    );
    let mut once = begin(THIRD, false);
    once.tries(THIRD);
    once.misses(THIRD, short());
    assert!(matches!(once.ends(), DialError::Environment { .. }));
}

#[test]
fn no_local_port_is_not_told_as_nobody() {
    let mut course = begin(THIRD, false);
    course.tries(THIRD);
    let error = io::Error::from_raw_os_error(99); // EADDRNOTAVAIL
    let missed = NoConnection::Shortage(super::super::connect::LOCAL_PORT, error);
    course.misses(THIRD, Missed::Connection(missed));
    let said = course.ends().to_string();
    assert!(
        said.contains("could not get a local port") && said.contains("ip_local_port_range"),
        "{said}"
    );
}

#[test]
fn a_name_that_the_resolver_does_not_know_is_looked_up_again() {
    let mut course = begin("replica:7000", true);
    for _ in 0..3 {
        assert!(matches!(course.poll(), Action::LookUp));
        let unknown = io::Error::other("no such name");
        course.dial.handle_looked_up(Err(unknown), course.now);
        course.sleep();
    }
    course.now += TIMEOUT;
    let error = course.ends();
    assert!(
        matches!(error, DialError::Unresolved { attempts: 3, .. }),
        "{error}"
    );
}

#[test]
fn a_resolver_that_does_not_answer_holds_a_dial_up_for_its_time_only() {
    let mut course = begin("replica:7000", true);
    assert!(matches!(course.poll(), Action::LookUp));
    assert_eq!(course.sleep(), TIMEOUT);
    let error = course.ends();
    assert!(matches!(error, DialError::Unresolved { .. }), "{error}");
}

#[test]
fn a_link_local_address_without_its_interface_is_refused_at_once() {
    let times = (TIMEOUT, HANDSHAKE);
    let dial = Dial::begin("[fe80::1]:7000".to_owned(), true, times, Instant::now());
    let said = dial.err().expect("it leads nowhere").to_string();
    assert!(said.contains("[fe80::1%eth0]:7000"), "{said}");
}

#[test]
fn a_port_that_nobody_can_have_is_refused_at_once() {
    for address in [
        "127.0.0.1:0",
        "store.example:0",
        "[::1]:0",
        "[::1]:00",
        "vsock:3:0",
        "vsock:3:00",
    ] {
        let dial = Dial::begin(
            address.to_owned(),
            true,
            (TIMEOUT, HANDSHAKE),
            Instant::now(),
        );
        let error = dial.err().expect("no port").to_string();
        assert!(error.contains("port 0"), "{error}");
    }
}
