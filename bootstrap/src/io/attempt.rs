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
use super::device_jobs::{DeviceJob, DeviceOutcome};
use super::dial::Missed;
use super::epoll_set::EpollEntry;
use super::talk::{AnyConnection, HandshakeEvent, Machine, Talk, TalkParts, with_connection};
use super::{after, host, tcp};
use crate::error::HandshakeError;
use crate::established::{Established, ResumedConnection};
use crate::handshake::{DialerHandshake, HandshakeStep, ResumerHandshake};
use crate::identity::HostHint;
use crate::local::Local;
use crate::resumption::ResumeTicket;
use crate::verbs::VerbsDevices;

/// A connection that is being made, whose sockets are in the dialer's epoll set under one key.
pub(super) struct ConnectionAttempt {
    address: Address,
    local: Arc<Local>,
    /// The session to resume, if it is not a new one.
    ticket: Option<ResumeTicket>,
    /// The time at which the attempt ends in any case.
    deadline: Instant,
    stage: AttemptStage,
}

enum AttemptStage {
    /// The kernel connects the socket.
    Connecting(TcpStream),
    Talking(Box<Talk>),
    Over,
}

/// The result of everything that could be done without waiting.
pub(super) enum AttemptProgress {
    Waiting,
    Established(Box<Established>),
    Resumed(Box<ResumedConnection>),
    Missed(Missed),
    /// The peer of a failed handshake has received the reason, or never will.
    Gone,
}

impl ConnectionAttempt {
    /// Begins to connect. Without a `ticket`, the aim is a new session.
    pub(super) fn begin(
        address: Address,
        local: Arc<Local>,
        ticket: Option<ResumeTicket>,
        deadline: Instant,
        watch: EpollEntry<'_>,
    ) -> Result<ConnectionAttempt, NoConnection> {
        let stream = connect::begin(address)?;
        // A socket that is connected already is writable too.
        watch
            .add(&stream, EventFlags::OUT)
            .map_err(|error| NoConnection::Shortage("watch a socket", error))?;
        Ok(ConnectionAttempt {
            address,
            local,
            ticket,
            deadline,
            stage: AttemptStage::Connecting(stream),
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: EpollEntry<'_>) -> AttemptProgress {
        if let AttemptStage::Connecting(_) = self.stage {
            match self.connect(now, watch) {
                Ok(true) => {}
                Ok(false) => return AttemptProgress::Waiting,
                Err(missed) => return AttemptProgress::Missed(missed),
            }
        }
        let AttemptStage::Talking(talk) = &mut self.stage else {
            return AttemptProgress::Gone;
        };
        if talk.connection.is_parting() {
            return match with_connection!(&mut talk.connection, connection => connection.hear_out(now))
            {
                true => AttemptProgress::Waiting,
                false => AttemptProgress::Gone,
            };
        }
        with_connection!(&mut talk.connection, connection => connection.read());
        talk.hear_unix(watch);
        with_connection!(&mut talk.connection, connection => connection.machine.handle_timeout(now));
        let outcome = talk.act(self.address, &self.local, self.ticket.as_ref(), watch);
        with_connection!(&mut talk.connection, connection => connection.write(watch));
        match outcome {
            None => AttemptProgress::Waiting,
            Some(HandshakeEvent::Failed(error)) => {
                AttemptProgress::Missed(Missed::Handshake(error))
            }
            // The last message has to be written before the stream changes hands.
            Some(_) if !with_connection!(&talk.connection, connection => connection.has_written()) => {
                AttemptProgress::Missed(Missed::Handshake(HandshakeError::takes_no_more()))
            }
            Some(over) => self.finish(over, watch),
        }
    }

    /// Takes the device jobs to be run off the turn, and the devices that they are for.
    pub(super) fn take_device_jobs(&mut self) -> (Vec<DeviceJob>, Option<&Arc<dyn VerbsDevices>>) {
        let device_jobs = match &mut self.stage {
            AttemptStage::Talking(talk) => mem::take(&mut talk.device_jobs),
            _ => Vec::new(),
        };
        (device_jobs, self.local.usable_devices())
    }

    /// Takes the result of a job. [`ConnectionAttempt::advance`] is due afterwards.
    pub(super) fn handle_outcome(&mut self, outcome: DeviceOutcome) {
        let AttemptStage::Talking(talk) = &mut self.stage else {
            return;
        };
        match outcome {
            DeviceOutcome::Found(found) => talk.connection.handle_device(found),
            DeviceOutcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| talk.pair.insert(pair).endpoint());
                with_connection!(&mut talk.connection, connection => connection.machine.handle_prepared(endpoint));
            }
            DeviceOutcome::Connected(connected) => {
                let connected = connected.map(|pair| talk.pair = Some(pair));
                with_connection!(&mut talk.connection, connection => connection.machine.handle_connected(connected));
            }
        }
    }

