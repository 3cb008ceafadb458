//! The settings of the threads that turn a node's engines, and of how calls wait.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use ibex_transport::{node::Wait, runtime::Driver, session::MOST_ENGINES};

use super::NodeBuilder;
#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Node;
use crate::{
    PeerId,
    accept_placement::AcceptPlacement,
    setting::{settings, within},
};

settings! {
    /// What turns a node's engines.
    pub(crate) struct ThreadSettings in NodeBuilder, |self| self.settings.threads;

    /// Chooses the threads or tasks that turn the engine.
    #[default(Driver::Threads => "[`Driver::Threads`]")]
    pub fn driver(driver: Driver);

    /// Sets the number of the node's engines, each with an I/O thread of its own.
    #[default(1)] #[range(1..=64)]
    ///
    /// An engine has its own epoll set, arrival memory and sessions. A new session is placed on the
    /// engine that has the fewest, and stays there; [`Peer::engine`](crate::Peer::engine) returns
    /// which. [`Node::connect_on`] and
    /// [`place_accepted`](Self::place_accepted) name it instead. Over RDMA each engine has queues and
    /// receive buffers of its own on each device port that its sessions use, as many as
    /// `RdmaSettings` says. Fan-ins, groups and calls span engines.
    ///
    /// [The guide](crate::guide::which_driver#several-io-threads) says when several engines help: if
    /// sessions over TCP or RDMA keep a core busy. The channels of one session share its engine.
    ///
    /// A thread that waits for one session turns that session's engine, as with one engine. While a
    /// thread waits for several engines (a fan-in, a group, a select), their I/O threads turn them,
    /// and a message takes one more wake-up at each end that waits so. With [`cores`](Self::cores)
    /// the I/O threads always turn them. Without, an I/O thread that uses an RDMA device stays on the
    /// cores of the device's NUMA node, as far as the process may use them. Each thread allocates its
    /// engine's receive memory on its own NUMA node.
    ///
    /// Under [`Driver::Tasks`] each engine has two tasks in place of the thread. A call that
    /// blocks turns one engine, so the executor needs threads of its own for the others. Under
    /// [`Driver::Caller`] there is one engine, and [`build`](Self::build) refuses more.
    pub fn io_threads(threads: usize);
}

const _: () = assert!(MOST_ENGINES == 64, "the range of io_threads");

settings! {
    const WAITING in NodeBuilder, |self| self.settings;

    /// Chooses how blocking calls wait.
    ///
    #[default("spin for 50 µs, then sleep")]
    /// Calls sleep at once if there is one CPU, or if fewer than four are shared with an I/O thread
    /// that has [cores](Self::cores) of its own.
    ///
    /// A spin may take 0 to 1 s. A longer spin spends a core to save the wake-up, which takes 5
    /// to 30 µs.
    ///
    /// A spinning call lets other threads run, and spins only in the time that they leave. If they
    /// keep a core for milliseconds, calls sleep at once, and try to spin again later.
    ///
    /// Under [`Driver::Tasks`] a task spins for 4 µs before it waits for a message over shared
    /// memory, and only if the last messages came within 150 µs each. Waking an idle processor
    /// takes 25 to 50 µs. With [`Wait::Event`] a task waits at once; [`Wait::BusyPoll`] is for
    /// threads that block.
    pub fn wait(mut self, wait: Wait) -> Self {
        if let Wait::Adaptive { spin } = wait {
            self.note(within!("spin", spin, 0 s..=1 s));
        }
        self.settings.wait = Some(wait);
        self
    }

    /// Places the sessions that peers dial: `place` gets the peer and its address, and returns the
    /// number of an engine.
    #[default("the engine with the fewest sessions")]
    /// It also gets those for which `place` returns `None` or a number that no engine has.
    ///
    /// `place` runs where connections are taken in, so it must not block, and may be asked more
    /// than once for one session. A session that goes on over another connection stays where it is.
    /// A peer for which `place` panics gets no session, and an error in the log says so.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ibex::Node;
    /// // Nodes of this host have an engine to themselves.
    /// let node = Node::builder()
    ///     .listen("127.0.0.1:0")
    ///     .io_threads(2)
    ///     .place_accepted(|_, address| Some(usize::from(!address.ip().is_loopback())))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn place_accepted(
        mut self,
        place: impl Fn(PeerId, SocketAddr) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        self.settings.placement = Some(AcceptPlacement::new(place));
        self
    }

    /// Sets the cores of the node's I/O threads, one for each, starting over if there are fewer
    /// cores than threads. Nothing else should run on them.
    #[default("none")] #[range("the cores that the process may run on")]
    /// A core that cannot be had is a warning.
    ///
    /// Without cores, threads that wait in a call turn the engine, and the I/O
    /// thread turns it while none waits. A message then passes through no thread but its sender's
    /// and its receiver's. With cores, each I/O thread alone turns its engine, beside whatever the
    /// program computes, and wakes the threads that wait. [`Driver::Caller`] and [`Driver::Tasks`]
    /// have no such thread, so [`build`](Self::build) refuses cores there.
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.settings.cores = cores.to_vec();
        self
    }
}
