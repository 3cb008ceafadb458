//! Sessions that reach their age limit: they are authenticated again, or end.

use ibex_harness::wait_until;
use std::{sync::atomic::AtomicBool, time::Instant};

use super::*;

/// Both ends repeatedly authenticate sessions again, which continue.
#[test]
fn sessions_of_an_age_are_authenticated_again_under_load() {
    let folder = Folder::new();
    let authority = folder.authority();
    let a = certificate(&authority.issue(&Request::new("a", &[A])).unwrap());
    let b = certificate(&authority.issue(&Request::new("b", &[B])).unwrap());
    let aged = |security: Security| security.max_session_age(Duration::from_millis(300));
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        // Either end may be the one with the limit.
        for (ours, theirs) in [
            (aged(a.clone()), b.clone()),
            (a.clone(), aged(b.clone())),
            (aged(secret(1)), aged(secret(1))),
        ] {
            let (dialer, acceptor) = (dialing(fabric, ours), listening(fabric, theirs));
            let there = dialer.connect(address(&acceptor)).unwrap();
            let here = acceptor.accept().unwrap();
            let known = there.authenticated_as().unwrap().clone();
            let (mut sender, mut receiver) = log(&there, &here);
            let over = Arc::new(AtomicBool::new(false));
            let sending = {
                let over = over.clone();
                thread::spawn(move || {
                    let mut number = 0_u64;
                    while !over.load(Ordering::Relaxed) {
                        sender.send(&number.to_le_bytes()[..]).unwrap();
                        number += 1;
                    }
                    number
                })
            };
            let mut received = 0_u64;
            let began = Instant::now();
            while here.stats().resumes < 3 || there.stats().resumes < 3 {
                let message = receiver.recv().unwrap();
                assert!(began.elapsed() < LONG, "they are not authenticated again");
                assert_eq!(message[..], received.to_le_bytes());
                received += 1;
            }
            over.store(true, Ordering::Relaxed);
            while let Ok(message) = receiver.recv() {
                assert_eq!(message[..], received.to_le_bytes());
                received += 1;
            }
            assert_eq!(sending.join().unwrap(), received);
            assert_eq!(*there.authenticated_as().unwrap(), known);
        }
    }
}

/// A connection ends as planned also while its peer reads none of what is under way, and the peer
/// receives the reason.
#[test]
fn a_peer_that_reads_late_is_told_that_its_session_is_old() {
    for dialer_is_aged in [false, true] {
        is_told_late(dialer_is_aged);
    }
}

/// Lets one end reach its age while the other, whose engine nobody turns, reads nothing.
fn is_told_late(dialer_is_aged: bool) {
    let age = Duration::from_secs(2);
    let [ours, theirs] = [dialer_is_aged, !dialer_is_aged].map(|is_aged| match is_aged {
        true => secret(1).max_session_age(age),
        false => secret(1),
    });
    // More than the kernel takes.
    let caller = || {
        let builder = builder(Fabric::Tcp).driver(Driver::Caller);
        builder.session_credit_bytes(64 << 20)
    };
    let dialer = caller().security(ours).build().unwrap();
    let acceptor = caller().listen("127.0.0.1:0").security(theirs);
    let acceptor = acceptor.build().unwrap();
    let (there, here) = thread::scope(|scope| {
        let dialing = scope.spawn(|| dialer.connect(address(&acceptor)).unwrap());
        let here = acceptor.accept().unwrap();
        (dialing.join().unwrap(), here)
    });
    let began = Instant::now();
    let (aged, late) = match dialer_is_aged {
        true => ((&dialer, &there), (&acceptor, &here)),
        false => ((&acceptor, &here), (&dialer, &there)),
    };
    let mut out = aged.1.channel("out").codec::<Raw>().sender().unwrap();
    let late_end = late.1.channel("out").codec::<Raw>();
    let mut late_end = late_end.receiver::<[u8]>().unwrap();
    let message = vec![7; 3 << 20];
    // Once a message has come, the peer may send all that the credit covers.
    while out.try_send(&message).is_err() || late_end.try_recv().is_err() {
        aged.0.poll();
        late.0.poll();
    }
    late.0.poll();
    aged.0.poll();
    while out.try_send(&message).is_ok() {
        aged.0.poll();
    }
    while began.elapsed() < 2 * age {
        aged.0.poll();
    }
    let cause = loop {
        late.0.poll();
        if let Some(suspension) = late.1.suspension() {
            break suspension.cause.to_string();
        }
        aged.0.poll();
        assert!(began.elapsed() < LONG, "the session is not renewed");
    };
    assert!(cause.contains("as planned"), "{cause}");
    while aged.1.stats().resumes == 0 || late.1.stats().resumes == 0 {
        aged.0.poll();
        late.0.poll();
        assert!(began.elapsed() < LONG, "the session is not resumed");
    }
}

