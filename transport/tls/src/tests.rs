//! Two ends face to face in memory.

use std::fs;
use std::sync::Arc;

use ibex_base::tls::*;
use ibex_harness::authority::{Authority, NodeFiles, Request};
use rustls::crypto::CryptoProvider;
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};

use super::*;

mod certificates;
mod meeting;

use meeting::*;

const A: &str = "spiffe://test/storage/a";
const B: &str = "spiffe://test/storage/b";

#[test]
fn the_same_secret_lets_in() {
    let (dialer, acceptor) = meet(&secret(1), &secret(1));
    assert_eq!(dialer, Ok(AuthenticatedAs::Member));
    assert_eq!(acceptor, Ok(AuthenticatedAs::Member));
}

#[test]
fn another_secret_is_named_at_both_ends() {
    let (dialer, acceptor) = meet(&secret(1), &secret(2));
    for (end, by) in [
        (dialer, RefusedBy::ThisNode),
        (acceptor, RefusedBy::OtherNode),
    ] {
        let Err(TlsError::Refused(refusal)) = end else {
            panic!("not refused: {end:?}");
        };
        assert_eq!((refusal.by, &refusal.cause), (by, &Cause::WrongSecret));
        assert!(refusal.to_string().contains("shared secret"), "{refusal}");
    }
}

#[test]
fn certificates_of_one_authority_let_in_and_name_each_other() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let a = files(&authority.issue(&Request::new("a", &[A])).unwrap());
    let names = Request {
        dns_names: &["b.test", "c.test"],
        ..Request::new("b", &[])
    };
    let b = files(&authority.issue(&names).unwrap());
    let (dialer, acceptor) = meet(&a.open().unwrap(), &b.open().unwrap());
    let (dialer, acceptor) = (dialer.unwrap(), acceptor.unwrap());
    assert_eq!(dialer.dns_names(), ["b.test", "c.test"]);
    assert_eq!(
        (acceptor.uri(), acceptor.to_string()),
        (Some(A), A.to_owned())
    );
}

#[test]
fn an_unknown_authority_is_named_at_both_ends() {
    let folder = Folder::new();
    let (ours, theirs) = (folder.authority("ours"), folder.authority("theirs"));
    let own = ours.issue(&Request::new("a", &[A])).unwrap();
    let stranger = theirs.issue(&Request::new("b", &[B])).unwrap();
    // The stranger takes our authority, so that it is the acceptor that refuses.
    let taking = NodeFiles {
        authorities: own.authorities.clone(),
        ..stranger
    };
    let (dialer, acceptor) = refused(files(&taking), files(&own));
    assert_eq!(dialer.cause, Cause::UnknownIssuer);
    assert_eq!(acceptor.cause, Cause::UnknownIssuer);
    assert_eq!(acceptor.name.as_deref(), Some(B));
}

#[test]
fn times_are_named_at_both_ends() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let good = authority.issue(&Request::new("good", &[A])).unwrap();
    let past = Request {
        until_year: 2020,
        ..Request::new("past", &[B])
    };
    let future = Request {
        from_year: 2900,
        ..Request::new("future", &[B])
    };
    let past = authority.issue(&past).unwrap();
    let (dialer, acceptor) = refused(files(&past), files(&good));
    assert_eq!(dialer.cause, Cause::Expired { since: None });
    let text = acceptor.to_string();
    assert!(
        text.contains("2020-01-01T00:00:00Z") && text.contains(B),
        "{text}"
    );
    assert!(text.contains("check the clock"), "{text}");
    let future = authority.issue(&future).unwrap();
    let (dialer, acceptor) = refused(files(&future), files(&good));
    assert_eq!(dialer.cause, Cause::Expired { since: None });
    assert!(
        matches!(acceptor.cause, Cause::NotYetValid { .. }),
        "{acceptor}"
    );
    assert!(acceptor.to_string().contains("2900-01-01"), "{acceptor}");
}

