//! The secret of a cluster, and the keys that follow from it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac_sha256::HKDF;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::own_key::OwnKey;
use crate::{SecurityError, certificates, exposure};

/// 32 random bytes that only the nodes of a cluster have.
///
/// The bytes are overwritten when the last copy is dropped, and are never printed. Make a file
/// of them with `openssl rand -out cluster.key 32`, readable for its owner alone.
#[derive(Clone)]
pub struct SharedSecret {
    bytes: Arc<Zeroizing<[u8; 32]>>,
    /// The warning about its file, if others can read it.
    exposed: Option<String>,
}

impl SharedSecret {
    /// Takes 32 bytes that were drawn from a good random source.
    ///
    /// # Errors
    /// The bytes do not look random: they are text, or a few bytes repeated. Any host that connects
    /// to a node can then test guesses offline, so a passphrase is no secret here.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<SharedSecret, SecurityError> {
        let secret = SharedSecret {
            bytes: Arc::new(Zeroizing::new(bytes)),
            exposed: None,
        };
        let bytes = &**secret.bytes;
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
    ///
    /// If every user of the host can read the file, nodes made with it warn in the log.
    pub fn from_file(path: impl AsRef<Path>) -> Result<SharedSecret, SecurityError> {
        let path = path.as_ref();
        let read = Zeroizing::new(certificates::read(path)?);
        let bytes = <[u8; 32]>::try_from(&read[..]).ok();
        let bytes = bytes.or_else(|| from_hex(read.trim_ascii_end()));
        let bytes = bytes.ok_or_else(|| SecurityError::SecretLength {
            path: path.to_owned(),
            bytes: read.len(),
        })?;
        let mut secret = SharedSecret::from_bytes(bytes)?;
        secret.exposed = exposure::warning(path, "shared secret");
        Ok(secret)
    }

    /// Returns the warning about its file, if others can read it.
    pub(crate) fn exposed(&self) -> Option<&str> {
        self.exposed.as_deref()
    }

    /// Derives the keys of both roles by HKDF (RFC 5869) with SHA-256.
    pub(crate) fn keys(&self, provider: &CryptoProvider) -> Result<RoleKeys, SecurityError> {
        let random = Zeroizing::new(HKDF::extract(LABEL, self.bytes.as_slice()));
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

/// Returns the Ed25519 key of a role.
fn role_key(
    random: &[u8; 32],
    role: &[u8],
    provider: &CryptoProvider,
) -> Result<OwnKey, SecurityError> {
    let seed = seed(random, role);
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

fn seed(random: &[u8; 32], role: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut seed = Zeroizing::new([0; 32]);
    HKDF::expand(&mut *seed, random, role);
    seed
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
            assert_eq!(**SharedSecret::from_file(&path).unwrap().bytes, random());
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

    /// Nodes of all releases have to derive the same keys. The values are Python's: HMAC by its
    /// module `hmac`, as in RFC 5869, sections 2.2 and 2.3.
    #[test]
    fn the_keys_of_a_secret_stay_the_same() {
        let random = HKDF::extract(LABEL, random());
        let hex = |role| -> String {
            let seed = seed(&random, role);
            seed.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(
            hex(b"dialer"),
            "23fe12ec14da3a41425a415bcd356ecf0ecf9cc7c6fabf62b0dd7d5318ce267b"
        );
        assert_eq!(
            hex(b"acceptor"),
            "710f32439585c2c3b2895c1b50f8491465041d6b63a9e0ab960aa78635323dab"
        );
    }

    #[test]
    fn a_file_that_others_can_read_is_warned_of() {
        use ibex_base::tls::TlsCredentials;
        use std::os::unix::fs::PermissionsExt;

        let path = std::env::temp_dir().join(format!("ibex-mode-{}.key", std::process::id()));
        fs::write(&path, random()).unwrap();
        for (mode, is_exposed) in [(0o400, false), (0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let secret = SharedSecret::from_file(&path).unwrap();
            let credentials = crate::Security::shared_secret(secret).open().unwrap();
            let warnings = credentials.warnings(std::time::SystemTime::now());
            assert_eq!(!warnings.is_empty(), is_exposed, "{mode:o}: {warnings:?}");
            if let [warning] = &warnings[..] {
                let text = format!("the mode {mode:04o}, so other users of this host");
                assert!(
                    warning.contains(&text) && warning.contains("chmod 600"),
                    "{warning}"
                );
            }
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = SharedSecret::from_bytes(random()).unwrap();
        assert_eq!(format!("{secret:?}"), "SharedSecret(***)");
    }
}
