//! A ping-pong over two extended reliable connections, one for each direction.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example xrc_pingpong
//! cargo run -p ibex-verbs --features libibverbs --example xrc_pingpong -- -g 1           # server
//! cargo run -p ibex-verbs --features libibverbs --example xrc_pingpong -- -g 1 SERVER    # client
//! ```
//!
//! The first runs both ends over a device made of memory, the others one end each over this machine's
//! first device, which soft-RoCE cannot be. The ends tell each other three addresses: of the receiving
//! end, of the sending end, and one whose queue pair is the number of the receive queue.

#[path = "common/mod.rs"]
pub(crate) mod common;

use std::process::ExitCode;

use common::Outcome;
use common::options::Options;
use common::pingpong::{self, Pairs, RECEIVE, SEND, Table};
use ibex_verbs::{
    CompletionQueue, FirstSequence, LocalPort, Operation, QueuePairBuilder, RECEIVE_BATCH,
    ReceiveRequest, RegionAccess, RemoteEndpoint, SendRequest, XrcDomain, XrcReceiveQueue,
    XrcReceiveQueuePair, XrcSendQueuePair,
};

/// The two ends of this process, and its receives.
pub(crate) struct Extended {
    sends: XrcSendQueuePair,
    ends: XrcReceiveQueuePair,
    receives: XrcReceiveQueue,
    /// The number of the peer's receive queue.
    peer: u32,
}

impl Pairs for Extended {
    const ADDRESSES: usize = 3;

    fn new(table: &Table, completions: &CompletionQueue) -> Outcome<Self> {
        let xrc = XrcDomain::private(&table.device)?;
        let (port, depth) = (table.options.ib_port, table.options.receives);
        let builder = QueuePairBuilder::new(&table.domain, completions).send_requests(1);
        Ok(Self {
            sends: builder.build_xrc_send(port, table.settings()?)?,
            ends: XrcReceiveQueuePair::new(&xrc, port, RegionAccess::SEND)?,
            receives: XrcReceiveQueue::new(&table.domain, &xrc, completions, depth, 1)?,
            peer: 0,
        })
    }

    fn endpoints(&self, first: FirstSequence, local: &LocalPort) -> Vec<RemoteEndpoint> {
        let queue = RemoteEndpoint::of(self.receives.number(), first, local);
        vec![
            self.ends.endpoint(first, local),
            self.sends.endpoint(first, local),
            queue,
        ]
    }

    fn connect(
        &mut self,
        table: &Table,
        first: FirstSequence,
        local: LocalPort,
        peers: &[RemoteEndpoint],
    ) -> Outcome {
        self.ends
            .connect(first, local, peers[1], table.settings()?)?;
        self.sends.connect(first, local, peers[0])?;
        self.peer = peers[2].queue_pair;
        Ok(())
    }

    fn post_receives(&mut self, table: &Table, count: u32) -> Outcome {
        let entries = [table.memory.entry(table.message())];
        let mut left = count as usize;
        while left > 0 {
            let mut batch = self.receives.batch();
            for _ in 0..left.min(RECEIVE_BATCH) {
                batch.push(&ReceiveRequest::new(RECEIVE, &entries))?;
            }
            left -= batch.post()? as usize;
        }
        Ok(())
    }

    fn post_send(&mut self, table: &Table, _: usize) -> Outcome {
        let entries = [table.memory.entry(table.message())];
        let mut batch = self.sends.send_batch();
        batch.push(&SendRequest::send(SEND, &entries).signaled(), self.peer)?;
        batch.post()?;
        Ok(())
    }

    fn retire(&mut self, _: usize, operation: Operation) {
        match operation {
            Operation::Receive => self.receives.retire(1),
            _ => self.sends.retire_sends(1),
        }
    }
}

fn main() -> ExitCode {
    pingpong::main::<Extended>(Options::new(4096))
}
