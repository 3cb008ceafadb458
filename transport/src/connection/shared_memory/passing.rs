//! Messages that this process passes over a session's Unix socket: control segments, the places of
//! ends' words in them, rings, and segments of large messages.

use std::{
    mem,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
};

use ibex_protocol::timer::{Timer, TimerTable};
use ibex_ring::memory::RegionFile;

use super::{Passed, SharedMemory, arriving::PASS_AGAIN};
use crate::{
    clock,
    connection::{Context, core::Core, idle::SenderSilence, senders::Senders},
    endpoint::state::EndReason,
    session::EndCause,
    shared_memory::{Outgoing, message::ShmMessage},
    wire::PASSED_PER_TURN,
};

impl Core {
    /// Passes what waits to be passed.
    pub(in crate::connection) fn flush_passed(&mut self, context: &mut Context<'_>) {
        if let Some(shared_memory) = &mut self.shared_memory
            && let Err(cause) = shared_memory.flush(&mut self.common.timers)
        {
            self.end_broken(cause, context);
        }
    }

    /// Returns whether frames wait for messages that are still to be passed. The peer must have
    /// these before it learns of a later close or goodbye. A peer that has sent its goodbye itself does
    /// not need them.
    pub(in crate::connection) fn has_to_pass(&self) -> bool {
        let shared_memory = self.shared_memory.as_ref();
        self.common.may_go_on() && shared_memory.is_some_and(|one| !one.outbox.is_empty())
    }

    /// Takes in messages from the Unix socket, and tries again to pass messages that could not be
    /// passed.
    pub(crate) fn check_unix(&mut self, context: &mut Context<'_>) {
        self.receive_passed(PASSED_PER_TURN, context);
        self.flush_passed(context);
        if let Some(shared_memory) = &mut self.shared_memory
            && !shared_memory.is_behind()
            && let Some(cause) = shared_memory.goodbye.take()
        {
            self.peer_sent_goodbye(cause, context);
        }
    }

    /// Takes in at most `most` messages of the Unix socket, as far as this process may open the
    /// descriptors that come with them. Then it handles the closes of channels that waited for
    /// them.
    pub(in crate::connection) fn receive_passed(&mut self, most: usize, context: &mut Context<'_>) {
        let Some(shared_memory) = &mut self.shared_memory else {
            return;
        };
        let received = shared_memory.receive(most, &mut self.common, &mut self.ends, context);
        if let Err(cause) = received {
            self.finish_broken(cause, context);
        }
        if let Some(shared_memory) = &mut self.shared_memory
            && !shared_memory.closed_behind.is_empty()
            && !shared_memory.is_behind()
        {
            for (end, reason) in mem::take(&mut shared_memory.closed_behind) {
                let why = EndReason::Cause(EndCause::PeerClosed(reason));
                self.ends.end(end, why, &mut context.wakers);
            }
        }
    }
}

impl SharedMemory {
    /// Passes what waits to be passed.
    ///
    /// # Errors
    /// The kernel refuses a message for good.
    pub(in crate::connection) fn flush(&mut self, timers: &mut TimerTable) -> Result<(), EndCause> {
        while let Some((message, fd)) = self.outbox.front() {
            let fd = fd.as_ref().map(AsFd::as_fd);
            match self.socket.send(message.encode().as_ref(), fd) {
                Ok(Outgoing::Sent) => {
                    self.outbox.pop_front();
                }
                Ok(Outgoing::End) => {
                    // The peer takes no more messages, so frames need not wait for the rest.
                    self.outbox.clear();
                    return Ok(());
                }
                Ok(Outgoing::WouldBlock | Outgoing::NotNow) => {
                    timers.set_sooner(Timer::Pass, clock::now() + PASS_AGAIN);
                    return Ok(());
                }
                Err(error) => {
                    let why = format!("passing a descriptor failed: {error}");
                    return Err(EndCause::Refused { why });
                }
            }
        }
        Ok(())
    }

    /// Passes the ring that the handle of a sending end has made.
    pub(crate) fn pass_ring(
        &mut self,
        end: u32,
        capacity: u64,
        fd: OwnedFd,
        senders: &mut Senders,
    ) {
        if let Some(sender) = senders.ends.get_mut(end) {
            sender.silence = Some(SenderSilence::new());
        }
        self.outbox
            .push_back((ShmMessage::Ring { end, capacity }, Some(Passed::Own(fd))));
    }

    /// Tells the peer that a sending end has given up its ring.
    pub(in crate::connection) fn pass_rest(&mut self, end: u32) {
        self.regions.retain(|(of, ..)| *of != end);
        self.outbox.push_back((ShmMessage::Rest { end }, None));
    }

    /// Tells the peer which slots of a sending end no longer have segments, as a bit set.
    pub(crate) fn pass_forget(&mut self, end: u32, slots: u64) {
        self.outbox
            .push_back((ShmMessage::Forget { end, slots }, None));
    }

    /// Passes the new segment of a message that is longer than its ring.
    pub(crate) fn pass_large(
        &mut self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: u64,
        capacity: u64,
        fd: OwnedFd,
    ) {
        self.regions
            .retain(|(of, in_slot, _)| (*of, *in_slot) != (end, slot));
        let message = ShmMessage::Large {
            end,
            sequence,
            slot,
            length,
            capacity,
        };
        self.outbox.push_back((message, Some(Passed::Own(fd))));
    }

    /// Passes a region of the program, for a message in it and for later ones.
    pub(in crate::connection) fn pass_region(
        &mut self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: u64,
        file: Arc<RegionFile>,
    ) {
        self.regions
            .retain(|(of, in_slot, _)| (*of, *in_slot) != (end, slot));
        self.regions.push((end, slot, Arc::downgrade(&file)));
        let message = ShmMessage::Large {
            end,
            sequence,
            slot,
            length,
            capacity: file.bytes() as u64,
        };
        let own = file.for_peer().map(Passed::Own);
        let passed = own.unwrap_or(Passed::Region(file));
        self.outbox.push_back((message, Some(passed)));
    }

    /// Tells the peer of regions that the program has dropped, or that do not lie any more in the pages
    /// that the peer maps. No message lies there, since each has a slice. Returns whether the peer maps
    /// others, which have to be looked at again.
    pub(in crate::connection) fn forget_regions(&mut self) -> bool {
        let is_gone = |(.., file): &mut (u32, u32, Weak<RegionFile>)| file.strong_count() == 0;
        let gone: Vec<_> = self.regions.extract_if(.., is_gone).collect();
        for (end, slot, _) in gone {
            self.pass_forget(end, 1 << slot);
        }
        !self.regions.is_empty()
    }
}
