//! The cryptography that rustls works with.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::SecurityError;

/// Returns the provider of the compiled-in feature: graviola if the processor has the instructions
/// that it needs, else ring.
pub(crate) fn of_features() -> Result<Arc<CryptoProvider>, SecurityError> {
    #[cfg(feature = "graviola")]
    if has_what_graviola_needs() {
        return Ok(Arc::new(rustls_graviola::default_provider()));
    }
    without_graviola()
}

#[cfg(feature = "ring")]
fn without_graviola() -> Result<Arc<CryptoProvider>, SecurityError> {
    Ok(Arc::new(rustls::crypto::ring::default_provider()))
}

#[cfg(not(feature = "ring"))]
fn without_graviola() -> Result<Arc<CryptoProvider>, SecurityError> {
    match cfg!(feature = "graviola") {
        true => Err(SecurityError::Processor),
        false => Err(SecurityError::NoProvider),
    }
}

/// Graviola panics at its first use on a processor that lacks one of these.
#[cfg(all(feature = "graviola", target_arch = "x86_64"))]
fn has_what_graviola_needs() -> bool {
    use std::arch::is_x86_feature_detected as has;

    has!("aes")
        && has!("pclmulqdq")
        && has!("bmi1")
        && has!("bmi2")
        && has!("adx")
        && has!("avx")
        && has!("avx2")
}

/// Graviola panics at its first use on a processor that lacks one of these.
#[cfg(all(feature = "graviola", target_arch = "aarch64"))]
fn has_what_graviola_needs() -> bool {
    use std::arch::is_aarch64_feature_detected as has;

    has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
}
