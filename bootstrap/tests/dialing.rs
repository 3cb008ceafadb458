//! A dialer with many dials at a time: those that wait for an answer hold up no other one.

mod common;

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use common::dialing::Turned;
use common::sessions::Sessions;
use common::{LONG, Listening, node};
use ibex_bootstrap::{
    Acceptor, DialError, DialOutcome, DialRequest, Fabric, NodeIdentity, ResumeError, ResumeTicket,
    Secret,
};

/// Listeners that let the kernel accept, and say nothing.
fn silent(count: usize) -> Vec<TcpListener> {
    let listen = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    (0..count).map(listen).collect()
}

fn address_of(listener: &TcpListener) -> String {
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_peer_that_answers_is_reached_behind_hundreds_that_do_not() {
    let silent = silent(300);
    let listening = Listening::with(node(2));
    let mut here = Turned::new(node(1));
    let dials: Vec<_> = silent
        .iter()
        .map(|listener| here.dial(0, address_of(listener)))
        .collect();
    let _live = here.dial(1, &listening.address);
    let (number, established) = here.established();
    assert_eq!(number, 1);
    assert_eq!(established.peer.identity, NodeIdentity([2; 16]));
    // None of the others was given up for it.
    assert!(here.dialer.poll_outcome().is_none());
    // Each is on its way: the kernel has the connection of each.
    for listener in &silent {
        let (_, _) = listener.accept().unwrap();
    }
    drop(dials);
}

#[test]
fn sessions_resume_beside_hundreds_whose_peers_do_not_answer() {
    let sessions = Sessions::default();
    let mut there = node(2);
    there.resumable = sessions.0.clone();
    let listening = Listening::with(there);
    let mut here = Turned::new(node(1));
    let _first = here.dial(0, &listening.address);
    let (_, established) = here.established();
    sessions.add(&listening.established.recv().unwrap());
    let ticket = ResumeTicket {
        authenticated_as: None,
        session_id: established.session_id,
        secret: established.resume_secret.clone(),
        peer: established.peer.identity,
        incarnation: established.peer.incarnation,
        epoch: 1,
        fabric: established.fabric,
    };
    let silent = silent(250);
    let resumptions: Vec<_> = silent
        .iter()
        .map(|listener| here.resume(0, &address_of(listener), &ticket))
        .collect();
    let _live = here.resume(1, &listening.address, &ticket);
    let (number, resumed) = here.resumed();
    assert_eq!((number, resumed.unwrap().epoch), (1, 1));
    assert!(here.dialer.poll_outcome().is_none());
    drop(resumptions);
}

#[test]
fn a_dial_that_is_cancelled_ends_at_once_and_resets_its_connection() {
    let silent = silent(1);
    let mut here = Turned::new(node(1));
    let dialing = here.dial(7, address_of(&silent[0]));
    let (mut accepted, _) = loop {
        here.turn();
        silent[0].set_nonblocking(true).unwrap();
        if let Ok(accepted) = silent[0].accept() {
            break accepted;
        }
    };
    drop(dialing);
    let (number, outcome) = here.outcome();
    let DialOutcome::Dialed(Err(error)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(number, 7);
    assert!(matches!(error, DialError::Cancelled { .. }), "{error}");
    assert_eq!(here.dialer.next_deadline(), None);
    accepted.set_nonblocking(false).unwrap();
    let reset = accepted.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_resumption_that_is_cancelled_ends_at_once() {
    let silent = silent(1);
    let mut here = Turned::new(node(1));
    let ticket = ResumeTicket {
        authenticated_as: None,
        session_id: [1; 16],
        secret: Secret::new([1; 32]),
        peer: NodeIdentity([2; 16]),
        incarnation: 1,
        epoch: 1,
        fabric: Fabric::Tcp,
    };
    let resumption = here.resume(3, &address_of(&silent[0]), &ticket);
    here.turn();
    drop(resumption);
    let (number, outcome) = here.resumed();
    let error = outcome.unwrap_err();
    assert_eq!(number, 3);
    assert!(matches!(error, ResumeError::Cancelled { .. }), "{error}");
}

/// The peer has a session as soon as it has sent its *Ready*. It is notified of the cancellation by the
/// owner of the dialer, who gets the session.
#[test]
fn a_session_that_nobody_wants_any_more_is_handed_out_as_such() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let mut here = Turned::new(node(1));
    let dialing = here.dial(0, acceptor.local_addr());
    let established = loop {
        here.dialer.turn(Instant::now());
        acceptor.turn(Instant::now());
        // The answer has gone out, and this end has not looked yet.
        if let Some(established) = acceptor.poll_established() {
            break established;
        }
    };
    assert!(here.dialer.poll_outcome().is_none());
    drop(dialing);
    let (_, outcome) = here.outcome();
    let is_cancelled = matches!(
        outcome,
        DialOutcome::Dialed(Err(DialError::Cancelled { .. }))
    );
    assert!(is_cancelled, "{outcome:?}");
    let unwanted = loop {
        if let Some(unwanted) = here.dialer.poll_unwanted() {
            break unwanted;
        }
        assert!(!here.dialer.is_quiet());
        here.turn();
    };
    assert_eq!(unwanted.session_id, established.session_id);
    assert!(here.dialer.is_quiet());
}

#[test]
fn a_closed_dialer_cancels_its_dials_and_takes_no_other() {
    let silent = silent(2);
    let mut here = Turned::new(node(1));
    let _dials: Vec<_> = silent
        .iter()
        .map(|listener| here.dial(0, address_of(listener)))
        .collect();
    here.turn();
    here.dialer.close(Instant::now());
    for _ in 0..2 {
        let (_, outcome) = here.dialer.poll_outcome().expect("an outcome");
        let is_cancelled = matches!(
            outcome,
            DialOutcome::Dialed(Err(DialError::Cancelled { .. }))
        );
        assert!(is_cancelled, "{outcome:?}");
    }
    let request = DialRequest {
        address: address_of(&silent[0]),
        local: node(1),
        timeout: LONG,
        tries_again: true,
    };
    assert!(
        here.desk
            .dial(9, request.clone())
            .is_err_and(|owner| owner == 9)
    );
    let desk = here.desk.clone();
    drop(here);
    assert!(desk.dial(9, request).is_err());
}

#[test]
fn an_address_that_refuses_is_tried_once_where_the_owner_tries_again_itself() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(&port);
    drop(port);
    let mut here = Turned::new(node(1));
    let _dialing = here.request(0, &address, LONG, false);
    let (_, outcome) = here.outcome();
    let DialOutcome::Dialed(Err(DialError::Refused { attempts, .. })) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(attempts, 1);
    drop(TcpStream::connect(&address).unwrap_err());
}
