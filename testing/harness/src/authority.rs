//! A certificate authority for tests and examples, and the files of its nodes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, Error, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData, RevokedCertParams,
    SanType, SerialNumber, SignatureAlgorithm, SigningKey, date_time_ymd,
};
use rustls::SignatureScheme;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

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
        let key = Key::generate()?;
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
        let key = Key::generate()?;
        let mut params = params(request.file, request.serial, &key);
        for uri in request.uris {
            let uri = (*uri).try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        for name in request.dns_names {
            let name = (*name).try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::DnsName(name));
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
        fs::write(&files.key, key.pem())?;
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

/// An Ed25519 key, with which graviola signs.
struct Key {
    encoded: Vec<u8>,
    signing: Arc<dyn rustls::sign::SigningKey>,
    public: Vec<u8>,
}

impl Key {
    fn generate() -> io::Result<Self> {
        let mut encoded = PKCS8_ED25519.to_vec();
        encoded.resize(PKCS8_ED25519.len() + 32, 0);
        let provider = rustls_graviola::default_provider();
        let filled = provider
            .secure_random
            .fill(&mut encoded[PKCS8_ED25519.len()..]);
        filled.map_err(|_| io::Error::other("the system has no random bytes"))?;
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(encoded.clone()));
        let signing = provider.key_provider.load_private_key(private);
        let signing = signing.map_err(io::Error::other)?;
        let info = signing.public_key().expect("graviola tells public keys");
        // The last field of a SubjectPublicKeyInfo: RFC 8410, section 4.
        let public = info[info.len() - 32..].to_vec();
        Ok(Self {
            encoded,
            signing,
            public,
        })
    }

    fn pem(&self) -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        // 48 bytes make 64 base64 digits without padding.
        let mut digits = String::new();
        for group in self.encoded.chunks_exact(3) {
            let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
            for shift in [18, 12, 6, 0] {
                digits.push(char::from(ALPHABET[(bits >> shift & 63) as usize]));
            }
        }
        format!("-----BEGIN PRIVATE KEY-----\n{digits}\n-----END PRIVATE KEY-----\n")
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signer = self.signing.choose_scheme(&[SignatureScheme::ED25519]);
        let signed = signer.and_then(|signer| signer.sign(message).ok());
        signed.ok_or(Error::RemoteKeyError)
    }
}

/// The encoding of an Ed25519 private key up to its seed: RFC 8410, section 7.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
