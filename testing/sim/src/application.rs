//! The program on each side of a simulation. It does anything that a program may do with channels,
//! in any order.
#![forbid(unsafe_code)]

use ibex_harness::draw::Draw;
use ibex_protocol::format::{channel_window::ChannelWindow, control::Role};

use super::{
    Checked, Fault,
    ledger::Ledger,
    lender::Lender,
    node::{HASTY, Life, Node, Stage},
    options::SimOptions,
};

/// The program of one side.
#[derive(Debug)]
pub(super) struct Application {
    random: Draw,
    options: SimOptions,
    /// Lends credit at random; `None` if a broker lends.
    pub(super) lender: Option<Lender>,
    /// The step until which the program takes no messages.
    slow_until: u64,
    /// The step until which there is no memory for large messages.
    drought_until: u64,
}

impl Application {
    pub(super) fn new(options: &SimOptions, mut random: Draw, has_broker: bool) -> Self {
        let lender = Lender::new(options, random.fork());
        Self {
            lender: (!has_broker).then_some(lender),
            random,
            options: options.clone(),
            slow_until: 0,
            drought_until: 0,
        }
    }

    /// Takes a step of a busy program.
    pub(super) fn act(&mut self, now: u64, node: &mut Node, ledger: &mut Ledger) -> Checked {
        if node.life == Life::Up {
            self.open_some(node, ledger)?;
            self.send_some(node, ledger);
            self.close_some(node, ledger)?;
            if self.random.chance(self.options.goodbye_per_mille) {
                node.counts.faults.count(Fault::Goodbye, true);
                node.end_session(Some(HASTY), ledger)?;
            }
        }
        if let Some(lender) = self
            .lender
            .as_mut()
            .filter(|_| node.stage != Stage::Suspended)
        {
            lender.act(node);
        }
        self.pause(now, node);
        if now >= self.slow_until {
            self.receive_some(node);
        }
        let may_grant = now >= self.drought_until && !node.wanted.is_empty();
        if may_grant && self.random.chance(GRANT_PER_MILLE) {
            node.grant(self.random.below(node.wanted.len() as u64) as usize);
        }
        Ok(())
    }

    fn pause(&mut self, now: u64, node: &mut Node) {
        if !self.random.chance(self.options.pause_per_mille) {
            return;
        }
        let until = now + self.random.below(self.options.pause_steps);
        let (fault, paused) = match self.random.chance(500) {
            true => (Fault::Slow, &mut self.slow_until),
            false => (Fault::Drought, &mut self.drought_until),
        };
        *paused = until;
        node.counts.faults.count(fault, until > now);
    }

    /// Takes a step of a program that begins nothing new and finishes what it has. Returns whether
    /// there was something to do.
    pub(super) fn finish(&mut self, node: &mut Node) -> bool {
        let lender = self
            .lender
            .as_mut()
            .filter(|_| node.stage != Stage::Suspended);
        let mut any = lender.is_some_and(|lender| lender.finish(node));
        any |= !node.wanted.is_empty();
        while !node.wanted.is_empty() {
            node.grant(0);
        }
        for end in node.receivers.keys().copied().collect::<Vec<_>>() {
            any |= self.take(node, end, u64::MAX);
            any |= self.settle(node, end, u64::MAX);
        }
        any
    }

    fn open_some(&mut self, node: &mut Node, ledger: &Ledger) -> Checked {
        if !self.random.chance(self.options.open_per_mille) {
            return Ok(());
        }
        let role = self.random.pick(&[Role::Sender, Role::Receiver]);
        let name = format!("channel {}", self.random.below(self.options.names));
        // A program of one release knows other versions than one of the next.
        let knows = match self.random.chance(self.options.mismatch_per_mille) {
            true => 0,
            false => 1 + self.random.below(self.options.alignments.len() as u64) as usize,
        };
        let window = ChannelWindow {
            messages: 1 + self.random.below(self.options.window_messages),
            bytes: self.options.window_bytes >> self.random.below(2),
        };
        let opened = node.open(role, &name, knows, window, ledger)?;
        node.note(opened.map_or(0, u64::from));
        Ok(())
    }

    fn send_some(&mut self, node: &mut Node, ledger: &mut Ledger) {
        let usable = node.senders.values().filter(|sender| sender.is_usable());
        let count = usable.count() as u64;
        if count == 0 {
            return;
        }
        let at = self.random.below(count) as usize;
        let mut usable = node
            .senders
            .values_mut()
            .filter(|sender| sender.is_usable());
        let Some(sender) = usable.nth(at) else { return };
        if self.options.data_in_band && self.random.chance(self.options.send_per_mille) {
            for _ in 0..1 + self.random.below(4) {
                let length = self.length();
                sender.send(
                    length,
                    self.options.max_record_bytes,
                    &mut node.session,
                    ledger,
                );
            }
        }
        if self.random.chance(self.options.wait_per_mille) {
            match self.random.below(2) {
                0 => sender.flush(&mut node.session),
                _ => sender.wait_acked(&mut node.session),
            }
        }
    }

    /// Draws a length: mostly short, sometimes empty, now and then the longest.
    fn length(&mut self) -> u64 {
        let longest = match self.random.below(1000) {
            at if at < self.options.long_per_mille => self.options.max_message_bytes,
            at if at < 600 => 40,
            at if at < 990 => 300,
            _ => self.options.window_bytes / 2,
        };
        self.random
            .below(longest.min(self.options.max_message_bytes) + 1)
    }

    fn close_some(&mut self, node: &mut Node, ledger: &Ledger) -> Checked {
        if !self.random.chance(self.options.close_per_mille) {
            return Ok(());
        }
        let ends: Vec<u32> = node
            .senders
            .keys()
            .chain(node.receivers.keys())
            .copied()
            .collect();
        if !ends.is_empty() {
            let end = self.random.pick(&ends);
            node.close_sender(end, ledger)?;
            node.close_receiver(end, ledger)?;
        }
        Ok(())
    }

    fn receive_some(&mut self, node: &mut Node) {
        if node.receivers.is_empty() {
            return;
        }
        let at = self.random.below(node.receivers.len() as u64) as usize;
        let Some(&end) = node.receivers.keys().nth(at) else {
            return;
        };
        if self.random.chance(self.options.receive_per_mille) {
            let most = 1 + self.random.below(8);
            self.take(node, end, most);
        }
        if self.random.chance(self.options.settle_per_mille) {
            let most = 1 + self.random.below(8);
            self.settle(node, end, most);
        }
    }

    fn take(&mut self, node: &mut Node, end: u32, most: u64) -> bool {
        let mut any = false;
        for _ in 0..most {
            let receiver = node
                .receivers
                .get_mut(&end)
                .filter(|receiver| !receiver.is_closed);
            let Some(sequence) = receiver.and_then(super::receiver::Receiver::take) else {
                break;
            };
            any = true;
            node.counts.handed_out += 1;
            node.note(u64::from(end) << 32 | sequence);
        }
        any
    }

    fn settle(&mut self, node: &mut Node, end: u32, most: u64) -> bool {
        let Some(receiver) = node.receivers.get_mut(&end) else {
            return false;
        };
        let mut any = false;
        for _ in 0..most {
            if !receiver.settle(&mut self.random, self.options.acknowledge_per_mille) {
                break;
            }
            any = true;
        }
        // If the sender waits, guards ring when they are dropped; otherwise the handle reports at
        // any time.
        if node.is_asked(end) || self.random.chance(500) {
            node.released(end);
        }
        any
    }
}

/// The chance per step that memory for a large message becomes available.
const GRANT_PER_MILLE: u64 = 100;
