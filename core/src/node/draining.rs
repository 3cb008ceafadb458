//! The orderly end of a node that serves calls.
#![forbid(unsafe_code)]

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::{Counted, fork, sync::lock, threads};
use ibex_transport::{node::Undelivered, runtime::Runtime};

use crate::Node;

/// Progress of a node that [drains](Node::drain).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Calls that handlers had when the node began to drain, and that have ended since.
    pub finished: usize,
    /// Calls that handlers still had when the time was up. If the node is closed then, their
    /// callers get `Lost`, and cannot know whether the calls
    /// were executed.
    pub still_running: usize,
    /// Channels with messages that are not known to have reached their peers: messages that had
    /// been sent when the last call ended, or the time was up. Channels of sessions that have ended
    /// since do not count.
    pub undelivered: Vec<Undelivered>,
}

impl DrainReport {
    /// Returns whether every call was answered and everything delivered, so that closing the node
    /// loses nothing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.still_running == 0 && self.undelivered.is_empty()
    }
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            finished,
            still_running,
            undelivered,
        } = self;
        write!(
            f,
            "{} finished, {} not, and {} with messages that are not delivered",
            Counted(*finished as u64, "call"),
            still_running,
            Counted(undelivered.len() as u64, "channel")
        )
    }
}

/// A node's drain, for a task. See [`Node::drain_async`].
pub(crate) struct DrainAsync<'a> {
    node: &'a Node,
    /// Until it has begun.
    timeout: Option<Duration>,
    waiting: Arc<DrainWait>,
}

/// Shared by the future and the thread that waits.
#[derive(Default)]
struct DrainWait {
    is_dropped: AtomicBool,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    report: Option<DrainReport>,
    waker: Option<Waker>,
}

impl Node {
    /// Ends what the node serves, so that a following [`close`](Self::close) loses no call:
    ///
    /// 1. It [stops accepting](Self::stop_accepting).
    /// 2. It tells its peers, which get [`Event::Draining`](crate::Event::Draining). From then on
    ///    their calls end with the kind `Draining`.
    /// 3. It refuses requests that no handler has, and those that arrive, in the same way, even if
    ///    the program asks for no more requests.
    /// 4. Handlers that have a request may answer it.
    /// 5. It delivers the answers, and the messages that senders had sent by then.
    ///
    /// The call waits for the last two steps for up to `timeout` ([`Duration::MAX`]: for ever), and
    /// reports how far it came.
    ///
    /// A stream of replies is a call, which ends with its last reply. Other channels and byte
    /// streams go on, and may be opened, until the node is closed; so do calls of this node to
    /// others. Sessions stay, and a service still waits in `next`
    /// until the node is closed.
    ///
    /// When all calls are answered, the peers learn that too. Every call of theirs without an answer
    /// is then known to be not executed, even one that is on its way when the node is closed.
    ///
    /// A drain cannot be undone. Calling again waits again, and reports what happened to the calls
    /// that were left. If the node is closed meanwhile, the call returns. A handler must not call
    /// it while it holds its request, since it would wait for that request. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it runs turns while it waits; later requests are
    /// refused in turns.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = ibex::Node::listen("127.0.0.1:0")?;
    /// // The program serves until it is told to end.
    /// let report = node.drain(Duration::from_secs(30));
    /// if !report.is_complete() {
    ///     eprintln!("{report}");
    /// }
    /// node.close(Duration::from_secs(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self, timeout: Duration) -> DrainReport {
        drain(self.runtime(), Instant::now().checked_add(timeout), || true)
    }

    /// Drains the node in a task, as [`drain`](Self::drain) does. The drain begins with the first
    /// poll, and `timeout` counts from then. A thread waits for the end.
    ///
    /// Dropping the future later does not take that back: the node goes on refusing calls. Call
    /// [`drain`](Self::drain) or this method again to bring the drain to its end and get the
    /// report.
    pub fn drain_async(&self, timeout: Duration) -> impl Future<Output = DrainReport> {
        DrainAsync {
            node: self,
            timeout: Some(timeout),
            waiting: Arc::default(),
        }
    }
}

