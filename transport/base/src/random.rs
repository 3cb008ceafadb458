//! Random bytes from the kernel.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with random bytes of the kernel's generator. Waits only while the machine starts
/// and has no randomness yet ([getrandom(2)](https://man7.org/linux/man-pages/man2/getrandom.2.html)).
///
/// # Errors
///
/// The kernel refuses the call, as a sandbox can make it do.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // More than this may come in parts.
    for piece in bytes.chunks_mut(WHOLE_BYTES) {
        let filled = retry_on_intr(|| getrandom(&mut *piece, GetRandomFlags::empty()))?;
        if filled < piece.len() {
            return Err(io::Error::other("the kernel gave too few random bytes"));
        }
    }
    Ok(())
}

/// The longest request that the kernel never answers in part.
const WHOLE_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_drawn() {
        // A byte that no call writes stays 0 in all of these draws; one that is drawn is 0 in each
        // of eight with a chance of 2^-64.
        let mut ever = [0; 1000];
        for _ in 0..8 {
            let mut bytes = [0; 1000];
            fill(&mut bytes).expect("random bytes");
            ever.iter_mut()
                .zip(bytes)
                .for_each(|(ever, byte)| *ever |= byte);
        }
        assert!(ever.iter().all(|byte| *byte != 0));
    }
}
