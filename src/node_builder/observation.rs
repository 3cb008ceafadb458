//! The settings of what is observed of a node: trace contexts, histograms, inspection from outside.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use super::NodeBuilder;
#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Node;
use crate::{TraceContext, inspect::SocketPlace, setting::settings};

settings! {
    const OBSERVATION in NodeBuilder, |self| self.settings;

    /// Sets the function that tells the trace context of the thread or task that calls it, as the
    /// program's tracer has it. Calls of all callers of the node then carry it, and so do messages
    /// of channels that [ask for it](crate::ChannelBuilder::trace_context).
    #[default("none")]
    ///
    /// The function runs when a call or a message is sent, and in a task at each poll until it is
    /// sent. It must not wait, and must not send on the channel that asks. `None` from it sends no
    /// context. A panic in it comes through, and nothing is sent. The crate `ibex-tracing` has a
    /// function for programs that use `tracing` with OpenTelemetry.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use ibex::{Node, TraceContext};
    ///
    /// thread_local! {
    ///     static CONTEXT: Cell<Option<TraceContext>> = const { Cell::new(None) };
    /// }
    ///
    /// # fn main() -> Result<(), ibex::ListenError> {
    /// let node = Node::builder().trace_context(|| CONTEXT.get()).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace_context(current: fn() -> Option<TraceContext>);

    /// Keeps histograms of how long calls take, at the caller and at the handler, and of the waits
    /// for acknowledgements, by the name of the service or channel:
    /// [`NodeStats::histograms`](crate::NodeStats::histograms).
    #[default(false)]
    ///
    /// Each call and each wait then reads the clock twice and adds to two counters that all threads
    /// share. A histogram takes 4.3 KiB, for each of up to 64 names. Messages themselves pay
    /// nothing.
    ///
    /// ```
    /// use ibex::{Measured, Node, Pod};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Node::builder().listen("127.0.0.1:0").build()?;
    /// let mut prices = store.channel("prices").codec::<Pod>().service::<u64, u64>()?;
    /// std::thread::spawn(move || {
    ///     while let Ok(Some(request)) = prices.next() {
    ///         let _too_late = request.reply(&7);
    ///     }
    /// });
    ///
    /// let node = Node::builder().histograms(true).build()?;
    /// let peer = node.connect(store.local_addr().unwrap())?;
    /// let caller = peer.channel("prices").codec::<Pod>().caller::<u64, u64>()?;
    /// for symbol in 0..10 {
    ///     caller.call(&symbol)?;
    /// }
    /// let [calls] = &node.stats().histograms[..] else {
    ///     panic!("one service is called");
    /// };
    /// assert_eq!((calls.measured, calls.name.as_str()), (Measured::Calls, "prices"));
    /// assert_eq!(calls.durations.count(), 10);
    /// println!("half of the calls took at most {:?}", calls.durations.quantile(0.5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn histograms(keeps: bool);

    /// Lets `ibex top` and other programs of this user inspect the running node, over a Unix socket
    /// in a folder of the user that nobody else may enter.
    #[default("nobody can")]
    ///
    /// The socket is `$XDG_RUNTIME_DIR/ibex/PID-NAME.sock`, or `/tmp/ibex-UID/PID-NAME.sock` without
    /// that variable; [`Node::inspect_path`] returns it. NAME is that of the node, if it has one.
    /// [`ibex::inspect`](crate::inspect) says what is answered there, and to whom.
    ///
    /// The node has a thread for it, under each driver, which sleeps while nobody is connected. An
    /// answer holds each engine's lock for some 100 ns for each channel.
    pub fn inspect(mut self) -> Self {
        self.settings.inspect = Some(SocketPlace::Default);
        self
    }
}

impl NodeBuilder {
    /// Lets programs of this user inspect the node at a path, in place of
    /// [`inspect`](Self::inspect). The last of the two calls counts. The path is one where there is
    /// no file yet, or the socket of a node that is gone. It has 107 bytes at most.
    pub fn inspect_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.inspect = Some(SocketPlace::At(path.into()));
        self
    }
}
