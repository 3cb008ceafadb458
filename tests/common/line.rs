//! The line between the two sides of a scenario: words that report events, so that no side has to
//! sleep and hope.
//!
//! The line is a socket pair that the supervisor passes to each side as its standard input. The
//! supervisor keeps neither end, so the line of a side ends when the other side dies.

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// An end of the line.
pub(crate) struct Line {
    stream: BufReader<UnixStream>,
}

impl Line {
    /// Creates both ends, for the supervisor to pass on.
    pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (left, right) = UnixStream::pair()?;
        Ok((left.into(), right.into()))
    }

    /// Returns the end with which this process was started.
    pub(crate) fn inherited() -> std::io::Result<Self> {
        let end = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self::of(end))
    }

    /// Wraps one of the two ends.
    pub(crate) fn of(end: OwnedFd) -> Self {
        Self {
            stream: BufReader::new(UnixStream::from(end)),
        }
    }

    /// Says something to the other side.
    pub(crate) fn tell(&mut self, words: &str) {
        debug_assert!(!words.contains('\n'));
        // The words go in one write, so that a kill of this side falls before or behind them.
        self.stream
            .get_mut()
            .write_all(format!("{words}\n").as_bytes())
            .unwrap_or_else(|error| panic!("the other side does not hear \"{words}\": {error}"));
    }

    /// Waits for the other side's next words.
    pub(crate) fn hear(&mut self) -> String {
        let mut words = String::new();
        let bytes = self
            .stream
            .read_line(&mut words)
            .expect("reading from the line");
        assert!(
            bytes > 0,
            "the other side has ended where it should have said something"
        );
        words.trim_end().to_owned()
    }

    /// Returns whether [`hear`](Self::hear) has words to return without a system call.
    pub(crate) fn has_words(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Returns the descriptor, which is readable when the other side has said something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
