//! The socket by which the engines of two processes wake each other. It carries nothing else.
//!
//! Rules:
//! 1. Each end has its own descriptor of a connected `SOCK_SEQPACKET` Unix socket, which no other
//!    process has, so no other process can make it block or fill it. A ring is a packet of one
//!    byte. (A stream would allow an out-of-band byte, and reading that drops the descriptors that
//!    came with it.)
//! 2. It is separate from the socket that passes descriptors, so that rings cannot block
//!    descriptors.
//! 3. The ringing thread does not wait. A full socket is readable at the other end, which is
//!    enough.
//! 4. The hearing thread reads up to a bound; epoll reports the rest again.
//! 5. The lock of the queue orders work done before ringing before work done after hearing.
#![forbid(unsafe_code)]

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        PoisonError, RwLock, RwLockReadGuard,
        atomic::{Ordering, fence},
    },
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{RecvFlags, SendFlags, recv, send},
};

use super::aside::{Peeked, SessionSocket, peek};

/// This process's end of the socket. The engine hears with it, and any holder of a handle rings.
#[derive(Debug)]
pub struct Bells(RwLock<Option<SessionSocket>>);

/// Finding of [`Bells::hear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an end stays readable"]
pub enum BellRead {
    /// Rings: all so far, or as many as are heard at a time.
    Rings,
    /// The peer has closed its end, so no more rings arrive.
    End,
    /// A packet that is no ring: the peer broke the protocol.
    Noise,
}

impl Bells {
    /// Takes over a connected `SOCK_SEQPACKET` Unix socket that no other process has.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self(RwLock::new(Some(SessionSocket::new(socket))))
    }

    /// Wakes the peer's engine. Does nothing once [`close`](Self::close) was called. Returns
    /// whether the socket is still there.
    pub fn ring(&self) -> bool {
        let socket = self.socket();
        let Some(socket) = &*socket else { return false };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let ring = || retry_on_intr(|| send(socket, &RING, flags));
        if ring() == Err(Errno::AGAIN) {
            // The socket was full a moment ago. The hearer may have emptied it since, and looked
            // before this thread's work was visible. So the ring is sent again after a barrier,
            // which pairs with the locked decrement by which the kernel takes a packet off the
            // count. If the socket is full now, the hearer will still find it readable after that
            // barrier.
            fence(Ordering::SeqCst);
            let _ = ring();
        }
        // Other errors mean that the peer is dead, and are ignored.
        true
    }

    /// Takes the rings so far out of the socket. The caller must look for work afterwards, not
    /// before; otherwise a ring in between is lost.
    pub fn hear(&self) -> BellRead {
        let socket = self.socket();
        let Some(socket) = &*socket else {
            return BellRead::Rings;
        };
        for _ in 0..MOST_RINGS {
            match peek(socket, &mut [0]) {
                Ok(Peeked::Bytes(1)) => {
                    let _ = recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT);
                }
                Ok(Peeked::Nothing) => break,
                Ok(Peeked::Descriptors) => return BellRead::Noise,
                // The error means that the peer left rings unheard, which does not matter.
                Err(Errno::CONNRESET) => {}
                Ok(Peeked::Bytes(_)) | Err(_) => return BellRead::End,
            }
        }
        BellRead::Rings
    }

    /// Closes the socket when the session is over, even if handles are kept longer.
    pub fn close(&self) {
        let socket = self
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(socket);
    }

    /// Calls `act` with the descriptor, if the socket is still open.
    pub fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        self.socket().as_ref().map(|socket| act(socket.as_fd()))
    }

    fn socket(&self) -> RwLockReadGuard<'_, Option<SessionSocket>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The packet of a ring.
const RING: [u8; 1] = [1];
/// Most rings that are heard at a time; with more, other sessions have their turn first.
const MOST_RINGS: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::aside::tests::{at_once, lingering, pair, send_with};
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;

    fn bells() -> (Bells, Bells) {
        let (left, right) = pair();
        (Bells::new(left), Bells::new(right))
    }

    fn is_readable(bells: &Bells) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = bells.with_fd(|fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            poll(&mut fds, Some(&now)).unwrap() == 1
        });
        ready.unwrap()
    }

    #[test]
    fn rings_are_readable_until_heard() {
        let (ours, theirs) = bells();
        assert_eq!(ours.hear(), BellRead::Rings);
        assert!(theirs.ring() && theirs.ring());
        assert!(is_readable(&ours) && !is_readable(&theirs));
        assert_eq!(ours.hear(), BellRead::Rings);
        assert!(!is_readable(&ours));
    }

    /// A peer that does not hear delays no thread, and hears the rings when it looks.
    #[test]
    fn a_full_socket_makes_nobody_wait_and_is_readable() {
        let (ours, theirs) = bells();
        at_once(move || {
            for _ in 0..10_000 {
                assert!(ours.ring());
            }
            let mut heard = 0;
            while is_readable(&theirs) {
                assert_eq!(theirs.hear(), BellRead::Rings);
                heard += 1;
            }
            assert!(heard > 1, "a bounded number at a time");
            assert!(ours.ring() && is_readable(&theirs));
        });
    }

    #[test]
    fn a_peer_that_closes_is_the_end_behind_its_rings() {
        let (ours, theirs) = bells();
        assert!(ours.ring() && theirs.ring());
        theirs.close();
        assert!(!theirs.ring(), "it is closed");
        assert_eq!(ours.hear(), BellRead::End);
        assert!(ours.ring(), "nobody hears, and nothing happens");
        drop(ours);
    }

    #[test]
    fn a_descriptor_among_the_rings_is_noise_and_stays_there() {
        let (socket, theirs) = pair();
        let ours = Arc::new(Bells::new(socket));
        let (slow, other) = lingering();
        send_with(&theirs, &RING, &[slow.as_fd()]);
        drop((slow, theirs));
        let hearing = ours.clone();
        assert_eq!(at_once(move || hearing.hear()), BellRead::Noise);
        at_once(move || ours.close());
        drop(other);
    }
}