/// A session outlives the revocation of its peer's certificate by at most its age limit.
#[test]
fn a_peer_whose_certificate_is_revoked_is_gone_when_its_session_is_old() {
    // On a machine so busy that authentication takes longer than the session is kept for it, the
    // session ends before anything is revoked, or before a refusal comes. It is kept longer then.
    let kept_for = [3, 30, 300].map(Duration::from_secs);
    assert!(kept_for.into_iter().any(is_shown_within));
}

/// Returns false if the session ended before the revocation, or before a refusal came.
fn is_shown_within(kept_for: Duration) -> bool {
    let folder = Folder::new();
    let authority = folder.authority();
    let revocations = authority.revoke(&[77]).unwrap();
    let mut request = Request::new("a", &[A]);
    request.serial = 5;
    let a = certificate(&authority.issue(&request).unwrap());
    let b = certificate(&authority.issue(&Request::new("b", &[B])).unwrap())
        .revocation_list(&revocations)
        .max_session_age(Duration::from_millis(300));
    let acceptor = builder(Fabric::Tcp)
        .listen("127.0.0.1:0")
        .session_timeout(kept_for)
        .security(b);
    let acceptor = acceptor.build().unwrap();
    let dialer = builder(Fabric::Tcp).session_timeout(kept_for).security(a);
    let dialer = dialer.build().unwrap();
    let there = dialer.connect(address(&acceptor)).unwrap();
    let here = acceptor.accept().unwrap();
    let (_sender, mut receiver) = log(&there, &here);
    let (_answers, mut answered) = {
        let channel = |peer: &Peer| peer.channel("answers").codec::<Raw>();
        let sender = channel(&here).sender::<[u8]>().unwrap();
        (sender, channel(&there).receiver::<[u8]>().unwrap())
    };
    // The session continues while the peer's certificate is valid.
    wait_until(|| here.stats().resumes > 0 || here.is_gone());
    authority.revoke(&[5]).unwrap();
    acceptor.reload_certificates().unwrap();
    if here.is_gone() {
        return false;
    }
    let error = receiver.recv().expect_err("the peer is gone").to_string();
    assert!(error.contains("max_session_age"), "{error}");
    let error = answered.recv().expect_err("this end is refused");
    let error = error.to_string();
    if !error.contains("revoked") {
        eprintln!("no refusal came within {kept_for:?}: {error}");
        return false;
    }
    // The connection ended as planned, and not by an attacker who cuts the stream off.
    assert!(!error.contains("cut off"), "{error}");
    // The peer does not come back with another session, either.
    let refused = refusal(&dialer, &acceptor);
    let HandshakeError::Authentication(why) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(why.cause, AuthenticationCause::Revoked);
    true
}

#[test]
fn an_age_that_is_none_is_refused() {
    let security = secret(1).max_session_age(Duration::from_millis(1));
    let refused = Node::builder().security(security).build().unwrap_err();
    assert!(refused.to_string().contains("max_session_age"), "{refused}");
}

/// A watchdog's time: nothing takes so long on any machine.
const LONG: Duration = Duration::from_secs(600);