#[test]
fn a_revoked_certificate_is_refused_and_another_is_not() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let numbered = |file, serial| Request {
        serial,
        ..Request::new(file, &[A])
    };
    let good = authority.issue(&numbered("good", 7)).unwrap();
    let bad = authority.issue(&numbered("bad", 8)).unwrap();
    let list = authority.revoke(&[8]).unwrap();
    let checking = files(&good).revocation_list(&list);
    let (dialer, acceptor) = refused(files(&bad), checking.clone());
    assert_eq!(
        (dialer.cause, acceptor.cause),
        (Cause::Revoked, Cause::Revoked)
    );
    let checking = checking.open().unwrap();
    let (dialer, acceptor) = meet(&checking, &checking);
    assert!(
        dialer.is_ok() && acceptor.is_ok(),
        "{dialer:?} {acceptor:?}"
    );
    // The dialer's end refuses too, because it checks revocation before it lets the name pass.
    let (dialer, _) = meet(&checking, &files(&bad).open().unwrap());
    let Err(TlsError::Refused(refusal)) = dialer else {
        panic!("not refused: {dialer:?}");
    };
    assert_eq!(refusal.cause, Cause::Revoked);
}

#[test]
fn the_program_decides_by_name() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let a = files(&authority.issue(&Request::new("a", &[A])).unwrap());
    let b = files(&authority.issue(&Request::new("b", &[B])).unwrap());
    let choosy = b.authorize(|peer| peer.uri() != Some(A));
    let (dialer, acceptor) = refused(a, choosy.clone());
    assert_eq!(dialer.cause, Cause::NotAuthorized);
    assert_eq!(acceptor.cause, Cause::NotAuthorized);
    assert_eq!(acceptor.name.as_deref(), Some(A));
    let choosy = choosy.open().unwrap();
    assert!(meet(&choosy, &choosy).1.is_ok());
}

/// The function runs on an engine's thread, which has other sessions.
#[test]
fn a_panic_of_the_program_refuses_the_peer_that_it_was_asked_about() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let a = files(&authority.issue(&Request::new("a", &[A])).unwrap());
    let b = files(&authority.issue(&Request::new("b", &[B])).unwrap());
    let panics = b.authorize(|peer| match peer.uri() {
        Some(A) => panic!("no rule for {A}"),
        _ => true,
    });
    let (dialer, acceptor) = refused(a, panics.clone());
    assert_eq!(dialer.cause, Cause::NotAuthorized);
    let panic = format!("no rule for {A}").into();
    assert_eq!(acceptor.cause, Cause::AuthorizePanicked { panic });
    let panics = panics.open().unwrap();
    assert!(meet(&panics, &panics).1.is_ok(), "others are served");
}

/// The listener is refused before it has the dialer's certificate.
#[test]
fn a_dialer_names_whom_it_expects_at_an_address() {
    const HOST: &str = "b.example.com";
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let a = files(&authority.issue(&Request::new("a", &[A])).unwrap());
    let mut of_b = Request::new("b", &[B]);
    of_b.dns_names = &[HOST];
    let b = files(&authority.issue(&of_b).unwrap());
    let dialer = a.expect(|address| match address {
        "b:1" => Some(B.to_owned()),
        "host:1" => Some("B.Example.com".to_owned()),
        "a:1" => Some(A.to_owned()),
        "broken:1" => panic!("no entry"),
        _ => None,
    });
    let (dialer, acceptor) = (dialer.open().unwrap(), b.open().unwrap());
    let dial = |address: &str| {
        let mut meeting = Meeting::new(&dialer, &acceptor);
        meeting.ends[DIALER] = dialer.dialer(Some(address.into())).unwrap();
        meeting.run();
        let of_dialer = meeting.ends[ACCEPTOR].authenticated_as();
        (meeting.end(DIALER), of_dialer)
    };
    for address in ["b:1", "host:1", "any:1"] {
        let (found, of_dialer) = dial(address);
        assert_eq!(found.unwrap().uri(), Some(B), "{address}");
        assert_eq!(of_dialer.unwrap().uri(), Some(A));
    }
    for (address, parts) in [
        ("a:1", [A, B, "`expect` names another peer"]),
        ("broken:1", [B, "`expect` panicked", "no entry"]),
    ] {
        let (found, of_dialer) = dial(address);
        let error = found.unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(of_dialer, None);
    }
}

