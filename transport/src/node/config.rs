//! The settings of a node, and the threads or tasks that run its engines.

use std::time::Duration;

use super::Wait;
use crate::session::EngineId;

/// Settings of a node's runtime.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// The threads or tasks that turn the engines.
    pub driver: Driver,
    /// Number of engines: one under [`Driver::Caller`], elsewhere up to
    /// [`MOST_ENGINES`](crate::session::MOST_ENGINES).
    pub engines: usize,
    /// The way in which blocking calls wait on a shared-memory channel.
    pub wait: Wait,
    /// The way in which blocking calls wait where the engine moves the bytes.
    pub wait_engine: Wait,
    /// Cores to run the I/O threads on, one for each thread. If there are fewer cores than threads,
    /// the list is used again from its start. An empty list lets the scheduler choose.
    pub cores: Vec<usize>,
    /// The most bytes that a tcp session lets its peer keep in flight.
    pub session_credit_bytes: u64,
    /// The most bytes that all tcp sessions of the node together let their peers keep in flight.
    pub node_credit_bytes: u64,
    /// The most bytes that peers may make the process hold. While all nodes of the process hold
    /// more, this node takes in no more large messages.
    pub memory_limit: u64,
    /// Time for which a peer's kernel may leave bytes unacknowledged before the connection counts
    /// as broken.
    pub notice_timeout: Duration,
    /// Time for which a session without a connection waits for another.
    pub session_timeout: Duration,
    /// Time for which the peer's host may refuse every dial before the peer counts as gone.
    pub peer_gone_after: Duration,
    /// The node keeps its slowest messages, for those who inspect it.
    pub is_inspected: bool,
}

impl RuntimeConfig {
    /// Returns the core of an engine's I/O thread, if there is one for it.
    pub(crate) fn core_of(&self, engine: EngineId) -> Option<usize> {
        let cores = self.cores.len().max(1);
        self.cores.get(engine.index() % cores).copied()
    }

    /// Returns the settings of a test's node with one engine.
    #[cfg(test)]
    pub(crate) fn of_test(driver: Driver) -> Self {
        Self {
            driver,
            engines: 1,
            wait: Wait::Event,
            wait_engine: Wait::Event,
            cores: Vec::new(),
            session_credit_bytes: 1 << 20,
            node_credit_bytes: 16 << 20,
            memory_limit: 1 << 30,
            notice_timeout: Duration::from_secs(3),
            session_timeout: Duration::from_secs(30),
            peer_gone_after: Duration::MAX,
            is_inspected: false,
        }
    }
}

/// The threads or tasks that run a node's engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Driver {
    /// Threads that wait in calls turn the engine; while none waits, an I/O thread of the node
    /// does. Everything that the documentation promises to happen by itself happens under this
    /// driver.
    ///
    /// A sent message goes out at once if a thread sleeps for the node, in a call or as the I/O
    /// thread. Otherwise it goes out with the sender's next call that waits, or when the I/O thread
    /// has seen that no thread waits any more. That takes up to 2 ms, and up to 8 ms if more
    /// threads want to run than there are cores.
    #[default]
    Threads,
    /// The program's calls turn the engine. No thread is started, and between calls only the kernel
    /// moves data.
    ///
    /// `send` publishes and transmits nothing, except that it runs one turn when 32 KiB
    /// are queued (or half the window, if that is less). `flush`, `poll` and blocking
    /// calls run turns; receiving calls take what has already arrived without a turn and
    /// run one when nothing is there. Computing for a minute is legal and ends no session.
    Caller,
    /// Tasks of the tokio runtime in which the node is made turn the engine (`ibex`'s feature
    /// `tokio`). No thread is started, and the runtime's reactor watches the node's descriptor and
    /// its connections. The runtime needs its I/O driver (`enable_io` or `enable_all`); tokio panics
    /// without.
    ///
    /// One task of the node runs when the reactor has events. A task of the program that awaits
    /// something of the node and finds nothing runs one turn first, which sends everything that was
    /// published before. Messages of a task that awaits nothing afterwards go out when 32 KiB are
    /// queued, at `flush`, or when a second task of the node runs, which the first unsent message
    /// wakes. So a task that sends and then computes should flush.
    ///
    /// Handles may be used in other runtimes and by threads that block; blocking calls turn the
    /// engine themselves, as under [`Caller`](Self::Caller). From the first of them on, and once
    /// calls turned the engine for 10 ms in which the runtime ran no task of the node, events over TCP
    /// costs the tasks two more system calls.
    ///
    /// The node ends with its runtime: if that is shut down first, the node is closed as if it
    /// were dropped, and calls answer with [`EndCause::RuntimeEnded`](crate::session::EndCause).
    /// A node that is dropped in a task is closed by its own task. A process that ends without
    /// shutting its runtime down, by `process::exit` for example, loses what is not delivered by
    /// then: await `Node::close_async` first.
    Tasks,
}

/// The threads or tasks that may sleep for an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driving {
    /// The node's calls; between calls no thread sleeps for the engine.
    Callers,
    /// Threads that wait in calls, and the I/O thread while no call waits.
    Waiters,
    /// Tasks of an executor, and the node's calls.
    Tasks,
    /// An I/O thread for each engine, and no other thread, because I/O threads have cores of their
    /// own.
    Thread,
}

impl Driving {
    pub(crate) fn of(config: &RuntimeConfig) -> Self {
        match config.driver {
            Driver::Caller => Driving::Callers,
            Driver::Tasks => Driving::Tasks,
            Driver::Threads if config.cores.is_empty() => Driving::Waiters,
            Driver::Threads => Driving::Thread,
        }
    }

    /// Returns whether the node has an I/O thread.
    pub(crate) fn has_thread(self) -> bool {
        matches!(self, Driving::Waiters | Driving::Thread)
    }

    /// Returns whether calls leave the engine to a sleeper, for which everything must be armed when
    /// they return.
    pub(crate) fn has_standing_sleeper(self) -> bool {
        matches!(self, Driving::Waiters | Driving::Tasks)
    }
}
