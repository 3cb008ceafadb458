//! The names in a certificate, of a peer or of this node.

use ibex_base::tls::{AuthenticatedAs, Cause};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Returns the names in a certificate: at most one URI, as SPIFFE requires (X509-SVID, section 2), and at
/// least one name.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Result<AuthenticatedAs, Cause> {
    let certificate =
        EndEntityCert::try_from(certificate).map_err(|error| Cause::Unusable(error.to_string()))?;
    let mut uris: Vec<String> = certificate.valid_uri_names().map(str::to_owned).collect();
    let dns_names: Vec<String> = certificate.valid_dns_names().map(str::to_owned).collect();
    match (uris.len(), dns_names.is_empty()) {
        (0, true) | (2.., _) => Err(Cause::Nameless { uris: uris.len() }),
        _ => Ok(AuthenticatedAs::Certificate {
            uri: uris.pop(),
            dns_names,
        }),
    }
}
