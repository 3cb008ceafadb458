//! Offers of the sender's memory, and the receiver's reads there.
#![forbid(unsafe_code)]

use super::{Chunk, MOST_RAILS, RemoteMemory, Transfer, Transfers, WRITE_BYTES, Way};
use crate::transfer::eager_write::lands;

/// Returns whether a message of this length is offered, where wires carry offers. A shorter one is
/// copied in less time than the offer takes.
#[must_use]
pub fn is_offered(length: u64) -> bool {
    !lands(length)
}

/// The sender's offer of its memory of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferState {
    /// There is none.
    No,
    /// The sender has not reported yet whether it makes one.
    Due,
    /// The receiver may read here.
    Made(RemoteMemory),
    /// The receiver grants chunks instead: the offer is to be revoked. Sending side.
    Declined,
    /// The receiver has read the message: the offer is to be revoked. Sending side.
    Taken,
}

impl OfferState {
    /// The state of a message that was announced over wires which carry offers or not.
    pub(super) fn at_first(carries_offers: bool, length: u64) -> Self {
        match carries_offers && is_offered(length) {
            true => Self::Due,
            false => Self::No,
        }
    }
}

/// What the host has to do about the offer of a message. Sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferStep {
    /// Let the peer read the message, if possible, and [say so](crate::session::Session::offer).
    Make {
        /// The end that sends the message.
        end: u32,
        /// The message's sequence.
        sequence: u64,
    },
    /// Let the peer read the message no more.
    Revoke {
        /// The end that sends the message.
        end: u32,
        /// The message's sequence.
        sequence: u64,
        /// The whole message, if the peer has read it: its bytes are not needed any more.
        taken: Option<Chunk>,
    },
}

/// What a piece of a large message is read over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The session's wire.
    Wire,
    /// The rail of this number.
    Rail(u8),
}

/// A piece of a large message to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeRead {
    /// The receiving end.
    pub end: u32,
    /// The place of the piece in its message.
    pub chunk: Chunk,
    /// The peer's memory of the whole message, with its key on the session's wire.
    pub memory: RemoteMemory,
    /// What the piece is to be read over.
    pub lane: Lane,
    /// The key to the memory there.
    pub key: u32,
}

/// The next piece of an end's messages to read. Receiving side.
#[derive(Debug)]
pub(crate) enum NextRead {
    /// This piece, over this lane, with the key there. It is under way now.
    Piece(Chunk, RemoteMemory, Lane, u32),
    /// There is one, and no lane for it at present.
    NoLane,
    /// There is none.
    Nothing,
}

/// An offer, or word that there is none, as it came. Receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    /// The message's length.
    pub(crate) length: u64,
    /// The host has not learned of the message yet.
    pub(crate) is_new: bool,
    /// What was granted before, which is to be sent now: how, and up to where.
    pub(crate) granted: Option<(Way, u64)>,
}

impl Transfers {
    fn get_mut(&mut self, sequence: u64) -> Option<&mut Transfer> {
        let mut transfers = self.under_way.iter_mut();
        transfers.find(|transfer| transfer.sequence == sequence)
    }

    /// The wires that carried the offers are gone.
    pub(crate) fn offers_are_over(&mut self) {
        for transfer in &mut self.under_way {
            transfer.offer = OfferState::No;
            transfer.rails = [None; MOST_RAILS];
        }
    }

    /// The length of a message whose offer is due.
    pub(crate) fn length_to_offer(&self, sequence: u64) -> Option<u64> {
        let mut transfers = self.under_way.iter();
        let is_it = |transfer: &&Transfer| {
            transfer.sequence == sequence && transfer.offer == OfferState::Due
        };
        transfers.find(is_it).map(|transfer| transfer.length)
    }

    /// Returns whether the message waits for its offer.
    pub(crate) fn awaits_offer(&self, sequence: u64) -> bool {
        self.length_to_offer(sequence).is_some()
    }

    /// Notes the offer of a message, or that there is none; `None` if it was not due.
    pub(crate) fn offer(&mut self, sequence: u64, memory: Option<RemoteMemory>) -> Option<Offered> {
        let transfer = self.get_mut(sequence)?;
        if transfer.offer != OfferState::Due {
            return None;
        }
        transfer.offer = memory.map_or(OfferState::No, OfferState::Made);
        Some(Offered {
            length: transfer.length,
            is_new: !std::mem::replace(&mut transfer.is_notified, true),
            granted: transfer.granted.map(|way| (way, transfer.allowed)),
        })
    }

    /// Returns whether a message is offered, and neither declined nor taken. Sending side.
    pub(crate) fn is_offered(&self, sequence: u64) -> bool {
        self.under_way.iter().any(|transfer| {
            transfer.sequence == sequence && matches!(transfer.offer, OfferState::Made(_))
        })
    }

