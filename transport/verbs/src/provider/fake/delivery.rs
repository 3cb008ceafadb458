//! How requests are carried out, and how bytes move between queue pairs.

use std::collections::VecDeque;
use std::slice;

use super::{
    PostedReceive, PostedSend,
    foreign::Foreign,
    script::{SendFault, WaitingSend},
    world::{FakePair, Stamped, State, ring},
};
use crate::{
    abi::{
        Sge, Wc, access_flags, queue_pair_state::QueuePairState, send_flags, wc_flags, wc_opcode,
        wr_opcode,
    },
    provider::RawEvent,
};

/// The result of an attempt to do what a request asks for.
pub(super) enum Attempt {
    /// The peer is not ready.
    Waits,
    /// The request fails with this status.
    Failed(u32),
    /// The request is done: what its completion has.
    Done { opcode: u32, bytes: u32 },
}

const SUCCESS: u32 = 0;
const LOCAL_OPERATION: u32 = 2;
pub(super) const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
pub(super) const WINDOW_BIND: u32 = 6;
pub(super) const REMOTE_INVALID_REQUEST: u32 = 9;
pub(super) const REMOTE_ACCESS: u32 = 10;
const REMOTE_OPERATION: u32 = 11;
pub(super) const RETRY_EXCEEDED: u32 = 12;

impl State {
    /// Sends all requests that can go out.
    pub(super) fn progress(&mut self) {
        if self.hold {
            return;
        }
        let sending = self.pairs.iter().filter(|(_, pair)| !pair.sends.is_empty());
        let mut pairs: Vec<_> = sending.map(|(&id, _)| id).collect();
        pairs.sort_unstable();
        for pair in pairs {
            while self.deliver_next(pair as u32) {}
        }
    }

    /// Sends the oldest send of a queue pair; false if there is none or it has to wait.
    pub(super) fn deliver_next(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.get(&number.into()) else {
            return false;
        };
        if pair.state != QueuePairState::ReadyToSend {
            return false;
        }
        let peer_id = pair.destination;
        let Some(oldest) = pair.sends.front().cloned() else {
            return false;
        };
        if self.is_delayed(&oldest) {
            return false;
        }
        let WaitingSend { send, fault, .. } = oldest;
        let attempt = match fault {
            Some(SendFault::Fail {
                status,
                vendor_error,
            }) => {
                self.fail_next(number, status, vendor_error);
                return false;
            }
            Some(SendFault::Drop) => {
                let here = self.attempt_here(number.into(), &send);
                here.unwrap_or_else(|| self.lose(number, &send))
            }
            _ => self.attempt(number, peer_id, &send),
        };
        match attempt {
            Attempt::Waits => false,
            Attempt::Failed(status) => {
                // A queue pair that is its own peer has died of it, and flushed the request.
                if self.pairs[&number.into()].state != QueuePairState::Error {
                    self.fail_next(number, status, 0);
                }
                false
            }
            Attempt::Done { opcode, bytes } => {
                self.succeed(number, &send, opcode, bytes);
                true
            }
        }
    }

