//! Whose fault an error of a connection's read or write is: the network's and the peer's, or this
//! host's own. An error of this host says nothing about the network, and no advice about that
//! helps.
#![forbid(unsafe_code)]

use std::io;

use rustix::io::Errno;

use crate::session::EndCause;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoFault {
    /// The connection is broken, or the peer or its host cannot be reached.
    Network,
    /// The kernel lacks memory now.
    Memory,
    /// The kernel cannot read or write the memory that it was given.
    Address,
    /// The kernel refuses what it was asked for.
    Call,
}

/// Returns whose fault an error is: [send(2)](https://man7.org/linux/man-pages/man2/send.2.html)
/// and [recv(2)](https://man7.org/linux/man-pages/man2/recv.2.html), and what the network layers
/// below put in between ([ip(7)](https://man7.org/linux/man-pages/man7/ip.7.html),
/// [tcp(7)](https://man7.org/linux/man-pages/man7/tcp.7.html)).
fn fault_of(error: &io::Error) -> IoFault {
    match Errno::from_io_error(error) {
        Some(Errno::NOBUFS | Errno::NOMEM) => IoFault::Memory,
        Some(Errno::FAULT) => IoFault::Address,
        Some(
            Errno::INVAL
            | Errno::MSGSIZE
            | Errno::BADF
            | Errno::NOTSOCK
            | Errno::OPNOTSUPP
            | Errno::DESTADDRREQ
            | Errno::ISCONN
            | Errno::NOSYS
            | Errno::PERM
            | Errno::ACCESS,
        ) => IoFault::Call,
        // All that comes from packets, or from none; and errors of TLS, which have no number.
        _ => IoFault::Network,
    }
}

/// Returns whether the kernel could not read the memory that it was to send.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    fault_of(error) == IoFault::Address
}

/// Returns the cause with which a connection ends because of an error of `action`, which is
/// "reading from" or "writing to".
pub(crate) fn cause_of(action: &str, error: &io::Error) -> EndCause {
    let failed = format!("{action} its connection failed: {error}");
    let why = match fault_of(error) {
        IoFault::Network => return EndCause::lost(failed),
        IoFault::Memory => {
            "; the kernel of this host lacks memory for connections: free some, or raise the limits \
             (net.ipv4.tcp_mem, the memory of this process's cgroup)"
        }
        IoFault::Address => {
            "; memory of this process could not be accessed, and the network is not the reason"
        }
        IoFault::Call => {
            "; the kernel of this host refuses the call, and the network is not the reason: see \
             whether a filter of system calls (seccomp) or another part of this process changes what \
             its sockets may do"
        }
    };
    EndCause::Refused { why: failed + why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_this_host_are_told_from_those_of_the_network() {
        let table = [
            (
                IoFault::Network,
                &[
                    libc::ECONNRESET,
                    libc::EPIPE,
                    libc::ETIMEDOUT,
                    libc::EHOSTUNREACH,
                    libc::ENETUNREACH,
                    libc::ENETDOWN,
                    libc::ECONNREFUSED,
                    libc::ECONNABORTED,
                ][..],
            ),
            (IoFault::Memory, &[libc::ENOBUFS, libc::ENOMEM]),
            (IoFault::Address, &[libc::EFAULT]),
            (
                IoFault::Call,
                &[
                    libc::EINVAL,
                    libc::EMSGSIZE,
                    libc::EBADF,
                    libc::ENOTSOCK,
                    libc::EOPNOTSUPP,
                    libc::EPERM,
                    libc::EACCES,
                ],
            ),
        ];
        for (fault, numbers) in table {
            for &number in numbers {
                let error = io::Error::from_raw_os_error(number);
                assert_eq!(fault_of(&error), fault, "{error}");
                let cause = cause_of("writing to", &error);
                let is_network = matches!(cause, EndCause::PeerGone { certain: false, .. });
                assert_eq!(is_network, fault == IoFault::Network, "{cause}");
                assert!(cause.to_string().contains(&error.to_string()), "{cause}");
            }
        }
        let tls = io::Error::other("a record is not authentic");
        assert_eq!(fault_of(&tls), IoFault::Network);
    }
}
