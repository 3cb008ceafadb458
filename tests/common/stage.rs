//! What one side of a scenario sees.

use std::time::Duration;

use ibex::NodeBuilder;
use ibex::{Driver, Fabric, Node, Peer, Policy, Raw, Receiver, Security, Sender};
use ibex_harness::verbs_port::VerbsPort;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, getpid, kill_process},
};

#[cfg(feature = "fake-device")]
use super::fake::Fake;
use super::{
    device, kernel,
    line::Line,
    scenario::{self, Cell, Side},
};

/// One side's settings, its line to the other side, and how the two meet.
pub(crate) struct Stage {
    pub(crate) side: Side,
    cell: Cell,
    line: Line,
    /// The other side's process.
    other: Pid,
    /// What the session goes over where the fabric is verbs.
    port: Option<VerbsPort>,
    /// The same where both sides are played in this process.
    #[cfg(feature = "fake-device")]
    fake: Option<Fake>,
}

impl Stage {
    /// Greets the other side.
    pub(crate) fn enter(cell: Cell, side: Side, mut line: Line) -> Self {
        let us = getpid();
        line.tell(&us.to_string());
        let other = line
            .hear()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        assert_ne!(us, other, "both sides are played by one process");
        Self {
            side,
            cell,
            line,
            other,
            port: device::port(),
            #[cfg(feature = "fake-device")]
            fake: None,
        }
    }

    /// With the other side in another thread of this process, and a device between the two.
    #[cfg(feature = "fake-device")]
    pub(crate) fn enter_beside(cell: Cell, side: Side, line: Line, fake: Option<Fake>) -> Self {
        Self {
            side,
            cell,
            line,
            other: getpid(),
            port: None,
            fake,
        }
    }

    pub(crate) fn is_dialer(&self) -> bool {
        self.side == Side::Dialer
    }

    pub(crate) fn fabric(&self) -> Fabric {
        self.cell.fabric
    }

    pub(crate) fn driver(&self) -> Driver {
        self.cell.driver
    }

    /// The port that verbs is played on.
    #[cfg(feature = "verbs")]
    pub(crate) fn port(&self) -> &VerbsPort {
        self.port.as_ref().expect("the fabric is verbs")
    }

    /// Whether software does a device's work, so that each byte takes long.
    pub(crate) fn is_emulated(&self) -> bool {
        let is_software = self.port.as_ref().is_some_and(VerbsPort::is_software);
        is_software || self.cell.is_of_one_process()
    }

    /// How many of something: `full` in optimised builds, a tenth where each takes longer,
    /// as it does where the kernel does a device's work; fewer of what is played for each of
    /// many uses of a device.
    pub(crate) fn count(&self, full: u64) -> u64 {
        if scenario::is_short_list() || self.cell.is_of_one_process() {
            full / 50
        } else if cfg!(debug_assertions) || self.is_emulated() {
            full / 10
        } else {
            full
        }
    }

    // ---- Meeting ---------------------------------------------------------------------

    /// A node's builder, with the fabric and driver of this cell. It waits for the other side for
    /// as long as a busy machine lets that wait, but where a scenario sets a time-out of its own.
    pub(crate) fn builder(&self) -> NodeBuilder {
        let builder = Node::builder()
            .fabric(self.cell.fabric, Policy::Require)
            .driver(self.cell.driver)
            .io_threads(self.cell.engines)
            .connect_timeout(LONG)
            .handshake_timeout(LONG)
            .open_timeout(LONG)
            .linger(LONG);
        let builder = match self.security() {
            Some(security) => builder.security(security),
            None => builder,
        };
        match self.cell.fabric {
            #[cfg(feature = "verbs")]
            Fabric::Verbs => {
                // So large messages go both ways: one way they are written.
                // Where the dialer has proven who it is, security() says so.
                let trusts = self.side == Side::Listener && self.cell.secured.is_none();
                let settings = ibex::rdma::RdmaSettings::new().trust_peers(trusts);
                #[cfg(feature = "fake-device")]
                if let Some(fake) = &self.fake {
                    return builder.rdma(fake.is_used(settings));
                }
                let settings = settings.device(self.port().device());
                // To pin as many as there are by default takes a seventh of the time there.
                let settings = match self.is_emulated() {
                    true => settings.receive_buffers(1024).held_buffers(1024),
                    false => settings,
                };
                builder.rdma(super::mask::of_this_run(settings))
            }
            _ => builder,
        }
    }

    /// How this side's nodes authenticate the other's, if they do.
    pub(crate) fn security(&self) -> Option<Security> {
        let secured = self.cell.secured?;
        Some(secured.security(self.side))
    }

    /// Where two nodes of this cell [`meet`](Self::meet): on the network of the RDMA device
    /// where there is one, which strangers could reach too, else on loopback. Scenarios
    /// that bring their own nodes together use loopback, which leads to every device.
    fn listening(&self, builder: NodeBuilder) -> NodeBuilder {
        match self.port.as_ref().and_then(device::address) {
            Some(address) => builder.listen((address, 0)).insecure_network(),
            None => builder.listen("127.0.0.1:0"),
        }
    }

    /// One node on each side, and the session between them.
    pub(crate) fn meet(&mut self) -> (Node, Peer) {
        self.meet_as(|builder| builder)
    }

