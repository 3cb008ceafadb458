//! A wire through memory: a pipe between two nodes of one process carries the frames.
//!
//! This wire is for tests, and the shortest example of a `Wire`. Over the bootstrap connection each
//! end sends the number of its pipe, and then one byte each time that there are frames.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{ErrorKind::WouldBlock, Read, Write},
    mem,
    ops::Range,
    slice,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Arc, Mutex},
};

use ibex_base::sync::lock;
use ibex_protocol::{
    format::frame::BLOCK_ALIGNMENT,
    session::{Body, last_word},
};

use super::{
    Arrived, FrameRefusal, Frames, LastWord, Received, Tools, Wire, WireSocket,
    arrival::{note_credit, take_whole},
    stream::inbound::Inbound,
};
use crate::session::EndCause;

/// Frames in flight in one direction.
type Pipe = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// Pipes that the other end has not found yet, by their numbers.
static UNFOUND: Mutex<BTreeMap<u64, Pipe>> = Mutex::new(BTreeMap::new());
/// Number of pipes that were made.
pub static MADE: AtomicU64 = AtomicU64::new(0);
/// If set, pipes carry the data of sessions over tcp that begin from now on.
pub static CARRIES_TCP: AtomicBool = AtomicBool::new(false);

/// A pipe to the peer and one from it.
#[derive(Default)]
pub(crate) struct PipeWire {
    to_peer: Pipe,
    /// Bytes to write to the connection, and the first bytes that have arrived over it.
    unwritten: Vec<u8>,
    number: Vec<u8>,
    from_peer: Pipe,
    inbound: Inbound,
    waits_for_credit: bool,
}

impl PipeWire {
    /// Begins after the handshake; `leftover` are bytes that were read beyond it.
    pub(super) fn new(leftover: &[u8]) -> Self {
        let (mut wire, number) = (Self::default(), MADE.fetch_add(1, Ordering::Relaxed));
        lock(&UNFOUND).insert(number, wire.to_peer.clone());
        wire.unwritten.extend(number.to_le_bytes());
        wire.find(leftover);
        wire
    }

    /// Finds the peer's pipe by the bytes that have arrived.
    fn find(&mut self, bytes: &[u8]) {
        self.number.extend(bytes);
        self.number.truncate(size_of::<u64>());
        if let Some(number) = self.number.first_chunk()
            && let Some(pipe) = lock(&UNFOUND).remove(&u64::from_le_bytes(*number))
        {
            self.from_peer = pipe;
        }
    }

    fn take<F: Frames>(&mut self, frames: &mut F, tools: &mut Tools) -> Result<(), FrameRefusal> {
        while !frames.is_over()
            && let Some(frame) = { lock(&self.from_peer).pop_front() }
        {
            let (inbound, bytes) = (&mut self.inbound, frame.len());
            inbound.make_room(&mut tools.blocks)?;
            inbound.free(bytes).copy_from_slice(&frame);
            inbound.arrived(bytes.next_multiple_of(BLOCK_ALIGNMENT));
            frames.counters().frames_received.add(1);
            frames.counters().bytes_received.add(bytes as u64);
            let place = |at: Range<_>, last| Arrived::in_block(inbound, at.start, at.len(), last);
            take_whole(&frame, 0, place, frames, tools)?;
            inbound.consume(bytes.next_multiple_of(BLOCK_ALIGNMENT));
        }
        Ok(())
    }
}

impl Wire for PipeWire {
    fn transmit<F: Frames>(
        &mut self,
        socket: &WireSocket,
        frames: &mut F,
        _: &mut Tools,
    ) -> Result<bool, EndCause> {
        let (mut sent, mut frame) = (0, Vec::new());
        while let Some(body) = frames.next(0, &mut frame) {
            if let Some((base, bytes)) = frames.locate(body) {
                // SAFETY: the core says where the body lies, and no thread writes there.
                frame.extend(unsafe { slice::from_raw_parts(base.as_ptr(), bytes) });
            }
            frames.counters().bytes_sent.add(frame.len() as u64);
            lock(&self.to_peer).push_back(mem::take(&mut frame));
            if let Body::Chunk { end, chunk } = body {
                frames.went(end, chunk, 0);
            }
            sent += 1;
        }
        frames.counters().frames_sent.add(sent);
        note_credit(&mut self.waits_for_credit, sent > 0, frames);
        self.unwritten.extend((sent > 0).then_some(0));
        match socket.stream().write(&self.unwritten) {
            Err(error) if error.kind() != WouldBlock => Err(EndCause::lost(error.to_string())),
            notified => Ok(self.unwritten.drain(..notified.unwrap_or(0)).len() + sent as usize > 0),
        }
    }

    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Received {
        let mut bytes = [0; 256];
        let read = socket.stream().read(&mut bytes);
        self.find(&bytes[..*read.as_ref().unwrap_or(&0)]);
        socket.readable = read.is_ok();
        match (self.take(frames, tools), read) {
            (Err(fault), _) => Received::Refused(fault.into()),
            (Ok(()), Ok(0)) => Received::Ended,
            (Ok(()), Ok(_)) => Received::Something,
            (_, Err(error)) if error.kind() == WouldBlock => Received::Drained { any: false },
            (_, Err(error)) => Received::Failed(error),
        }
    }

    fn is_blocked(&self) -> bool {
        self.waits_for_credit
    }

    fn has_backlog(&self) -> bool {
        !self.unwritten.is_empty()
    }

    fn say_last_word(&mut self, socket: &WireSocket, word: LastWord) {
        if let LastWord::Abandoned(reason) = word {
            lock(&self.to_peer).push_back(last_word(reason));
            let _ = socket.stream().write(&[0]);
        }
    }
}
