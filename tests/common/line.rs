//! The line between the two sides of a scenario: words that say what has happened, so
//! that nobody has to sleep and hope.
//!
//! It is a socket pair that the supervisor hands to each side as its standard input. The
//! supervisor keeps neither end, so a side that dies is the end of the line for the other.

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// One end of the line.
pub(crate) struct Line {
    stream: BufReader<UnixStream>,
}

impl Line {
    /// Both ends, for the supervisor to hand out.
    pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (left, right) = UnixStream::pair()?;
        Ok((left.into(), right.into()))
    }

    /// The end that this process was started with.
    pub(crate) fn inherited() -> std::io::Result<Self> {
        let end = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self::of(end))
    }

    /// One of the two ends.
    pub(crate) fn of(end: OwnedFd) -> Self {
        Self {
            stream: BufReader::new(UnixStream::from(end)),
        }
    }

    /// Says something.
    pub(crate) fn tell(&mut self, words: &str) {
        debug_assert!(!words.contains('\n'));
        // One write, so that whoever kills this side kills it before or behind the words.
        self.stream
            .get_mut()
            .write_all(format!("{words}\n").as_bytes())
            .unwrap_or_else(|error| panic!("the other side does not hear \"{words}\": {error}"));
    }

    /// What the other side says next; waits for it.
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

    /// Whether [`hear`](Self::hear) has words to return without asking the kernel.
    pub(crate) fn has_words(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Readable when the other side said something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
