//! Certificates that no node can accept, and what each end says of it.

use std::time::{Duration, SystemTime};

use ibex_harness::authority::Purpose::{Client, Server};

use super::*;
use crate::certificates::CertificateFiles;
use crate::own_certificate::Validity;

/// The errors of both ends for the certificate of `issued`, which `build` refuses: the dialer has
/// the files of `good`, and presents this certificate all the same.
fn presented(issued: &NodeFiles, good: Security) -> (AuthenticationError, AuthenticationError) {
    let acceptor = good.clone().open().unwrap();
    let own = CertificateFiles {
        chain: issued.chain.clone(),
        key: issued.key.clone(),
        authorities: issued.authorities.clone(),
    };
    let own = own.unchecked(&rustls_graviola::default_provider());
    let dialer = good.open().unwrap().presenting(own);
    match meet(&dialer, &acceptor) {
        (Err(TlsError::Refused(dialer)), Err(TlsError::Refused(acceptor))) => (dialer, acceptor),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_certificate_that_peers_refuse_is_refused_by_its_own_node() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let good = files(&authority.issue(&Request::new("good", &[A])).unwrap());
    for (request, own, at_peer) in [
        (
            Request::new("none", &[]),
            "neither a URI nor a DNS name",
            "neither a URI nor a DNS name",
        ),
        (Request::new("two", &[A, B]), "2 URIs", "2 URIs"),
        (
            Request {
                purposes: &[Server],
                ..Request::new("server", &[A])
            },
            "lacks client authentication",
            "have it issued for both",
        ),
        (
            Request {
                is_authority: true,
                ..Request::new("authority", &[A])
            },
            "certificate of an authority",
            "cannot be used",
        ),
    ] {
        let issued = authority.issue(&request).unwrap();
        let refusal = files(&issued).open().unwrap_err();
        assert!(
            matches!(refusal, SecurityError::Certificate { .. }),
            "{refusal}"
        );
        let text = refusal.to_string();
        assert!(text.contains(own) && text.contains(request.file), "{text}");

        // So says the peer, if the certificate comes from elsewhere.
        let (dialer, acceptor) = presented(&issued, good.clone());
        assert_eq!(
            (dialer.by, acceptor.by),
            (RefusedBy::OtherNode, RefusedBy::ThisNode)
        );
        assert!(acceptor.to_string().contains(at_peer), "{acceptor}");
        assert!(dialer.to_string().contains("as the peer says"), "{dialer}");
    }
    let both = Request {
        purposes: &[Server, Client],
        ..Request::new("both", &[A])
    };
    let both = files(&authority.issue(&both).unwrap()).open().unwrap();
    assert!(meet(&both, &both).1.is_ok());
}

/// Two authorities of one name, as anyone has who runs the guide's commands twice.
#[test]
fn two_authorities_of_one_name_are_told_apart() {
    let folder = Folder::new();
    let authority = |place: &str| Authority::new("test authority", &folder.0.join(place)).unwrap();
    let own = authority("ours").issue(&Request::new("a", &[A])).unwrap();
    let stranger = authority("theirs").issue(&Request::new("b", &[B])).unwrap();
    let taking = NodeFiles {
        authorities: own.authorities.clone(),
        ..stranger.clone()
    };
    let (dialer, acceptor) = refused(files(&taking), files(&own));
    assert_eq!(
        (dialer.cause, acceptor.cause.clone()),
        (Cause::UnknownIssuer, Cause::OtherAuthority)
    );
    let text = acceptor.to_string();
    assert!(
        text.contains("two authorities of one name") && text.contains(B),
        "{text}"
    );

    // Both in one file let both in, whichever comes first.
    let pem = |files: &NodeFiles| fs::read(&files.authorities).unwrap();
    for both in [[pem(&own), pem(&stranger)], [pem(&stranger), pem(&own)]] {
        let authorities = folder.0.join("both.pem");
        fs::write(&authorities, both.concat()).unwrap();
        let trusting = |of: &NodeFiles| {
            let files = NodeFiles {
                authorities: authorities.clone(),
                ..of.clone()
            };
            self::files(&files).open().unwrap()
        };
        let (dialer, acceptor) = meet(&trusting(&own), &trusting(&stranger));
        assert_eq!(
            (dialer.unwrap().uri(), acceptor.unwrap().uri()),
            (Some(B), Some(A))
        );
    }
}

#[test]
fn each_end_says_who_does_not_trust_whom() {
    let folder = Folder::new();
    let (ours, theirs) = (folder.authority("ours"), folder.authority("theirs"));
    let own = ours.issue(&Request::new("a", &[A])).unwrap();
    let stranger = theirs.issue(&Request::new("b", &[B])).unwrap();
    let taking = NodeFiles {
        authorities: own.authorities.clone(),
        ..stranger
    };
    let (dialer, acceptor) = refused(files(&taking), files(&own));
    let (dialer, acceptor) = (dialer.to_string(), acceptor.to_string());
    assert!(
        acceptor.contains("an authority that this node does not trust"),
        "{acceptor}"
    );
    assert!(
        dialer.contains("an authority that the peer does not trust"),
        "{dialer}"
    );

    let good = ours.issue(&Request::new("c", &[B])).unwrap();
    let (dialer, acceptor) = refused(files(&good), files(&own).authorize(|_| false));
    let (dialer, acceptor) = (dialer.to_string(), acceptor.to_string());
    assert!(
        acceptor.contains("this node's `authorize` does not allow"),
        "{acceptor}"
    );
    assert!(dialer.contains("the peer does not authorize"), "{dialer}");
}

#[test]
fn a_nodes_own_certificate_is_warned_of_by_its_own_times() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let request = Request {
        from_year: 2010,
        until_year: 2100,
        ..Request::new("a", &[A])
    };
    let issued = authority.issue(&request).unwrap();
    let credentials = files(&issued).open().unwrap();
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let in_2100 = 4_102_444_800;
    assert_eq!(credentials.stats().certificate_expires, Some(at(in_2100)));
    let about_time = |now| {
        let warnings = credentials.warnings(at(now));
        warnings
            .into_iter()
            .find(|warning| !warning.contains("mode"))
    };
    assert_eq!(about_time(in_2100 - 8 * 86_400), None);
    let soon = about_time(in_2100 - 6 * 86_400).unwrap();
    assert!(
        soon.contains("expires at 2100-01-01T00:00:00Z, in 144 hours"),
        "{soon}"
    );
    let late = about_time(in_2100 + 1).unwrap();
    assert!(late.contains("expired at 2100-01-01T00:00:00Z"), "{late}");
}

