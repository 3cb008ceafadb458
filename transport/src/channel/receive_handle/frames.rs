//! A receiver's reading of the frames that a connection brings.

use std::ptr::NonNull;

use ibex_protocol::format::record::{self, RecordHeader, RecordKind};
use ibex_ring::ArrivalReader;

use crate::endpoint::receive_end::Frame;

/// Frames that arrived over a connection, and the reader's offset in the first of them.
#[derive(Debug)]
pub(super) struct ArrivedFrames {
    arrivals: ArrivalReader<Frame>,
    at: usize,
    alignment: usize,
}

impl ArrivedFrames {
    pub(super) fn new(arrivals: ArrivalReader<Frame>, alignment: usize) -> Self {
        Self {
            arrivals,
            at: 0,
            alignment,
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the first frame, and the payload's address and header word of the record at the
    /// front. The record stays there.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<(&Frame, NonNull<u8>, u64)> {
        let frame = self.arrivals.peek()?;
        // SAFETY: the engine checked the frame's records before it pushed the frame, and no thread
        // writes there until the frame is retired. `at` is the offset of a record: 0 or the sum of
        // the whole records before it.
        let record = unsafe { frame.base.add(self.at) };
        // SAFETY: as above; a record begins with an aligned header word.
        let word = unsafe { record.cast::<u64>().read() };
        // SAFETY: as above; the payload follows the header word.
        let payload = unsafe { record.add(record::HEADER_BYTES) };
        Some((frame, payload, word))
    }

    /// Returns the record at the front. The record stays there.
    pub(super) fn find(&self) -> Option<FoundRecord> {
        let (frame, payload, word) = self.front()?;
        let header = match RecordHeader::from_word(word) {
            Some(Ok(header)) => header,
            _ => unreachable!("the engine let a malformed record through"),
        };
        let length = header.length as usize;
        Some(FoundRecord {
            kind: header.kind,
            payload,
            length,
            size: record::record_size(length, self.alignment),
            time: frame.time,
        })
    }

    /// Takes the record at the front, if it is a data record. Returns its payload, the payload's
    /// length, the record's size and its time of arrival.
    #[inline(always)]
    pub(super) fn take_data(&mut self) -> Option<(NonNull<u8>, usize, usize, u64)> {
        let (frame, payload, word) = self.front()?;
        let length = RecordHeader::of_data(word)?.length as usize;
        let size = record::record_size(length, self.alignment);
        let (frame_bytes, time) = (frame.bytes, frame.time);
        self.move_on(size, frame_bytes);
        Some((payload, length, size, time))
    }

    /// Moves past the record at the front, which takes `size` bytes. Does nothing if there is no
    /// record.
    pub(super) fn pass(&mut self, size: usize) {
        if let Some(frame) = self.arrivals.peek() {
            let frame_bytes = frame.bytes;
            self.move_on(size, frame_bytes);
        }
    }

    /// Moves on by `size` in a frame of `frame_bytes`.
    #[inline(always)]
    fn move_on(&mut self, size: usize, frame_bytes: usize) {
        self.at += size;
        if self.at == frame_bytes {
            self.arrivals.advance();
            self.at = 0;
        }
    }
}

/// A record that was found and not handed out yet.
pub(super) struct FoundRecord {
    pub(super) kind: RecordKind,
    pub(super) payload: NonNull<u8>,
    pub(super) length: usize,
    pub(super) size: usize,
    /// The time of arrival; see [`Frame::time`].
    pub(super) time: u64,
}
