//! Hostile bytes for every part of ibex that reads a peer's bytes.
//!
//! Each [`Target`] is one parser behind a function that takes any bytes. The function must return
//! for any input, and says whether the input took the parser to its accept state: everything was
//! read, and everything was valid. Each target makes its own seeds, the inputs from which fuzzing
//! starts. They are committed in `fuzz/corpus`, and a test checks that they are accepted, so that
//! fuzzing begins behind the first check and not before it.

use std::path::{Path, PathBuf};

mod reader;
mod targets {
    pub(crate) mod bootstrap;
    pub(crate) mod call_extension;
    pub(crate) mod control;
    pub(crate) mod counters;
    pub(crate) mod frame_check;
    pub(crate) mod frames;
    pub(crate) mod message_extension;
    pub(crate) mod ring;
    pub(crate) mod rkyv_access;
    pub(crate) mod sealed;
    pub(crate) mod serde_decode;
    pub(crate) mod shm_message;
}

use targets::{
    bootstrap, call_extension, control, counters, frame_check, frames, message_extension, ring,
    rkyv_access, sealed, serde_decode, shm_message,
};

/// A parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name on the command line and in the corpus.
    pub name: &'static str,
    /// Feeds the parser. Returns whether it accepted the bytes; never panics.
    pub accepts: fn(&[u8]) -> bool,
    /// Returns inputs that are accepted.
    pub seeds: fn() -> Vec<Seed>,
}

/// An input that a parser accepts.
#[derive(Clone, Debug)]
pub struct Seed {
    /// The name of its file in the corpus.
    pub name: &'static str,
    /// The bytes for the parser.
    pub bytes: Vec<u8>,
}

/// All targets. A target's index is its selector, so new ones go to the end.
pub const TARGETS: &[Target] = &[
    Target {
        name: "bootstrap_message",
        accepts: bootstrap::accepts_message,
        seeds: bootstrap::message_seeds,
    },
    Target {
        name: "bootstrap_acceptor",
        accepts: bootstrap::acceptor_accepts,
        seeds: bootstrap::acceptor_seeds,
    },
    Target {
        name: "bootstrap_dialer",
        accepts: bootstrap::dialer_accepts,
        seeds: bootstrap::dialer_seeds,
    },
    Target {
        name: "frames",
        accepts: frames::accepts,
        seeds: frames::seeds,
    },
    Target {
        name: "control",
        accepts: control::accepts,
        seeds: control::seeds,
    },
    Target {
        name: "counters",
        accepts: counters::accepts,
        seeds: counters::seeds,
    },
    Target {
        name: "ring",
        accepts: ring::accepts,
        seeds: ring::seeds,
    },
    Target {
        name: "shm_message",
        accepts: shm_message::accepts,
        seeds: shm_message::seeds,
    },
    Target {
        name: "rkyv_access",
        accepts: rkyv_access::accepts,
        seeds: rkyv_access::seeds,
    },
    Target {
        name: "serde_decode",
        accepts: serde_decode::accepts,
        seeds: serde_decode::seeds,
    },
    Target {
        name: "bootstrap_resumer",
        accepts: bootstrap::resumer_accepts,
        seeds: bootstrap::resumer_seeds,
    },
    Target {
        name: "frame_check",
        accepts: frame_check::accepts,
        seeds: frame_check::seeds,
    },
    Target {
        name: "sealed_acceptor",
        accepts: sealed::acceptor_accepts,
        seeds: sealed::acceptor_seeds,
    },
    Target {
        name: "sealed_records",
        accepts: sealed::records_accept,
        seeds: sealed::records_seeds,
    },
    Target {
        name: "call_extension",
        accepts: call_extension::accepts,
        seeds: call_extension::seeds,
    },
    Target {
        name: "message_extension",
        accepts: message_extension::accepts,
        seeds: message_extension::seeds,
    },
];

#[cfg(test)]
mod executions;

impl Target {
    /// Returns the target that the first byte of an input selects.
    #[must_use]
    pub fn by_selector(selector: u8) -> Option<&'static Self> {
        TARGETS.get(usize::from(selector))
    }

    /// Returns the target of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Returns the input by which a fuzzer feeds `bytes` to this target.
    ///
    /// # Panics
    ///
    /// If it is none of [`TARGETS`].
    #[must_use]
    pub fn input(&self, bytes: &[u8]) -> Vec<u8> {
        let place = TARGETS.iter().position(|target| target.name == self.name);
        let selector = place.and_then(|place| u8::try_from(place).ok());
        let selector = selector.expect("a target of the table, and fewer than 256 of them");
        [&[selector], bytes].concat()
    }
}

/// Returns the folder of the committed seeds.
#[must_use]
pub fn corpus_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}
