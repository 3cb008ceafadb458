//! A ping-pong of several queue pairs that take receives from one queue, which rdma-core's
//! `ibv_srq_pingpong` understands.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example srq_pingpong
//! cargo run -p ibex-verbs --features libibverbs --example srq_pingpong -- -g 1           # server
//! cargo run -p ibex-verbs --features libibverbs --example srq_pingpong -- -g 1 SERVER    # client
//! ```
//!
//! The first runs both ends over a device made of memory, the others one end each over this machine's
//! first device. Either may be `ibv_srq_pingpong -g 1 [SERVER]`, with the same `--num-qp` (16).

#[path = "common/mod.rs"]
pub(crate) mod common;

use std::process::ExitCode;

use common::Outcome;
use common::options::{MOST_PAIRS, Options};
use common::pingpong::{self, Pairs, SEND, Table};
use ibex_verbs::{
    CompletionQueue, FirstSequence, LocalPort, Operation, QueuePair, QueuePairBuilder,
    ReceiveQueue, RemoteEndpoint, SendRequest,
};

/// The queue pairs of an end, and their receives.
pub(crate) struct Shared {
    pairs: Vec<QueuePair>,
    receives: ReceiveQueue,
}

impl Pairs for Shared {
    const ADDRESSES: usize = MOST_PAIRS;
    const CHANGES: bool = false;

    fn new(table: &Table, completions: &CompletionQueue) -> Outcome<Self> {
        let receives = ReceiveQueue::shared(&table.domain, table.options.receives, 1)?;
        let builder = QueuePairBuilder::new(&table.domain, completions)
            .send_requests(1)
            .shared_receive_queue(&receives);
        let settings = table.settings()?;
        let build = |_| builder.clone().build(table.options.ib_port, settings);
        let pairs = (0..table.options.queue_pairs).map(build);
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            receives,
        })
    }

    fn endpoints(&self, first: FirstSequence, local: &LocalPort) -> Vec<RemoteEndpoint> {
        let pairs = self.pairs.iter();
        pairs.map(|pair| pair.endpoint(first, local)).collect()
    }

    fn connect(
        &mut self,
        _: &Table,
        first: FirstSequence,
        local: LocalPort,
        peers: &[RemoteEndpoint],
    ) -> Outcome {
        for (pair, peer) in self.pairs.iter_mut().zip(peers) {
            pair.connect(first, local, *peer)?;
        }
        Ok(())
    }

    fn post_receives(&mut self, table: &Table, count: u32) -> Outcome {
        table.post_receives(&mut self.receives, count)
    }

    fn post_send(&mut self, table: &Table, index: usize) -> Outcome {
        let entries = [table.memory.entry(table.message())];
        let mut batch = self.pairs[index].send_batch();
        batch.push(&SendRequest::send(SEND, &entries).signaled())?;
        batch.post()?;
        Ok(())
    }

    fn retire(&mut self, index: usize, operation: Operation) {
        match operation {
            Operation::Receive => self.receives.retire(1),
            _ => self.pairs[index].retire_sends(1),
        }
    }

    fn index_of(&self, number: u32) -> usize {
        let mut pairs = self.pairs.iter();
        let found = pairs.position(|pair| pair.number() == number);
        found.expect("one of these queue pairs")
    }
}

/// The defaults of rdma-core's program.
pub(crate) fn defaults() -> Options {
    Options {
        queue_pairs: 16,
        ..Options::new(4096)
    }
}

fn main() -> ExitCode {
    pingpong::main::<Shared>(defaults())
}
