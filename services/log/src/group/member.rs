//! Members of a group of log senders, and the descriptions of them that it returns.
#![forbid(unsafe_code)]

use std::{
    fmt,
    task::Waker,
    time::{Duration, Instant},
};

use ibex_core::{Peer, SendErrorKind, codec::Codec, group::MemberId};

use crate::{
    LogError, LogErrorKind, LogMemberState, LogSender, LogSource,
    source::Waiting,
    steps::{FarAnswer, SendTurn},
};

/// A member of a [`LogGroup`](crate::LogGroup) and its progress. Positions are the log's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogMember {
    /// The member's name in the group.
    pub id: MemberId,
    /// The address that is kept connected, or that of the peer in the last session.
    pub address: String,
    /// The peer in the present session; `None` if there is no session.
    pub peer: Option<Peer>,
    /// Everything up to here was sent to the member, or it has answered that it has it.
    pub position: u64,
    /// The member has the log up to here, as far as this end knows. This goes back if the
    /// member returns with less.
    pub acked: u64,
    /// The state of its session.
    pub state: LogMemberState,
}

/// A member that a [`LogGroup`](crate::LogGroup) has lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct LogMemberLost {
    /// The member's name in the group.
    pub id: MemberId,
    /// The member's address, as in [`LogMember::address`].
    pub address: String,
    /// Everything up to here was sent to the member.
    pub position: u64,
    /// The member had the log up to here, as far as this end knows.
    pub acked: u64,
    /// The reason.
    pub reason: LogError,
}

impl fmt::Display for LogMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, position) = (&self.address, self.position);
        write!(f, "{address} has acknowledged up to {}, ", self.acked)?;
        match &self.state {
            LogMemberState::Sending => write!(f, "and was sent up to {position}"),
            LogMemberState::NotOpened => f.write_str("and has not opened its end of the channel"),
            LogMemberState::NotAsked => {
                f.write_str("and the next call asks it up to which position it has the log")
            }
            LogMemberState::Asked { after } => {
                f.write_str("and has not answered yet up to which position it has the log")?;
                after.iter().try_for_each(|why| write!(f, " ({why})"))
            }
            LogMemberState::Unanswered { why } => {
                write!(
                    f,
                    "and did not answer up to which position it has the log: {why}"
                )
            }
            LogMemberState::NoSession { why } => write!(f, "and has no session: {why}"),
        }
    }
}

impl fmt::Display for LogMemberLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, position, acked) = (&self.address, self.position, self.acked);
        write!(
            f,
            "{address} is no member any more; it has acknowledged up to {acked}, and was sent up to \
             {position}: {}",
            self.reason
        )
    }
}

/// What a member's turn, or a round of all members, has brought.
#[derive(Clone, Copy, Default)]
pub(super) struct MemberTurn {
    /// A message was sent.
    pub(super) has_sent: bool,
    /// There is more to do now.
    pub(super) has_more: bool,
}

/// A member with its log sender.
pub(super) struct MemberSender<T: ?Sized, C> {
    pub(super) id: MemberId,
    address: String,
    pub(super) sender: LogSender<T, C>,
    /// What is tried again after a pause.
    again: Option<Again>,
}

/// An attempt that is made again after a pause, of which an alarm tells.
struct Again {
    at: Instant,
    /// The session of the failed attempt. Another one makes the pause void, although its peer may be
    /// the same process.
    session: Option<Peer>,
    /// The reason why the far end did not answer; `None` if there was no memory for a message.
    unanswered: Option<String>,
}

impl Again {
    /// Returns whether the failed attempt was made in the session of this peer.
    fn is_of(&self, peer: Option<&Peer>) -> bool {
        match (&self.session, peer) {
            (Some(session), Some(peer)) => session.is_same_session(peer),
            (session, peer) => session.is_none() && peer.is_none(),
        }
    }
}

impl<T: ?Sized, C: Codec<T>> MemberSender<T, C> {
    pub(super) fn new(id: MemberId, sender: LogSender<T, C>) -> Self {
        let address = sender.far_end();
        let address = address.unwrap_or_else(|| "a far end without a session".to_owned());
        Self {
            id,
            address,
            sender,
            again: None,
        }
    }

    pub(super) fn go_on_with(&mut self, peer: Peer) {
        self.sender.go_on_with(peer);
        self.address = self.sender.far_end().unwrap_or_default();
    }

