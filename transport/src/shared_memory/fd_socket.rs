//! Short messages with at most one descriptor each, over a connected
//! `SOCK_SEQPACKET` Unix socket.
//!
//! The kernel keeps message bounds, so a message and its descriptor arrive together or not at all.
//! A process that may open no more descriptors would lose the descriptor and get the message
//! (`MSG_CTRUNC`, [unix(7)](https://man7.org/linux/man-pages/man7/unix.7.html)). So a message is
//! first peeked at, which brings its descriptor and leaves the message in the socket, and received
//! once the descriptor has arrived. Every call is non-blocking. Whatever a hostile peer attaches,
//! no descriptor leaks or is closed here: surplus descriptors stay in the socket and are closed
//! with it.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::aside::{PassedFd, SessionSocket};

/// The longest message.
pub const MAX_MESSAGE_BYTES: usize = 64;

/// A connected socket that passes descriptors.
#[derive(Debug)]
pub struct FdSocket {
    socket: SessionSocket,
}

impl FdSocket {
    /// Takes over a connected `SOCK_SEQPACKET` Unix socket that no other process has.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket: SessionSocket::new(socket),
        }
    }

    /// Sends one message, and a copy of `fd` with it. The caller may close its
    /// own descriptor as soon as the message is sent.
    ///
    /// # Errors
    /// The kernel's error. A peer that is gone gives [`Outgoing::End`] instead.
    ///
    /// # Panics
    /// If `bytes` is empty, which the receiver would take for the end, or longer than
    /// [`MAX_MESSAGE_BYTES`].
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<Outgoing> {
        assert!(
            (1..=MAX_MESSAGE_BYTES).contains(&bytes.len()),
            "a message of {} bytes cannot be sent: 1 to {MAX_MESSAGE_BYTES} are allowed",
            bytes.len()
        );
        let fds: &[BorrowedFd<'_>] = match &fd {
            Some(fd) => std::slice::from_ref(fd),
            None => &[],
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            assert!(pushed, "the space was sized for one descriptor");
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let message = [IoSlice::new(bytes)];
        match retry_on_intr(|| sendmsg(&self.socket, &message, &mut control, flags)) {
            Ok(_) => Ok(Outgoing::Sent),
            Err(Errno::AGAIN) => Ok(Outgoing::WouldBlock),
            // TOOMANYREFS: this user has as many unreceived descriptors in flight as a process may
            // have open (unix(7)).
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Ok(Outgoing::NotNow),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(Outgoing::End),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives one message.
    ///
    /// # Errors
    /// [`FdSocketError`]: the peer broke the protocol, or the kernel refused.
    pub fn receive(&self) -> Result<PacketRead, FdSocketError> {
        let mut received = Packet {
            buffer: [0; MAX_MESSAGE_BYTES],
            length: 0,
            fd: None,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
        let message = {
            let mut parts = [IoSliceMut::new(&mut received.buffer)];
            match retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut control, flags)) {
                Ok(message) => message,
                Err(Errno::AGAIN) => return Ok(PacketRead::WouldBlock),
                // The peer closed its end while it had unread messages of this end. The kernel
                // reports that once; messages that the peer sent before can still be received.
                Err(Errno::CONNRESET) => return self.receive(),
                Err(errno) => return Err(kernel(errno)),
            }
        };
        received.length = message.bytes;

        // The descriptors come first: this process owns each of them from here on, whatever else is
        // wrong. The space may hold one more than it was sized for, because it is padded for
        // alignment. Further descriptors have not arrived and stay in the socket.
        let mut surplus = 0;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                for fd in fds.map(PassedFd::new) {
                    surplus += usize::from(received.fd.is_some());
                    received.fd.get_or_insert(fd);
                }
            }
        }
        let is_short = message.flags.contains(ReturnFlags::CTRUNC);
        if surplus > 0 || is_short && received.fd.is_some() {
            return Err(FdSocketError::TooManyDescriptors);
        }
        if is_short {
            return Ok(PacketRead::NotNow);
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(FdSocketError::TooLong);
        }
        if received.length == 0 {
            // The kernel reports the end this way. A peer that sends an empty message is treated as
            // having ended too.
            return Ok(PacketRead::End);
        }
        let flags = RecvFlags::DONTWAIT;
        let mut nothing = RecvAncillaryBuffer::default();
        let taken = retry_on_intr(|| recvmsg(&self.socket, &mut [], &mut nothing, flags));
        let had_fd = taken.map_err(kernel)?.flags.contains(ReturnFlags::CTRUNC);
        if had_fd && received.fd.is_none() {
            // The kernel had no memory to pass the descriptor a second time, and does not report
            // that.
            return Err(kernel(Errno::NOMEM));
        }
        Ok(PacketRead::Message(received))
    }
}

