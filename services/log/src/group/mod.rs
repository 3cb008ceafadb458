//! One log for several far ends, each of which catches up at its own pace.
#![forbid(unsafe_code)]

mod member;
mod waiting;

use std::{
    collections::VecDeque,
    mem, ptr,
    time::{Duration, Instant},
};

use ibex_core::{
    Peer, Select, Selectable, ToAddress,
    codec::Codec,
    extend::{self, DefaultCodec, Runtime, WakeUps, member_id},
    group::MemberId,
};
use ibex_peers::discovery::Peers;

use self::{
    member::MemberSender,
    waiting::{Round, has, of_quorum},
};
use super::{LogError, LogSender, LogSource};

pub use self::member::{LogMember, LogMemberLost};

/// Sends a log that the program keeps to several far ends, and waits for a quorum of their
/// acknowledgements.
///
/// Each member has a [`LogSender`] of its own: a position, a session after the other, and the
/// channel in the present one. So a member that was away is sent what it lacks, from the position
/// that it answers, while the others go on. A member that is slow, absent, or does not answer
/// delays no other one.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use std::error::Error;
/// use ibex::{Node, Peer, log::{LogAnswer, LogError, LogGroup, LogSent, LogSource, LogTurn}};
/// use ibex::prelude::*;
///
/// type Result<R, E = Box<dyn Error + Send + Sync>> = std::result::Result<R, E>;
///
/// #[ibex::message]
/// struct Entry { key: String, value: u64 }
///
/// struct Wal { entries: Vec<Entry> }
///
/// impl LogSource<Entry> for Wal {
///     fn end(&self) -> u64 {
///         self.entries.len() as u64
///     }
///
///     fn resume(&mut self, peer: Peer) -> LogAnswer<Entry> {
///         Box::pin(async move {
///             let asked = peer.caller::<(), u64>("wal position")?;
///             let position = asked.call_async(&()).await?.to_native();
///             Ok((peer.sender("wal")?, position))
///         })
///     }
///
///     fn send_next(&mut self, at: u64, turn: LogTurn<'_, Entry>) -> Result<LogSent> {
///         Ok(turn.send(&self.entries[at as usize], at + 1))
///     }
/// }
///
/// /// Returns once two replicas have the entry, whichever they are.
/// fn append(
///     wal: &mut Wal,
///     replicas: &mut LogGroup<Entry>,
///     entry: Entry,
/// ) -> Result<(), LogError> {
///     wal.entries.push(entry);
///     let end = wal.end();
///     replicas.wait_acked(wal, end, 2)?; // the third may be slow, or away
///     while let Some(lost) = replicas.next_lost() {
///         println!("{lost}");
///     }
///     Ok(())
/// }
///
/// fn ship(node: &Node, entries: impl Iterator<Item = Entry>) -> Result<()> {
///     let addresses = ["one:7000", "two:7000", "three:7000"];
///     let peers = node.keep_connected(addresses)?;
///     let mut replicas = LogGroup::new();
///     for address in addresses {
///         replicas.join_at(&peers, address);
///     }
///     let mut wal = Wal { entries: Vec::new() };
///     for entry in entries {
///         append(&mut wal, &mut replicas, entry)?;
///     }
///     Ok(())
/// }
/// # }
/// ```
///
/// # When messages are sent
///
/// No thread stands behind a group: its calls send. [`wait_acked`](Self::wait_acked) sends every
/// member what it lacks until the quorum is reached; the other members go on with the next call.
/// While there is nothing to append, a wait for all members, with a time-out or in a task that is
/// dropped when there is, lets those that are behind catch up.
///
/// In one round of a call each member is sent a few messages, as far as its channel has room. A
/// call that can do no more sleeps until the first member acknowledges, has room, has answered or
/// has its next session. Nothing is polled. A member that is behind therefore gains on the others
/// only in calls that wait.
///
/// A blocking call holds the group and the log. A thread that also waits for requests or for joining
/// members calls [`try_acked`](Self::try_acked), and has a [`Select`](ibex_core::Select) wait for
/// [`until_acked`](Self::until_acked) beside them.
///
/// # Quorums
///
/// A member counts with what it has acknowledged, or has answered that it has. This stays while the
/// member is away, and [goes back](LogMember::acked) if it returns with less. Only members count in
/// a wait: who has left or is lost counts no more. The position that a quorum had with them stays
/// [`acked`](Self::acked).
///
/// # Lost members
///
/// The end of a member's session is no loss, since another one may follow. A member is lost when
/// its log sender fails for another [reason](LogMemberLost::reason): the program's source failed
/// for it (it has no longer what the member lacks, say), it answered a position that the log does
/// not reach or was sent more than the log has after a cut, its type differs, it takes shorter
/// messages than this end sends, or its address is not kept connected any more. The call that notices
/// takes it out, aborts its channel, logs a warning, and goes on with the others.
/// [`next_lost`](Self::next_lost) tells of each one. The program may have it join again.
///
/// A member whose answer does not come, because a call or a channel of the source fails, is none of
/// these. It is asked again a second later, or in its next session.
///
/// A message that cannot be sent to any member, because it is too long or cannot be encoded, loses
/// none. The calls that need it fail with [`Send`](super::LogErrorKind::Send), and its source may
/// send another in its place.
///
/// # The end
///
/// Dropping a group ends all channels in order. [`leave`](Self::leave) returns the log sender of a
/// member, whose channel the program may end in its own way.
///
/// The sessions of all members belong to one node: under
/// [`Driver::Caller`](ibex_core::Driver::Caller), calls turn the engine of that one.
pub struct LogGroup<T: ?Sized, C = DefaultCodec> {
    members: Vec<MemberSender<T, C>>,
    /// The number of members that have joined so far.
    joined: u64,
    lost: VecDeque<LogMemberLost>,
    /// Members as they were when they had answered.
    answered: VecDeque<LogMember>,
    /// The address that was lost last, and its loss in words, also after the program was notified of it.
    last_loss: Option<(String, String)>,
    changes: WakeUps,
    /// The position that one member has had, the one that two had at a time, and so on.
    reached: Vec<u64>,
    /// The members' positions, while they are sorted.
    positions: Vec<u64>,
}

