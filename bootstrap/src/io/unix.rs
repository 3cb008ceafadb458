//! The Unix sockets of a shared-memory session: how two processes prove that
//! they are on one host, and later pass descriptors and wake each other.
//!
//! Rules:
//!
//! - The name is in the abstract namespace, so a kill leaves nothing behind, and a process in
//!   another network namespace cannot reach it. Nodes of two network namespaces meet in a directory,
//!   if both have one, where a kill may leave a name.
//! - Each end asks the kernel, not the other end, which user and process it talks to, and goes on
//!   with its own user and with those that [`ShareWith`] names.
//! - The dialer connects twice: first the socket that wakes, then the one that passes descriptors.
//!   On each it presents the token and the purpose as one datagram, and the acceptor answers
//!   [`WELCOME`] on the latter.
//! - Sockets are made by connecting and accepting and never passed, so that no other process has a
//!   descriptor of an end.
//!
//! A peer may attach descriptors to what it sends. Taking such a datagram closes them, which may
//! sleep. So a datagram is peeked at first, and taken only without descriptors; and sockets are
//! closed by [`UnixClosing`].

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSliceMut, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, SocketFlags, SocketType,
    accept_with, connect, listen, recv, recvmsg, send, socket_with,
};

use super::host;
use super::socket_name::{FoundSocket, SocketName, UnixListener};
use crate::identity::{HostHint, Secret};
use crate::negotiate::UNMAPPED;
use crate::share_with::ShareWith;
use crate::unix_sockets::{UnixSettings, UnixSocket, UnixSockets};

/// An end of a connected Unix socket whose peer runs as a user with whom this node shares memory.
pub(super) struct UnixPeer {
    socket: UnixSocket,
    /// The peer runs as this process's user.
    is_same_user: bool,
    /// The process at the other end; `None` if this pid namespace cannot see it.
    pid: Option<u32>,
}

/// Both connections to one peer.
pub(super) struct UnixPair {
    pub(super) control: UnixPeer,
    pub(super) bells: UnixPeer,
}

/// Purpose of a connection, as its first datagram says behind the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketPurpose {
    Bells,
    Control,
}

/// The content of a datagram, or the lack of one.
pub(super) enum PassedDatagram {
    /// A datagram of this length is in the buffer.
    Bytes(usize),
    Nothing,
    /// The connection is closed, or a datagram came that is not for this socket.
    Closed,
}

/// A socket that listens under a name.
pub(super) fn listen_at(name: SocketName, unix: &UnixSettings) -> io::Result<UnixListener> {
    if (unix.closing.is_held_up)() {
        return Err(io::Error::other(HELD_UP));
    }
    let socket = unix.closing.guard(seqpacket()?);
    let listener = name.give_to(socket, &unix.share_with)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Returns the next connection, or the reason why it was closed unread: it is of a user with whom
/// this node shares no memory. Names are visible to all.
pub(super) fn accept(listener: impl AsFd, unix: &UnixSettings) -> Option<Result<UnixPeer, String>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match retry_on_intr(|| accept_with(&listener, flags)) {
        Ok(socket) => {
            let socket = unix.closing.guard(socket);
            Some(UnixPeer::allowed(socket, &unix.share_with))
        }
        Err(Errno::CONNABORTED) => Some(Err("it was aborted".to_string())),
        Err(Errno::AGAIN) => None,
        Err(error) => {
            // Out of descriptors, most likely. The dialer waits until its
            // deadline or ours; the socket keeps the connection for later.
            tracing::debug!(%error, "accepting at the Unix socket failed");
            None
        }
    }
}

/// Takes a datagram apart.
pub(super) fn presented(datagram: &[u8]) -> Option<(SocketPurpose, &[u8])> {
    let (purpose, token) = datagram.split_last()?;
    let purpose = [SocketPurpose::Bells, SocketPurpose::Control]
        .into_iter()
        .find(|one| one.to_wire() == *purpose)?;
    Some((purpose, token))
}

impl SocketPurpose {
    fn to_wire(self) -> u8 {
        match self {
            SocketPurpose::Bells => b'b',
            SocketPurpose::Control => b'c',
        }
    }
}

impl UnixPair {
    /// Connects and presents the token. The error describes why this fabric cannot be used; it
    /// becomes part of the reason for the next choice.
    pub(super) fn connect(
        name: &SocketName,
        token: &Secret,
        unix: &UnixSettings,
    ) -> Result<UnixPair, String> {
        if (unix.closing.is_held_up)() {
            return Err(HELD_UP.to_string());
        }
        let found = name.find()?;
        let connect = |purpose| UnixPeer::connect((name, &found), token, purpose, unix);
        let bells = connect(SocketPurpose::Bells)?;
        let control = connect(SocketPurpose::Control)?;
        Ok(UnixPair { control, bells })
    }

