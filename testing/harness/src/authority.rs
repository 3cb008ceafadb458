//! A certificate authority for tests and examples, and the files of its nodes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

#[allow(dead_code, reason = "the command `ibex keygen` also reads keys")]
#[path = "../../../cli/src/ed25519_key.rs"]
mod ed25519_key;

use ed25519_key::Key;

/// An authority that issues certificates into a folder of its own.
pub struct Authority {
    issuer: Issuer<'static, Key>,
    folder: PathBuf,
}

/// The files of one node.
#[derive(Clone, Debug)]
pub struct NodeFiles {
    /// The node's certificate.
    pub chain: PathBuf,
    /// The node's private key.
    pub key: PathBuf,
    /// The certificate of the authority.
    pub authorities: PathBuf,
}

/// The content of a certificate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The files' name.
    pub file: &'a str,
    /// URIs among the subject's names.
    pub uris: &'a [&'a str],
    /// DNS names among the subject's names.
    pub dns_names: &'a [&'a str],
    /// The year in which the certificate becomes valid.
    pub from_year: i32,
    /// The year in which the certificate expires.
    pub until_year: i32,
    /// The certificate's number, by which it can be revoked.
    pub serial: u64,
    /// The purposes of the certificate; with none, it does not say.
    pub purposes: &'a [Purpose],
    /// Set for the certificate of an authority.
    pub is_authority: bool,
}

/// A purpose of a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The authentication of servers.
    Server,
    /// The authentication of clients.
    Client,
}

impl<'a> Request<'a> {
    /// Requests a certificate for one URI that is valid now.
    #[must_use]
    pub fn new(file: &'a str, uris: &'a [&'a str]) -> Self {
        Self {
            file,
            uris,
            dns_names: &[],
            from_year: 2000,
            until_year: 2999,
            serial: 2,
            purposes: &[],
            is_authority: false,
        }
    }
}

impl Authority {
    /// Makes an authority called `name`, with its certificate in `folder`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to, or the system has no random bytes.
    pub fn new(name: &str, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let key = Key::generate().map_err(io::Error::other)?;
        let mut params = params(name, 1, &key);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let folder = folder.to_owned();
        fs::write(folder.join("ca.pem"), certificate.pem())?;
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, folder })
    }

    /// Issues a certificate.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to, or a name is not one.
    pub fn issue(&self, request: &Request<'_>) -> io::Result<NodeFiles> {
        let key = Key::generate().map_err(io::Error::other)?;
        let mut params = params(request.file, request.serial, &key);
        for uri in request.uris {
            let uri = (*uri).try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        for name in request.dns_names {
            let name = (*name).try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let purposes = request.purposes.iter().map(|purpose| match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        });
        params.extended_key_usages = purposes.collect();
        if request.is_authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.not_before = date_time_ymd(request.from_year, 1, 1);
        params.not_after = date_time_ymd(request.until_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.map_err(io::Error::other)?;
        let files = NodeFiles {
            chain: self.folder.join(format!("{}.pem", request.file)),
            key: self.folder.join(format!("{}.key", request.file)),
            authorities: self.folder.join("ca.pem"),
        };
        fs::write(&files.chain, certificate.pem())?;
        write_for_owner(&files.key, &key.pem())?;
        Ok(files)
    }

    /// Issues a list that revokes the certificates with these numbers.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to.
    pub fn revoke(&self, serials: &[u64]) -> io::Result<PathBuf> {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: key_identifier(self.issuer.key()),
        };
        let list = list.signed_by(&self.issuer).map_err(io::Error::other)?;
        let path = self.folder.join("revoked.pem");
        fs::write(&path, list.pem().map_err(io::Error::other)?)?;
        Ok(path)
    }
}

/// Makes a certificate for this name and its key, in memory alone.
///
/// # Errors
///
/// The system has no random bytes, or the name is not one.
pub fn self_signed(name: &str) -> io::Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let key = Key::generate().map_err(io::Error::other)?;
    let mut params = params(name, 1, &key);
    let dns_name = name.try_into().map_err(io::Error::other)?;
    params.subject_alt_names = vec![SanType::DnsName(dns_name)];
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    let private = PrivatePkcs8KeyDer::from(key.encoded.to_vec());
    Ok((certificate.der().clone(), private.into()))
}

/// Writes a file that only its owner can read.
fn write_for_owner(path: &Path, content: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_bytes())
}

fn params(name: &str, serial: u64, key: &Key) -> CertificateParams {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    // Assigned one by one: rcgen marks the struct non-exhaustive, so `..Default` is not allowed.
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name;
    params.serial_number = Some(SerialNumber::from(serial));
    params.key_identifier_method = key_identifier(key);
    params
}

fn key_identifier(key: &Key) -> KeyIdMethod {
    KeyIdMethod::PreSpecified(key.public[..20].to_vec())
}
