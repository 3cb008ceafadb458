//! The status of a completion, and who is to blame for it.
#![forbid(unsafe_code)]

use std::fmt;

/// The party to blame for a failed completion
/// ([`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Our request was wrong.
    Ours,
    /// The peer refused the request: keys, lengths or rights do not fit what the peer granted.
    Protocol,
    /// The path to the peer broke, or the peer is gone.
    Link,
    /// The request was flushed because something before it failed. Soft-RoCE reports failures of
    /// its own side in this way too, so a first flush starts recovery like any other failure.
    Flushed,
    /// The device is broken, or says something that this version does not know.
    Device,
}

macro_rules! statuses {
    ($($name:ident = $raw:literal, $fault:ident, $text:literal;)*) => {
        /// `enum ibv_wc_status`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CompletionStatus {
            $(#[doc = concat!("Status ", $raw, ": ", $text, ".")] $name,)*
            /// A number that this version does not know.
            Unknown(u32),
        }

        impl From<u32> for CompletionStatus {
            /// Translates the C enumeration, as [`from_raw`](Self::from_raw) does.
            fn from(raw: u32) -> Self {
                Self::from_raw(raw)
            }
        }

        impl CompletionStatus {
            /// Translates the C enumeration.
            #[must_use]
            pub fn from_raw(raw: u32) -> Self {
                match raw {
                    $($raw => Self::$name,)*
                    other => Self::Unknown(other),
                }
            }

            /// Returns the value of the C enumeration.
            #[must_use]
            pub fn to_raw(self) -> u32 {
                match self {
                    $(Self::$name => $raw,)*
                    Self::Unknown(raw) => raw,
                }
            }

            /// Returns the party to blame for the status, if the request was a send.
            #[must_use]
            pub fn fault(self) -> Fault {
                match self {
                    $(Self::$name => Fault::$fault,)*
                    Self::Unknown(_) => Fault::Device,
                }
            }
        }

        impl fmt::Display for CompletionStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str(concat!($text, " (status ", $raw, ")")),)*
                    Self::Unknown(raw) => write!(f, "unknown status {raw}"),
                }
            }
        }
    };
}

statuses! {
    LocalLength = 1, Ours, "a message longer than the receive, or than the port allows";
    LocalOperation = 2, Ours, "the queue pair could not do it; for a receive: the message was longer";
    LocalEeContext = 3, Ours, "local end-to-end context error";
    LocalProtection = 4, Ours, "local memory not registered, or not for this";
    Flushed = 5, Flushed, "flushed";
    MemoryWindowBind = 6, Ours, "a memory window could not be bound";
    BadResponse = 7, Device, "the peer's answer made no sense";
    LocalAccess = 8, Ours, "local memory may not be written";
    RemoteInvalidRequest = 9, Protocol, "the peer took the request for invalid";
    RemoteAccess = 10, Protocol, "the peer's memory is not granted: wrong key, range or rights";
    RemoteOperation = 11, Protocol, "the peer could not do it; its receive may be too short";
    RetryExceeded = 12, Link, "retries exceeded: the peer does not acknowledge";
    ReceiverNotReady = 13, Link, "the peer has posted no receive for too long";
    LocalRddViolation = 14, Ours, "local reliable-datagram domain violation";
    RemoteInvalidReadRequest = 15, Protocol, "the peer took the read request for invalid";
    RemoteAborted = 16, Link, "the peer aborted";
    InvalidEeContextNumber = 17, Ours, "invalid end-to-end context number";
    InvalidEeContextState = 18, Ours, "invalid end-to-end context state";
    Fatal = 19, Device, "fatal error of the device";
    ResponseTimeout = 20, Link, "the peer's response timed out";
    General = 21, Device, "general error";
    TagMatching = 22, Device, "tag-matching error";
    TagMatchingRendezvous = 23, Device, "tag-matching rendezvous incomplete";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_keeps_its_number() {
        for raw in 1..64 {
            let status = CompletionStatus::from_raw(raw);
            assert_eq!(status.to_raw(), raw);
            assert_eq!(matches!(status, CompletionStatus::Unknown(_)), raw > 23);
        }
    }
}