fn kernel(errno: Errno) -> FdSocketError {
    FdSocketError::Kernel {
        source: errno.into(),
    }
}

impl AsFd for FdSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that would block was not sent"]
pub enum Outgoing {
    /// The message is in the peer's socket.
    Sent,
    /// The socket is full: try again when it is writable.
    WouldBlock,
    /// The kernel lacks memory, or too many descriptors are in flight. Try again later; no event
    /// reports when.
    NotNow,
    /// The peer has closed its end.
    End,
}

/// The result of [`FdSocket::receive`].
#[derive(Debug)]
pub enum PacketRead {
    /// A message.
    Message(Packet),
    /// No message is there. Try again when the socket is readable.
    WouldBlock,
    /// The next message comes with a descriptor, and this process may open no more. The message
    /// stays in the socket. Try again later; no event reports when.
    NotNow,
    /// The peer has closed its end.
    End,
}

/// A received message.
#[derive(Debug)]
pub struct Packet {
    buffer: [u8; MAX_MESSAGE_BYTES],
    length: usize,
    /// The descriptor that came with it; close-on-exec.
    pub fd: Option<PassedFd>,
}

impl Packet {
    /// The message's bytes: 1 to [`MAX_MESSAGE_BYTES`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// The reason why a message was not received. The session cannot go on, because a channel would
/// miss a step.
#[derive(Debug, thiserror::Error)]
pub enum FdSocketError {
    /// More than one descriptor came with one message.
    #[error("the peer attached more than one descriptor to a message; closing the session")]
    TooManyDescriptors,
    /// The message is longer than [`MAX_MESSAGE_BYTES`].
    #[error("the peer sent a message of more than {MAX_MESSAGE_BYTES} bytes; closing the session")]
    TooLong,
    /// The kernel refused to receive.
    #[error("cannot receive from the peer's Unix socket: {source}; closing the session")]
    Kernel {
        /// The system's error.
        r#source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::super::aside::tests::open_descriptors_of;
    use super::*;
    use ibex_ring::memory::{MemoryUse, create_memfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (FdSocket, FdSocket) {
        let (left, right) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (FdSocket::new(left), FdSocket::new(right))
    }

    fn message(socket: &FdSocket) -> Packet {
        match socket.receive().unwrap() {
            PacketRead::Message(message) => message,
            other => panic!("no message: {other:?}"),
        }
    }

    fn memfd() -> OwnedFd {
        let fd = create_memfd(MemoryUse::ControlBlocks, 4096).unwrap();
        super::super::sealed::seal(&fd, MemoryUse::ControlBlocks, 4096).unwrap();
        fd
    }

    fn inode(fd: impl AsFd) -> u64 {
        ibex_ring::memory::probe::inode(fd)
    }

    /// Attaches any number of descriptors, as a hostile peer may.
    fn send_many(socket: &FdSocket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
    }

    #[test]
    fn a_message_and_its_descriptor_arrive_together() {
        let (left, right) = pair();
        let fd = memfd();
        assert_eq!(
            left.send(b"with", Some(fd.as_fd())).unwrap(),
            Outgoing::Sent
        );
        assert_eq!(left.send(b"without", None).unwrap(), Outgoing::Sent);

        let first = message(&right);
        assert_eq!(first.bytes(), b"with");
        let passed = first.fd.unwrap();
        assert_eq!(inode(&passed), inode(&fd));
        let flags = rustix::io::fcntl_getfd(&passed).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));

        let second = message(&right);
        assert_eq!(second.bytes(), b"without");
        assert!(second.fd.is_none());
        assert!(matches!(right.receive().unwrap(), PacketRead::WouldBlock));
    }

