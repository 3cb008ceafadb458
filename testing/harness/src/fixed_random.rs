//! A rustls provider whose random bytes all follow from a seed, so that a TLS handshake can be
//! replayed byte for byte. Data that it protects is not secret.

use std::{
    cell::RefCell,
    sync::{Arc, OnceLock},
};

use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};
use rustls::{
    Error, NamedGroup, PeerMisbehaved,
    crypto::{
        ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
        SupportedKxGroup,
    },
};

use crate::draw::Draw;

/// Returns graviola's provider, restricted to X25519. Its random numbers follow from the last
/// [`seed`] of the calling thread.
///
/// # Panics
///
/// If the processor lacks instructions that graviola needs.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        Arc::new(CryptoProvider {
            kx_groups: vec![&Seeded],
            secure_random: &Seeded,
            ..rustls_graviola::default_provider()
        })
    };
    PROVIDER.get_or_init(make).clone()
}

/// Restarts the random bytes of this thread from `seed`.
pub fn seed(seed: u64) {
    DRAW.set(Draw::new(seed));
}

/// Random bytes and a key exchange that follow from the thread's seed.
#[derive(Debug)]
struct Seeded;

thread_local! {
    static DRAW: RefCell<Draw> = const { RefCell::new(Draw::new(0)) };
}

fn fill(bytes: &mut [u8]) {
    DRAW.with_borrow_mut(|draw| draw.fill(bytes));
}

impl SecureRandom for Seeded {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        fill(bytes);
        Ok(())
    }
}

impl SupportedKxGroup for Seeded {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut key = [0; 32];
        fill(&mut key);
        let key = StaticPrivateKey::from_array(&key);
        let public = key.public_key().as_bytes();
        Ok(Box::new(Exchange { key, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchange {
    key: StaticPrivateKey,
    public: [u8; 32],
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let agreed =
            PublicKey::try_from_slice(peer).and_then(|peer| self.key.diffie_hellman(&peer));
        let agreed = agreed.map_err(|_| Error::from(PeerMisbehaved::InvalidKeyShare))?;
        Ok(SharedSecret::from(&agreed.0[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}