    pub(super) fn into_parts(self) -> (UnixSockets, Option<u32>) {
        let pid = self.control.pid;
        let sockets = UnixSockets {
            control: self.control.socket,
            bells: self.bells.socket,
            is_same_user: self.control.is_same_user && self.bells.is_same_user,
        };
        (sockets, pid)
    }
}

impl UnixPeer {
    fn connect(
        (name, found): (&SocketName, &FoundSocket),
        token: &Secret,
        purpose: SocketPurpose,
        unix: &UnixSettings,
    ) -> Result<UnixPeer, String> {
        let socket = seqpacket()
            .map_err(|error| format!("this node cannot make a Unix socket ({error})"))?;
        let socket = unix.closing.guard(socket);
        connect(&socket, &found.address).map_err(|error| match error {
            Errno::CONNREFUSED => name.silence(),
            error => format!("the peer's Unix socket cannot be reached ({error})"),
        })?;
        let peer = UnixPeer::allowed(socket, &unix.share_with)?;
        let mut shown = [0; 33];
        shown[..32].copy_from_slice(token.expose());
        shown[32] = purpose.to_wire();
        match send(&peer.socket, &shown, SEND) {
            Ok(_) => Ok(peer),
            Err(error) => Err(format!(
                "{peer} closed its Unix socket before it was shown the token ({error}); see \
                 whether it runs"
            )),
        }
    }

    /// Answers the token.
    pub(super) fn welcome(&self) {
        // A failure means that the dialer has gone, and its connection says so.
        let _ = send(&self.socket, &WELCOME, SEND);
    }

    /// Returns the acceptor's answer to the token; `None` while there is none.
    pub(super) fn answer(&self) -> Option<Result<(), String>> {
        let mut buffer = [0; 8];
        match self.receive(&mut buffer) {
            PassedDatagram::Nothing => None,
            PassedDatagram::Bytes(length) if buffer[..length] == WELCOME => Some(Ok(())),
            PassedDatagram::Bytes(length) => Some(Err(format!(
                "{self} answered the token with {length} bytes that are no welcome"
            ))),
            PassedDatagram::Closed => Some(Err(format!(
                "{self} closed its Unix socket before it accepted the token; see whether it runs, \
                 and what its log says"
            ))),
        }
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> PassedDatagram {
        let mut nothing = RecvAncillaryBuffer::default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            match recvmsg(&self.socket, &mut parts, &mut nothing, flags) {
                Ok(datagram) if datagram.bytes == 0 => return PassedDatagram::Closed,
                Ok(datagram) if datagram.flags.contains(ReturnFlags::CTRUNC) => {
                    tracing::debug!("descriptors came where none are passed");
                    return PassedDatagram::Closed;
                }
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return PassedDatagram::Nothing,
                Err(_) => return PassedDatagram::Closed,
            }
        }
        loop {
            return match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => PassedDatagram::Closed,
                Ok((_, length)) => PassedDatagram::Bytes(length.min(buffer.len())),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => PassedDatagram::Nothing,
                Err(_) => PassedDatagram::Closed,
            };
        }
    }

    /// Checks the user and process at the other end.
    fn allowed(socket: UnixSocket, share_with: &ShareWith) -> Result<UnixPeer, String> {
        let unknown = |error| format!("the user behind the Unix socket is unknown ({error})");
        let credentials = credentials(socket.as_fd()).map_err(unknown)?;
        let ours = host::user();
        let is_same_user = ours != HostHint::NO_USER && credentials.uid == ours;
        let is_allowed = is_same_user
            || match share_with {
                ShareWith::Nobody => false,
                ShareWith::Users(users) => {
                    host::mapped_user(credentials.uid).is_some_and(|user| users.contains(&user))
                }
                ShareWith::Group(group) => {
                    host::mapped_group(*group).is_some()
                        && (credentials.gid == *group
                            || groups(socket.as_fd()).map_err(unknown)?.contains(group))
                }
                ShareWith::Anyone => true,
            };
        if !is_allowed && ours == HostHint::NO_USER {
            return Err(format!("this node {UNMAPPED}"));
        }
        if !is_allowed {
            return Err(format!(
                "the Unix socket belongs to another user (uid {}, this node's is {ours})",
                credentials.uid
            ));
        }
        let pid = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
        Ok(UnixPeer {
            socket,
            is_same_user,
            pid,
        })
    }
}

/// Names the peer in a text.
impl fmt::Display for UnixPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "the peer's process {pid}"),
            None => f.write_str("the peer, a process of another pid namespace,"),
        }
    }
}

impl AsFd for UnixPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the user of the process at the other end of a Unix socket, as of its `connect`.
///
/// # Errors
///
/// The socket is none, or is not connected.
pub fn user_of_peer(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(credentials(socket)?.uid)
}

