//! The control segments of a node, shared by its sessions with one process: a page has blocks for
//! 16 channel ends, and most sessions have one or two.
//!
//! Sharing reveals nothing: that process may map each segment read-only anyway, and finds in it
//! only words of its own sessions.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, Weak};

use ibex_base::sync::lock;
use ibex_ring::memory::MemoryError;

use super::control_segment::ControlSegment;

/// The segments from which sessions may still get blocks.
#[derive(Debug, Default)]
pub struct ControlSegments(Mutex<Vec<Shared>>);

/// The process that may read a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The process's number, according to the kernel.
    pub pid: u32,
    /// The incarnation of the process's node, as the node itself states, because process numbers
    /// are reused.
    pub incarnation: u64,
}

#[derive(Debug)]
struct Shared {
    reader: Reader,
    bytes: usize,
    segment: Weak<ControlSegment>,
}

impl ControlSegments {
    /// Returns a segment of `bytes` bytes with a free block, and makes one if there is none. An
    /// unknown reader gets a segment of its own.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn provide(
        &self,
        reader: Option<Reader>,
        bytes: usize,
    ) -> Result<Arc<ControlSegment>, MemoryError> {
        let Some(reader) = reader else {
            return ControlSegment::create(bytes);
        };
        let mut all = lock(&self.0);
        let is_meant = |shared: &&Shared| shared.reader == reader && shared.bytes == bytes;
        let found = all
            .iter()
            .find(is_meant)
            .and_then(|one| one.segment.upgrade());
        if let Some(segment) = found.filter(|segment| !segment.is_full()) {
            return Ok(segment);
        }
        let segment = ControlSegment::create(bytes)?;
        all.retain(|shared| !is_meant(&shared) && shared.segment.strong_count() > 0);
        all.push(Shared {
            reader,
            bytes,
            segment: Arc::downgrade(&segment),
        });
        Ok(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::control_segment::SegmentShare, *};

    const READER: Reader = Reader {
        pid: 1,
        incarnation: 2,
    };
    const BYTES: usize = 4 << 10;

    #[test]
    fn sessions_with_one_process_share_a_segment_until_it_is_full() {
        let all = ControlSegments::default();
        let first = all.provide(Some(READER), BYTES).unwrap();
        let second = all.provide(Some(READER), BYTES).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let shares = [first.clone(), second].map(SegmentShare::new);
        let blocks: Vec<_> = (0..16).map(|turn| shares[turn % 2].lease_block()).collect();
        assert!(blocks.iter().all(Option::is_some));
        assert!(shares[0].lease_block().is_none());
        let third = all.provide(Some(READER), BYTES).unwrap();
        assert!(!Arc::ptr_eq(&first, &third));
    }

    #[test]
    fn no_other_process_nor_an_unknown_one_gets_it() {
        let all = ControlSegments::default();
        let ours = all.provide(Some(READER), BYTES).unwrap();
        let later = Reader {
            incarnation: 3,
            ..READER
        };
        for (reader, bytes) in [
            (Some(later), BYTES),
            (None, BYTES),
            (Some(READER), 2 * BYTES),
        ] {
            let other = all.provide(reader, bytes).unwrap();
            assert!(!Arc::ptr_eq(&ours, &other));
        }
    }

    #[test]
    fn a_segment_goes_with_its_last_session() {
        let all = ControlSegments::default();
        drop(all.provide(Some(READER), BYTES).unwrap());
        assert_eq!(all.0.lock().unwrap()[0].segment.strong_count(), 0);
        let _again = all.provide(Some(READER), BYTES).unwrap();
        assert_eq!(all.0.lock().unwrap().len(), 1);
    }
}
