//! The view that one side of a scenario has.

use std::time::Duration;

use ibex::NodeBuilder;
use ibex::{
    Driver, Fabric, Node, Peer, Policy, Raw, Receiver, Security, Sender, shared_memory::ShareWith,
};
use ibex_harness::{process::stay_with_parent, verbs_port::VerbsPort};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, Uid, getpid, kill_process},
    thread::set_thread_res_uid,
};

#[cfg(feature = "fake-device")]
use super::fake::Fake;
use super::{
    device, kernel,
    line::Line,
    scenario::{self, Cell, OTHER_USER, Side},
};

/// A side's settings, its line to the other side, and the ways to meet it.
pub(crate) struct Stage {
    pub(crate) side: Side,
    cell: Cell,
    line: Line,
    /// The other side's process.
    other: Pid,
    /// False if the session may have another connection at any time, which cannot be checked then.
    keeps_connections: bool,
    /// The port of the session, if the fabric is verbs.
    port: Option<VerbsPort>,
    /// The device of the session, if both sides are played in this process.
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
        if cell.is_of_two_users() && side == Side::Dialer {
            // Threads that are made from here on have this one's user, too.
            set_thread_res_uid(None, Some(Uid::from_raw(OTHER_USER)), None).expect("root may");
            // The kernel has forgotten it with the user.
            stay_with_parent().expect("the supervisor is there");
        }
        Self {
            side,
            cell,
            line,
            other,
            keeps_connections: true,
            port: device::port(),
            #[cfg(feature = "fake-device")]
            fake: None,
        }
    }

    /// Enters with the other side in another thread of this process, and perhaps a device between
    /// the two.
    #[cfg(feature = "fake-device")]
    pub(crate) fn enter_beside(cell: Cell, side: Side, line: Line, fake: Fake) -> Self {
        Self {
            side,
            cell,
            line,
            other: getpid(),
            keeps_connections: true,
            port: None,
            fake: Some(fake),
        }
    }

    /// Plays a session that changes its connection by itself.
    pub(crate) fn change_connections(&mut self) {
        self.keeps_connections = false;
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

    /// Returns whether the sides read each other's memory where it is, which two users do not.
    pub(crate) fn maps_regions(&self) -> bool {
        self.cell.fabric == Fabric::Shm && !self.cell.is_of_two_users()
    }

    /// Returns the port on which verbs is played.
    #[cfg(feature = "verbs")]
    pub(crate) fn port(&self) -> &VerbsPort {
        self.port.as_ref().expect("the fabric is verbs")
    }

    /// Returns whether software emulates the device, so that each byte takes long.
    pub(crate) fn is_emulated(&self) -> bool {
        let is_software = self.port.as_ref().is_some_and(VerbsPort::is_software);
        is_software || self.cell.is_of_one_process()
    }

    /// Scales a count: `full` in optimized builds; a tenth in others and on emulated devices, where
    /// each item takes longer; fewer for scenarios that are repeated for many uses of a device.
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

    /// Returns a node's builder with the fabric and driver of this cell. Its time-outs suit a busy
    /// machine; a scenario may set others.
    pub(crate) fn builder(&self) -> NodeBuilder {
        let builder = Node::builder()
            .fabric(self.cell.fabric, Policy::Require)
            .driver(self.cell.driver)
            .io_threads(self.cell.engines)
            .connect_timeout(LONG)
            .handshake_timeout(LONG)
            .open_timeout(LONG)
            .linger(LONG);
        let builder = match self.cell.is_of_two_users() {
            true => builder.share_memory_with(ShareWith::Anyone),
            false => builder,
        };
        let builder = match self.security() {
            Some(security) => builder.security(security),
            None => builder,
        };
        match self.cell.fabric {
            #[cfg(feature = "verbs")]
            Fabric::Verbs => {
                // With this setting, large messages are written in one direction. If the dialer
                // authenticates itself, `security` lets it write instead.
                let trusts = self.side == Side::Listener && self.cell.secured.is_none();
                let settings = ibex::rdma::RdmaSettings::new().trust_peers(trusts);
                #[cfg(feature = "fake-device")]
                if let Some(fake) = &self.fake {
                    return builder.rdma(fake.is_used(settings));
                }
                let settings = settings.device(self.port().device());
                // Pinning the default number of buffers takes a seventh of the time on an emulated
                // device.
                let settings = match self.is_emulated() {
                    true => settings.receive_buffers(1024).held_buffers(1024),
                    false => settings,
                };
                builder.rdma(super::mask::of_this_run(settings))
            }
            _ => builder,
        }
    }

    /// Returns the settings by which this side's nodes authenticate the other's, if they do.
    pub(crate) fn security(&self) -> Option<Security> {
        let secured = self.cell.secured?;
        Some(secured.security(self.side))
    }

    /// Makes a node listen where two nodes of this cell [`meet`](Self::meet): on the RDMA device's
    /// network, which strangers could reach, if there is a device, and on loopback otherwise.
    /// Scenarios that connect their nodes themselves use loopback, which leads to every device.
    fn listening(&self, builder: NodeBuilder) -> NodeBuilder {
        match self.port.as_ref().and_then(device::address) {
            Some(address) => builder.listen((address, 0)).insecure_network(),
            None => builder.listen("127.0.0.1:0"),
        }
    }

    /// Creates a node on each side, and the session between them.
    pub(crate) fn meet(&mut self) -> (Node, Peer) {
        self.meet_as(|builder| builder)
    }

    /// Creates a node on each side with `settings`, and the session between them.
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

    /// Creates a node that listens on loopback, and tells the other side its address.
    pub(crate) fn listen(&mut self) -> Node {
        let builder = self.builder().listen("127.0.0.1:0");
        let node = builder.build().expect("a node that listens");
        self.tell_address(&node);
        node
    }

    /// Tells the other side this node's address.
    pub(crate) fn tell_address(&mut self, node: &Node) {
        let address = node.local_addr().expect("a node that listens");
        self.tell(&address.to_string());
    }

    /// Connects to the address that the other side tells.
    pub(crate) fn dial(&mut self, node: &Node) -> Peer {
        let address = self.hear_any();
        let peer = node.connect(&address).expect("a session");
        self.check_peer(&peer);
        peer
    }

    /// Panics unless the kernel says that the session joins this process to the other, if there are
    /// two.
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
        // One user cannot look at the descriptors of another's process.
        if self.keeps_connections && !self.cell.is_of_two_users() {
            kernel::assert_connected_to(peer.address().inet().expect("of TCP"), other);
        }
        if self.cell.fabric == Fabric::Shm {
            assert_eq!(peer.pid(), Some(other), "SO_PEERCRED names another process");
        }
    }

    /// Kills the other side with SIGKILL.
    pub(crate) fn kill_other(&self) {
        self.signal_other(Signal::KILL);
    }

    /// Stops all threads of the other side, until [`resume_other`](Self::resume_other).
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

    /// Tells the other side that something has happened here.
    pub(crate) fn tell(&mut self, words: &str) {
        self.line.tell(words);
    }

    /// Waits until the other side says `words`. Meanwhile the node makes progress, by itself or
    /// driven from here.
    pub(crate) fn hear(&mut self, words: &str, node: &Node) {
        self.drive_until_words(node, None);
        assert_eq!(self.hear_any(), words, "the other side said something else");
    }

    /// Waits for the other side's next words. Meanwhile the node makes progress, including on
    /// events of time that no descriptor announces.
    pub(crate) fn hear_meanwhile(&mut self, node: &Node) -> String {
        self.drive_until_words(node, Some(TURN));
        self.hear_any()
    }

    /// Turns a node that does not turn by itself until the other side says something: whenever the
    /// node's descriptor asks for it, and after each `pause`.
    fn drive_until_words(&self, node: &Node, pause: Option<Timespec>) {
        while self.cell.driver == Driver::Caller && !self.line.has_words() {
            // No descriptor announces what was sent since the last turn.
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

    /// Waits for the other side's next words, without driving a node.
    pub(crate) fn hear_any(&mut self) -> String {
        self.line.hear()
    }

    /// Waits until both sides have come to this point.
    pub(crate) fn rendezvous(&mut self, words: &str, node: &Node) {
        self.tell(words);
        self.hear(words, node);
    }
}

/// A sender of bytes.
pub(crate) type BytesSender = Sender<[u8], Raw>;
/// A receiver of bytes.
pub(crate) type BytesReceiver = Receiver<[u8], Raw>;

/// Opens the sending end of a channel of bytes, with default settings.
pub(crate) fn sender(peer: &Peer, name: &str) -> BytesSender {
    peer.channel(name)
        .codec::<Raw>()
        .sender()
        .expect("a sender")
}

/// Opens the receiving end of a channel of bytes, with default settings.
pub(crate) fn receiver(peer: &Peer, name: &str) -> BytesReceiver {
    peer.channel(name)
        .codec::<Raw>()
        .receiver()
        .expect("a receiver")
}

/// The time-out of calls that will be answered; the watchdog's is shorter.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// The time-out of calls that will not be answered.
pub(crate) const MOMENT: Duration = Duration::from_millis(30);
/// The interval at which a node must be turned, whatever its descriptor says.
const TURN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