    /// Returns the address that is tried.
    pub(super) fn address(&self) -> Address {
        self.address
    }

    /// Returns the time at which [`advance`](Self::advance) is due even if no socket is ready.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            AttemptStage::Connecting(_) => Some(self.deadline),
            AttemptStage::Talking(talk) => {
                with_connection!(&talk.connection, connection => connection.deadline())
            }
            AttemptStage::Over => None,
        }
    }

    /// Returns whether the peer may have a session already. It must then learn whether this end
    /// takes it.
    pub(super) fn may_be_session(&self) -> bool {
        match &self.stage {
            AttemptStage::Talking(talk) => match &talk.connection {
                AnyConnection::New(connection) => connection.machine.step() == HandshakeStep::Ready,
                AnyConnection::Resuming(_) => false,
            },
            _ => false,
        }
    }

    /// Returns whether a node has answered at the address.
    pub(super) fn has_answer(&self) -> bool {
        match &self.stage {
            AttemptStage::Connecting(_) => false,
            AttemptStage::Talking(talk) => {
                with_connection!(&talk.connection, connection => connection.machine.has_hello())
            }
            AttemptStage::Over => true,
        }
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: EpollEntry<'_>) -> bool {
        let AttemptStage::Talking(talk) = &mut self.stage else {
            return false;
        };
        if let Some(unix) = talk.unix.take() {
            watch.remove(&unix.control);
        }
        talk.pair = None;
        with_connection!(&mut talk.connection, connection => connection.begin_farewell(now))
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&self, watch: EpollEntry<'_>) {
        match &self.stage {
            AttemptStage::Connecting(stream) => watch.remove(stream),
            AttemptStage::Talking(talk) => {
                with_connection!(&talk.connection, connection => watch.remove(&connection.stream));
                if let Some(unix) = &talk.unix {
                    watch.remove(&unix.control);
                }
            }
            AttemptStage::Over => {}
        }
    }

    /// Gives up an attempt whose peer has no session. The reset leaves no port in TIME-WAIT.
    pub(super) fn give_up(self, watch: EpollEntry<'_>) {
        self.unwatch(watch);
        match &self.stage {
            AttemptStage::Connecting(stream) => connect::reset_on_close(stream),
            AttemptStage::Talking(talk) => {
                with_connection!(&talk.connection, connection => connect::reset_on_close(&connection.stream));
            }
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
        match connected.and_then(|()| self.talk(&stream, now)) {
            Ok(talk) => {
                watch.modify(&stream, EventFlags::IN);
                self.stage = AttemptStage::Talking(Box::new(talk.on(stream)));
                Ok(true)
            }
            Err(missed) => {
                watch.remove(&stream);
                Err(Missed::Connection(missed))
            }
        }
    }

    fn talk(&self, stream: &TcpStream, now: Instant) -> Result<TalkParts, NoConnection> {
        let failed = |action| move |error| connect::lacking(action, error);
        let mut nonce = [0; 16];
        ibex_base::random::fill(&mut nonce).map_err(failed(RANDOM))?;
        let own_address = tcp::own_address(stream).map_err(failed(OWN_ADDRESS))?.ip();
        let deadline = self.deadline.min(after(now, self.local.handshake_timeout));
        let machine = match &self.ticket {
            None => {
                let host = HostHint::read(stream).map_err(failed(host::HINT))?;
                Machine::New(DialerHandshake::new(
                    &self.local,
                    host,
                    nonce,
                    now,
                    deadline,
                ))
            }
            Some(ticket) => Machine::Resuming(ResumerHandshake::new(
                &self.local,
                ticket.clone(),
                nonce,
                now,
                deadline,
            )),
        };
        Ok(TalkParts {
            machine,
            began: now,
            own_address,
        })
    }

    fn finish(&mut self, over: HandshakeEvent, watch: EpollEntry<'_>) -> AttemptProgress {
        self.unwatch(watch);
        let AttemptStage::Talking(talk) = mem::replace(&mut self.stage, AttemptStage::Over) else {
            return AttemptProgress::Gone;
        };
        let sockets = talk.into_sockets(self.address);
        match over {
            HandshakeEvent::Agreed(agreement) => {
                let established = Established::new(*agreement, sockets, true);
                AttemptProgress::Established(Box::new(established))
            }
            HandshakeEvent::Resumed(session) => {
                let resumed = ResumedConnection::new(session, sockets, true);
                AttemptProgress::Resumed(Box::new(resumed))
            }
            _ => AttemptProgress::Gone,
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
const OWN_ADDRESS: &str = "ask for its own address";