    /// The same with settings.
    pub(crate) fn meet_as(
        &mut self,
        settings: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> (Node, Peer) {
        let builder = settings(self.builder());
        let (node, peer) = match self.side {
            Side::Dialer => {
                let node = builder.build().expect("a node that dials");
                let peer = self.dial(&node);
                (node, peer)
            }
            Side::Listener => {
                let node = self
                    .listening(builder)
                    .build()
                    .expect("a node that listens");
                self.tell_address(&node);
                let peer = node.accept().expect("a peer");
                self.check_peer(&peer);
                (node, peer)
            }
        };
        (node, peer)
    }

    /// A node that listens on loopback, of which the other side has heard.
    pub(crate) fn listen(&mut self) -> Node {
        let builder = self.builder().listen("127.0.0.1:0");
        let node = builder.build().expect("a node that listens");
        self.tell_address(&node);
        node
    }

    /// Tells the other side where this node listens.
    pub(crate) fn tell_address(&mut self, node: &Node) {
        let address = node.local_addr().expect("a node that listens");
        self.tell(&address.to_string());
    }

    /// Connects to where the other side says that it listens.
    pub(crate) fn dial(&mut self, node: &Node) -> Peer {
        let address = self.hear_any();
        let peer = node.connect(&address).expect("a session");
        self.check_peer(&peer);
        peer
    }

    /// Panics unless the kernel says that the session joins this process to the other, if
    /// there are two.
    pub(crate) fn check_peer(&self, peer: &Peer) {
        assert_eq!(peer.fabric(), self.cell.fabric);
        match self.cell.secured {
            Some(secured) => {
                secured.check_peer(self.side, peer);
                assert_eq!(peer.is_encrypted(), self.cell.fabric == Fabric::Tcp);
            }
            None => assert!(peer.authenticated_as().is_none() && !peer.is_encrypted()),
        }
        if self.cell.is_of_one_process() {
            return;
        }
        let other = self.other.as_raw_nonzero().get() as u32;
        kernel::assert_connected_to(peer.address(), other);
        if self.cell.fabric == Fabric::Shm {
            assert_eq!(peer.pid(), Some(other), "SO_PEERCRED names another process");
        }
    }

    /// Ends the other side as nothing else can.
    pub(crate) fn kill_other(&self) {
        self.signal_other(Signal::KILL);
    }

    /// Stops the other side, all its threads, until [`resume_other`](Self::resume_other).
    pub(crate) fn stop_other(&self) {
        self.signal_other(Signal::STOP);
        kernel::wait_until_stopped(self.other);
    }

    pub(crate) fn resume_other(&self) {
        self.signal_other(Signal::CONT);
    }

    fn signal_other(&self, signal: Signal) {
        kill_process(self.other, signal).expect("the other side is alive");
    }

    // ---- The line --------------------------------------------------------------------

    /// Says that something has happened here.
    pub(crate) fn tell(&mut self, words: &str) {
        self.line.tell(words);
    }

    /// Waits until the other side says `words`. The node goes on meanwhile: by itself, or
    /// driven from here.
    pub(crate) fn hear(&mut self, words: &str, node: &Node) {
        self.drive_until_words(node, None);
        assert_eq!(self.hear_any(), words, "the other side said something else");
    }

    /// Whatever the other side says next. The node goes on meanwhile as well, also with what
    /// comes to its time and is in no descriptor.
    pub(crate) fn hear_meanwhile(&mut self, node: &Node) -> String {
        self.drive_until_words(node, Some(TURN));
        self.hear_any()
    }

    /// Takes turns of a node that does not by itself until the other side says something: when
    /// the node's descriptor asks for it, and after each `pause` in any case.
    fn drive_until_words(&self, node: &Node, pause: Option<Timespec>) {
        while self.cell.driver == Driver::Caller && !self.line.has_words() {
            // What was sent since the last turn is in no descriptor.
            while node.poll() {}
            let mut fds = [
                PollFd::from_borrowed_fd(self.line.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, pause.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("poll: {error}"),
            }
            if !fds[0].revents().is_empty() {
                break;
            }
        }
    }

    /// Whatever the other side says next; nothing is driven meanwhile.
    pub(crate) fn hear_any(&mut self) -> String {
        self.line.hear()
    }

    /// Both sides come here before either goes on.
    pub(crate) fn rendezvous(&mut self, words: &str, node: &Node) {
        self.tell(words);
        self.hear(words, node);
    }
}

/// A sender of bytes.
pub(crate) type BytesSender = Sender<[u8], Raw>;
/// A receiver of bytes.
pub(crate) type BytesReceiver = Receiver<[u8], Raw>;

/// The sending end of a channel of bytes, with default settings.
pub(crate) fn sender(peer: &Peer, name: &str) -> BytesSender {
    peer.channel(name)
        .codec::<Raw>()
        .sender()
        .expect("a sender")
}

/// The receiving end of a channel of bytes, with default settings.
pub(crate) fn receiver(peer: &Peer, name: &str) -> BytesReceiver {
    peer.channel(name)
        .codec::<Raw>()
        .receiver()
        .expect("a receiver")
}

/// For calls that have a time-out and are going to be answered; the watchdog is shorter.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// For calls that are not going to be answered.
pub(crate) const MOMENT: Duration = Duration::from_millis(30);
/// How often a node has to be given a turn, whatever its descriptor says.
const TURN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
