//! A ping-pong of datagrams, which rdma-core's `ibv_ud_pingpong` understands.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example ud_pingpong
//! cargo run -p ibex-verbs --features libibverbs --example ud_pingpong -- -g 1           # server
//! cargo run -p ibex-verbs --features libibverbs --example ud_pingpong -- -g 1 SERVER    # client
//! ```
//!
//! The first runs both ends over a device made of memory, the others one end each over this machine's
//! first device. Either may be `ibv_ud_pingpong -g 1 [SERVER]`. A datagram that is lost stops both.

#[path = "common/mod.rs"]
pub(crate) mod common;

use std::process::ExitCode;

use common::Outcome;
use common::options::Options;
use common::pingpong::{self, Pairs, RECEIVE, SEND, Table};
use ibex_verbs::{
    AddressHandle, CompletionQueue, DatagramBuffer, DatagramDestination, DatagramQueuePair,
    FirstSequence, LocalPort, Operation, QKey, QueuePairBuilder, RECEIVE_BATCH, RemoteEndpoint,
    SendRequest,
};

/// The one queue pair of an end, and its peer.
pub(crate) struct Datagrams {
    pair: DatagramQueuePair,
    peer: Option<(AddressHandle, u32)>,
}

/// The key of rdma-core's program.
const KEY: QKey = QKey(0x1111_1111);

impl Pairs for Datagrams {
    fn new(table: &Table, completions: &CompletionQueue) -> Outcome<Self> {
        let pair = QueuePairBuilder::new(&table.domain, completions)
            .send_requests(1)
            .receives(table.options.receives, 1)
            .build_datagram(table.options.ib_port, KEY)?;
        Ok(Self { pair, peer: None })
    }

    fn endpoints(&self, first: FirstSequence, local: &LocalPort) -> Vec<RemoteEndpoint> {
        vec![self.pair.endpoint(first, local)]
    }

    fn connect(
        &mut self,
        table: &Table,
        first: FirstSequence,
        local: LocalPort,
        peers: &[RemoteEndpoint],
    ) -> Outcome {
        self.pair.start(first, local)?;
        let address = AddressHandle::to(&table.domain, &local, &peers[0], table.settings()?)?;
        self.peer = Some((address, peers[0].queue_pair));
        Ok(())
    }

    fn post_receives(&mut self, table: &Table, count: u32) -> Outcome {
        let buffer = DatagramBuffer::new(0, table.options.bytes);
        assert_eq!(buffer.payload(), table.message());
        let mut left = count as usize;
        while left > 0 {
            let mut batch = self.pair.receive_batch().expect("its own");
            for _ in 0..left.min(RECEIVE_BATCH) {
                batch.push(RECEIVE, buffer.entry(&table.memory))?;
            }
            left -= batch.post()? as usize;
        }
        Ok(())
    }

    fn post_send(&mut self, table: &Table, _: usize) -> Outcome {
        let (address, queue_pair) = self.peer.as_ref().expect("it is connected");
        let to = DatagramDestination {
            address,
            queue_pair: *queue_pair,
            key: KEY,
        };
        let entries = [table.memory.entry(table.message())];
        let mut batch = self.pair.send_batch();
        batch.push(&SendRequest::send(SEND, &entries).signaled(), &to)?;
        batch.post()?;
        Ok(())
    }

    fn retire(&mut self, _: usize, operation: Operation) {
        match operation {
            Operation::Receive => self.pair.retire_receives(1),
            _ => self.pair.retire_sends(1),
        }
    }
}

fn main() -> ExitCode {
    pingpong::main::<Datagrams>(Options::new(1024))
}
