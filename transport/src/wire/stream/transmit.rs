//! The sending half of a stream: frames are written in batches.

use std::{io, net::TcpStream, ptr::NonNull};

use ibex_protocol::{
    format::{frame_check::Coverage, record::MIN_ALIGNMENT},
    session::Body,
};
use rustix::io::Errno;

use super::{
    StreamWire, WHOLE_BATCH,
    io_fault::{cause_of, is_unreadable},
};
use crate::{
    session::EndCause,
    wire::{Frames, MessageMemory, arrival::note_credit},
};

impl StreamWire {
    /// Builds frames and writes them until nothing is due or the socket is full.
    pub(super) fn write_batches<F: Frames>(
        &mut self,
        socket: &TcpStream,
        frames: &mut F,
    ) -> Result<bool, EndCause> {
        let mut progress = false;
        loop {
            if !self.is_written() {
                progress |= self.write(socket, frames)?;
                if !self.is_written() {
                    return Ok(progress);
                }
                frames.gone(WHOLE_BATCH);
            }
            if frames.is_held() || !self.build_batch(frames)? {
                return Ok(progress);
            }
        }
    }

    /// Writes as much of the batch as the socket accepts.
    fn write<F: Frames>(&mut self, socket: &TcpStream, frames: &mut F) -> Result<bool, EndCause> {
        let written = self.outbound.write(&mut self.layer, socket);
        let (bytes, calls) = written.map_err(|error| {
            let place = self.outbound.next_memory();
            why_not_written(&error, place.filter(|_| is_unreadable(&error)), frames)
        })?;
        let counters = frames.counters();
        self.path.count_sent(bytes, counters);
        counters.writes.add(calls);
        if self.layer.is_sealed() {
            counters.bytes_sealed.add(bytes as u64);
        }
        Ok(bytes > 0)
    }

    /// Builds the next batch; returns false if no frame is due.
    fn build_batch<F: Frames>(&mut self, frames: &mut F) -> Result<bool, EndCause> {
        let outbound = &mut self.outbound;
        let (mut count, mut inline) = (0, 0);
        while !outbound.is_full() {
            let arrival_offset = outbound.arrival_offset();
            outbound.begin();
            let Some(body) = frames.next(arrival_offset, &mut outbound.heads) else {
                outbound.take_back();
                break;
            };
            let mut place = frames.locate(body);
            let coverage = match body {
                Body::Records { end, .. } if !self.payloads => {
                    let alignment = frames
                        .session()
                        .ends
                        .alignment(end)
                        .unwrap_or(MIN_ALIGNMENT);
                    Coverage::RecordHeaders { alignment }
                }
                Body::Chunk { .. } if !self.payloads => Coverage::Nothing,
                _ => Coverage::Whole,
            };
            // The kernel reads a mapped file for this process, which would get SIGBUS where bytes are
            // gone. A plain socket takes them from there.
            if let Body::Chunk { end, chunk } = body
                && (coverage == Coverage::Whole || self.layer.is_sealed())
                && let message = frames.message(end, chunk.sequence)
                && message.is_some_and(MessageMemory::is_of_file)
            {
                // SAFETY: the message keeps its region.
                let staged = place
                    .map(|body| unsafe { outbound.stage(body) })
                    .transpose();
                place = staged.map_err(|place| {
                    outbound.take_back();
                    why_not_written(&Errno::FAULT.into(), Some(place), frames)
                })?;
            }
            // SAFETY: ring bytes stay until the peer has released them, which it cannot before they are
            // sent; copies last as long as the batch; large messages, and rings of ends that are gone,
            // are retained until the batch is written.
            inline += u64::from(unsafe { outbound.push(place, coverage) });
            count += 1;
            if let Body::Chunk { end, chunk } = body {
                frames.went(end, chunk, WHOLE_BATCH);
            }
        }
        let counters = frames.counters();
        counters.frames_sent.add(count);
        counters.inline_sends.add(inline);
        note_credit(&mut self.waits_for_credit, count > 0, frames);
        Ok(count > 0)
    }
}

/// Returns the cause with which the wire ends after an error of a write, of which memory that cannot
/// be read at `place` is the reason.
#[cold]
fn why_not_written<F: Frames>(
    error: &io::Error,
    place: Option<NonNull<u8>>,
    frames: &mut F,
) -> EndCause {
    let cause = place.and_then(|place| frames.is_unreadable(place));
    cause.unwrap_or_else(|| cause_of("writing to", error))
}