    /// Notes the key to an offered message on a rail. Receiving side.
    pub(crate) fn offer_rail(&mut self, sequence: u64, rail: u8, key: u32) {
        if let Some(transfer) = self.get_mut(sequence)
            && matches!(transfer.offer, OfferState::Made(_))
            && let Some(place) = transfer.rails.get_mut(usize::from(rail))
        {
            *place = Some(key);
        }
    }

    /// Returns whether the receiver may read a message.
    pub(crate) fn is_readable(&self, sequence: u64) -> bool {
        self.under_way.iter().any(|transfer| {
            transfer.sequence == sequence
                && matches!(transfer.offer, OfferState::Made(_) | OfferState::Taken)
        })
    }

    /// Notes that a message is granted, which declines its offer. Returns false if its offer is due,
    /// or was taken. Sending side.
    pub(crate) fn decline(&mut self, sequence: u64) -> bool {
        let Some(transfer) = self.get_mut(sequence) else {
            return true;
        };
        if let OfferState::Made(_) = transfer.offer {
            transfer.offer = OfferState::Declined;
        }
        !matches!(transfer.offer, OfferState::Due | OfferState::Taken)
    }

    /// The receiver has read a message; false if it can not have. Sending side.
    ///
    /// Messages are read in order.
    pub(crate) fn taken(&mut self, sequence: u64) -> bool {
        let mut transfers = self.under_way.iter_mut();
        let next = transfers.find(|transfer| transfer.offer != OfferState::Taken);
        let is_due = |transfer: &&mut Transfer| {
            transfer.sequence == sequence && matches!(transfer.offer, OfferState::Made(_))
        };
        let taken = next.filter(is_due);
        taken
            .map(|transfer| transfer.offer = OfferState::Taken)
            .is_some()
    }

    /// The next step for the offers of `end`. A message that was taken is under way no more.
    /// Sending side.
    pub(crate) fn next_offer_step(&mut self, end: u32) -> Option<OfferStep> {
        let is_due =
            |transfer: &Transfer| !matches!(transfer.offer, OfferState::No | OfferState::Made(_));
        let index = self.under_way.iter().position(is_due)?;
        let transfer = &mut self.under_way[index];
        let (sequence, mut taken) = (transfer.sequence, None);
        match transfer.offer {
            OfferState::Due => return Some(OfferStep::Make { end, sequence }),
            OfferState::Taken => {
                taken = Some(Chunk {
                    sequence,
                    offset: 0,
                    bytes: transfer.length as usize,
                });
                self.under_way.remove(index);
            }
            _ => transfer.offer = OfferState::No,
        }
        Some(OfferStep::Revoke {
            end,
            sequence,
            taken,
        })
    }

    /// The next piece to read, over the first of the lanes that leads to it. Receiving side.
    pub(crate) fn next_read(&mut self, lanes: &[Lane]) -> NextRead {
        for transfer in &mut self.under_way {
            let (Some(Way::Read), OfferState::Made(memory)) = (transfer.granted, transfer.offer)
            else {
                // Messages are complete in their order.
                return NextRead::Nothing;
            };
            let bytes = (transfer.length - transfer.asked).min(WRITE_BYTES as u64);
            if bytes == 0 {
                continue;
            }
            let keys = transfer.rails;
            let key_of = |lane: Lane| match lane {
                Lane::Wire => Some((lane, memory.key())),
                Lane::Rail(rail) => Some((lane, (*keys.get(usize::from(rail))?)?)),
            };
            let Some((lane, key)) = lanes.iter().copied().find_map(key_of) else {
                return NextRead::NoLane;
            };
            let chunk = Chunk {
                sequence: transfer.sequence,
                offset: transfer.asked,
                bytes: bytes as usize,
            };
            transfer.asked += bytes;
            return NextRead::Piece(chunk, memory, lane, key);
        }
        NextRead::Nothing
    }

    /// The oldest piece that was being read is here. Returns whether its message is whole. Receiving
    /// side.
    ///
    /// A message that is whole for nobody stays, and so does not count as received: the piece may be
    /// one of the next message.
    pub(crate) fn read(&mut self, chunk: Chunk) -> bool {
        let Some(transfer) = self.get_mut(chunk.sequence) else {
            return false;
        };
        debug_assert_eq!(transfer.done, chunk.offset);
        transfer.done += chunk.bytes as u64;
        transfer.done == transfer.length
    }

    /// Returns whether pieces are being read. Receiving side.
    pub(crate) fn is_reading(&self) -> bool {
        let is_read = |transfer: &Transfer| transfer.asked > transfer.done;
        self.under_way.iter().any(is_read)
    }
}
