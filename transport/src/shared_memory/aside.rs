//! Closing descriptors that a peer chose.
//!
//! [close(2)](https://man7.org/linux/man-pages/man2/close.2.html) may sleep: for the last
//! descriptor of a TCP socket up to its SO_LINGER time, and for a file of a FUSE file system until
//! its server answers. A peer can open either, pass the descriptor over a Unix socket, and leave
//! the last close to this process. The descriptor may even lie unreceived in the socket; closing
//! the socket then closes it.
//!
//! Rules:
//! 1. A peer's descriptor is closed here only if it is a sealed memory file of bounded size, which
//!    costs no more than unmapping it.
//! 2. A Unix socket is closed here only if it is empty and nothing can arrive in it any more.
//! 3. Separate threads close everything else; they exist as long as there is something to close.
//!    Memory files have threads of their own, because closing one always ends. A socket does not
//!    linger there, nor does one that lies unreceived in a Unix socket: its SO_LINGER time is set
//!    to zero first.
//! 4. Threads that hang in a close, as of a file of a FUSE file system, are not replaced. When many
//!    descriptors wait for them, no new session over shared memory begins ([`is_held_up`]).
#![forbid(unsafe_code)]

use std::{
    io::IoSliceMut,
    mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::LazyLock,
};

use ibex_base::{Workers, fork};
use rustix::{
    fs::fstat,
    io::{Errno, retry_on_intr},
    net::{
        RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketFlags, accept_with, recv,
        recvmsg, shutdown, sockopt,
    },
};

use super::{lingering::stop_lingering, sealed};

/// A descriptor that a peer passed. Dropping it never waits, whatever the peer made of it.
#[derive(Debug)]
pub struct PassedFd(Option<OwnedFd>);

impl PassedFd {
    /// Takes over the descriptors that came with a message.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until dropped").as_fd()
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else { return };
        if fork::is_child() {
            return mem::forget(fd);
        }
        // Neither call waits: F_GET_SEALS succeeds for memory files only, and those live in memory.
        if sealed::check_kind(fd.as_fd()).is_err() {
            return close_by(&UNKNOWN, fd);
        }
        let backed = fstat(&fd).map_or(u64::MAX, |stat| {
            u64::try_from(stat.st_blocks)
                .unwrap_or(0)
                .saturating_mul(512)
        });
        if backed > MOST_BYTES_HERE {
            close_by(&MEMORY, fd);
        }
    }
}

/// This process's end of a session's Unix socket. Dropping it never waits, whatever the peer has
/// sent.
#[derive(Debug)]
pub struct SessionSocket(Option<OwnedFd>);

impl SessionSocket {
    /// Takes over a connected socket that no other process has.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl AsFd for SessionSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is there until dropped").as_fd()
    }
}

impl Drop for SessionSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            close_unix(socket);
        }
    }
}

/// Closes this process's end of a `SOCK_SEQPACKET` Unix socket, connected or listening. Never
/// waits, whatever a peer has sent. Does nothing to the socket in a child of a fork.
pub fn close_unix(socket: OwnedFd) {
    if fork::is_child() {
        return mem::forget(socket);
    }
    if !is_empty_for_good(&socket) {
        close_by(&UNKNOWN, socket);
    }
}

/// Returns whether many descriptors wait for threads that hang in a close. The node should then
/// accept no more descriptors that such a thread might have to close.
#[must_use]
pub fn is_held_up() -> bool {
    UNKNOWN.waiting() >= MOST_WAITING
}

/// Finding of [`peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peeked {
    /// A packet of this many bytes without descriptors; 0 bytes may mean the end.
    Bytes(usize),
    /// A packet with ancillary data beside its bytes.
    Descriptors,
    /// No packet is there.
    Nothing,
}

