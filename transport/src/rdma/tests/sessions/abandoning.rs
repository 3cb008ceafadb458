//! Sessions that one end gives up for good: the other end is notified beside the queue pair, and does
//! not wait. A connection that merely ends has no such meaning.

use std::{
    io::Write,
    net::Shutdown,
    time::{Duration, Instant},
};

use ibex_verbs::provider::RawEvent;

use super::{
    resuming::{PATIENCE, Resuming, VERBS_FIRST, trusting},
    *,
};
use crate::{
    clock::StoppedClock, connection::ReconnectTerms, node::What, session::EndCause, wire::stream,
};

/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;

/// A session that can continue, at the end that accepted it. The end that dialed has no session
/// yet.
struct Accepted {
    // Fields in drop order.
    session: Arc<SessionShared>,
    runtime: Arc<Runtime>,
    /// The connection and the queue pair of the other end.
    dialed: Option<Admission>,
    _ports: [Arc<RdmaPort>; 2],
    fake: FakeProvider,
    /// The stopped clock, so that no time-out ends a session.
    _clock: StoppedClock,
}

fn resumable(mut admission: Admission) -> Admission {
    admission.reconnect = Some(ReconnectTerms {
        session: [7; 16],
        redial: None,
        ways: VERBS_FIRST,
        process: None,
        max_age: None,
    });
    admission
}

impl Accepted {
    fn new() -> Self {
        Self::behind(&[])
    }

    /// Makes a session whose peer sent `leftover` right after the handshake.
    fn behind(leftover: &[u8]) -> Self {
        let clock = StoppedClock::stop();
        let fake = one_device();
        let rdma_ports = [open_port(&fake, settings()), open_port(&fake, settings())];
        let [dialed, accepted] = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap();
        let [stream, peer_stream] = connection();
        let runtime = runtime(Driver::Caller);
        let mut admitted = resumable(admission(peer_stream, accepted));
        admitted.parts.leftover = leftover.to_vec();
        Self {
            session: runtime.admit(admitted).unwrap(),
            runtime,
            dialed: Some(resumable(admission(stream, dialed))),
            _ports: rdma_ports,
            fake,
            _clock: clock,
        }
    }

    fn settle(&self) {
        while self.runtime.poll_ready() {}
    }

    fn say(&mut self, bytes: &[u8]) {
        let dialed = self.dialed.as_mut().unwrap();
        dialed.parts.stream.write_all(bytes).unwrap();
        self.settle();
    }

    /// Panics unless the only events are that the session was up, and then over for certain.
    fn check_over(&self) {
        let cause = self.check_ended();
        let certain = matches!(cause, EndCause::PeerGone { certain: true, .. });
        assert!(certain, "{cause}");
    }

    /// Returns why the session is over. Panics unless the only events are that it was up, and then
    /// over.
    fn check_ended(&self) -> EndCause {
        let notified = std::iter::from_fn(|| self.runtime.next_event(Patience::None));
        let notified: Vec<_> = notified.map(|event| event.what).collect();
        let [What::Connected { .. }, What::Gone { cause }] = &notified[..] else {
            panic!("{notified:?}");
        };
        assert_eq!(self.session.stats().suspensions, 0);
        assert_eq!(self.fake.rnr_naks(), 0);
        cause.clone()
    }
}

/// Returns the frame by which an end gives its session up.
fn last_word() -> Vec<u8> {
    stream::last_word(0, None)
}

/// Returns the frame by which an end says that its program has ended the session.
fn goodbye() -> Vec<u8> {
    stream::last_word(0, Some(REASON.into()))
}

const REASON: &str = "the disk is full";

fn ended_by_peer() -> EndCause {
    let reason = REASON.to_owned();
    EndCause::EndedByPeer { reason }
}

#[test]
fn a_peer_that_abandons_a_session_is_waited_for_no_longer() {
    let mut accepted = Accepted::new();
    accepted.settle();
    accepted.dialed.take().unwrap().abandon();
    accepted.settle();
    accepted.check_over();
}

