//! What a closing thread does about SO_LINGER before it closes a peer's descriptor.
#![forbid(unsafe_code)]

use std::{io::IoSliceMut, mem::MaybeUninit, os::fd::OwnedFd, sync::Mutex, time::Duration};

use ibex_base::sync::lock;
use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketFlags,
        accept_with, recvmsg, shutdown, sockopt,
    },
};

/// Sees to it that closing a peer's socket does not wait for whoever it is connected to. This has no
/// effect on other descriptors.
pub(super) fn stop_lingering(fd: &OwnedFd) {
    // What lies in a socket is opened here for a moment: that of one socket at a time.
    static OPENING: Mutex<()> = Mutex::new(());

    if has_stopped_lingering(fd) && is_unix(fd) {
        let _opening = lock(&OPENING);
        empty(fd, NESTED);
    }
}

/// Sets a socket's SO_LINGER time to zero. Returns false for what is no socket.
fn has_stopped_lingering(fd: &OwnedFd) -> bool {
    sockopt::set_socket_linger(fd, Some(Duration::ZERO)).is_ok()
}

fn is_unix(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
}

/// Takes out of a Unix socket what lies in it, and closes that without lingering, also what lies in
/// those sockets, up to `nested` of them in each other.
fn empty(socket: &OwnedFd, nested: usize) {
    let _ = shutdown(socket, Shutdown::Both);
    // Then an empty packet can be told from the end, as in `is_empty_for_good`.
    let _ = sockopt::set_socket_passcred(socket, true);
    for _ in 0..MOST_EMPTIED {
        let Some(taken) = take(socket) else { return };
        for fd in taken {
            if has_stopped_lingering(&fd) && nested > 0 && is_unix(&fd) {
                empty(&fd, nested - 1);
            }
        }
    }
}

/// Takes a packet out of a Unix socket, or a connection that waits to be accepted. Returns the
/// descriptors; `None` if nothing is there.
fn take(socket: &OwnedFd) -> Option<Vec<OwnedFd>> {
    if sockopt::socket_acceptconn(socket) == Ok(true) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = retry_on_intr(|| accept_with(socket, flags));
        return accepted.ok().map(|one| vec![one]);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut buffer = [0; 4096];
    let received = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            flags,
        )
    });
    let bytes = match received {
        Ok(message) => message.bytes,
        // The kernel reports this once, as in `is_empty_for_good`.
        Err(Errno::CONNRESET) => return Some(Vec::new()),
        Err(_) => return None,
    };
    let (mut parts, mut fds) = (0, Vec::new());
    for part in control.drain() {
        parts += 1;
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            fds.extend(passed);
        }
    }
    (bytes > 0 || parts > 0).then_some(fds)
}

/// Most packets that a closing thread takes out of a socket: more than one holds, unless a peer
/// puts more in meanwhile.
const MOST_EMPTIED: usize = 1 << 13;
/// Number of Unix sockets that the kernel lets lie in each other.
const NESTED: usize = 4;

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::AsFd};

    use rustix::net::{SocketAddrUnix, SocketType, bind, connect, listen, socket_with};

    use super::{
        super::aside::{
            PassedFd, close_unix,
            tests::{WATCHDOG, lingering, pair, send_with, send_with_nothing},
        },
        *,
    };

    /// Lingering sockets that were received, and more than there are closing threads; and those
    /// that lie in a socket, in many packets, in a socket in a socket, and in a connection that
    /// nobody accepted.
    #[test]
    fn no_socket_lingers_when_it_is_closed() {
        let (mut others, mut inner) = (Vec::new(), Vec::new());
        let mut lingering = || {
            let (slow, other) = lingering();
            others.push(other);
            slow
        };
        for _ in 0..6 {
            drop(PassedFd::new(lingering()));
        }
        for before in [0, 70] {
            let (ours, theirs) = pair();
            for _ in 0..before {
                send_with_nothing(&theirs, b"");
            }
            for _ in 0..3 {
                let slow = [lingering(), lingering()];
                send_with(&theirs, b"", &slow.each_ref().map(OwnedFd::as_fd));
            }
            inner.push(ours);
        }
        let name = format!("ibex-test-linger-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let (listener, visitor) = (socket(), socket());
        bind(&listener, &address).unwrap();
        listen(&listener, 8).unwrap();
        connect(&visitor, &address).unwrap();
        send_with(&visitor, b"x", &[lingering().as_fd()]);
        drop(visitor);
        inner.push(listener);
        let (ours, theirs) = pair();
        let passed: Vec<_> = inner.iter().map(OwnedFd::as_fd).collect();
        send_with(&theirs, b"x", &passed);
        drop(passed);
        drop((inner, theirs));
        close_unix(ours);
        for mut other in others {
            other.set_read_timeout(Some(WATCHDOG)).unwrap();
            // The other end reads what had come before the reset.
            let end = std::iter::repeat_with(|| other.read(&mut [0; 64 << 10]))
                .find(|read| !matches!(read, Ok(1..)));
            let error = end.unwrap().expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}