/// Looks at the next packet, up to the length of `buffer`, and leaves the packet and its
/// descriptors in the socket. Receiving the packet would close the descriptors that this process
/// has no room for.
pub(super) fn peek(socket: impl AsFd, buffer: &mut [u8]) -> rustix::io::Result<Peeked> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let mut nothing = RecvAncillaryBuffer::default();
    match retry_on_intr(|| recvmsg(&socket, &mut parts, &mut nothing, flags)) {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => Ok(Peeked::Descriptors),
        Ok(message) => Ok(Peeked::Bytes(message.bytes)),
        Err(Errno::AGAIN) => Ok(Peeked::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Returns whether rule 2 holds, after establishing it as far as the peer allows.
fn is_empty_for_good(socket: &OwnedFd) -> bool {
    if sockopt::socket_acceptconn(socket).unwrap_or(true) {
        return is_abandoned(socket);
    }
    // Correct peers leave plain packets, perhaps many of them. Taking them out here costs no
    // thread.
    for _ in 0..MOST_PACKETS {
        match peek(socket, &mut [0]) {
            Ok(Peeked::Bytes(1..)) => {
                let _ = recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT);
            }
            // The kernel reports this once, for packets that the peer did not read.
            Err(Errno::CONNRESET) => {}
            _ => break,
        }
    }
    // No process can send here any more once this call returns.
    if shutdown(socket, Shutdown::Both).is_err() {
        return false;
    }
    // From here on even an empty packet comes with its sender's credentials, for which there is no
    // room. The end comes without any.
    sockopt::set_socket_passcred(socket, true).is_ok()
        && matches!(peek(socket, &mut [0]), Ok(Peeked::Bytes(0)))
}

/// Returns whether rule 2 holds for a listening socket: peers that wait to be accepted may have
/// sent packets already.
fn is_abandoned(listener: &OwnedFd) -> bool {
    if shutdown(listener, Shutdown::Both).is_err() {
        return false;
    }
    for _ in 0..MOST_PACKETS {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => close_unix(socket),
            Err(Errno::INTR) => {}
            // accept(2) returns these errors for a socket that was shut down and has no waiting
            // peer.
            Err(Errno::AGAIN | Errno::INVAL) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Lets one of these threads close `fd`. If no thread can be made, `fd` stays open until the next
/// call.
fn close_by(threads: &Workers, fd: OwnedFd) {
    let close = move || {
        stop_lingering(&fd);
        drop(fd);
    };
    threads.give_or_leave(
        close,
        "no thread to close what a peer passed: its descriptors stay open for now",
    );
}

/// Threads for descriptors of any kind.
static UNKNOWN: LazyLock<Workers> = LazyLock::new(|| Workers::new("ibex-closing", 4));
/// A thread for memory files: freeing one may take long, but always ends.
static MEMORY: LazyLock<Workers> = LazyLock::new(|| Workers::new("ibex-closing", 1));

/// Longest memory file that is closed on the dropping thread, which takes some milliseconds.
const MOST_BYTES_HERE: u64 = 64 << 20;
/// Most packets and connections that are taken out of a socket before it is closed.
const MOST_PACKETS: usize = 64;
/// Number of waiting descriptors above which the closing threads count as held up.
const MOST_WAITING: usize = 64;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crossbeam_channel::unbounded;
    use ibex_ring::memory::{MemoryUse, create_memfd};
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketType, bind, connect, listen, sendmsg, socket_with, socketpair,
    };
    use std::{
        io::{IoSlice, Write},
        mem::MaybeUninit,
        net::{TcpListener, TcpStream},
        thread,
        time::Duration,
    };

    /// Returns a socket whose last close sleeps until the other end, returned with it, is dropped.
    pub(in crate::shared_memory) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 64 << 10]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (socket.into(), other)
    }

    pub(in crate::shared_memory) fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// Sends `bytes` and any number of descriptors, as a hostile peer may.
    pub(in crate::shared_memory) fn send_with(
        socket: impl AsFd,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let flags = SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
    }

    /// Runs `act`, which must not wait, on a thread of its own, and fails if it does wait.
    pub(in crate::shared_memory) fn at_once<T: Send + 'static>(
        act: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (done, outcome) = unbounded();
        thread::spawn(move || done.send(act()));
        let outcome = outcome.recv_timeout(WATCHDOG);
        outcome.expect("it sleeps where it must not, or has panicked")
    }

    #[test]
    fn a_passed_descriptor_that_closes_slowly_holds_nobody_up() {
        let (slow, other) = lingering();
        at_once(move || drop(PassedFd::new(slow)));
        let (done, outcome) = unbounded();
        // The slow close does not delay the descriptor that is closed next.
        let (reader, writer) = std::io::pipe().unwrap();
        at_once(move || drop(PassedFd::new(writer.into())));
        thread::spawn(move || done.send(std::io::copy(&mut &reader, &mut std::io::sink())));
        let read = outcome.recv_timeout(WATCHDOG).expect("the pipe is closed");
        assert_eq!(read.unwrap(), 0);
        drop(other);
    }

    #[test]
    fn memory_files_are_closed_where_they_are_dropped() {
        const BYTES: usize = 64 << 10;
        let fd = create_memfd(MemoryUse::Ring, BYTES).unwrap();
        sealed::seal(&fd, MemoryUse::Ring, BYTES).unwrap();
        let file = ibex_ring::memory::probe::inode(&fd);
        drop(PassedFd::new(fd));
        assert_eq!(open_descriptors_of(file), 0);
    }

    /// Counts the descriptors of this process that refer to that file.
    pub(in crate::shared_memory) fn open_descriptors_of(file: u64) -> usize {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
            .filter(|metadata| std::os::unix::fs::MetadataExt::ino(metadata) == file)
            .count()
    }

    #[test]
    fn a_socket_in_which_nothing_lies_is_closed_where_it_is_dropped() {
        let leaves: [fn(&OwnedFd, &OwnedFd); 4] = [
            |_, _| {},
            |_, theirs| send_with_nothing(theirs, b"unread"),
            |ours, _| send_with_nothing(ours, b"unread there"),
            |_, theirs| shutdown(theirs, Shutdown::Both).unwrap(),
        ];
        for leave in leaves {
            let (ours, theirs) = pair();
            leave(&ours, &theirs);
            assert!(is_empty_for_good(&ours));
            drop(theirs);
            let (ours, theirs) = pair();
            leave(&ours, &theirs);
            drop(theirs);
            assert!(is_empty_for_good(&ours));
        }
    }

    pub(in crate::shared_memory) fn send_with_nothing(socket: &OwnedFd, bytes: &[u8]) {
        rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn a_slow_descriptor_in_a_socket_does_not_hold_up_its_closer() {
        let many_empty = [&b""[..]; 70];
        for before in [&[][..], &[&b"a"[..]], &[b"", b"a"], &many_empty] {
            for bytes in [&b""[..], b"x"] {
                let (ours, theirs) = pair();
                for packet in before {
                    send_with_nothing(&theirs, packet);
                }
                let (slow, other) = lingering();
                send_with(&theirs, bytes, &[slow.as_fd()]);
                drop((slow, theirs));
                assert!(!is_empty_for_good(&ours));
                at_once(move || close_unix(ours));
                // The closing thread returns.
                drop(other);
            }
        }
    }

    #[test]
    fn nothing_can_be_put_into_a_socket_that_is_about_to_be_closed() {
        let (ours, theirs) = pair();
        assert!(is_empty_for_good(&ours));
        let sent = rustix::net::send(&theirs, b"late", SendFlags::NOSIGNAL);
        assert_eq!(sent.unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn connections_that_nobody_accepted_hold_nobody_up() {
        let name = format!("ibex-test-aside-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let listener = socket();
        bind(&listener, &address).unwrap();
        listen(&listener, 8).unwrap();
        let (visitor, slower) = (socket(), socket());
        connect(&visitor, &address).unwrap();
        connect(&slower, &address).unwrap();
        let (slow, other) = lingering();
        send_with(&slower, b"x", &[slow.as_fd()]);
        drop((slow, slower));
        at_once(move || close_unix(listener));
        // The listener is closed.
        assert_eq!(
            rustix::net::recv(&visitor, &mut [0; 1][..], RecvFlags::empty()).map(|got| got.1),
            Ok(0)
        );
        assert_eq!(connect(socket(), &address), Err(Errno::CONNREFUSED));
        drop(other);
    }

    /// Far longer than any step of these tests takes.
    pub(in crate::shared_memory) const WATCHDOG: Duration = Duration::from_secs(120);
}
