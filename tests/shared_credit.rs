//! Many peers send over TCP to one node with little arrival memory: everything arrives, whether
//! they share it or take turns, and no peer starves.

use std::{thread, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Policy, Raw};

const MESSAGES: u64 = 40;
const MESSAGE: &[u8] = &[7; 100_000];

fn over_tcp(builder: NodeBuilder) -> NodeBuilder {
    builder
        .fabric(Fabric::Tcp, Policy::Require)
        .connect_timeout(Duration::from_secs(60))
}

/// `senders` nodes send everything at once. Each of them has its receiver in a thread of its own,
/// so only credit decides the order.
fn all_arrives(senders: u64, node_credit_bytes: u64) {
    let server = over_tcp(Node::builder().listen("127.0.0.1:0"))
        .node_credit_bytes(node_credit_bytes)
        .build()
        .unwrap();
    let address = server.local_addr().unwrap();
    thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| {
                let node = over_tcp(Node::builder()).build().unwrap();
                let peer = node.connect(address).unwrap();
                let data = peer.channel("data").codec::<Raw>();
                let mut sender = data.sender::<[u8]>().unwrap();
                for _ in 0..MESSAGES {
                    sender.send(MESSAGE).unwrap();
                }
                sender.flush().unwrap();
            });
        }
        for _ in 0..senders {
            let peer = server.accept().unwrap();
            scope.spawn(move || {
                let data = peer.channel("data").codec::<Raw>();
                let mut receiver = data.receiver::<[u8]>().unwrap();
                let mut received = 0;
                while let Some(message) = receiver.next().unwrap() {
                    assert_eq!(&*message, MESSAGE);
                    received += 1;
                }
                assert_eq!(received, MESSAGES);
            });
        }
    });
}

#[test]
fn a_node_with_less_credit_than_a_session_may_hold_shares_it() {
    all_arrives(6, 4 << 20);
}

#[test]
fn a_node_with_less_credit_than_a_frame_for_each_lends_it_in_turns() {
    all_arrives(6, 512 << 10);
}

/// A connected, silent peer holds credit; a peer that sends gets it.
#[test]
fn idle_peers_keep_no_credit_from_a_peer_that_sends() {
    let server = over_tcp(Node::builder().listen("127.0.0.1:0"))
        .node_credit_bytes(2 << 20)
        .build()
        .unwrap();
    let address = server.local_addr().unwrap();
    let idle: Vec<_> = (0..5)
        .map(|_| {
            let node = over_tcp(Node::builder()).build().unwrap();
            let peer = node.connect(address).unwrap();
            (node, peer, server.accept().unwrap())
        })
        .collect();
    let node = over_tcp(Node::builder()).build().unwrap();
    let peer = node.connect(address).unwrap();
    let theirs = server.accept().unwrap();
    let mut sender = peer
        .channel("data")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = theirs
        .channel("data")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                sender.send(MESSAGE).unwrap();
            }
            sender.flush().unwrap();
        });
        for _ in 0..MESSAGES {
            receiver.recv().unwrap();
        }
    });
    drop(idle);
}

/// Peers that say nothing, more of them than the node has credit for, take none from those that come
/// later and call.
#[test]
fn silent_peers_keep_no_credit_from_peers_that_come_later() {
    let server = over_tcp(Node::builder().listen("127.0.0.1:0"))
        .node_credit_bytes(4 << 20)
        .build()
        .unwrap();
    let address = server.local_addr().unwrap();
    // These never turn their engines again, so they answer no recall.
    let silent: Vec<_> = (0..SILENT)
        .map(|_| {
            let node = over_tcp(Node::builder().driver(Driver::Caller));
            let node = node.build().unwrap();
            let peer = node.connect(address).unwrap();
            (node, peer, server.accept().unwrap())
        })
        .collect();
    let theirs = thread::spawn({
        let server = server.clone();
        move || [(); 2].map(|()| server.accept().unwrap())
    });
    let nodes = [(); 2].map(|()| over_tcp(Node::builder()).build().unwrap());
    let peers = [0, 1].map(|index| nodes[index].connect(address).unwrap());
    let theirs = theirs.join().unwrap();
    thread::scope(|scope| {
        for peer in &peers {
            scope.spawn(|| {
                let data = peer.channel("data").codec::<Raw>();
                let mut sender = data.sender::<[u8]>().unwrap();
                for _ in 0..MESSAGES {
                    sender.send_timeout(MESSAGE, WATCHDOG).unwrap();
                }
                sender.flush_timeout(WATCHDOG).unwrap();
            });
        }
        for peer in &theirs {
            scope.spawn(|| {
                let data = peer.channel("data").codec::<Raw>();
                let mut receiver = data.receiver::<[u8]>().unwrap();
                for _ in 0..MESSAGES {
                    receiver.recv_timeout(WATCHDOG).unwrap();
                }
            });
        }
    });
    drop(silent);
}

/// More than the node's credit is enough for.
const SILENT: usize = 20;
const WATCHDOG: Duration = Duration::from_secs(120);
