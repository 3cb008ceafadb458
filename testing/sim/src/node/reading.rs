//! Large messages that a node offers, and those of the peer that it reads.
//!
//! A read is a request on the wire, and its answer the bytes, taken when the answer is built: as a
//! device would, it finds a message that is offered, or the run fails.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use ibex_protocol::{
    session::Arrival,
    transfer::rendezvous::{Lane, LargeRead, OfferStep, RemoteMemory},
};

use super::{
    Node,
    wires::{ANSWER, READ},
};
use crate::{Checked, ensure, ledger::Ledger};

/// Offers and reads over the present wires.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The messages that the peer may read, by address. No address is used twice, so that a read of
    /// a message that is offered no more is detected.
    offers: BTreeMap<u64, (u32, u64)>,
    offered: u64,
    /// What the peer asks for: address, offset and length.
    asked: VecDeque<(u64, u64, usize)>,
    /// Reads whose answer is not complete.
    under_way: VecDeque<LargeRead>,
}

impl Reading {
    /// Notes a read of the peer's.
    pub(super) fn asked(&mut self, address: u64, offset: u64, bytes: usize) {
        self.asked.push_back((address, offset, bytes));
    }
}

impl Node {
    /// Makes and revokes offers, and sends reads and answers. Returns whether anything goes out.
    pub(super) fn do_offers_and_reads(&mut self) -> Checked<bool> {
        while let Some(step) = self.session.ends.poll_offer() {
            self.take_step(step)?;
        }
        if let Some((address, offset, bytes)) = self.reading.asked.pop_front() {
            let offer = self.reading.offers.get(&address);
            let (end, sequence) = *offer.ok_or("a read finds no key")?;
            ensure!(
                self.session.ends.is_readable(end, sequence),
                "message {sequence} of end {end} is read, which is offered no more"
            );
            let sender = self.senders.get(&end).ok_or("a read of no sender")?;
            let part = sender.read(sequence, offset, bytes)?;
            self.put([ANSWER, address, sequence, offset], part);
            return Ok(true);
        }
        if let Some(read) = self.session.poll_read(&[Lane::Rail(0), Lane::Wire]) {
            let (address, chunk) = (read.memory.address(), read.chunk);
            let is_right = match read.lane {
                Lane::Wire => read.key == 0,
                Lane::Rail(rail) => (rail, read.key) == (0, address as u32),
            };
            ensure!(is_right, "{read:?} has the key of another lane");
            self.put([READ, address, chunk.bytes as u64, chunk.offset], &[]);
            self.reading.under_way.push_back(read);
            return Ok(true);
        }
        Ok(false)
    }

    fn take_step(&mut self, step: OfferStep) -> Checked {
        match step {
            OfferStep::Make { end, sequence } => {
                let sender = self.senders.get(&end).ok_or("an offer of no sender")?;
                let length = sender.length_of(sequence).ok_or("an offer of nothing")?;
                let address = self.reading.offered + 1;
                // There is not always a window.
                let memory = RemoteMemory::new(address, 0, length).filter(|_| sequence % 5 != 2);
                if memory.is_some() {
                    self.reading.offered = address;
                    self.reading.offers.insert(address, (end, sequence));
                }
                self.session.offer(end, sequence, memory);
                // Some offers hold for a rail too; its reads go with the others.
                if memory.is_some() && sequence % 3 == 0 {
                    let key = address as u32;
                    self.session.offer_rail(end, sequence, 0, key);
                }
            }
            OfferStep::Revoke { end, sequence, .. } => {
                let offers = &mut self.reading.offers;
                offers.retain(|_, offer| *offer != (end, sequence));
            }
        }
        Ok(())
    }

    /// Takes bytes of the oldest read's answer, the last ones if it `is_whole`.
    pub(super) fn take_read(
        &mut self,
        offset: u64,
        bytes: &[u8],
        is_whole: bool,
        ledger: &Ledger,
    ) -> Checked {
        let oldest = self.reading.under_way.front();
        let LargeRead { end, chunk, .. } = *oldest.ok_or("an answer to no read")?;
        let receiver = self.receivers.get_mut(&end);
        if let Some(receiver) = receiver.filter(|receiver| !receiver.is_closed) {
            receiver.place(chunk.sequence, offset, bytes, ledger)?;
        }
        if !is_whole {
            return Ok(());
        }
        self.reading.under_way.pop_front();
        if let Arrival::Chunk {
            end,
            complete: true,
            ..
        } = self.session.handle_read(end, chunk)
        {
            self.session.handle_large_complete(end);
            self.counts.large += 1;
            self.counts.read += 1;
        }
        Ok(())
    }

    /// Forgets offers and reads of wires that broke. Messages that were being read want memory again.
    pub(super) fn stop_reading(&mut self) {
        let offered = self.reading.offered;
        self.reading = Reading {
            offered,
            ..Reading::default()
        };
        if self.wires.reads == 0 {
            return;
        }
        self.session.ends.withdraw_memory();
        for (&end, receiver) in &mut self.receivers {
            if !receiver.is_closed {
                let again = receiver.withdraw().into_iter();
                self.wanted.extend(again.map(|sequence| (end, sequence)));
            }
        }
    }
}