/// `SO_PEERCRED`: the peer as of its `connect` or `listen`, in this process's
/// namespaces.
///
/// This does not use `rustix::net::sockopt::socket_peercred`, which reads the process number into a
/// `NonZero`. The kernel says 0 for a peer in a pid namespace that this process does not see into,
/// as between two containers of one pod.
fn credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: getsockopt(2) asks for
    // 1. an open descriptor: `socket` is borrowed for the call;
    // 2. a buffer that `length` bytes can be written to: `credentials` is that
    //    long, ours, and borrowed mutably for the call; any bytes are a valid
    //    `ucred`, which is three integers;
    // 3. a length to read and write: `length`, likewise.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::other("SO_PEERCRED came in another size"));
    }
    Ok(credentials)
}

/// `SO_PEERGROUPS`: the supplementary groups of the peer as of its `connect` or `listen`, as this
/// process's user namespace shows them.
fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut length = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: getsockopt(2) asks for
        // 1. an open descriptor: `socket` is borrowed for the call;
        // 2. a buffer that `length` bytes can be written to: that is the length of `groups`, which
        //    is ours and borrowed mutably for the call; any bytes are valid numbers;
        // 3. a length to read and write: `length`, likewise.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel says how many there are, if there is no room for all of them.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Flags of a send that neither waits nor raises a signal, whatever the state of the socket is.
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The reason for having no shared memory while [`UnixClosing::is_held_up`].
const HELD_UP: &str = "what other processes passed to this node cannot be closed";

/// The acceptor's answer to the right token.
const WELCOME: [u8; 1] = *b"+";

/// Length of the listener's backlog: room for both connections of one dialer, and for processes
/// that only look.
const BACKLOG: i32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> SocketName {
        let name = format!("ibex-test-{test}-{}", std::process::id());
        SocketName::of(name.as_bytes(), false, &unix()).unwrap()
    }

    fn unix() -> UnixSettings {
        UnixSettings::default()
    }

    fn connected(name: &SocketName) -> Result<UnixPeer, String> {
        let found = name.find().unwrap();
        UnixPeer::connect((name, &found), &token(), SocketPurpose::Control, &unix())
    }

    fn token() -> Secret {
        Secret::new([7; 32])
    }

    #[test]
    fn a_name_that_nobody_has_is_taken_for_another_namespace() {
        let refused = connected(&name("nobody")).err();
        let why = "the peer's Unix socket is not in this network namespace";
        assert_eq!(refused.as_deref(), Some(why));
    }

    #[test]
    fn both_ends_know_the_process_at_the_other() {
        let listener = listen_at(name("pid"), &unix()).unwrap();
        let dialer = connected(&name("pid")).unwrap();
        let acceptor = accept(&listener, &unix()).unwrap().unwrap();
        assert_eq!(dialer.pid, Some(std::process::id()));
        assert_eq!(acceptor.pid, Some(std::process::id()));
    }

    #[test]
    fn a_token_is_one_datagram_and_its_answer_another() {
        let listener = listen_at(name("token"), &unix()).unwrap();
        assert!(accept(&listener, &unix()).is_none());
        let dialer = connected(&name("token")).unwrap();
        let acceptor = accept(&listener, &unix()).unwrap().unwrap();
        let mut buffer = [0; 64];
        assert!(matches!(
            acceptor.receive(&mut buffer),
            PassedDatagram::Bytes(33)
        ));
        let (purpose, shown) = presented(&buffer[..33]).unwrap();
        assert!(purpose == SocketPurpose::Control && token().matches(shown));
        assert!(matches!(
            acceptor.receive(&mut buffer),
            PassedDatagram::Nothing
        ));
        assert_eq!(dialer.answer(), None);
        acceptor.welcome();
        assert_eq!(dialer.answer(), Some(Ok(())));
    }

    #[test]
    fn a_socket_closed_on_the_token_is_a_refusal_by_a_process() {
        let listener = listen_at(name("closed"), &unix()).unwrap();
        let dialer = connected(&name("closed")).unwrap();
        drop(accept(&listener, &unix()));
        let why = format!(
            "the peer's process {} closed its Unix socket before it accepted the token; see \
             whether it runs, and what its log says",
            std::process::id()
        );
        assert_eq!(dialer.answer(), Some(Err(why)));
    }

    #[test]
    fn a_wrong_answer_is_a_refusal() {
        let listener = listen_at(name("answer"), &unix()).unwrap();
        let dialer = connected(&name("answer")).unwrap();
        let acceptor = accept(&listener, &unix()).unwrap().unwrap();
        send(&acceptor.socket, b"no", SendFlags::NOSIGNAL).unwrap();
        let why = format!(
            "the peer's process {} answered the token with 2 bytes that are no welcome",
            std::process::id()
        );
        assert_eq!(dialer.answer(), Some(Err(why)));
    }
}
