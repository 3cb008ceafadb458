//! The progress of a session, by which a host tells wires that move the session on from wires that
//! do not.
#![forbid(unsafe_code)]

use super::{EndChannel, Session};

/// The progress of a session in both directions. Two values are equal if nothing has arrived in
/// between, and nothing more is known to have arrived at the peer. A part of a large message does
/// not count, because over other wires the message begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Ends: the newest of the peer's, how many have a counterpart or wait for one, and how many
    /// are closed there.
    ends: (u32, usize, usize),
    received_goodbye: bool,
    /// Messages that came, the announced ones and the whole ones.
    arrived: u64,
    /// Messages that the peer has, has released and has acknowledged.
    confirmed: u64,
}

impl Session {
    /// Returns how far the session has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let (mut arrived, mut confirmed, mut closed) = (0_u64, 0_u64, 0);
        for entry in self.ends.entries.values() {
            closed += usize::from(entry.received_close);
            match &entry.state {
                EndChannel::Sender(channel) => {
                    let counters = &channel.counters;
                    for count in [counters.received, counters.released, counters.acknowledged] {
                        confirmed = confirmed.wrapping_add(count);
                    }
                }
                EndChannel::Receiver(Some(channel)) => {
                    for count in [channel.arrived, channel.counters().received] {
                        arrived = arrived.wrapping_add(count);
                    }
                }
                EndChannel::Receiver(None) => {}
            }
        }
        let paired = self
            .ends
            .by_peer
            .iter()
            .map(|by_peer| by_peer.iter().count());
        let known = paired.sum::<usize>() + self.ends.unpaired.len();
        Progress {
            ends: (self.ends.newest_of_peer, known, closed),
            received_goodbye: self.received_goodbye,
            arrived,
            confirmed,
        }
    }
}
