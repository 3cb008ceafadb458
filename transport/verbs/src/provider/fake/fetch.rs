//! Reads and atomics, which bring bytes of the peer.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    PostedSend,
    delivery::{Attempt, LOCAL_PROTECTION, REMOTE_ACCESS, REMOTE_INVALID_REQUEST},
    world::State,
};
use crate::abi::{access_flags, wc_opcode, wr_opcode};

impl State {
    /// Does a read or an atomic; `None` for other requests.
    pub(super) fn attempt_fetch(&mut self, peer_id: u64, send: &PostedSend) -> Option<Attempt> {
        let (opcode, access) = match send.opcode {
            wr_opcode::RDMA_READ => (wc_opcode::RDMA_READ, access_flags::REMOTE_READ),
            wr_opcode::COMPARE_AND_SWAP => {
                (wc_opcode::COMPARE_AND_SWAP, access_flags::REMOTE_ATOMIC)
            }
            wr_opcode::FETCH_AND_ADD => (wc_opcode::FETCH_AND_ADD, access_flags::REMOTE_ATOMIC),
            _ => return None,
        };
        if self.pairs[&peer_id].responder_resources == 0 {
            self.die(peer_id);
            return Some(Attempt::Failed(REMOTE_INVALID_REQUEST));
        }
        let bytes: u32 = send.entries.iter().map(|entry| entry.length).sum();
        let granted = match bytes {
            0 => Some(0),
            _ => self.grants(peer_id, send.remote, bytes, access),
        };
        let Some(place) = granted else {
            self.die(peer_id);
            return Some(Attempt::Failed(REMOTE_ACCESS));
        };
        let fetched = match send.opcode {
            wr_opcode::RDMA_READ => read(place, bytes),
            _ => replace(send, place).to_ne_bytes().to_vec(),
        };
        let mut rest = &fetched[..];
        for entry in &send.entries {
            let (piece, behind) = rest.split_at(entry.length as usize);
            if !self.store(entry.lkey, entry.addr, piece, access_flags::LOCAL_WRITE) {
                return Some(Attempt::Failed(LOCAL_PROTECTION));
            }
            rest = behind;
        }
        Some(Attempt::Done { opcode, bytes })
    }
}

/// Reads memory that a key was found for.
fn read(place: u64, bytes: u32) -> Vec<u8> {
    match bytes {
        0 => Vec::new(),
        // SAFETY: a registered region covers the range, so it is mapped, and the code that
        // registered it for this holds no reference into it (rule 2 of `memory::region`).
        _ => unsafe { slice::from_raw_parts(place as usize as *const u8, bytes as usize).to_vec() },
    }
}

/// Does an atomic. Returns the value before it.
fn replace(send: &PostedSend, place: u64) -> u64 {
    let place = place as usize as *mut u64;
    // SAFETY: as in `read`; the address was found to be a multiple of 8 when the request was posted.
    let cell = unsafe { AtomicU64::from_ptr(place) };
    let [first, second] = send.operands;
    match send.opcode {
        wr_opcode::FETCH_AND_ADD => cell.fetch_add(first, Ordering::AcqRel),
        _ => cell
            .compare_exchange(first, second, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found),
    }
}
