//! What a node's own certificate says: when it expires, and whether peers can accept it at all.
//!
//! The verifier judges certificates of peers, and does not tell the times of a good one.

use std::time::Duration;

use ibex_base::tls::{Cause, Utc};
use rustls::pki_types::CertificateDer;
use x509_cert::certificate::{Certificate, Version};
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage};

use crate::certificate_names::names_of;

/// The time in which a certificate is valid, in seconds since 1970: RFC 5280, section 4.1.2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
}

impl Validity {
    /// Returns the validity of a certificate; `None` if it breaks the rules of its format, which
    /// the verifiers of peers do not ask for as strictly.
    pub(crate) fn of(certificate: &[u8]) -> Option<Validity> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let validity = certificate.tbs_certificate().validity();
        Some(Validity {
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Returns what is wrong with the time of a node's certificate, or soon will be.
    pub(crate) fn warning(self, now: u64) -> Option<String> {
        let Validity {
            not_before,
            not_after,
        } = self;
        let renew = "replace its files and call reload_certificates";
        if now > not_after {
            return Some(format!(
                "this node's certificate expired at {}, and peers refuse it; {renew}, or check the \
                 clock",
                Utc(not_after)
            ));
        }
        if now < not_before {
            return Some(format!(
                "this node's certificate is not valid before {}, and peers refuse it; check the \
                 clock",
                Utc(not_before)
            ));
        }
        let left = not_after - now;
        let soon = ((not_after - not_before) / SOON_FRACTION).min(SOON.as_secs());
        (left <= soon).then(|| {
            let left = match left / 3600 {
                0 => format!("{} minutes", left / 60),
                hours => format!("{hours} hours"),
            };
            format!(
                "this node's certificate expires at {}, in {left}; {renew}",
                Utc(not_after)
            )
        })
    }
}

/// Checks that peers can accept a certificate as a node's.
///
/// # Errors
/// The reason why none can, in words.
pub(crate) fn check(certificate: &CertificateDer<'_>) -> Result<(), String> {
    let parsed = Certificate::from_der(certificate);
    let version = parsed
        .as_ref()
        .map(|parsed| parsed.tbs_certificate().version());
    if let Ok(version @ (Version::V1 | Version::V2)) = version {
        return Err(format!(
            "it is of X.509 version {}, and TLS takes version 3 alone; `openssl x509 -req` makes \
             one of version 3 if it has extensions to add (-extfile)",
            version as u8 + 1
        ));
    }
    match names_of(certificate) {
        Ok(_) => {}
        Err(Cause::Nameless { uris: 0 }) => {
            return Err(
                "it has neither a URI nor a DNS name among its subject alternative names"
                    .to_owned(),
            );
        }
        Err(Cause::Nameless { uris }) => {
            return Err(format!(
                "it has {uris} URIs among its subject alternative names, and may have one"
            ));
        }
        Err(Cause::Unusable(why)) => return Err(why),
        Err(cause) => return Err(format!("{cause:?}")),
    }
    let Ok(certificate) = parsed else {
        return Ok(()); // as for `Validity::of`
    };
    let content = certificate.tbs_certificate();
    if let Ok(Some((_, constraints))) = content.get_extension::<BasicConstraints>()
        && constraints.ca
    {
        return Err("it is the certificate of an authority".to_owned());
    }
    if let Ok(Some((_, purposes))) = content.get_extension::<ExtendedKeyUsage>() {
        for (purpose, name) in [(SERVER, "server"), (CLIENT, "client")] {
            if !purposes.0.contains(&purpose) {
                return Err(format!(
                    "its extended key usage lacks {name} authentication, and a node both dials and \
                     listens"
                ));
            }
        }
    }
    Ok(())
}

/// `id-kp-serverAuth` and `id-kp-clientAuth`: RFC 5280, section 4.2.1.12.
const SERVER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const CLIENT: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// A certificate is warned of in the last fifth of its time. Those who renew do it earlier: at a
/// half (SPIRE) or with a third left (certbot).
const SOON_FRACTION: u64 = 5;

/// The most time before the expiry of a long-lived certificate from which on it is warned of.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    #[test]
    fn a_certificate_is_warned_of_in_the_last_fifth_of_its_time() {
        for (lifetime, quiet, warned) in [
            (HOUR, HOUR / 5 + 1, HOUR / 5),
            (7 * DAY, 7 * DAY / 5 + 1, 7 * DAY / 5),
            (365 * DAY, 7 * DAY + 1, 7 * DAY),
        ] {
            let validity = Validity {
                not_before: 1000 * DAY,
                not_after: 1000 * DAY + lifetime,
            };
            let warning = |left| validity.warning(validity.not_after - left);
            assert_eq!(warning(lifetime), None, "new: {lifetime}");
            assert_eq!(warning(quiet), None, "{lifetime}");
            assert!(
                warning(warned).unwrap().contains("expires at"),
                "{lifetime}"
            );
        }
    }

    #[test]
    fn a_certificate_out_of_its_time_is_warned_of() {
        let validity = Validity {
            not_before: 951_782_400,
            not_after: 951_782_400 + HOUR,
        };
        let early = validity.warning(validity.not_before - 1).unwrap();
        assert!(early.contains("before 2000-02-29T00:00:00Z"), "{early}");
        let soon = validity.warning(validity.not_after - 90).unwrap();
        assert!(soon.contains("in 1 minutes"), "{soon}");
        let late = validity.warning(validity.not_after + 1).unwrap();
        assert!(late.contains("expired at 2000-02-29T01:00:00Z"), "{late}");
    }
}