#[test]
fn a_key_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let issued = folder
        .authority("ca")
        .issue(&Request::new("a", &[A]))
        .unwrap();
    for (mode, is_exposed) in [(0o600, false), (0o644, true)] {
        fs::set_permissions(&issued.key, fs::Permissions::from_mode(mode)).unwrap();
        let warnings = files(&issued).open().unwrap().warnings(SystemTime::now());
        assert_eq!(
            warnings
                .iter()
                .any(|warning| warning.contains("private key")),
            is_exposed
        );
    }
}

/// As of `openssl x509 -req` without extensions.
#[test]
fn a_certificate_of_version_1_is_told_as_what_it_is() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let issued = authority.issue(&Request::new("old", &[A])).unwrap();
    let whole = files(&issued).open().unwrap().certificate();
    let pem = format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        base64(&of_version_1(&whole))
    );
    fs::write(&issued.chain, pem).unwrap();
    let refusal = files(&issued).open().unwrap_err();
    let SecurityError::Certificate { why, .. } = &refusal else {
        panic!("{refusal}");
    };
    assert!(why.contains("X.509 version 1"), "{why}");
}

/// Leaves the version and the extensions of a certificate out, which version 1 does not have.
fn of_version_1(certificate: &[u8]) -> Vec<u8> {
    let (_, certificate, _) = element(certificate);
    let (_, mut content, signature) = element(certificate);
    let mut kept = Vec::new();
    while !content.is_empty() {
        let (tag, _, rest) = element(content);
        if ![0xa0, 0xa3].contains(&tag) {
            kept.extend_from_slice(&content[..content.len() - rest.len()]);
        }
        content = rest;
    }
    sequence(&[&sequence(&kept)[..], signature].concat())
}

/// Returns the tag and the content of the first element of DER, and what is behind it.
fn element(der: &[u8]) -> (u8, &[u8], &[u8]) {
    let (start, length) = match der[1] {
        short @ 0..0x80 => (2, usize::from(short)),
        long => {
            let start = 2 + usize::from(long & 0x7f);
            let bytes = der[2..start].iter();
            let length = bytes.fold(0, |length, byte| length << 8 | usize::from(*byte));
            (start, length)
        }
    };
    let (content, rest) = der[start..].split_at(length);
    (der[0], content, rest)
}

fn sequence(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    // DER has the shortest form.
    let header = match length {
        [0, low @ 0..0x80] => vec![0x30, low],
        [0, low] => vec![0x30, 0x81, low],
        [high, low] => vec![0x30, 0x82, high, low],
    };
    [&header[..], content].concat()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = bytes.chunks(3).flat_map(|group| {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        (0..4).map(move |digit| match digit <= group.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]),
            false => '=',
        })
    });
    groups.collect()
}

/// Both forms of a time, and the ends of their ranges.
#[test]
fn validity_is_read_from_certificates_and_never_from_damaged_ones() {
    let folder = Folder::new();
    let authority = folder.authority("ca");
    let der = |from_year, until_year| {
        let request = Request {
            from_year,
            until_year,
            ..Request::new("a", &[A])
        };
        let credentials = files(&authority.issue(&request).unwrap()).open().unwrap();
        credentials.certificate()
    };
    for (from, until, not_before, not_after) in [
        (2000, 2049, 946_684_800, 2_493_072_000),
        (2000, 2050, 946_684_800, 2_524_608_000),
        (2040, 2999, 2_208_988_800, 32_472_144_000),
    ] {
        let validity = Validity {
            not_before,
            not_after,
        };
        assert_eq!(Validity::of(&der(from, until)), Some(validity));
    }
    let whole = der(2000, 2049);
    for length in 0..whole.len() {
        assert_eq!(Validity::of(&whole[..length]), None);
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let _ = Validity::of(&changed);
    }
}
