//! Sessions that resume over real sockets, and other answers at the address of their peer.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::dialing::{dial, resume};
use common::sessions::Sessions;
use common::{LONG, Listening, node};
use ibex_bootstrap::handshake::HandshakeStep;
use ibex_bootstrap::{
    Established, Fabric, HandshakeError, Local, NodeIdentity, Policy, Problem, ResumeError,
    ResumeRefusal, ResumeTicket, ResumedConnection, Secret,
};

/// Two nodes with a session over tcp, of which the second listens.
struct Pair {
    dialer: Local,
    listening: Listening,
    address: SocketAddr,
    /// The sessions of the node that listens.
    sessions: Sessions,
    ends: [Established; 2],
}

impl Pair {
    fn connected() -> Pair {
        let sessions = Sessions::default();
        let with = |identity, sessions: &Sessions| {
            let mut local = node(identity);
            local.shm = Policy::Forbid;
            local.resumable = sessions.0.clone();
            local
        };
        let dialer = with(1, &Sessions::default());
        let listening = Listening::with(with(2, &sessions));
        let here = dial(&listening.address, &dialer, LONG).unwrap();
        let there = listening.established.recv_timeout(LONG).unwrap();
        sessions.add(&there);
        Pair {
            dialer,
            address: listening.address.parse().unwrap(),
            listening,
            sessions,
            ends: [here, there],
        }
    }

    fn ticket(&self, epoch: u64) -> ResumeTicket {
        let session = &self.ends[0];
        ResumeTicket {
            authenticated_as: None,
            session_id: session.session_id,
            secret: session.resume_secret.clone(),
            peer: session.peer.identity,
            incarnation: session.peer.incarnation,
            epoch,
            fabric: Fabric::Tcp,
        }
    }

    fn resume(&self, ticket: &ResumeTicket) -> Result<ResumedConnection, ResumeError> {
        resume(self.address, &self.dialer, ticket)
    }

    fn refusal(&self, ticket: &ResumeTicket) -> ResumeRefusal {
        let error = self.resume(ticket).unwrap_err();
        let ResumeError::Refused { address, refusal } = error else {
            panic!("not refused: {error}");
        };
        assert_eq!(address, self.address.into());
        let failure = self.listening.failures.recv_timeout(LONG).unwrap();
        let Problem::Handshake(HandshakeError::NotResumed { refusal: there }) = failure.problem
        else {
            panic!("another failure: {failure}");
        };
        assert_eq!(there, refusal);
        refusal
    }
}

/// Checks that bytes written to one stream come out of the other, and that neither waits.
fn assert_connected(ends: [&TcpStream; 2]) {
    for (mut from, mut to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let mut byte = [0];
        let empty = to.read(&mut byte).unwrap_err();
        assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
        assert!(to.nodelay().unwrap());
        from.write_all(b"x").unwrap();
        to.set_nonblocking(false).unwrap();
        to.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        to.set_nonblocking(true).unwrap();
    }
}

#[test]
fn a_session_goes_on_as_often_as_its_wires_break() {
    let pair = Pair::connected();
    for epoch in [1, 2, 5] {
        let here = pair.resume(&pair.ticket(epoch)).unwrap();
        let there = pair.listening.resumed.recv_timeout(LONG).unwrap();
        assert_connected([&here.stream, &there.stream]);
        assert_eq!((here.is_dialer, there.is_dialer), (true, false));
        assert_eq!(here.address, pair.address.into());
        assert_eq!(there.address, here.stream.local_addr().unwrap().into());
        for end in [&here, &there] {
            assert_eq!(end.session_id, pair.ends[0].session_id);
            assert_eq!(end.epoch, epoch);
            assert_eq!(end.fabric, Fabric::Tcp);
            assert!(end.leftover.is_empty());
        }
        pair.sessions.begin(&there);
    }
    assert!(pair.listening.established.try_recv().is_err());
}

