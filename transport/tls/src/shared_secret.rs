//! The secret of a cluster, and the keys that follow from it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::CertifiedKey;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::own_key::OwnKey;
use crate::{SecurityError, certificates};

/// 32 random bytes that only the nodes of a cluster have.
///
/// The bytes are overwritten when the last copy is dropped, and are never printed. Make a file
/// of them with `openssl rand -out cluster.key 32`, readable for its owner alone.
#[derive(Clone)]
pub struct SharedSecret(Arc<Zeroizing<[u8; 32]>>);

impl SharedSecret {
    /// Takes 32 bytes that were drawn from a good random source.
    ///
    /// # Errors
    /// The bytes do not look random: they are text, or a few bytes repeated. Any host that connects
    /// to a node can then test guesses offline, so a passphrase is no secret here.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<SharedSecret, SecurityError> {
        let secret = SharedSecret(Arc::new(Zeroizing::new(bytes)));
        let bytes = &**secret.0;
        let is_text = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
        let mut seen = [false; 256];
        bytes
            .iter()
            .for_each(|&byte| seen[usize::from(byte)] = true);
        let different = seen.iter().filter(|&&seen| seen).count();
        match is_text || different < LEAST_DIFFERENT {
            true => Err(SecurityError::NotRandom),
            false => Ok(secret),
        }
    }

    /// Reads the secret from a file that has exactly its 32 bytes, or these bytes as 64 hexadecimal
    /// digits.
    ///
    /// # Errors
    /// The file cannot be read, has another length, or its bytes do not look random.
    pub fn from_file(path: impl AsRef<Path>) -> Result<SharedSecret, SecurityError> {
        let path = path.as_ref();
        let read = Zeroizing::new(certificates::read(path)?);
        if let Ok(bytes) = <[u8; 32]>::try_from(&read[..]) {
            return SharedSecret::from_bytes(bytes);
        }
        match from_hex(read.trim_ascii_end()) {
            Some(bytes) => SharedSecret::from_bytes(bytes),
            None => Err(SecurityError::SecretLength {
                path: path.to_owned(),
                bytes: read.len(),
            }),
        }
    }

    /// Derives the keys of both roles by HKDF (RFC 5869) with SHA-256.
    pub(crate) fn keys(&self, provider: &CryptoProvider) -> Result<RoleKeys, SecurityError> {
        let random = hmac(LABEL, &[&**self.0]);
        Ok(RoleKeys {
            dialer: role_key(&random, b"dialer", provider)?,
            acceptor: role_key(&random, b"acceptor", provider)?,
        })
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(***)")
    }
}

/// The keys that the two ends of a connection present, one for each role, so that an end cannot be
/// answered with its own messages.
#[derive(Debug)]
pub(crate) struct RoleKeys {
    pub(crate) dialer: OwnKey,
    pub(crate) acceptor: OwnKey,
}

/// HKDF-Expand for one block, and the Ed25519 key with that seed.
fn role_key(
    random: &[u8; 32],
    role: &[u8],
    provider: &CryptoProvider,
) -> Result<OwnKey, SecurityError> {
    let seed = hmac(random, &[role, &[1]]);
    let mut encoded = Zeroizing::new(PKCS8_ED25519.to_vec());
    encoded.extend_from_slice(&*seed);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(&encoded[..]));
    // A provider keeps the key that it parses, not these bytes.
    let key = provider.key_provider.load_private_key(key.clone_key());
    let key = key.map_err(SecurityError::Ed25519)?;
    let public: SubjectPublicKeyInfoDer<'_> = key.public_key().ok_or(SecurityError::RawKeys)?;
    let certificate = CertificateDer::from(public.to_vec());
    Ok(OwnKey {
        key: Arc::new(CertifiedKey::new(vec![certificate], key)),
        is_raw: true,
    })
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mac = Hmac::new_from_slice(key);
    let mut mac: Hmac<Sha256> = mac.expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().into())
}

fn from_hex(text: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? * 16 + digit(*low)?) as u8;
    }
    Some(bytes)
}

const LABEL: &[u8] = b"ibex shared secret 1";

/// The encoding of an Ed25519 private key up to its seed: RFC 8410, section 7.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The least number of different bytes. Of 32 random bytes, fewer differ only once in more than
/// 10^12 times.
const LEAST_DIFFERENT: usize = 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn random() -> [u8; 32] {
        std::array::from_fn(|at| (at * 37 + 11) as u8)
    }

    #[test]
    fn a_secret_that_is_not_random_is_refused() {
        let passphrase = *b"correct horse battery staple 123";
        for bytes in [
            passphrase,
            [7; 32],
            std::array::from_fn(|at| (at % 8) as u8),
        ] {
            let refused = SharedSecret::from_bytes(bytes);
            assert!(
                matches!(refused, Err(SecurityError::NotRandom)),
                "{bytes:?}"
            );
        }
        assert!(SharedSecret::from_bytes(random()).is_ok());
    }

    #[test]
    fn a_file_has_bytes_or_digits() {
        let folder = std::env::temp_dir().join(format!("ibex-secret-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("cluster.key");
        let hex: String = random().iter().map(|byte| format!("{byte:02x}")).collect();
        for content in [
            random().to_vec(),
            hex.clone().into(),
            format!("{hex}\n").into(),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(**SharedSecret::from_file(&path).unwrap().0, random());
        }
        for content in ["a passphrase", "", &hex[2..], &hex.replace('0', "g")] {
            fs::write(&path, content).unwrap();
            let refused = SharedSecret::from_file(&path).unwrap_err();
            assert!(
                matches!(refused, SecurityError::SecretLength { .. }),
                "{content}"
            );
        }
        fs::remove_dir_all(&folder).unwrap();
        let missing = SharedSecret::from_file(&path).unwrap_err().to_string();
        assert!(missing.contains("cluster.key"), "{missing}");
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = SharedSecret::from_bytes(random()).unwrap();
        assert_eq!(format!("{secret:?}"), "SharedSecret(***)");
    }
}