impl<T: ?Sized, C: Codec<T>> LogGroup<T, C> {
    /// Makes a group without members.
    #[must_use]
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            joined: 0,
            lost: VecDeque::new(),
            answered: VecDeque::new(),
            last_loss: None,
            changes: WakeUps::new(),
            reached: Vec::new(),
            positions: Vec::new(),
        }
    }

    // ---- Members ---------------------------------------------------------------------

    /// Takes in the peer at `address`, which is one of those that a node [keeps
    /// connected](ibex_peers::KeepConnected::keep_connected), written as the discovery writes it. The group goes
    /// on in each of its sessions. The peer need not be connected yet. An address that is not one of
    /// those is waited for without end.
    ///
    /// # Panics
    ///
    /// If another member's session is one of another node.
    #[track_caller]
    pub fn join_at(&mut self, peers: &Peers, address: impl ToAddress) -> MemberId {
        self.join_sender(LogSender::at(peers, address))
    }

    /// Takes in a peer that has connected to this node. The program gives the member its later
    /// sessions by [`go_on_with`](Self::go_on_with).
    ///
    /// Each call makes another member. A far end that returns and joins a second time counts twice
    /// in a quorum, unless its first member [leaves](Self::leave).
    ///
    /// # Panics
    ///
    /// If another member's session is one of another node.
    #[track_caller]
    pub fn join(&mut self, peer: Peer) -> MemberId {
        let mut sender = LogSender::new();
        sender.go_on_with(peer);
        self.join_sender(sender)
    }

    /// Takes in a log sender that may have been used already, and goes on behind what it has sent.
    /// [`leave`](Self::leave) returns one.
    ///
    /// # Panics
    ///
    /// If another member's session is one of another node.
    #[track_caller]
    pub fn join_sender(&mut self, mut sender: LogSender<T, C>) -> MemberId {
        if let Some(runtime) = sender.sessions.runtime() {
            check_node(self.members.iter(), runtime);
        }
        self.joined += 1;
        let id = member_id(self.joined);
        // What the far end answered before is no answer of a member.
        sender.answer = None;
        self.members.push(MemberSender::new(id, sender));
        self.changes.waker().wake_by_ref();
        id
    }

    /// Goes on with a member in this session, as [`LogSender::go_on_with`] does. Returns false if it
    /// is not a member any more.
    ///
    /// # Panics
    ///
    /// If another member's session is one of another node.
    #[must_use = "a member that was lost has to join again"]
    #[track_caller]
    pub fn go_on_with(&mut self, member: MemberId, peer: Peer) -> bool {
        let others = self.members.iter().filter(|one| one.id != member);
        check_node(others, extend::session(&peer).runtime());
        self.note_acked();
        let member = self.members.iter_mut().find(|one| one.id == member);
        self.changes.waker().wake_by_ref();
        member.map(|member| member.go_on_with(peer)).is_some()
    }

    /// Takes a member out and returns its log sender. `None` if it is no longer a member. Dropping
    /// the log sender ends its channel in order.
    pub fn leave(&mut self, member: MemberId) -> Option<LogSender<T, C>> {
        let index = self.members.iter().position(|one| one.id == member)?;
        self.note_acked();
        Some(self.members.remove(index).sender)
    }

    /// Returns the present members and how far each is, in the order of joining.
    #[must_use]
    pub fn members(&self) -> Vec<LogMember> {
        self.members.iter().map(MemberSender::describe).collect()
    }

    /// Returns the earliest member that was lost and not yet returned here, and why. Never waits.
    /// Only the last 64 are kept.
    pub fn next_lost(&mut self) -> Option<LogMemberLost> {
        self.lost.pop_front()
    }

    /// Returns the earliest answer of a member that was not yet returned here: the member as it was
    /// then, with the [position](LogMember::position) up to which it has the log. A member answers
    /// after joining, and again in each later session. Never waits. Only the last 64 are kept.
    pub fn next_answered(&mut self) -> Option<LogMember> {
        self.answered.pop_front()
    }

    // ---- Progress --------------------------------------------------------------------

    /// Returns the position up to which at least `quorum` members have the log, as far as this end
    /// knows; 0 if there never were as many. Never waits.
    ///
    /// It does not fall when a member is lost or leaves, who still has what it acknowledged. It goes
    /// back to what the present members have when one of them returns with less. A far end that joins
    /// again is another member, so what it lacks now is not noticed here.
    #[must_use]
    pub fn acked(&self, quorum: usize) -> u64 {
        let reached = self.reached.get(quorum.saturating_sub(1));
        let present = of_quorum(self.acked_of_each().collect(), quorum);
        present.max(reached.copied().unwrap_or(0))
    }

    /// Notes what quorums have, before a member may have less or be gone.
    fn note_acked(&mut self) {
        let mut positions = mem::take(&mut self.positions);
        positions.clear();
        positions.extend(self.acked_of_each());
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let most = self.reached.len().max(positions.len());
        self.reached.resize(most, 0);
        for (reached, position) in self.reached.iter_mut().zip(&positions) {
            *reached = (*reached).max(*position);
        }
        self.positions = positions;
    }

    fn acked_of_each(&self) -> impl Iterator<Item = u64> {
        self.members.iter().map(|member| member.sender.acked())
    }

    /// Returns the position up to which a member has the log, as far as this end knows. `None`
    /// if it is no longer a member.
    #[must_use]
    pub fn acked_of(&self, member: MemberId) -> Option<u64> {
        let member = self.members.iter().find(|one| one.id == member)?;
        Some(member.sender.acked())
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Sends each member the next few messages that it lacks, if it has a session and room for them
    /// now. Never waits. Returns whether it sent any.
    ///
    /// A member without room, or whose far end has not opened its end, is not asked to tell when that
    /// changes, and [no event](ibex_core::Event::NotOpened) tells of it. So a program that waits
    /// afterwards calls [`try_acked`](Self::try_acked) instead, unless its wait has a time limit and
    /// it sends again.
    ///
    /// # Errors
    ///
    /// [`Send`](super::LogErrorKind::Send) if a member's next message cannot be sent at all. The
    /// other members had their turn. The failure of one member is no error here.
    pub fn try_send<L: LogSource<T, C>>(&mut self, log: &mut L) -> Result<bool, LogError> {
        self.round(log, u64::MAX, false).map(|turn| turn.has_sent)
    }

    /// Sends each member what it lacks, and returns once at least `quorum` members have
    /// acknowledged the log up to `position`, whichever they are. A slow or absent member delays
    /// nothing.
    ///
    /// A member whose far end has not opened its end is waited for, however long that is.
    ///
    /// It waits for whichever comes first: that a member acknowledges, has room, has answered, or
    /// has its next session. With a quorum of 0 each member has one turn of a few messages.
    ///
    /// # Errors
    ///
    /// [`NoQuorum`](super::LogErrorKind::NoQuorum) as soon as fewer members are left than the
    /// quorum needs; [`NoSession`](super::LogErrorKind::NoSession) as soon as it depends on members
    /// that the program has to give their next sessions; [`Beyond`](super::LogErrorKind::Beyond) if
    /// the log ends before `position`; [`Send`](super::LogErrorKind::Send) if a message before
    /// `position` cannot be sent at all. The failure of one member is no error here.
    pub fn wait_acked<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Result<(), LogError> {
        self.wait_acked_by(log, position, quorum, None)
    }

    /// Does the same for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked), and
    /// [`Timeout`](super::LogErrorKind::Timeout), whose text describes each member and the last loss.
    pub fn wait_acked_timeout<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
        timeout: Duration,
    ) -> Result<(), LogError> {
        let deadline = Instant::now().checked_add(timeout);
        self.wait_acked_by(log, position, quorum, deadline)
    }

    /// Sends each member the next few messages that it lacks, as [`try_send`](Self::try_send) does,
    /// and returns whether at least `quorum` members have acknowledged the log up to `position`.
    /// Never waits. [`until_acked`](Self::until_acked) waits until another call may do or tell more.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked). A program that goes on nevertheless, to wait
    /// for members that join, calls it again when they have.
    pub fn try_acked<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Result<bool, LogError> {
        match self.run_round(log, position, quorum) {
            Round::Done(answer) => answer.map(|()| true),
            Round::More => Ok(false),
            Round::Wait => {
                // A program that calls this again and again is notified of acknowledgements.
                if let Some(mut until) = self.until_quorum(position, quorum) {
                    Select::new().try_ready(&mut [&mut until]);
                }
                Ok(has(&self.members, position, quorum))
            }
        }
    }

    /// Returns the wait until at least `quorum` members have acknowledged the log up to `position`.
    /// It also ends when a call of [`try_acked`](Self::try_acked) has more to do: a member has room,
    /// has answered, has its next session, or will not acknowledge what it was sent. The wait is an
    /// end for a [`Select`](ibex_core::Select), and a future. The log is free meanwhile.
    ///
    /// `None` if no member has a session or is kept connected, because nothing can happen then
    /// until the program has one join or go on.
    ///
    /// What was appended to the log since the last call that sends is not noticed here, nor that a
    /// member has room which [`try_send`](Self::try_send) found without. So call `try_acked` first:
    ///
    /// ```
    /// use ibex::{FanIn, Raw, Select, Selectable, log::{LogError, LogGroup, LogSource}};
    ///
    /// /// Returns true once two replicas have the log up to its end, and false as soon as a
    /// /// request or a joining replica is there.
    /// fn wait<L: LogSource<[u8], Raw>>(
    ///     log: &mut L,
    ///     replicas: &mut LogGroup<[u8], Raw>,
    ///     requests: &mut FanIn<[u8], Raw>,
    ///     joins: &mut FanIn<u64>,
    ///     select: &mut Select,
    /// ) -> Result<bool, LogError> {
    ///     let end = log.end();
    ///     while !replicas.try_acked(log, end, 2)? {
    ///         let mut ends: Vec<&mut dyn Selectable> = vec![requests, joins];
    ///         let mut acked = replicas.until_acked(end, 2);
    ///         ends.extend(acked.as_mut().map(|acked| acked as &mut dyn Selectable));
    ///         if select.ready(&mut ends) < 2 {
    ///             return Ok(false);
    ///         }
    ///     }
    ///     Ok(true)
    /// }
    /// ```
    ///
    /// Dropping it changes nothing: what was sent stays sent, and another one may follow.
    #[must_use]
    pub fn until_acked(
        &mut self,
        position: u64,
        quorum: usize,
    ) -> Option<impl Selectable + Future<Output = ()>> {
        self.until_quorum(position, quorum)
    }
}

impl<T: ?Sized, C: Codec<T>> Default for LogGroup<T, C> {
    fn default() -> Self {
        Self::new()
    }
}

ibex_core::extend::debug_fields! {
    [T: ?Sized, C] LogGroup<T, C>: |group|
        members = group.members.len()
}

/// Checks that the members' sessions are those of one node, whose engines a call turns.
#[track_caller]
fn check_node<'a, T: ?Sized + 'a, C: Codec<T> + 'a>(
    members: impl Iterator<Item = &'a MemberSender<T, C>>,
    runtime: &Runtime,
) {
    let is_there = |member: &&MemberSender<T, C>| {
        let peer = member.sender.peer();
        peer.is_none_or(|peer| !peer.is_gone())
    };
    let members = members.filter(is_there);
    let mut others = members.filter_map(|member| member.sender.sessions.runtime());
    assert!(
        others.next().is_none_or(|other| ptr::eq(other, runtime)),
        "a peer of another node than the other members' cannot be one of their group: join one that \
         their node accepted or connected to"
    );
}