/// Drains until `deadline`, if there is one, and as long as `is_wanted` returns true.
fn drain(
    runtime: &Runtime,
    deadline: Option<Instant>,
    is_wanted: impl Fn() -> bool,
) -> DrainReport {
    if fork::is_child() {
        return DrainReport::default();
    }
    runtime.begin_drain();
    // Each call that ends and each notice that goes out makes the wait check this again.
    let is_answered = || runtime.running_calls() == 0 && !runtime.has_pending_notices();
    runtime.wait_in_drain(deadline, || is_answered() || !is_wanted());
    let still_running = runtime.running_calls();
    let is_answered = still_running == 0 && !runtime.has_pending_notices();
    if is_answered {
        runtime.announce_drained();
        runtime.wait_in_drain(deadline, || !runtime.has_pending_notices() || !is_wanted());
    }
    // Peers report in turns how far they are, and a report wakes no thread.
    let goes_on = || {
        let now = Instant::now();
        let is_late = deadline.is_some_and(|deadline| deadline <= now);
        let has_time = !is_late && !runtime.is_closed() && is_wanted();
        let soon = now + CHECK_AGAIN;
        let until = deadline.map_or(soon, |deadline| deadline.min(soon));
        // When no time is left, one turn runs, if callers turn the engine.
        runtime.go_on_until(if has_time { until } else { now });
        has_time
    };
    let sent = runtime.undelivered();
    let is_missing = |sent: &Undelivered, now: &[Undelivered]| {
        now.iter().any(|now| {
            (&now.peer, &now.channel) == (&sent.peer, &sent.channel) && now.received < sent.sent
        })
    };
    let undelivered = loop {
        let now = runtime.undelivered();
        let missing = sent.iter().filter(|sent| is_missing(sent, &now));
        let missing: Vec<_> = missing.cloned().collect();
        if missing.is_empty() || !goes_on() {
            break missing;
        }
    };
    if is_answered {
        runtime.say_delivered(&undelivered);
        runtime.go_on_until(Instant::now());
    }
    DrainReport {
        finished: runtime.drained_calls(),
        still_running,
        undelivered,
    }
}

impl Future for DrainAsync<'_> {
    type Output = DrainReport;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DrainReport> {
        let this = self.get_mut();
        if fork::is_child() {
            return Poll::Ready(DrainReport::default());
        }
        if let Some(timeout) = this.timeout.take() {
            let (runtime, waiting) = (this.node.runtime().clone(), this.waiting.clone());
            let deadline = Instant::now().checked_add(timeout);
            runtime.begin_drain();
            let wait = move || {
                let is_wanted = || !waiting.is_dropped.load(Ordering::Relaxed);
                let report = drain(&runtime, deadline, is_wanted);
                let mut outcome = waiting.outcome();
                outcome.report = Some(report);
                let waker = outcome.waker.take();
                drop(outcome);
                if let Some(waker) = waker {
                    waker.wake();
                }
            };
            if threads::spawn("ibex-drain", wait).is_err() {
                // If no thread can be started, the calling thread waits.
                return Poll::Ready(this.node.drain(timeout));
            }
        }
        let mut outcome = this.waiting.outcome();
        match &outcome.report {
            Some(report) => Poll::Ready(report.clone()),
            None => {
                outcome.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for DrainAsync<'_> {
    fn drop(&mut self) {
        self.waiting.is_dropped.store(true, Ordering::Relaxed);
        if !fork::is_child() {
            self.node.runtime().wake_drain();
        }
    }
}

impl DrainWait {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        lock(&self.outcome)
    }
}

/// The pause between two checks whether peers have everything that was sent to them.
const CHECK_AGAIN: Duration = Duration::from_millis(2);
