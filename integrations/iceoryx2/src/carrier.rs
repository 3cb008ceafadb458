//! The carrier that a tunnel takes.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use ibex::prelude::*;
use ibex::{Driver, Node, Raw};
use iceoryx2_bb_elementary::generation::Generation;
use iceoryx2_link_backend::{Reactive, WakeHandle, service_description::ServiceDescriptor};
use iceoryx2_link_carrier::{Announcement, Carrier, Offer, PeerId};

use crate::{
    IbexChannel, Monitor, NotCarried, StartError,
    control::{MAX_WORD_BYTES, STREAM},
    shared::{Change, Shared},
    worker::{self, Work},
};

/// Carries iceoryx2's services to other systems over a node of ibex's.
///
/// The crate iceoryx2-link-tunnel's `Tunnel` takes a carrier, and a `Link` takes the tunnel. Calls
/// of the link never wait: a thread of the carrier connects to the peers, tells them this side's
/// offers, and receives theirs.
///
/// Peers are the addresses given to [`new`](Self::new) and all carriers that connect to this one. A
/// pair needs the address of one of the two; if both have it, a frame still goes once. When a
/// peer's session ends, its address is dialed again for as long as the carrier lives.
///
/// Dropping the carrier leaves the peers, which take its offers for withdrawn, and its channels
/// carry nothing any more. The node goes with it, unless the program has another handle of it.
///
/// ```no_run
/// use ibex::Node;
/// use ibex_iceoryx2::IbexCarrier;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::builder().listen("10.0.0.1:7000").insecure_network().build()?;
/// let carrier = IbexCarrier::new(node, ["10.0.0.2:7000", "10.0.0.3:7000"])?;
/// # drop(carrier);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct IbexCarrier {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    /// The node, which ends behind the thread.
    _node: Node,
}

impl IbexCarrier {
    /// Starts a carrier on a node, and connects to the peers that listen at these addresses
    /// (`host:port`), now or later.
    ///
    /// The node's settings decide where this carrier listens, if it does, which fabrics it uses,
    /// and how much room frames have: [`window_bytes`](ibex::NodeBuilder::window_bytes) and
    /// [`max_message_bytes`](ibex::NodeBuilder::max_message_bytes) hold for each service and peer.
    /// A node has one carrier at a time. Peers are dialed as [`Node::keep_connected`] says, again
    /// after pauses of up to 5 s.
    ///
    /// # Errors
    ///
    /// [`StartError`]: only callers turn the node, or no thread can be started.
    pub fn new(
        node: Node,
        peers: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, StartError> {
        if node.stats().driver == Driver::Caller {
            return Err(StartError::Driver);
        }
        let streams = node.channel(STREAM).codec::<Raw>();
        let streams = streams.max_message_bytes(MAX_WORD_BYTES).fan_in()?;
        let (shared, changes) = Shared::new();
        let addresses: Vec<String> = peers.into_iter().map(Into::into).collect();
        let work = Work {
            node: node.clone(),
            peers: node.keep_connected(addresses)?,
            streams,
            shared: shared.clone(),
            changes,
        };
        let thread = thread::Builder::new().name("ibex-iceoryx2".to_owned());
        let worker = thread.spawn(move || worker::run(work))?;
        shared.set_worker(worker.thread().clone());
        Ok(Self {
            shared,
            worker: Some(worker),
            _node: node,
        })
    }

    /// Returns a handle that reports the connected peers and what was carried, for use once the
    /// tunnel has the carrier.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.shared.clone())
    }

    fn check(&self) -> Result<(), NotCarried> {
        match self.shared.is_closed() {
            true => Err(NotCarried),
            false => Ok(()),
        }
    }
}

impl Carrier for IbexCarrier {
    type AnnouncementError = NotCarried;
    type ListError = NotCarried;
    type ChannelError = NotCarried;
    type Channel = IbexChannel;

    /// Tells the peers, in the order of the calls.
    fn announce(&mut self, announcement: Announcement) -> Result<(), NotCarried> {
        self.check()?;
        self.shared.tell(match announcement {
            Announcement::Offered { descriptor } => Change::Offered(Box::new(descriptor)),
            Announcement::Withdrawn { hash } => Change::Withdrawn(hash),
        });
        Ok(())
    }

    /// Returns a count that changes when a peer offers or withdraws something, or goes.
    fn generation(&self) -> Generation {
        self.shared.generation.current()
    }

    fn offers(&self, callback: &mut dyn FnMut(Offer)) -> Result<(), NotCarried> {
        self.check()?;
        let peers = self.shared.peers();
        for (id, known) in &*peers {
            let peer = PeerId::new(id.node_id());
            for descriptor in known.offers.values().cloned() {
                callback(Offer { peer, descriptor });
            }
        }
        Ok(())
    }

    fn open_channel(&mut self, descriptor: &ServiceDescriptor) -> Result<IbexChannel, NotCarried> {
        self.check()?;
        let ends = self.shared.open(descriptor.clone());
        Ok(IbexChannel::new(ends, self.shared.clone()))
    }
}

impl Reactive for IbexCarrier {
    /// Lets threads of the node and the carrier signal the wake when offers change and when a frame
    /// comes.
    ///
    /// A channel signals once for each peer, and again after its `receive` has returned `None`;
    /// the link's `propagate` receives until then.
    fn attach(&mut self, wake: WakeHandle) {
        self.shared.attach(wake);
    }
}

impl Drop for IbexCarrier {
    fn drop(&mut self) {
        self.shared.tell(Change::Stop);
        if let Some(worker) = self.worker.take() {
            // A thread that panicked has reported it, and leaves nothing behind.
            let _ = worker.join();
        }
    }
}