/// The device reports the break before the engine looks at the connection.
#[test]
fn nor_is_one_whose_queue_pair_is_found_dead_first() {
    let mut accepted = Accepted::new();
    accepted.settle();
    let fatal = RawEvent {
        event_type: DEVICE_FATAL,
        element: 0,
    };
    accepted.fake.raise(DEVICE, fatal);
    accepted.dialed.take().unwrap().abandon();
    accepted.settle();
    accepted.check_over();
}

#[test]
fn a_last_word_counts_when_it_is_whole() {
    let word = last_word();
    for at in 1..word.len() {
        let mut accepted = Accepted::new();
        accepted.say(&word[..at]);
        assert!(!accepted.session.is_gone(), "{at}");
        accepted.say(&word[at..]);
        accepted.check_over();
    }
}

#[test]
fn a_reason_for_the_end_counts_when_it_is_whole() {
    let word = goodbye();
    for at in 1..word.len() {
        let mut accepted = Accepted::behind(&word[..at]);
        accepted.settle();
        assert!(!accepted.session.is_gone(), "{at}");
        accepted.say(&word[at..]);
        assert_eq!(accepted.check_ended(), ended_by_peer());
    }
}

#[test]
fn bytes_that_are_no_last_word_end_the_session() {
    let mut flipped = goodbye();
    // A letter of the reason.
    flipped[30] ^= 1;
    for bytes in [[7; 64].to_vec(), flipped] {
        let mut accepted = Accepted::new();
        accepted.say(&bytes);
        let cause = accepted.check_ended().to_string();
        assert!(cause.contains("a connection that carries none"), "{cause}");
    }
}

#[test]
fn a_connection_that_ends_in_a_last_word_or_without_one_may_be_made_again() {
    let word = last_word();
    for bytes in 0..word.len() {
        let mut accepted = Accepted::new();
        accepted.say(&word[..bytes]);
        let dialed = accepted.dialed.as_ref().unwrap();
        dialed.parts.stream.shutdown(Shutdown::Both).unwrap();
        accepted.settle();
        assert!(accepted.session.is_suspended(), "{bytes}");
    }
}

#[test]
fn a_last_word_that_came_with_the_handshake_is_heard() {
    let word = last_word();
    for at in 1..=word.len() {
        let mut accepted = Accepted::behind(&word[..at]);
        accepted.say(&word[at..]);
        accepted.check_over();
    }
}

/// No time is given, while frames wait for the device, the goodbye among them or not.
#[test]
fn whose_program_ends_a_session_at_once_says_why() {
    for messages in [0, 5, 500] {
        let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
        test.carry(20);
        test.calm_down();
        let stage = &test.stage;
        let (mut sender, _receiver) = stage.channel("bulk", WINDOW);
        stage.fake.hold_sends(true);
        for number in 0..messages {
            if try_send(&mut sender, &payload(number, 3000)).is_err() {
                break;
            }
        }
        let [closes, stays] = &stage.nodes;
        closes.session.begin_close(REASON, Duration::ZERO);
        let until = Instant::now() + PATIENCE;
        while !stays.session.is_gone() {
            assert!(Instant::now() < until, "{messages}");
            stage.settle();
        }
        let events = std::iter::from_fn(|| stays.runtime.next_event(Patience::None));
        let cause = events.filter_map(|event| match event.what {
            What::Gone { cause } => Some(cause),
            _ => None,
        });
        assert_eq!(cause.collect::<Vec<_>>(), [ended_by_peer()], "{messages}");
        stage.fake.hold_sends(false);
    }
}

#[test]
fn whose_session_fails_says_so_to_a_peer_that_would_wait() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(20);
    test.calm_down();
    let stage = &test.stage;
    let node = &stage.nodes[0];
    node.session.requests.on_connection(|connection, context| {
        connection.core.fail("planted", context);
    });
    stage.settle();
    let gone = stage.nodes.each_ref().map(|node| node.session.is_gone());
    assert_eq!(gone, [true; 2]);
    assert_eq!(stage.stats()[1].suspensions, 0);
}
