//! Options of one connect.

/// Options of [`Node::connect_with`](crate::Node::connect_with).
///
/// ```no_run
/// use ibex::{ConnectOptions, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::builder().io_threads(2).build()?;
/// // Two sessions with one peer, each with an I/O thread to itself.
/// let bulk = node.connect_with("db:7000", ConnectOptions::new().engine(0))?;
/// let requests = node.connect_with("db:7000", ConnectOptions::new().engine(1))?;
/// assert_ne!(bulk.engine(), requests.engine());
/// # Ok(())
/// # }
/// ```
#[must_use = "options do nothing by themselves"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) engine: Option<usize>,
}

impl ConnectOptions {
    /// The options that [`connect`](crate::Node::connect) has.
    pub const fn new() -> Self {
        Self { engine: None }
    }

    /// The engine that the session is placed on, for as long as it lasts, and over RDMA the queues
    /// of that engine. Default: the engine with the fewest sessions. Range: below
    /// [`io_threads`](crate::NodeBuilder::io_threads).
    pub const fn engine(mut self, engine: usize) -> Self {
        self.engine = Some(engine);
        self
    }
}
