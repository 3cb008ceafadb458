//! One log for several far ends, each of which catches up at its own pace.
#![forbid(unsafe_code)]

mod member;
mod waiting;

use std::{
    collections::VecDeque,
    fmt, ptr,
    time::{Duration, Instant},
};

use ibex_codec::Codec;
use ibex_transport::runtime::Runtime;

use self::member::MemberSender;
pub use self::member::{LogMember, LogMemberLost, LogMemberState};
use super::{LogError, LogSender, LogSource};
use crate::{
    Peer, ToAddress, discovery::Peers, group::MemberId, message::DefaultCodec, wake_ups::WakeUps,
};

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
/// A blocking call holds the group. Where the program accepts the members' sessions itself, let it
/// wait with a time-out or in a task, so that it can hand on a session meanwhile.
///
/// # Quorums
///
/// A member counts with what it has acknowledged, or has answered that it has. This stays while the
/// member is away, and [goes back](LogMember::acked) if it returns with less. Only members count:
/// who has left or is lost counts no more.
///
/// # Lost members
///
/// The end of a member's session is no loss, since another one may follow. A member is lost when
/// its log sender fails for another [reason](LogMemberLost::reason): the program's source failed
/// for it (it has no longer what the member lacks, say), it answered a position that the log does
/// not reach or was sent more than the log has after a cut, its type differs, it takes shorter
/// messages than this end sends, or its address is not kept connected any more. The call that notices
/// takes it out, aborts its channel, and goes on with the others. [`next_lost`](Self::next_lost)
/// tells of each one. The program may have it join again.
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
/// [`Driver::Caller`](crate::Driver::Caller), calls turn the engine of that one.
pub struct LogGroup<T: ?Sized, C = DefaultCodec> {
    members: Vec<MemberSender<T, C>>,
    /// The number of members that have joined so far.
    joined: u64,
    lost: VecDeque<LogMemberLost>,
    /// The last loss in words, also after the program was told of it.
    last_loss: Option<String>,
    news: WakeUps,
}

impl<T: ?Sized, C: Codec<T>> LogGroup<T, C> {
    /// Makes a group without members.
    #[must_use]
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            joined: 0,
            lost: VecDeque::new(),
            last_loss: None,
            news: WakeUps::new(),
        }
    }

    // ---- Members ---------------------------------------------------------------------

    /// Takes in the peer at `address`, which is one of those that a node [keeps
    /// connected](crate::Node::keep_connected), written as the discovery writes it. The group goes
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
    pub fn join_sender(&mut self, sender: LogSender<T, C>) -> MemberId {
        if let Some(runtime) = sender.runtime() {
            check_node(self.members.iter(), runtime);
        }
        self.joined += 1;
        let id = MemberId(self.joined);
        self.members.push(MemberSender::new(id, sender));
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
        check_node(others, peer.session().runtime());
        let member = self.members.iter_mut().find(|one| one.id == member);
        member.map(|member| member.go_on_with(peer)).is_some()
    }

    /// Takes a member out and returns its log sender. `None` if it is no longer a member. Dropping
    /// the log sender ends its channel in order.
    pub fn leave(&mut self, member: MemberId) -> Option<LogSender<T, C>> {
        let index = self.members.iter().position(|one| one.id == member)?;
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

    fn lose(&mut self, lost: LogMemberLost) {
        if self.lost.len() == MOST_LOST {
            self.lost.pop_front();
        }
        self.last_loss = Some(lost.to_string());
        self.lost.push_back(lost);
    }

    // ---- Progress --------------------------------------------------------------------

    /// Returns the position up to which at least `quorum` members have the log, as far as this end
    /// has heard; 0 if there are fewer members.
    #[must_use]
    pub fn acked(&self, quorum: usize) -> u64 {
        let members = self.members.iter();
        let mut positions: Vec<u64> = members.map(|member| member.sender.acked()).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let last = quorum.saturating_sub(1);
        positions.get(last).copied().unwrap_or(0)
    }

    /// Returns the position up to which a member has the log, as far as this end has heard. `None`
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
    /// # Errors
    ///
    /// [`Send`](super::LogErrorKind::Send) if a member's next message cannot be sent at all. The
    /// other members had their turn. The failure of one member is no error here.
    pub fn try_send<L: LogSource<T, C>>(&mut self, log: &mut L) -> Result<bool, LogError> {
        self.round(log, u64::MAX).map(|turn| turn.has_sent)
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
    /// [`Timeout`](super::LogErrorKind::Timeout), whose text describes each member.
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

    /// Does the same in a task.
    ///
    /// Dropping the future leaves the messages that were sent and the questions that were asked,
    /// and the next call goes on with them.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub fn wait_acked_async<'a, L: LogSource<T, C>>(
        &'a mut self,
        log: &'a mut L,
        position: u64,
        quorum: usize,
    ) -> impl Future<Output = Result<(), LogError>> {
        waiting::LogQuorumAsync {
            group: self,
            log,
            position,
            quorum,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Default for LogGroup<T, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ?Sized, C> fmt::Debug for LogGroup<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogGroup")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
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
    let mut others = members.filter_map(|member| member.sender.runtime());
    assert!(
        others.next().is_none_or(|other| ptr::eq(other, runtime)),
        "a peer of another node than the other members' cannot be one of their group: join one that \
         their node accepted or connected to"
    );
}

/// The lost members that are kept for [`LogGroup::next_lost`].
const MOST_LOST: usize = 64;
