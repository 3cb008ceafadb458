//! The ends of a session that goes on over new wires.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{EndChannel, EndTable};
use crate::{
    format::control::{Control, KnownEnd},
    id_map::IdMap,
    session::{DataPath, SessionEvent, WireTerms},
};

impl EndTable {
    /// Notes that the wires are gone, and what was granted for them.
    pub(in crate::session) fn suspend(&mut self) {
        self.turns.clear();
        for entry in self.entries.values_mut() {
            match &mut entry.state {
                // The end counts as queued, so it asks for no turn.
                EndChannel::Sender(channel) => {
                    channel.queued = true;
                    channel.grants_are_over();
                    channel.large.offers_are_over();
                }
                EndChannel::Receiver(Some(channel)) => {
                    channel.queued = false;
                    channel.large.offers_are_over();
                }
                EndChannel::Receiver(None) => {}
            }
        }
    }

    /// Gives up the memory that was granted for large messages of a session [without
    /// wires](super::super::Session::suspend), to which nothing more is written: the host
    /// [grants](super::super::Session::grant) other memory for the messages that are not complete.
    pub fn withdraw_memory(&mut self) {
        for entry in self.entries.values_mut() {
            if let EndChannel::Receiver(Some(channel)) = &mut entry.state {
                channel.large.withdraw_memory();
            }
        }
    }

    /// Says which of the peer's ends this side knows, for [new wires](super::super::resume).
    pub(in crate::session) fn list_known(
        &mut self,
        path: DataPath,
        wires: &WireTerms,
        control: &mut VecDeque<Control>,
        events: &mut VecDeque<SessionEvent>,
    ) {
        control.extend(self.unpaired.iter().map(|open| Control::Known {
            end: open.end,
            state: KnownEnd {
                received_close: open.closed.is_some(),
                receiver: None,
            },
        }));
        for (peer_end, &end) in self.by_peer.iter().flat_map(IdMap::iter) {
            let Some(entry) = self.entries.get_mut(end) else {
                continue;
            };
            let receiver = entry.state.framed_receiver(path).map(|channel| {
                channel.large.begin_anew(wires.writes, wires.reads > 0);
                let counters = channel.tell();
                events.push_back(SessionEvent::Notified { end, counters });
                channel.known()
            });
            control.push_back(Control::Known {
                end: peer_end,
                state: KnownEnd {
                    received_close: entry.received_close,
                    receiver,
                },
            });
        }
        control.push_back(Control::Resumed {
            newest_end: self.newest_of_peer,
        });
    }
}