    #[test]
    fn a_full_socket_would_block_and_a_closed_one_is_the_end() {
        let (left, right) = pair();
        let mut sent = 0;
        while left.send(&[1; MAX_MESSAGE_BYTES], None).unwrap() == Outgoing::Sent {
            sent += 1;
        }
        assert_eq!(left.send(&[1], None).unwrap(), Outgoing::WouldBlock);
        for _ in 0..sent {
            assert_eq!(message(&right).bytes(), [1; MAX_MESSAGE_BYTES]);
        }
        assert_eq!(left.send(b"last", None).unwrap(), Outgoing::Sent);
        drop(left);
        assert_eq!(message(&right).bytes(), b"last");
        assert!(matches!(right.receive().unwrap(), PacketRead::End));
        assert_eq!(right.send(b"x", None).unwrap(), Outgoing::End);
    }

    #[test]
    fn a_peer_that_leaves_messages_unread_is_the_end_too() {
        let (left, right) = pair();
        assert_eq!(left.send(b"unread", None).unwrap(), Outgoing::Sent);
        drop(right);
        assert!(matches!(left.receive().unwrap(), PacketRead::End));
    }

    #[test]
    fn surplus_descriptors_are_an_error_and_closed() {
        for count in [2, 3, 20] {
            let (left, right) = pair();
            let fd = memfd();
            let file = inode(&fd);
            send_many(&left, b"many", &vec![fd.as_fd(); count]);
            let error = right.receive().unwrap_err();
            assert!(
                matches!(error, FdSocketError::TooManyDescriptors),
                "{error}"
            );
            drop(fd);
            assert_eq!(open_descriptors_of(file), 0);
        }
    }

    #[test]
    fn an_overlong_message_is_an_error_and_its_descriptor_is_closed() {
        let (left, right) = pair();
        let fd = memfd();
        let file = inode(&fd);
        send_many(&left, &[0; MAX_MESSAGE_BYTES + 1], &[fd.as_fd()]);
        assert!(matches!(
            right.receive().unwrap_err(),
            FdSocketError::TooLong
        ));
        drop(fd);
        assert_eq!(open_descriptors_of(file), 0);
    }

    #[test]
    fn descriptors_in_messages_that_nobody_takes_are_closed_with_the_socket() {
        let (left, right) = pair();
        let (file_fd, other_end) = super::super::aside::tests::pair();
        let other_end = FdSocket::new(other_end);
        assert_eq!(
            left.send(b"x", Some(file_fd.as_fd())).unwrap(),
            Outgoing::Sent
        );
        drop(file_fd);
        assert!(
            matches!(other_end.receive().unwrap(), PacketRead::WouldBlock),
            "still in flight"
        );
        drop((left, right));
        // A closing thread, which may be delayed, closes the descriptor.
        while matches!(other_end.receive().unwrap(), PacketRead::WouldBlock) {
            std::thread::yield_now();
        }
        assert!(matches!(other_end.receive().unwrap(), PacketRead::End));
    }

    #[test]
    #[should_panic(expected = "a message of 0 bytes cannot be sent")]
    fn an_empty_message_is_a_mistake_of_the_caller() {
        let (left, _right) = pair();
        let _ = left.send(b"", None);
    }
}