#[test]
fn certificates_are_replaced_for_later_connections() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let own = authority.issue(&Request::new("a", &[A])).unwrap();
    let credentials = files(&own).open().unwrap();
    let mut earlier = Meeting::new(&credentials, &credentials);
    earlier.run();
    authority.issue(&Request::new("a", &[B])).unwrap();
    assert_eq!(meet(&credentials, &credentials).0.unwrap().uri(), Some(A));
    credentials.reload().unwrap();
    assert_eq!(meet(&credentials, &credentials).0.unwrap().uri(), Some(B));
    earlier.ends[DIALER].seal(b"still here").unwrap();
    earlier.run();
    assert_eq!(earlier.received[ACCEPTOR], b"still here");
    // A replaced file changes nothing while the other file of the pair is old.
    let other = authority.issue(&Request::new("other", &[A])).unwrap();
    fs::copy(&other.chain, &own.chain).unwrap();
    let error = credentials.reload().unwrap_err();
    assert!(
        matches!(error, SecurityError::KeyOfAnother { .. }),
        "{error}"
    );
    assert_eq!(meet(&credentials, &credentials).0.unwrap().uri(), Some(B));
}

#[test]
fn names_need_certificates() {
    let secret = SharedSecret::from_bytes(std::array::from_fn(|at| at as u8 + 100)).unwrap();
    let by_name = Security::shared_secret(secret.clone()).authorize(|_| true);
    let error = by_name.open().unwrap_err().to_string();
    assert!(error.contains("`authorize` needs certificates"), "{error}");
    let expecting = Security::shared_secret(secret.clone()).expect(|_| None);
    let error = expecting.open().unwrap_err().to_string();
    assert!(error.contains("`expect` needs certificates"), "{error}");
    let revoking = Security::shared_secret(secret).revocation_list("list.pem");
    let error = revoking.open().unwrap_err().to_string();
    assert!(
        error.contains("`revocation_list` needs certificates"),
        "{error}"
    );
}

#[test]
fn wrong_files_are_named() {
    let missing = Security::certificates("none.pem", "none.key", "ca.pem").unwrap_err();
    assert!(
        missing.to_string().contains("none.pem cannot be read"),
        "{missing}"
    );
    let folder = Folder::new();
    let files = folder
        .authority("ca")
        .issue(&Request::new("a", &[A]))
        .unwrap();
    let swapped = Security::certificates(&files.key, &files.chain, &files.authorities);
    let error = swapped.unwrap_err();
    assert!(matches!(error, SecurityError::Nothing { .. }), "{error}");
    assert!(error.to_string().contains("a.key"), "{error}");
}

#[test]
fn a_flipped_bit_never_lets_in_and_never_changes_the_plaintext() {
    let credentials = secret(3);
    let mut whole = Meeting::new(&credentials, &credentials);
    let mut lengths = [0; 2];
    whole.run_through(|from, bytes| lengths[from] += bytes.len());
    for from in [DIALER, ACCEPTOR] {
        // Lengths may differ by the encoding of a key share, so the last bytes may be missed.
        for at in 0..lengths[from] {
            let mut meeting = Meeting::new(&credentials, &credentials);
            let mut passed = 0;
            let mut was_changed = false;
            meeting.run_through(|sender, bytes| {
                if sender == from {
                    if let Some(byte) = at.checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
                        *byte ^= 1 << (at % 8);
                        was_changed = true;
                    }
                    passed += bytes.len();
                }
            });
            if !was_changed {
                continue;
            }
            // The version of a record's header is not looked at (RFC 8446, section 5.1).
            let both = [DIALER, ACCEPTOR]
                .map(|end| meeting.errors[end].is_none() && !meeting.ends[end].is_handshaking());
            if both == [true; 2] {
                let mut ends = meeting;
                ends.ends[DIALER].seal(b"payload").unwrap();
                ends.run();
                assert_eq!(ends.received[ACCEPTOR], b"payload", "byte {at} from {from}");
            }
        }
    }
}

