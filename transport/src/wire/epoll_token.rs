//! The tokens by which the engine's epoll set tells the sockets of a session apart.
#![forbid(unsafe_code)]

/// The socket of a session that an epoll token stands for: the low bits of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum EpollToken {
    /// The session's connection.
    Tcp = 0,
    /// The socket over which the peer rings.
    Bell = 1,
    /// The socket that passes descriptors.
    Unix = 2,
}

impl EpollToken {
    pub(crate) fn token(self, session: u64) -> u64 {
        session << 2 | self as u64
    }
}
