//! The kernel's knowledge of whether the peer's kernel answers on a connection.

use std::{mem, net::TcpStream, os::fd::AsRawFd, time::Duration};

/// What this end's kernel has of a connection's bytes that the peer's kernel does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Bytes wait that the kernel has not sent, and the peer's kernel owes no answer: it has no room
    /// for them and said so, or the kernel has not tried for long enough to ask.
    Waiting,
    /// The peer's kernel has to answer: bytes in flight, or a question whether it has room for bytes
    /// that wait.
    Owed {
        /// The time for which the peer's kernel has been silent.
        silent_for: Duration,
        /// This end's kernel has sent the bytes or the question again, because no answer came in the
        /// usual time.
        is_overdue: bool,
    },
}

/// Returns what the peer's kernel has to answer; `None` if it has every byte.
///
/// A kernel without room for more bytes answers as well, so a peer that does not read does not
/// count as silent: [tcp(7)](https://man7.org/linux/man-pages/man7/tcp.7.html), `TCP_INFO`.
pub(crate) fn unanswered(stream: &TcpStream) -> Option<Unanswered> {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 { None } else { judge(&info) }
}

/// Judges what the kernel tells of a connection.
///
/// A packet that a firewall of this host drops, or that has no route, counts as not sent: no byte
/// is in flight. The kernel then asks for room as it does where the peer has none, and counts the
/// questions since the last answer.
fn judge(info: &libc::tcp_info) -> Option<Unanswered> {
    let silent_for = Duration::from_millis(info.tcpi_last_ack_recv.into());
    if info.tcpi_unacked > 0 {
        return Some(Unanswered::Owed {
            silent_for,
            is_overdue: info.tcpi_retransmits > 0,
        });
    }
    // Without bytes to send, these are the questions of keepalive, which has a limit of its own.
    if info.tcpi_notsent_bytes == 0 {
        return None;
    }
    Some(match info.tcpi_probes {
        0 => Unanswered::Waiting,
        questions => Unanswered::Owed {
            silent_for,
            is_overdue: questions > 1,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener, thread, time::Instant};

    use super::*;

    /// The kernel probes a peer without room at the latest every two minutes (`TCP_RTO_MAX`).
    const WATCHDOG: Duration = Duration::from_secs(600);

    #[test]
    fn a_peer_that_does_not_read_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        assert_eq!(unanswered(&stream), None);
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        // The peer's kernel acknowledges the bytes in flight, and says that it has no room for the
        // others.
        let began = Instant::now();
        while unanswered(&stream) != Some(Unanswered::Waiting) {
            assert!(began.elapsed() < WATCHDOG, "{:?}", unanswered(&stream));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn bytes_that_wait_unsent_are_missed_once_a_question_is_unanswered() {
        // SAFETY: the structure consists of integers, for which zero is valid.
        let mut info: libc::tcp_info = unsafe { mem::zeroed() };
        info.tcpi_last_ack_recv = 700;
        let owed = |is_overdue| {
            Some(Unanswered::Owed {
                silent_for: Duration::from_millis(700),
                is_overdue,
            })
        };
        // Keepalive asks over an idle connection.
        info.tcpi_probes = 3;
        assert_eq!(judge(&info), None);
        // This host drops what it sends: nothing is in flight.
        info.tcpi_notsent_bytes = 1;
        let mut after = |questions| {
            info.tcpi_probes = questions;
            judge(&info)
        };
        assert_eq!(after(0), Some(Unanswered::Waiting));
        assert_eq!(after(1), owed(false));
        assert_eq!(after(2), owed(true));
        // The network drops what this host sends.
        (info.tcpi_probes, info.tcpi_unacked) = (0, 1);
        assert_eq!(judge(&info), owed(false));
        info.tcpi_retransmits = 1;
        assert_eq!(judge(&info), owed(true));
    }
}
