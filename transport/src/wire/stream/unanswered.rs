//! The kernel's knowledge of whether the peer's kernel answers on a connection.

use std::{mem, net::TcpStream, os::fd::AsRawFd, time::Duration};

/// Bytes in flight that the peer's kernel has to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// The time for which the peer's kernel has been silent.
    pub(crate) silent_for: Duration,
    /// This end's kernel has sent the bytes again, because no answer came in the usual time.
    pub(crate) is_overdue: bool,
}

/// Returns for how long the peer's kernel has been silent, if it has to acknowledge bytes in
/// flight; `None` if no bytes are in flight.
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
    (result == 0 && info.tcpi_unacked > 0).then(|| Unanswered {
        silent_for: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        is_overdue: info.tcpi_retransmits > 0,
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
        // The peer's kernel acknowledges the bytes in flight, or reports repeatedly that it has no
        // room.
        let began = Instant::now();
        let mut before = Duration::ZERO;
        while let Some(Unanswered { silent_for, .. }) = unanswered(&stream)
            && silent_for >= before
        {
            assert!(began.elapsed() < WATCHDOG, "silent for {silent_for:?}");
            before = silent_for;
            thread::sleep(Duration::from_millis(1));
        }
    }
}
