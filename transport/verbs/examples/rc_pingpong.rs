//! A ping-pong over a reliable connection, which rdma-core's `ibv_rc_pingpong` understands.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example rc_pingpong
//! cargo run -p ibex-verbs --features libibverbs --example rc_pingpong -- -g 1           # server
//! cargo run -p ibex-verbs --features libibverbs --example rc_pingpong -- -g 1 SERVER    # client
//! ```
//!
//! The first runs both ends over a device made of memory, the others one end each over this machine's
//! first device. Either may be `ibv_rc_pingpong -g 1 [SERVER]`.

#[path = "common/mod.rs"]
pub(crate) mod common;

use std::process::ExitCode;

use common::Outcome;
use common::options::Options;
use common::pingpong::{self, Pairs, SEND, Table};
use ibex_verbs::{
    CompletionQueue, FirstSequence, LocalPort, Operation, QueuePair, QueuePairBuilder,
    RemoteEndpoint, SendRequest,
};

/// The one queue pair of an end.
pub(crate) struct Reliable(QueuePair);

impl Pairs for Reliable {
    fn new(table: &Table, completions: &CompletionQueue) -> Outcome<Self> {
        let pair = QueuePairBuilder::new(&table.domain, completions)
            .send_requests(1)
            .receives(table.options.receives, 1)
            .build(table.options.ib_port, table.settings()?)?;
        Ok(Self(pair))
    }

    fn endpoints(&self, first: FirstSequence, local: &LocalPort) -> Vec<RemoteEndpoint> {
        vec![self.0.endpoint(first, local)]
    }

    fn connect(
        &mut self,
        _: &Table,
        first: FirstSequence,
        local: LocalPort,
        peers: &[RemoteEndpoint],
    ) -> Outcome {
        self.0.connect(first, local, peers[0])?;
        Ok(())
    }

    fn post_receives(&mut self, table: &Table, count: u32) -> Outcome {
        table.post_receives(self.0.receive_queue().expect("its own"), count)
    }

    fn post_send(&mut self, table: &Table, _: usize) -> Outcome {
        let entries = [table.memory.entry(table.message())];
        let mut batch = self.0.send_batch();
        batch.push(&SendRequest::send(SEND, &entries).signaled())?;
        batch.post()?;
        Ok(())
    }

    fn retire(&mut self, _: usize, operation: Operation) {
        match operation {
            Operation::Receive => self.0.receive_queue().expect("its own").retire(1),
            _ => self.0.retire_sends(1),
        }
    }
}

fn main() -> ExitCode {
    pingpong::main::<Reliable>(Options::new(4096))
}