    /// Does what a request asks for.
    fn attempt(&mut self, number: u32, peer_id: u64, send: &PostedSend) -> Attempt {
        if let Some(local) = self.attempt_here(number.into(), send) {
            return local;
        }
        if let Some(unreliable) = self.attempt_unreliable(number, send) {
            return unreliable;
        }
        let receives = |peer: &FakePair| {
            matches!(
                peer.state,
                QueuePairState::ReadyToReceive
                    | QueuePairState::ReadyToSend
                    | QueuePairState::SendQueueDrained
            ) && peer.destination == u64::from(number)
        };
        if !self.pairs.get(&peer_id).is_some_and(receives) {
            return Attempt::Waits;
        }
        if !self.aim(peer_id, send) {
            self.die(peer_id);
            return Attempt::Failed(REMOTE_INVALID_REQUEST);
        }
        if let Some(fetched) = self.attempt_fetch(peer_id, send) {
            return fetched;
        }
        let Some(bytes) = self.gather(send) else {
            return Attempt::Failed(LOCAL_PROTECTION);
        };
        let write = matches!(
            send.opcode,
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        let takes_receive = send.opcode != wr_opcode::RDMA_WRITE;
        if takes_receive && self.receives_of(peer_id).is_empty() {
            self.rnr_naks += 1;
            return Attempt::Waits;
        }
        if write && !self.write_remote(peer_id, send, &bytes) {
            self.die(peer_id);
            return Attempt::Failed(REMOTE_ACCESS);
        }
        if takes_receive && let Err(status) = self.receive(peer_id, send, &bytes, write) {
            return Attempt::Failed(status);
        }
        Attempt::Done {
            opcode: match write {
                true => wc_opcode::RDMA_WRITE,
                false => wc_opcode::SEND,
            },
            bytes: 0,
        }
    }

    /// Takes the oldest send of a queue pair, which is done, and completes it if it is signaled.
    fn succeed(&mut self, number: u32, send: &PostedSend, opcode: u32, bytes: u32) {
        let pair = self.pairs.get_mut(&number.into()).expect("a queue pair");
        pair.sends.pop_front();
        if send.flags & send_flags::SIGNALED == 0 {
            pair.silent += 1;
            return;
        }
        pair.silent = 0;
        let completions = pair.send_completions;
        let done = Wc {
            wr_id: send.wr_id,
            status: SUCCESS,
            opcode,
            byte_len: bytes,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(completions, done, false);
    }

    /// Fails the oldest send of a queue pair, which dies of it.
    pub(super) fn fail_next(&mut self, number: u32, status: u32, vendor_err: u32) {
        self.fail_one(number, status, vendor_err);
        if !self.keeps_receiving(number) {
            self.die(number.into());
        }
    }

    /// Fails the oldest sends, each with a status of its own.
    pub(super) fn fail_oldest(&mut self, number: u32, statuses: &[u32], vendor_err: u32) {
        for &status in statuses {
            self.fail_one(number, status, vendor_err);
        }
        self.die(number.into());
    }

    fn fail_one(&mut self, number: u32, status: u32, vendor_err: u32) {
        let pair = self.pairs.get_mut(&number.into()).expect("a queue pair");
        let send = pair.sends.pop_front().expect("a send to fail").send;
        let completions = pair.send_completions;
        let failed = Wc {
            wr_id: send.wr_id,
            status,
            vendor_err,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(completions, failed, false);
    }

    /// Fails the oldest receive that a queue pair may take.
    pub(super) fn fail_receive(&mut self, number: u32, status: u32, vendor_err: u32) {
        let id = number.into();
        let receive = self.receives_of(id).pop_front().expect("a receive to fail");
        let failed = Wc {
            wr_id: receive.wr_id,
            status,
            vendor_err,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(self.pairs[&id].receive_completions, failed, false);
        self.die(id);
    }

    /// Moves a queue pair to ERR and flushes what it has.
    pub(super) fn die(&mut self, id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        let was_alive = pair.state != QueuePairState::Error;
        pair.state = QueuePairState::Error;
        let (context, shared) = (pair.context, pair.shared);
        self.flush(id);
        if was_alive && shared.is_some() && !self.loses_last_events && !self.is_silent {
            let last = RawEvent {
                event_type: 16,
                element: id,
            };
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(last);
            }
        }
    }

    /// Completes everything that a dead queue pair has, unsuccessfully.
    pub(super) fn flush(&mut self, id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        let sends: Vec<_> = pair.sends.drain(..).map(|one| one.send.wr_id).collect();
        let receives: Vec<_> = pair.receives.drain(..).map(|one| one.wr_id).collect();
        let (to_sends, to_receives) = (pair.send_completions, pair.receive_completions);
        pair.silent = 0;
        if self.is_silent {
            return;
        }
        let flushed = |wr_id| Wc {
            wr_id,
            status: FLUSHED,
            qp_num: id as u32,
            ..Wc::default()
        };
        for wr_id in receives {
            self.complete(to_receives, flushed(wr_id), false);
        }
        for wr_id in sends {
            self.complete(to_sends, flushed(wr_id), false);
        }
    }

    /// Puts a completion into a queue and wakes the threads that asked for that.
    pub(super) fn complete(&mut self, queue_id: u64, completion: Wc, solicited: bool) {
        let ticks = self.ticks;
        let Some(queue) = self.completions.get_mut(&queue_id) else {
            return;
        };
        if queue.ready.len() == queue.capacity {
            let overrun = RawEvent {
                event_type: 0,
                element: queue.tag,
            };
            let context = queue.context;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(overrun);
            }
            return;
        }
        queue.ready.push_back(Stamped { completion, ticks });
        let wakes =
            |solicited_only: bool| !solicited_only || solicited || completion.status != SUCCESS;
        if queue.armed.is_some_and(wakes) {
            queue.armed = None;
            let channel = queue.channel;
            if let Some(channel) = channel.and_then(|id| self.channels.get_mut(&id)) {
                channel.events.push_back(queue_id);
                ring(&channel.fd);
            }
        }
    }

    pub(super) fn receives_of(&mut self, pair_id: u64) -> &mut VecDeque<PostedReceive> {
        let pair = self.pairs.get_mut(&pair_id).expect("a queue pair");
        match pair.shared {
            Some(shared) => {
                let queue = self.shared.get_mut(&shared);
                &mut queue.expect("queues in use are not destroyed").posted
            }
            None => &mut pair.receives,
        }
    }

    /// Returns the bytes of a send; `None` if it names memory that is not registered.
    pub(super) fn gather(&self, send: &PostedSend) -> Option<Vec<u8>> {
        if let Some(inline) = &send.inline {
            return Some(inline.clone());
        }
        let mut bytes = Vec::new();
        for entry in &send.entries {
            let place = self.region(entry.lkey, entry.addr, entry.length, 0)?;
            // SAFETY: a registered region covers the range, so it is mapped; the posting
            // side does not write to what it has posted.
            let piece = unsafe {
                slice::from_raw_parts(place as usize as *const u8, entry.length as usize)
            };
            bytes.extend_from_slice(piece);
        }
        Some(bytes)
    }

    /// Puts a message, or the announcement of a write, into the next receive of a queue
    /// pair. The error is the sender's status.
    pub(super) fn receive(
        &mut self,
        peer_id: u64,
        send: &PostedSend,
        bytes: &[u8],
        write: bool,
    ) -> Result<(), u32> {
        let receive = self.receives_of(peer_id).pop_front().expect("a receive");
        self.announce_limit(peer_id);
        let payload = if write { &[][..] } else { bytes };
        let invalidates = send.opcode == wr_opcode::SEND_WITH_INVALIDATE;
        let fault = self.fault_of_receive(peer_id);
        let vendor_err = fault.map_or(0, |(_, vendor_error)| vendor_error);
        let outcome = if let Some((status, _)) = fault {
            Err((status, REMOTE_OPERATION))
        } else if !self.scatter(&receive.entries, payload) {
            Err((LOCAL_OPERATION, REMOTE_OPERATION))
        } else if invalidates && !self.invalidate(peer_id, send.immediate) {
            Err((REMOTE_INVALID_REQUEST, REMOTE_INVALID_REQUEST))
        } else {
            Ok(())
        };
        let with_immediate = matches!(
            send.opcode,
            wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        let completion = Wc {
            wr_id: receive.wr_id,
            status: outcome.map_or_else(|(status, _)| status, |()| SUCCESS),
            opcode: if write {
                wc_opcode::RECV_RDMA_WITH_IMM
            } else {
                wc_opcode::RECV
            },
            vendor_err,
            byte_len: bytes.len() as u32,
            imm_data: send.immediate,
            wc_flags: match (with_immediate, invalidates) {
                (true, _) => wc_flags::WITH_IMM,
                (_, true) => wc_flags::WITH_INV,
                _ => 0,
            },
            qp_num: peer_id as u32,
            ..Wc::default()
        };
        let completions = self.pairs[&peer_id].receive_completions;
        let solicited = send.flags & send_flags::SOLICITED != 0;
        self.complete(completions, completion, solicited);
        outcome.map_err(|(_, status)| {
            self.die(peer_id);
            status
        })
    }

    /// Makes a queue pair take a receive for a message that never completes.
    pub(super) fn swallow_receive(&mut self, pair_id: u64) {
        if self.receives_of(pair_id).pop_front().is_some() {
            self.announce_limit(pair_id);
        }
    }

    pub(super) fn announce_limit(&mut self, pair_id: u64) {
        let shared = self.pairs[&pair_id].shared;
        let Some(queue) = shared.and_then(|id| self.shared.get_mut(&id)) else {
            return;
        };
        if queue.posted.len() < queue.limit {
            queue.limit = 0;
            let event = RawEvent {
                event_type: 15,
                element: queue.tag,
            };
            let context = queue.context;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(event);
            }
        }
    }

    /// Writes bytes over the pieces of a receive; false if they do not fit or may not.
    pub(super) fn scatter(&self, entries: &[Sge], mut bytes: &[u8]) -> bool {
        for entry in entries {
            if bytes.is_empty() {
                break;
            }
            let taken = bytes.len().min(entry.length as usize);
            let (piece, rest) = bytes.split_at(taken);
            if !self.store(entry.lkey, entry.addr, piece, access_flags::LOCAL_WRITE) {
                return false;
            }
            bytes = rest;
        }
        bytes.is_empty()
    }

    pub(super) fn write_remote(&self, peer_id: u64, send: &PostedSend, bytes: &[u8]) -> bool {
        let access = access_flags::REMOTE_WRITE;
        let granted = self.grants(peer_id, send.remote, bytes.len() as u32, access);
        bytes.is_empty()
            || granted.is_some_and(|place| {
                self.put(place, bytes);
                true
            })
    }

    /// Writes to registered memory; false if the memory is not registered, or not for this access.
    pub(super) fn store(&self, key: u32, address: u64, bytes: &[u8], access: u32) -> bool {
        let granted = self.region(key, address, bytes.len() as u32, access);
        granted.is_some_and(|place| {
            self.put(place, bytes);
            true
        })
    }

    /// Writes to memory that a key was found for.
    fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: a registered region covers the range, so it is mapped, and the code that
        // registered it for this holds no reference into it (rule 2 of `memory::region`).
        unsafe {
            (address as usize as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(super) fn lets_in(&self, key: u32, address: u64) -> bool {
        let access = access_flags::REMOTE_WRITE;
        self.region(key, address, 1, access).is_some()
    }

    /// Returns the place of a range that a key covers with these rights. Local and remote keys are the
    /// same.
    pub(super) fn region(&self, key: u32, address: u64, length: u32, access: u32) -> Option<u64> {
        let region = self.regions.get(&key.into())?;
        let offset = address.checked_sub(region.base)?;
        let end = offset.checked_add(length.into())?;
        let is_granted = end <= region.bytes && region.access & access == access;
        let start = region.foreign.as_ref().map_or(region.base, Foreign::start);
        is_granted.then_some(start + offset)
    }
}
