//! Sending to a group.

use std::{sync::Arc, time::Duration};

use ibex_codec::Codec;
use ibex_ring::parking::Patience;

use super::{Group, MemberId};
use crate::{PeerAt, SendError, Sender};

impl<T: ?Sized, C: Codec<T>> Group<T, C> {
    /// Takes in a sending end that may have been used already, whatever its channel's name and
    /// settings. Its peer gets what is still on its way to it, and then every message of the group
    /// from the next one on. So a peer that comes late is first sent what it lacks, and a peer that
    /// [has left](Self::leave) can come back.
    ///
    /// Messages that were sent before count in no
    /// [`GroupMember::counts`](super::GroupMember::counts) and no quorum. A peer that got a message
    /// as an earlier member, and acknowledges it only now, has not acknowledged it to the group. If
    /// it drops such a message unacknowledged, its acknowledgements end there, as on any channel.
    ///
    /// ```
    /// use ibex::{Peer, Raw, group::{Group, MemberId}};
    ///
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// fn catch_up(
    ///     log: &mut Group<[u8], Raw>,
    ///     entries: &[Vec<u8>],
    ///     late: &Peer,
    /// ) -> Result<MemberId, Error> {
    ///     let mut alone = late.channel("wal").codec::<Raw>().sender::<[u8]>()?;
    ///     for entry in entries {
    ///         alone.send(entry)?;
    ///     }
    ///     log.join_sender(alone).map_err(|_| "it was cloned".into())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The sender, if it was ever cloned: clones take turns, and a group does not wait for turns.
    ///
    /// # Panics
    ///
    /// If its peer is one of another node.
    pub fn join_sender(&mut self, sender: Sender<T, C>) -> Result<MemberId, Sender<T, C>> {
        let peer = PeerAt::of(sender.handle.session().peer());
        let joined = self.group.join(Arc::new(peer), sender.handle);
        joined.map(MemberId).map_err(Sender::new)
    }

    /// Takes a member out and returns its sender. Messages after the group's last one can be sent
    /// to that peer alone, and dropping the sender ends the channel in order. The sender continues
    /// its own count of sequences, and [`join_sender`](Self::join_sender) takes it back. `None` if
    /// it is no longer a member.
    pub fn leave(&mut self, member: MemberId) -> Option<Sender<T, C>> {
        self.group.leave(member.0).map(Sender::new)
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Sends a message to all members, and returns its sequence in the group. Waits while the
    /// window of a member is full (but see [`when_full`](Self::when_full)), or while a member has
    /// not opened its end.
    ///
    /// The message is encoded once, into the first member's window, and copied to the others'. A
    /// message that takes more than half of a window gets memory of its own at each member, as it does
    /// on a channel. Its bytes are then there once for each member that has not taken it. If its length
    /// is not known in advance, encoding begins several times.
    ///
    /// # Errors
    ///
    /// [`SendError`], with [`SendErrorKind::NoMembers`](crate::SendErrorKind::NoMembers) if there
    /// is no member to send to; no member was sent anything then. Members may have been dropped
    /// nevertheless.
    #[inline]
    pub fn send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::FOREVER)
    }

    /// Sends a message if every member has room for it now.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`](crate::SendErrorKind::Full) or
    /// [`SendErrorKind::NotOpened`](crate::SendErrorKind::NotOpened), with the
    /// [member](SendError::member) that is in the way, while it may work later; else as
    /// [`send`](Self::send). Nothing was sent to anyone.
    #[inline]
    pub fn try_send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::None)
    }

    /// Sends a message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`try_send`](Self::try_send), when the time is up.
    pub fn send_timeout(&mut self, value: &T, timeout: Duration) -> Result<u64, SendError> {
        self.send_with(value, Patience::at_most(timeout))
    }

    #[inline]
    fn send_with(&mut self, value: &T, patience: Patience) -> Result<u64, SendError> {
        self.group
            .send(Sender::<T, C>::group_message(value), patience)
            .map_err(|failure| SendError::of_group(self.template.name(), failure))
    }
}
