//! What a group is sent.

use std::{sync::Arc, time::Duration};

use ibex_codec::Codec;
use ibex_ring::parking::Patience;

use super::{Group, MemberId, encoding::Encoded};
use crate::{PeerAt, SendError, Sender, Sequence};

impl<T: ?Sized, C: Codec<T>> Group<T, C> {
    /// Takes an end in that may have been sent to, whatever its channel's name and settings: its
    /// peer gets what is still on its way to it and then every message of the group from the
    /// next one on. So a peer that comes late is sent what it lacks first, and one that
    /// [has left](Self::leave) comes back.
    ///
    /// What was sent before counts in no [`GroupMember::counts`](super::GroupMember::counts) and no quorum: who acknowledges
    /// a message later that it got as a member before has not acknowledged it to the group. One
    /// that it drops unacknowledged ends its acknowledgements, though, as on any channel.
    ///
    /// ```
    /// use ibex::{Group, MemberId, Peer, Raw};
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
    /// The sender, if it was ever cloned: clones take turns, and a group waits for nobody's.
    ///
    /// # Panics
    ///
    /// If its peer is one of another node.
    pub fn join_sender(&mut self, sender: Sender<T, C>) -> Result<MemberId, Sender<T, C>> {
        let peer = PeerAt::of(sender.handle.session().peer());
        let joined = self.group.join(Arc::new(peer), sender.handle);
        joined.map(MemberId).map_err(Sender::new)
    }

    /// Takes a member out and gives its sender back: what comes after the group's last message
    /// can be sent to it alone, and dropping it ends the channel in order. Its sequences go on
    /// with its own count, and [`join_sender`](Self::join_sender) takes it back. `None` if it is
    /// no member any more.
    pub fn leave(&mut self, member: MemberId) -> Option<Sender<T, C>> {
        self.group.leave(member.0).map(Sender::new)
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Sends a message to all members; waits while the window of one is full (but see
    /// [`when_full`](Self::when_full)), or its end not open yet. Returns the message's place in
    /// the group.
    ///
    /// It is encoded once, into the first member's window, and copied to the others'. One that
    /// is longer than half of a window gets memory of its own at each member, as it does on a
    /// channel: its bytes are then there once per member until each has taken it. Where its
    /// length is not known before, encoding such a message is begun several times.
    ///
    /// # Errors
    ///
    /// [`SendError`], with [`SendErrorKind::NoMembers`](crate::SendErrorKind::NoMembers) if there is nobody to send to; nothing was sent to
    /// anyone then. Members may have been dropped all the same.
    #[inline]
    pub fn send(&mut self, value: &T) -> Result<Sequence, SendError> {
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
    pub fn try_send(&mut self, value: &T) -> Result<Sequence, SendError> {
        self.send_with(value, Patience::None)
    }

    /// Sends a message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), when the time is up.
    pub fn send_timeout(&mut self, value: &T, timeout: Duration) -> Result<Sequence, SendError> {
        self.send_with(value, Patience::at_most(timeout))
    }

    #[inline]
    fn send_with(&mut self, value: &T, patience: Patience) -> Result<Sequence, SendError> {
        self.group
            .send(&mut Encoded::<T, C>::new(value), patience)
            .map_err(|failure| SendError::of_group(self.template.name(), failure))
    }
}