#[test]
fn records_that_are_dropped_doubled_or_exchanged_end_the_connection() {
    let credentials = secret(4);
    for change in ["drop", "double", "exchange", "flip"] {
        let mut meeting = Meeting::new(&credentials, &credentials);
        meeting.run();
        let mut records = Vec::new();
        for payload in [b"first ", b"second", b"third "] {
            meeting.ends[DIALER].seal(payload).unwrap();
            let sealed = meeting.ends[DIALER].outgoing().to_vec();
            meeting.ends[DIALER].sent(sealed.len());
            records.push(sealed);
        }
        match change {
            "drop" => drop(records.remove(1)),
            "double" => records.insert(1, records[0].clone()),
            "exchange" => records.swap(1, 2),
            _ => *records[1].last_mut().unwrap() ^= 1,
        }
        meeting.process(ACCEPTOR, &records.concat());
        assert_eq!(meeting.received[ACCEPTOR], b"first ", "{change}");
        let error = meeting.errors[ACCEPTOR].clone();
        assert!(
            matches!(error, Some(TlsError::Broken(_))),
            "{change}: {error:?}"
        );
        // The other end is notified.
        meeting.run();
        let error = meeting.errors[DIALER].clone();
        assert!(
            matches!(error, Some(TlsError::BrokenAtPeer(_))),
            "{change}: {error:?}"
        );
    }
}

#[test]
fn the_end_is_told_from_a_cut() {
    let credentials = secret(5);
    let mut meeting = Meeting::new(&credentials, &credentials);
    meeting.run();
    assert!(!meeting.ends[ACCEPTOR].is_ended());
    meeting.ends[DIALER].seal(b"last").unwrap();
    meeting.ends[DIALER].end().unwrap();
    meeting.run();
    assert_eq!(meeting.received[ACCEPTOR], b"last");
    assert!(meeting.ends[ACCEPTOR].is_ended());
}

#[test]
fn a_handshake_without_end_is_given_up() {
    let mut acceptor = secret(6).acceptor().unwrap();
    // The start of a record of the maximum length.
    let mut outcome = acceptor.receive(&[22, 3, 1, 0x40, 0], &mut |_| {});
    let mut rounds = 0;
    while outcome.is_ok() {
        rounds += 1;
        assert!(rounds < 100, "it takes anything");
        outcome = acceptor.receive(&[1; 4096], &mut |_| {});
    }
    assert!(matches!(outcome, Err(TlsError::Broken(_))), "{outcome:?}");
}

/// A provider whose keys are good for this many records.
fn limited(records: u64) -> Arc<CryptoProvider> {
    let mut provider = rustls_graviola::default_provider();
    for suite in &mut provider.cipher_suites {
        if let SupportedCipherSuite::Tls13(tls13) = *suite {
            let common = CipherSuiteCommon {
                confidentiality_limit: records,
                ..copy_of(&tls13.common)
            };
            *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common,
                hkdf_provider: tls13.hkdf_provider,
                aead_alg: tls13.aead_alg,
                quic: None,
            })));
        }
    }
    Arc::new(provider)
}

fn copy_of(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: common.confidentiality_limit,
    }
}

#[test]
fn keys_are_updated_before_their_limit_both_ways() {
    let bytes = std::array::from_fn(|at| (at * 37 + 7) as u8);
    let security = Security::shared_secret(SharedSecret::from_bytes(bytes).unwrap());
    let credentials = security.provider(limited(1 << 10)).open().unwrap();
    let mut meeting = Meeting::new(&credentials, &credentials);
    meeting.run();
    let mut sealed = [0; 2];
    for number in 0..5000_u32 {
        for end in [DIALER, ACCEPTOR] {
            meeting.ends[end].seal(&number.to_le_bytes()).unwrap();
            sealed[end] += meeting.ends[end].outgoing().len();
        }
        meeting.run();
    }
    for end in [DIALER, ACCEPTOR] {
        assert_eq!(meeting.errors[end], None);
        let (numbers, rest) = meeting.received[end].as_chunks::<4>();
        assert!(rest.is_empty());
        assert!(numbers.iter().copied().map(u32::from_le_bytes).eq(0..5000));
        // At least four updates, besides records of 4 bytes, each with 22 bytes of overhead.
        assert!(sealed[end] >= 5000 * 26 + 4 * 27, "{sealed:?}");
    }
}
