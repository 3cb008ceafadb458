//! Reads pieces off the front of an input, for targets that need more than bytes.
#![forbid(unsafe_code)]

/// The unread rest of an input.
pub(crate) struct Reader<'input> {
    rest: &'input [u8],
}

impl<'input> Reader<'input> {
    pub(crate) fn new(input: &'input [u8]) -> Self {
        Self { rest: input }
    }

    /// Returns the next byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Returns the next `N` bytes; `None` if fewer are left.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    /// Returns the unread rest.
    pub(crate) fn rest(self) -> &'input [u8] {
        self.rest
    }

    /// Returns whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
