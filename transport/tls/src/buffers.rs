//! The buffers on both sides of a TLS connection.

use rustls::Error;
use rustls::unbuffered::{EncodeError, EncryptError};

/// Received bytes, in a buffer that is kept.
#[derive(Default)]
pub(crate) struct ReceivedBytes {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Sealed bytes on their way to the peer, in a buffer that is kept.
#[derive(Default)]
pub(crate) struct SealedBytes {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceivedBytes {
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Notes that this many more bytes are in [`room`](Self::room).
    pub(crate) fn arrived(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// Returns the first `bytes` bytes that are here, or all if there are fewer.
    pub(crate) fn first(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.end.min(self.start.saturating_add(bytes));
        &mut self.bytes[self.start..end]
    }

    /// Counts the records that are here whole, up to `most`. Returns their number and their length
    /// in bytes.
    pub(crate) fn whole_records(&self, most: usize) -> (usize, usize) {
        let mut rest = &self.bytes[self.start..self.end];
        let mut records = 0;
        while records < most
            && let [_, _, _, high, low, ..] = *rest
            && let length = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]))
            && let Some(behind) = rest.get(length..)
        {
            rest = behind;
            records += 1;
        }
        (records, self.len() - rest.len())
    }

    pub(crate) fn discard(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns free space of `least` bytes or more behind what is here.
    pub(crate) fn room(&mut self, least: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < least && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
        if self.bytes.len() - self.end < least {
            self.bytes.resize(self.end + least, 0);
        }
        &mut self.bytes[self.end..]
    }
}

impl SealedBytes {
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends the bytes that `write` puts into free space; `write` tells how much space it needs.
    pub(crate) fn append<E: Into<Short>>(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), Error> {
        let required = match write(&mut self.bytes[self.end..]) {
            Ok(written) => {
                self.end += written;
                return Ok(());
            }
            Err(error) => match error.into() {
                Short(Some(required)) => required,
                Short(None) => return Err(Error::EncryptError),
            },
        };
        self.bytes.resize(self.end + required, 0);
        let written = write(&mut self.bytes[self.end..]);
        self.end += written.map_err(|_| Error::EncryptError)?;
        Ok(())
    }
}

/// Length of a record's header: [RFC 8446, section
/// 5.1](https://www.rfc-editor.org/rfc/rfc8446#section-5.1).
const RECORD_HEADER_BYTES: usize = 5;

/// The room that was missing, or none where no room helps.
pub(crate) struct Short(Option<usize>);

impl From<EncodeError> for Short {
    fn from(error: EncodeError) -> Short {
        match error {
            EncodeError::InsufficientSize(size) => Short(Some(size.required_size)),
            EncodeError::AlreadyEncoded => Short(None),
        }
    }
}

impl From<EncryptError> for Short {
    fn from(error: EncryptError) -> Short {
        match error {
            EncryptError::InsufficientSize(size) => Short(Some(size.required_size)),
            EncryptError::EncryptExhausted => Short(None),
        }
    }
}
