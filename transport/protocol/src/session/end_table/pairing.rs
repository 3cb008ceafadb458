//! Ends that the peer opens and closes, and how they are paired with those of this side.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{EndChannel, EndTable, PeerMisbehaved, PeerOpen, ReceiveChannel, SessionEvent};
use crate::{
    format::{
        control::{Ask, CloseReason, Role},
        message_version::settle,
        record,
    },
    session::{Agreed, DataPath},
};

impl EndTable {
    /// Takes in an end that the peer opened. Returns it with the end of this side that waits for
    /// it; if there is none, the peer's end waits.
    pub(crate) fn handle_open(
        &mut self,
        open: PeerOpen,
        limit: usize,
        events: &mut VecDeque<SessionEvent>,
    ) -> Result<Option<(u32, PeerOpen)>, PeerMisbehaved> {
        let (end, role) = (open.end, open.role);
        let known = |open: &PeerOpen| open.role == role && open.end == end;
        if self.by_peer[role as usize].contains(end) || self.unpaired.iter().any(known) {
            return Err(PeerMisbehaved::OpenedTwice { end });
        }
        if self.of_peer() >= limit {
            return Err(PeerMisbehaved::TooManyChannels { limit });
        }
        self.newest_of_peer = self.newest_of_peer.max(end);
        // The oldest local end that waits for this name; ids grow, so the smallest.
        let waiting = self
            .entries
            .iter()
            .filter(|(_, local)| local.state.role() == role.opposite() && local.name == open.name)
            .filter(|(_, local)| local.peer.is_none() && !local.closed_there)
            .map(|(id, _)| id)
            .min();
        if let Some(local) = waiting {
            return Ok(Some((local, open)));
        }
        events.push_back(SessionEvent::PeerOpened {
            name: open.name.clone(),
            role,
        });
        self.unpaired_bytes += open.bytes();
        self.unpaired.push(open);
        Ok(None)
    }

    /// Takes the peer's oldest end that waits for `end`, which was [added](Self::add).
    pub(crate) fn take_counterpart(&mut self, end: u32) -> Option<PeerOpen> {
        let local = self.entries.get(end)?;
        let role = local.state.role().opposite();
        let is_it = |open: &PeerOpen| open.role == role && open.name == local.name;
        let at = self.unpaired.iter().position(is_it)?;
        let open = self.unpaired.remove(at);
        self.unpaired_bytes -= open.bytes();
        Some(open)
    }

    /// Joins a local end and the peer's open of the same name. Returns what the peer is to be asked
    /// now.
    pub(crate) fn pair(
        &mut self,
        end: u32,
        open: PeerOpen,
        events: &mut VecDeque<SessionEvent>,
    ) -> Ask {
        let mut asked = Ask::default();
        let Some(local) = self.entries.get_mut(end) else {
            return asked;
        };
        local.peer = Some(open.end);
        self.by_peer[open.role as usize].insert(open.end, end);
        // Both ends see the same two specs, so they come to the same result.
        let settled = match open.role {
            Role::Sender => settle(&open.spec, &local.spec),
            Role::Receiver => settle(&local.spec, &open.spec),
        };
        let Some(settled) = settled else {
            (local.closed_there, local.is_mismatched) = (true, true);
            local.received_close = open.closed.is_some();
            events.push_back(SessionEvent::Mismatched {
                end,
                theirs: open.spec,
            });
            return asked;
        };
        let (ours, theirs) = (&*local.spec, &*open.spec);
        let agreed = Agreed {
            fingerprint: settled.fingerprint,
            window: ours.window.agree(theirs.window),
            alignment: settled.alignment,
            max_message_bytes: ours.max_message_bytes.min(theirs.max_message_bytes),
            limit_here_to_there: ours.max_message_bytes.cmp(&theirs.max_message_bytes),
            max_unreleased_bytes: ours.max_unreleased_bytes.min(theirs.max_unreleased_bytes),
            is_traced: ours.is_traced && theirs.is_traced,
        };
        match &mut local.state {
            EndChannel::Receiver(state) => {
                *state = Some(Box::new(ReceiveChannel::new(
                    agreed.window,
                    agreed.alignment as usize,
                    agreed.max_message_bytes,
                    agreed.is_traced,
                )));
            }
            EndChannel::Sender(channel) => {
                channel.alignment = agreed.alignment as usize;
                channel.sent_position = record::first_position(channel.alignment);
                channel.counters.released_position = channel.sent_position;
                // The peer had no end that it could have answered for.
                asked = channel.unanswered();
            }
        }
        events.push_back(SessionEvent::Opened {
            end,
            peer_end: open.end,
            agreed,
        });
        if let Some(reason) = open.closed {
            (local.closed_there, local.received_close) = (true, true);
            events.push_back(SessionEvent::PeerClosed {
                end,
                reason,
                final_sequence: 0,
            });
        }
        self.mark_ready(end);
        asked
    }

    /// Takes in that the peer closed an end, behind message `last`. Returns our end that is paired
    /// with it.
    pub(crate) fn handle_close(
        &mut self,
        (peer_end, role): (u32, Role),
        reason: CloseReason,
        last: u64,
        path: DataPath,
        events: &mut VecDeque<SessionEvent>,
    ) -> Result<Option<u32>, PeerMisbehaved> {
        let known = |open: &&mut PeerOpen| open.role == role && open.end == peer_end;
        if let Some(open) = self.unpaired.iter_mut().find(known) {
            open.closed = Some(reason);
            return Ok(None);
        }
        let Some((end, entry)) = self.paired_entry(role, peer_end) else {
            return Ok(None);
        };
        entry.received_close = true;
        if entry.closed_there {
            // A mismatch ended the channel on both ends already.
            return Ok(Some(end));
        }
        let is_closed = entry.closed_here;
        if let Some(channel) = entry.state.framed_receiver(path)
            && !is_closed
            && reason != CloseReason::Unreadable
            && !channel.is_whole(last)
        {
            let received = channel.counters().received;
            return Err(PeerMisbehaved::ClosedElsewhere { last, received });
        }
        entry.closed_there = true;
        events.push_back(SessionEvent::PeerClosed {
            end,
            reason,
            final_sequence: last,
        });
        // A close of ours that waited for a grant waits no longer, and no peer is left for records
        // to wait for.
        if !self.mark_ready(end) {
            self.turns.ready.retain(|&other| other != end);
            self.leaves_ready(end);
        }
        Ok(Some(end))
    }
}