    /// Sends a few messages, as far as there is room. `waker` is called when more may be done, other
    /// than by an acknowledgement; for room only if a wait follows.
    pub(super) fn turn<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        (position, a_wait_follows): (u64, bool),
        waker: &Waker,
    ) -> Result<MemberTurn, LogError> {
        self.sender.leave_session_over(log.end());
        if self.rests() {
            return Ok(MemberTurn::default());
        }
        let waiting = match a_wait_follows {
            true => Waiting::Task(waker),
            false => Waiting::No,
        };
        let advanced = self.advance(log, position, waiting, waker);
        match advanced {
            Err(error) if self.may_go_on_after(&error, waker) => Ok(MemberTurn::default()),
            advanced => advanced,
        }
    }

    fn advance<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        waiting: Waiting<'_>,
        waker: &Waker,
    ) -> Result<MemberTurn, LogError> {
        let (sent, turn) = match self
            .sender
            .poll_some(log, (MESSAGES_PER_TURN, waiting), waker)
        {
            // `position` lies before the message that cannot be sent.
            Err(error) if error.is_of_message() && position <= self.sender.position() => {
                (0, SendTurn::Pending)
            }
            advanced => advanced?,
        };
        let sent_up_to = self.sender.position();
        let begins_anew = self.sender.poll_acked(log, position.min(sent_up_to))?;
        Ok(MemberTurn {
            has_sent: sent > 0,
            has_more: matches!(turn, SendTurn::More) || begins_anew,
        })
    }

    /// Returns the far end's answer, and the member as it was then, if it is not noted yet.
    pub(super) fn take_answer(&mut self) -> Option<(FarAnswer, LogMember)> {
        let answer = self.sender.answer.take()?;
        let member = LogMember {
            position: answer.position,
            acked: answer.position,
            ..self.describe()
        };
        Some((answer, member))
    }

    /// Returns whether the far end failed to answer in this session, and is not asked again yet.
    fn rests(&mut self) -> bool {
        let peer = self.sender.peer();
        let is_in = |again: &mut Again| {
            again.is_of(peer)
                && again.at > Instant::now()
                && (again.unanswered.is_none() || !peer.is_none_or(Peer::is_gone))
        };
        self.again = self.again.take_if(is_in);
        let again = self.again.as_ref();
        again.is_some_and(|again| again.unanswered.is_some())
    }

    /// Returns whether the member stays one: the program may give it its next session, the far end
    /// may answer when it is asked again, or there may be memory soon.
    fn may_go_on_after(&mut self, error: &LogError, waker: &Waker) -> bool {
        if error.kind() == LogErrorKind::NoSession {
            return self.sender.sessions.runtime().is_none();
        }
        let lacks_memory = error
            .send_error()
            .is_some_and(|error| error.kind() == SendErrorKind::Memory);
        let unanswered = error.unanswered().filter(|_| self.sender.channel.is_none());
        let pause = match (lacks_memory, &unanswered) {
            (true, _) => MEMORY_AGAIN,
            (false, Some(_)) => ANSWER_AGAIN,
            (false, None) => return false,
        };
        // One alarm at a time in a session. `rests` has forgotten one that is due.
        let again = self.again.as_ref();
        if !again.is_some_and(|again| again.is_of(self.sender.peer())) {
            let at = Instant::now() + pause;
            self.sender.wake_at(at, waker);
            self.again = Some(Again {
                at,
                session: self.sender.peer().cloned(),
                unanswered,
            });
        }
        true
    }

    /// Returns whether the member may acknowledge `position` without the program's help.
    pub(super) fn may_have(&self, position: u64) -> bool {
        self.sender.acked() >= position || self.sender.sessions.runtime().is_some()
    }

    pub(super) fn describe(&self) -> LogMember {
        let peer = self.sender.lasting_peer().cloned();
        LogMember {
            id: self.id,
            address: self.address.clone(),
            position: self.sender.position(),
            acked: self.sender.acked(),
            state: self.state(peer.as_ref()),
            peer,
        }
    }

    fn state(&self, lasting: Option<&Peer>) -> LogMemberState {
        let again = self.again.as_ref();
        let again = again.filter(|again| again.is_of(self.sender.peer()));
        let unanswered = again.and_then(|again| again.unanswered.clone());
        match (unanswered, self.sender.state(lasting)) {
            (Some(why), LogMemberState::NotAsked) => LogMemberState::Unanswered { why },
            (_, state) => state,
        }
    }

    /// Takes the member apart. Its far end may lack a part of the log, and gets no orderly end.
    pub(super) fn lost(mut self, reason: LogError) -> LogMemberLost {
        self.sender.abort_channel();
        LogMemberLost {
            id: self.id,
            position: self.sender.position(),
            acked: self.sender.acked(),
            address: self.address,
            reason,
        }
    }
}

/// The messages that a member is sent before another one's turn, so that one which lacks many does
/// not take all the time.
const MESSAGES_PER_TURN: usize = 4;
/// The time after which a member is asked again that did not answer.
const ANSWER_AGAIN: Duration = Duration::from_secs(1);
/// The time after which a member for whose message there was no memory is tried again.
const MEMORY_AGAIN: Duration = Duration::from_millis(10);
