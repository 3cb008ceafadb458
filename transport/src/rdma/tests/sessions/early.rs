//! Arrivals for a queue pair before its session is made, because the peer was quicker.

use ibex_verbs::{Operation, ScatterEntry, SendRequest, WorkId};

use super::*;

/// Both ends of another session, of which only the second node's exists so far. The second node has
/// lent credit and opened a channel, and the frames have arrived.
struct OneSided {
    ours: (PreparedPair, TcpStream),
    session: Arc<SessionShared>,
    sender: SendHandle,
}

impl OneSided {
    fn on(stage: &Stage) -> Self {
        let [quick, slow] = [&stage.nodes[1], &stage.nodes[0]];
        let [pair, theirs] = pairs([&slow.rdma_port, &quick.rdma_port]).unwrap();
        let [tcp, theirs_tcp] = connection();
        let session = quick.runtime.admit(admission(theirs_tcp, theirs)).unwrap();
        let sender = open_sender(quick, &session);
        let frames = slow.session.stats().frames_received;
        // The slow node polls for its existing session.
        stage.settle();
        assert!(session.stats().frames_sent > 0);
        assert_eq!(slow.session.stats().frames_received, frames);
        Self {
            ours: (pair, tcp),
            session,
            sender,
        }
    }
}

fn spec() -> ChannelSpec {
    spec_of_bytes(WINDOW, 64 << 20)
}

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

fn open_sender(node: &Node, session: &Arc<SessionShared>) -> SendHandle {
    let opened = node.runtime.open_sender(session, "early", spec(), TIMEOUT);
    opened.unwrap()
}

#[test]
fn it_is_kept_for_the_session() {
    let stage = Stage::new();
    let mut one_sided = OneSided::on(&stage);
    let slow = &stage.nodes[0];
    let (pair, tcp) = one_sided.ours;
    let session = slow.runtime.admit(admission(tcp, pair)).unwrap();
    let opened = slow
        .runtime
        .open_receiver(&session, "early", spec(), TIMEOUT, HALF_WINDOW);
    let mut receiver = opened.unwrap();
    stage.settle();
    send(&mut one_sided.sender, 1, 100);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].bytes(), payload(1, 100));
    assert!(!session.is_gone() && !one_sided.session.is_gone());
}

/// Repeats more often than there are receive buffers.
#[test]
fn a_queue_pair_that_comes_to_nothing_leaves_its_buffers() {
    let stage = Stage::new();
    for _ in 0..settings().receive_buffers {
        let one_sided = OneSided::on(&stage);
        drop(one_sided.ours);
        stage.settle();
        assert!(one_sided.session.is_gone());
    }
    let (mut sender, mut receiver) = stage.channel("after", WINDOW);
    send(&mut sender, 1, 100);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
}

/// A peer that has connected its queue pair, and does not let the session begin, takes no buffers
/// from the others.
#[test]
fn a_peer_without_a_session_keeps_no_receive_buffers() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.open(1, "beside", WINDOW);
    stage.settle();
    let [mut flooding, waiting] =
        pairs([&stage.nodes[1].rdma_port, &stage.nodes[0].rdma_port]).unwrap();
    for _ in 0..2 * settings().receive_buffers {
        let entries = [ScatterEntry::unregistered(&[7; 64])];
        let id = WorkId::new(Operation::Send, 0, 0);
        let mut batch = flooding.pair.send_batch();
        let request = SendRequest::send(id, &entries).inline().signaled();
        batch.push(&request).unwrap();
        batch.post().unwrap();
        flooding.pair.retire_sends(1);
        stage.settle();
    }
    send(&mut sender, 1, 100);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    drop(waiting);
}
