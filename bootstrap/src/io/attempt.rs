//! One connection of a dialing end, from the socket to the end of its handshake.
#![forbid(unsafe_code)]

use std::io;
use std::mem;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use ibex_base::Address;
use rustix::event::epoll::EventFlags;

use super::connect::{self, NoConnection};
use super::dial::Missed;
use super::epoll_set::EpollEntry;
use super::pending::{HandshakeProgress, PendingHandshake};
use super::{after, host};
use crate::handshake::Handshake;
use crate::identity::HostHint;
use crate::local::Local;
use crate::resumption::ResumeTicket;

/// A connection that is being made, whose sockets are in the dialer's epoll set under one key.
pub(super) struct DialAttempt {
    pub(super) address: Address,
    pub(super) local: Arc<Local>,
    /// The session to resume, if it is not a new one.
    ticket: Option<ResumeTicket>,
    pub(super) began: Instant,
    /// The time at which the attempt ends in any case.
    deadline: Instant,
    pub(super) stage: AttemptStage,
    /// The order that the attempt is made for; `None` once it is over.
    pub(super) order: Option<u64>,
    /// The time that the dialer's timers have for it.
    pub(super) timer: Option<Instant>,
}

pub(super) enum AttemptStage {
    /// The kernel connects the socket.
    Connecting(TcpStream),
    Talking(Box<PendingHandshake>),
    Over,
}

impl DialAttempt {
    /// Begins to connect for `order`. Without a `ticket`, the aim is a new session.
    pub(super) fn begin(
        (order, address, local): (u64, Address, Arc<Local>),
        ticket: Option<ResumeTicket>,
        (now, deadline): (Instant, Instant),
        watch: EpollEntry<'_>,
    ) -> Result<DialAttempt, NoConnection> {
        let stream = connect::begin(address)?;
        // A socket that is connected already is writable too.
        watch
            .add(&stream, EventFlags::OUT)
            .map_err(|error| NoConnection::Shortage("watch a socket", error))?;
        Ok(DialAttempt {
            address,
            local,
            ticket,
            began: now,
            deadline,
            stage: AttemptStage::Connecting(stream),
            order: Some(order),
            timer: None,
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        watch: EpollEntry<'_>,
    ) -> Result<HandshakeProgress, Missed> {
        if let AttemptStage::Connecting(_) = self.stage
            && !self.connect(now, watch)?
        {
            return Ok(HandshakeProgress::Waiting);
        }
        match &mut self.stage {
            AttemptStage::Talking(talk) => match talk.advance(now, watch) {
                HandshakeProgress::Failed(error) => Err(Missed::Handshake(error)),
                progress => Ok(progress),
            },
            _ => Ok(HandshakeProgress::Gone),
        }
    }

    /// Returns the handshake, once there is a connection.
    pub(super) fn handshake(&mut self) -> Option<&mut PendingHandshake> {
        match &mut self.stage {
            AttemptStage::Talking(talk) => Some(talk),
            _ => None,
        }
    }

    /// Returns the time at which [`advance`](Self::advance) is due even if no socket is ready.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            AttemptStage::Connecting(_) => Some(self.deadline),
            AttemptStage::Talking(talk) => talk.deadline(),
            AttemptStage::Over => None,
        }
    }

    /// Returns whether the peer may have a session already. It must then learn whether this end
    /// takes it.
    pub(super) fn may_be_session(&self) -> bool {
        matches!(&self.stage, AttemptStage::Talking(talk) if talk.may_be_session())
    }

    /// Returns whether a node has answered at the address.
    pub(super) fn has_answer(&self) -> bool {
        match &self.stage {
            AttemptStage::Connecting(_) => false,
            AttemptStage::Talking(talk) => talk.has_hello(),
            AttemptStage::Over => true,
        }
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&mut self, watch: EpollEntry<'_>) {
        match &mut self.stage {
            AttemptStage::Connecting(stream) => watch.remove(stream),
            AttemptStage::Talking(talk) => talk.unwatch(watch),
            AttemptStage::Over => {}
        }
    }

    /// Gives up an attempt whose peer has no session. The reset leaves no port in TIME-WAIT.
    pub(super) fn give_up(mut self, watch: EpollEntry<'_>) {
        self.unwatch(watch);
        match &self.stage {
            AttemptStage::Connecting(stream) => connect::reset_on_close(stream),
            AttemptStage::Talking(talk) => talk.reset_on_close(),
            AttemptStage::Over => {}
        }
    }

    /// Finishes to connect and begins to talk. Returns false if the kernel still connects.
    fn connect(&mut self, now: Instant, watch: EpollEntry<'_>) -> Result<bool, Missed> {
        let AttemptStage::Connecting(stream) = mem::replace(&mut self.stage, AttemptStage::Over)
        else {
            return Ok(false);
        };
        if !is_writable(&stream) {
            if now >= self.deadline {
                watch.remove(&stream);
                let error = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Missed::Connection(NoConnection::Peer(error)));
            }
            self.stage = AttemptStage::Connecting(stream);
            return Ok(false);
        }
        let connected = connect::finish(&stream, self.address);
        let talking = connected.and_then(|()| self.begin_handshake(&stream, now));
        let machine = match talking {
            Ok(machine) => machine,
            Err(missed) => {
                watch.remove(&stream);
                return Err(Missed::Connection(missed));
            }
        };
        watch.modify(&stream, EventFlags::IN);
        let talk = PendingHandshake::new(machine, stream, self.address, &self.local, now);
        self.stage = AttemptStage::Talking(Box::new(talk));
        Ok(true)
    }

    fn begin_handshake(&self, stream: &TcpStream, now: Instant) -> Result<Handshake, NoConnection> {
        let failed = |action| move |error| connect::lacking(action, error);
        let mut nonce = [0; 16];
        ibex_base::random::fill(&mut nonce).map_err(failed(RANDOM))?;
        let (local, ticket) = (&self.local, self.ticket.clone());
        let deadline = self.deadline.min(after(now, local.handshake_timeout));
        match ticket {
            Some(ticket) => Ok(Handshake::resume(local, ticket, nonce, now, deadline)),
            None => {
                let host = HostHint::read(stream).map_err(failed(host::HINT))?;
                Ok(Handshake::dial(local, host, nonce, now, deadline))
            }
        }
    }
}

fn is_writable(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut descriptors = [PollFd::new(stream, PollFlags::OUT)];
    let no_wait = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // An error of poll is found again by whoever uses the socket.
    poll(&mut descriptors, Some(&no_wait)).is_ok_and(|ready| ready > 0)
}

const RANDOM: &str = "draw random bytes";
