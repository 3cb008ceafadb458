//! Slices of the program's regions that a peer reads where they lie, over shared memory.
//!
//! The peer releases a message when its program drops it, and then the engine drops the message's slice,
//! which makes the region free. The engine looks when the peer rings, which it asks for as long as a slice
//! is out. If the channel or the session ends before, the peer's program may still hold the message: then
//! the slice is dropped, and the region moves away from the pages that the peer maps before the program
//! writes there.

use std::collections::VecDeque;

use ibex_protocol::session::Session;

use super::{Context, core::Core, senders::SenderState};
use crate::{
    endpoint::send_end::{AskedEvent, SendEnd},
    shared_memory::{PassedSlice, RegionSlot},
};

/// The slices of a sending end that the peer reads.
#[derive(Default)]
pub(super) struct PassedSlices {
    /// By the sequences of their messages.
    slices: VecDeque<(u64, PassedSlice)>,
    /// The question for the peer's changes, as long as there is a slice.
    wish: Option<AskedEvent>,
}

impl PassedSlices {
    /// Takes out the slices of messages that the peer has released, which are to be dropped behind the
    /// turn.
    fn take_released(&mut self, end: &SendEnd) -> Vec<PassedSlice> {
        self.take_up_to(end.counts().released)
    }

    fn take_up_to(&mut self, released: u64) -> Vec<PassedSlice> {
        let count = self
            .slices
            .partition_point(|(sequence, _)| *sequence <= released);
        let free = self.slices.drain(..count).map(|(_, mut passed)| {
            passed.note_released();
            passed
        });
        free.collect()
    }
}

impl SenderState {
    /// Drops the slices of messages that the peer has released, behind the turn, and asks for the release
    /// of the others. Called when the peer's counters have moved.
    pub(super) fn retire_passed(&mut self, session: &mut Session, context: &mut Context<'_>) {
        let Some(passed) = &mut self.passed else {
            return;
        };
        let released = passed.take_released(&self.end);
        if !released.is_empty() {
            context.leave(released);
        }
        if passed.slices.is_empty() {
            self.end.path.take_back_question(&mut passed.wish);
            self.passed = None;
        } else {
            let path = &self.end.path;
            path.ask_for_all(&self.end, &mut passed.wish, session);
        }
    }

    /// Leaves all slices to be dropped behind the turn, since the peer releases no more messages.
    pub(super) fn leave_passed(&mut self, context: &mut Context<'_>) {
        let Some(mut passed) = self.passed.take() else {
            return;
        };
        self.end.path.take_back_question(&mut passed.wish);
        // A peer that knows that this end is gone may use its words for another.
        let released = (!self.is_closed).then(|| passed.take_released(&self.end));
        context.leave((released, passed.slices));
    }
}

impl Core {
    /// Keeps the slice in which message `sequence` of a sending end lies until the peer has released
    /// the message, and passes its region, if the peer does not have it. The slice stays where it is if
    /// the end is gone.
    pub(crate) fn pass_slice(
        &mut self,
        end: u32,
        sequence: u64,
        length: u64,
        slot: RegionSlot,
        slice: &mut Option<PassedSlice>,
        context: &mut Context<'_>,
    ) {
        let sender = self.ends.senders.ends.get_mut(end);
        let Some((shared_memory, sender)) = self.shared_memory.as_mut().zip(sender) else {
            return;
        };
        let Some(slice) = slice.take() else {
            return;
        };
        if slot.is_new {
            shared_memory.pass_region(end, sequence, slot.index, length, slice.file().clone());
        }
        let session = &mut self.common.session;
        let passed = sender.passed.get_or_insert_default();
        passed.slices.push_back((sequence, slice));
        let is_asked = passed.wish.is_some();
        if !is_asked {
            let path = &sender.end.path;
            path.ask_for_all(&sender.end, &mut passed.wish, session);
        }
        let released = passed.take_released(&sender.end);
        if !released.is_empty() {
            context.leave(released);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ibex_ring::memory::{Access, Mapping, MemoryUse, Region};

    use super::*;
    use crate::shared_memory::MessageSegment;

    /// A region, the slices of its messages 1, 4 and 5, and what a peer maps.
    fn passed() -> (Region, PassedSlices, Mapping) {
        let mut region = Region::zeroed(128 << 10).unwrap();
        region.get_mut().unwrap().fill(7);
        let mut passed = PassedSlices::default();
        let mut mapped = None;
        for sequence in [1, 4, 5] {
            let slice = region.slice(sequence..1000);
            let (file, start) = MessageSegment::of_region(&slice).unwrap().unwrap();
            assert_eq!(start, sequence);
            let (what, access) = (MemoryUse::LargeMessage, Access::ReadOnly);
            let fd = file.for_peer().expect("a description");
            let peer = Mapping::of_file(what, fd.as_fd(), 128 << 10, access);
            mapped = Some(peer.unwrap());
            let slice = PassedSlice::new(slice, file);
            passed.slices.push_back((sequence as u64, slice));
        }
        (region, passed, mapped.unwrap())
    }

    /// Changes a region that is free, and returns what its peer reads then.
    fn overwrite(region: &mut Region, peer: &Mapping) -> u8 {
        region.get_mut().expect("it is free").fill(9);
        // SAFETY: inside the mapping; nobody writes there now.
        unsafe { peer.base().as_ptr().read_volatile() }
    }

    #[test]
    fn a_slice_stays_until_its_message_is_released() {
        let (mut region, mut passed, peer) = passed();
        for (released, count) in [(0, 0), (3, 1), (3, 0), (4, 1)] {
            assert_eq!(passed.take_up_to(released).len(), count, "{released}");
            assert!(!region.is_free());
        }
        drop(passed.take_up_to(5));
        assert_eq!(
            overwrite(&mut region, &peer),
            9,
            "the file serves the next message"
        );
    }

    #[test]
    fn a_region_whose_messages_may_be_held_moves_away() {
        let (mut region, mut passed, peer) = passed();
        drop(passed.take_up_to(4));
        drop(passed);
        assert_eq!(overwrite(&mut region, &peer), 7);
        assert!(region.iter().all(|&byte| byte == 9));
    }
}
