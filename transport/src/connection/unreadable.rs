//! A message whose memory the kernel cannot read. Its channel ends, and the session goes on.

use std::ptr::NonNull;

use ibex_ring::memory::mapped_file;

use super::{Context, core::Core};
use crate::{endpoint::state::EndReason, session::EndCause};

impl Core {
    /// Gives up the channel of the large message that the byte at `place` belongs to. Returns the
    /// cause with which the wire ends: the peer has a part of a frame whose rest cannot be sent.
    pub(super) fn message_is_unreadable(
        &mut self,
        place: NonNull<u8>,
        context: &mut Context<'_>,
    ) -> Option<EndCause> {
        let senders = &mut self.ends.senders;
        let found = senders.ends.iter().find_map(|(end, sender)| {
            let (sequence, read, length) = sender.large_at(place)?;
            Some((end, sequence, read, length))
        });
        let (end, sequence, read, length) = found?;
        if let Some(sender) = senders.ends.get_mut(end) {
            sender.is_closed = true;
        }
        senders.forget_large(end, 0, &mut self.retained);
        self.common.session.ends.give_up_sender(end, sequence - 1);
        let cause = EndCause::Unreadable {
            sequence,
            read,
            length,
            file: mapped_file(place.addr().get()),
        };
        let why = format!("{cause}; that message's channel has ended, and the session goes on");
        let cause = EndReason::Cause(cause);
        self.ends.end(end, cause, &mut context.wakers);
        Some(EndCause::Refused { why })
    }
}
