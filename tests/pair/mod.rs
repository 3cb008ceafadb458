//! Two nodes of one process, for tests that do not depend on processes.

use std::time::Duration;

use ibex::{Fabric, Node, Peer, Pod, Policy, Receiver, Sender};

/// Two nodes of this process, joined over `fabric`.
pub(crate) struct Pair {
    #[allow(dead_code, reason = "held for its drop; some tests ask it")]
    pub(crate) nodes: [Node; 2],
    pub(crate) peers: [Peer; 2],
}

impl Pair {
    pub(crate) fn over(fabric: Fabric) -> Self {
        let builder = || {
            let builder = Node::builder().fabric(fabric, Policy::Require);
            builder
                .connect_timeout(Duration::MAX)
                .open_timeout(Duration::MAX)
        };
        let listener = builder().listen("127.0.0.1:0").build().expect("a node");
        let client = builder().build().expect("a node");
        let address = listener.local_addr().expect("it listens");
        let there = client.connect(address).expect("a session");
        let here = listener.accept().expect("a session");
        assert_eq!(here.fabric(), fabric, "{}", here.fabric_reason());
        Self {
            nodes: [client, listener],
            peers: [there, here],
        }
    }

    #[allow(dead_code, reason = "some tests have other channels")]
    pub(crate) fn channel(&self, name: &str) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
        let [there, here] = &self.peers;
        let sender = there.channel(name).codec::<Pod>().window_bytes(WINDOW);
        let receiver = here.channel(name).codec::<Pod>();
        let (sender, receiver) = (sender.sender(), receiver.receiver());
        (sender.expect("a sender"), receiver.expect("a receiver"))
    }
}

pub(crate) const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];
/// Small, since there may be a thousand channels.
const WINDOW: u64 = 64 << 10;