#[test]
fn a_refusal_says_which_and_leaves_the_session_as_it_was() {
    let pair = Pair::connected();
    let guessed = ResumeTicket {
        authenticated_as: None,
        secret: Secret::new([9; 32]),
        ..pair.ticket(1)
    };
    assert_eq!(pair.refusal(&guessed), ResumeRefusal::WrongProof);
    assert_eq!(pair.refusal(&pair.ticket(0)), ResumeRefusal::OldEpoch);
    assert_connected([&pair.ends[0].stream, &pair.ends[1].stream]);
    pair.resume(&pair.ticket(1)).unwrap();
    pair.sessions.end_all();
    let error = pair.resume(&pair.ticket(2)).unwrap_err();
    assert!(error.is_gone());
    assert_eq!(
        error.to_string(),
        format!(
            "{}: the session is not resumed: there is no such session, or it has ended",
            pair.address
        )
    );
}

#[test]
fn a_dialer_that_came_in_vain_comes_again() {
    let mut pair = Pair::connected();
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let patient = std::mem::replace(&mut pair.address, deaf.local_addr().unwrap());
    // A listener accepts and says nothing, like a process that is stopped.
    pair.dialer.handshake_timeout = Duration::from_millis(100);
    let not_yet = |error: ResumeError| match &error {
        ResumeError::NotYet { why, .. } => {
            assert!(!error.is_gone());
            why.clone()
        }
        _ => panic!("another error: {error}"),
    };
    let why = not_yet(pair.resume(&pair.ticket(1)).unwrap_err());
    assert!(why.contains("fell silent"), "{why}");
    // The listener hangs up.
    let hanging_up = std::thread::spawn(move || {
        drop(deaf.accept().unwrap());
        drop(deaf.accept().unwrap());
    });
    let why = not_yet(pair.resume(&pair.ticket(2)).unwrap_err());
    assert!(why.contains("closed the connection"), "{why}");
    hanging_up.join().unwrap();
    // No process listens.
    let why = not_yet(pair.resume(&pair.ticket(3)).unwrap_err());
    assert!(why.contains("refused"), "{why}");
    // The peer is back.
    pair.dialer.handshake_timeout = LONG;
    pair.address = patient;
    assert_eq!(pair.resume(&pair.ticket(4)).unwrap().epoch, 4);
}

#[test]
fn a_restarted_other_or_foreign_server_is_told_apart() {
    let mut pair = Pair::connected();
    let ticket = pair.ticket(1);
    // The same node has been started again.
    let mut again = node(2);
    again.incarnation = 77;
    again.resumable = Sessions::default().0;
    let restarted = Listening::with(again);
    pair.address = restarted.address.parse().unwrap();
    let error = pair.resume(&ticket).unwrap_err();
    assert!(error.is_gone());
    assert!(matches!(
        error,
        ResumeError::Restarted {
            incarnation: 77,
            ..
        }
    ));
    let failure = restarted.failures.recv_timeout(LONG).unwrap();
    assert!(matches!(
        failure.problem,
        Problem::Handshake(HandshakeError::Refused {
            step: HandshakeStep::Offer,
            ..
        })
    ));
    // Another node answers, which knows nothing of resuming either.
    let other = Listening::with(node(3));
    pair.address = other.address.parse().unwrap();
    let error = pair.resume(&ticket).unwrap_err();
    assert!(!error.is_gone());
    assert!(
        matches!(error, ResumeError::OtherNode { identity, .. } if identity == NodeIdentity([3; 16])),
        "{error}"
    );
    // A server that does not speak ibex answers.
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.address = foreign.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = foreign.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = pair.resume(&ticket).unwrap_err();
    assert!(matches!(
        error,
        ResumeError::Handshake {
            source: HandshakeError::NotIbex { .. },
            ..
        }
    ));
    server.join().unwrap();
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_session_out() {
    let sessions = Sessions::default();
    let mut local = node(2);
    local.max_pending = 4;
    local.resumable = sessions.0.clone();
    let listening = Listening::with(local);
    let mut dialer = node(1);
    dialer.resumable = Sessions::default().0;
    let here = dial(&listening.address, &dialer, LONG).unwrap();
    sessions.add(&listening.established.recv_timeout(LONG).unwrap());
    let crowd: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(&listening.address).unwrap())
        .collect();
    let ticket = ResumeTicket {
        authenticated_as: None,
        session_id: here.session_id,
        secret: here.resume_secret.clone(),
        peer: here.peer.identity,
        incarnation: here.peer.incarnation,
        epoch: 1,
        fabric: here.fabric,
    };
    resume(&listening.address, &dialer, &ticket).unwrap();
    assert_eq!(listening.resumed.recv_timeout(LONG).unwrap().epoch, 1);
    drop(crowd);
}
