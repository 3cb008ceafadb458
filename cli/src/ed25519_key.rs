//! An Ed25519 key with which rcgen signs certificates. The authority of the tests has this file too.

use std::sync::Arc;

use rcgen::{PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls::SignatureScheme;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// An Ed25519 key, with which graviola signs.
pub(crate) struct Key {
    pub(crate) encoded: Zeroizing<Vec<u8>>,
    signing: Arc<dyn rustls::sign::SigningKey>,
    pub(crate) public: Vec<u8>,
}

impl Key {
    pub(crate) fn generate() -> Result<Self, String> {
        let mut encoded = Zeroizing::new(PKCS8_ED25519.to_vec());
        encoded.resize(PKCS8_ED25519.len() + 32, 0);
        fill(&mut encoded[PKCS8_ED25519.len()..])?;
        Self::of(encoded)
    }

    pub(crate) fn read(pem: &str) -> Result<Self, String> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes());
        let key = key.map_err(|error| format!("ca.key: {error}"))?;
        Self::of(Zeroizing::new(key.secret_pkcs8_der().to_vec()))
    }

    fn of(encoded: Zeroizing<Vec<u8>>) -> Result<Self, String> {
        let provider = rustls_graviola::default_provider();
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(encoded.to_vec()));
        let signing = provider.key_provider.load_private_key(private);
        let signing = signing.map_err(|error| format!("the key: {error}"))?;
        let is_ed25519 = signing.choose_scheme(&[SignatureScheme::ED25519]).is_some();
        let info = signing.public_key().filter(|_| is_ed25519);
        let info = info.ok_or("ca.key is no Ed25519 key, as `ibex keygen ca` makes them")?;
        // The last field of a SubjectPublicKeyInfo: RFC 8410, section 4.
        let public = info[info.len() - 32..].to_vec();
        Ok(Self {
            encoded,
            signing,
            public,
        })
    }

    pub(crate) fn pem(&self) -> Zeroizing<String> {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        // 48 bytes make 64 base64 digits without padding.
        let mut digits = Zeroizing::new(String::with_capacity(64));
        for group in self.encoded.chunks_exact(3) {
            let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
            for shift in [18, 12, 6, 0] {
                digits.push(char::from(ALPHABET[(bits >> shift & 63) as usize]));
            }
        }
        Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *digits
        ))
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
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signer = self.signing.choose_scheme(&[SignatureScheme::ED25519]);
        let signed = signer.and_then(|signer| signer.sign(message).ok());
        signed.ok_or(rcgen::Error::RemoteKeyError)
    }
}

/// Fills `bytes` with random ones.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), String> {
    let provider = rustls_graviola::default_provider();
    let filled = provider.secure_random.fill(bytes);
    filled.map_err(|_| "the system has no random bytes".to_owned())
}

/// The encoding of an Ed25519 private key up to its seed: RFC 8410, section 7.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
