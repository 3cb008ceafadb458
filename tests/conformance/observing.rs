//! What a node tells of itself: its counts, at both ends.

use ibex::{ChannelState, ChannelStats, Node, NodeStats, Raw, Role, SendTimeoutError};

use crate::common::{
    scenario::{Scenario, Side},
    stage::{MOMENT, Stage},
};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::new("stats_of_both_ends", stats)];

/// One guard is held until its sender has no room: both ends count the same, say which
/// message it is, and that it is over afterwards.
fn stats(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("full").codec::<Raw>();
    let channel = channel.window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("an end");
            let pending = peer.channel("nobody's").codec::<Raw>();
            let _pending = pending.receiver::<[u8]>().expect("an end");
            let large = vec![7; 3 << 20];
            sender.send(&large).expect("sent");
            sender.wait_acked(1).expect("acknowledged");
            let mut sent = 1;
            let full = loop {
                match sender.send_timeout(b"a few bytes", 3 * MOMENT) {
                    Ok(sequence) => sent = sequence,
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, SendTimeoutError::Timeout), "{full}");
            assert_eq!(sent, 1 + WINDOW);
            let stats = channel_of(&node, "full");
            assert_eq!((stats.end, stats.state), (Role::Sender, ChannelState::Open));
            assert_eq!((stats.sent, stats.released), (sent, 1));
            assert_eq!((stats.held, stats.held_oldest), (WINDOW, Some(2)));
            assert_eq!((stats.large_messages, stats.large_bytes), (1, 3 << 20));
            assert_eq!(stats.window_messages, WINDOW);
            assert!(
                stats.stalls >= 1 && stats.stalled >= 3 * MOMENT,
                "{stats:?}"
            );
            let pending = channel_of(&node, "nobody's");
            assert_eq!(
                (pending.end, pending.state),
                (Role::Receiver, ChannelState::Pending)
            );
            stage.tell("it is full");
            sender.send(b"one more").expect("there is room");
            sender.wait_acked(sent + 1).expect("acknowledged");
            let after = channel_of(&node, "full");
            assert_eq!((after.released, after.acknowledged), (sent + 1, sent + 1));
            assert_eq!((after.held, after.held_oldest), (0, None));
            assert!(after.released_bytes > stats.released_bytes, "{after:?}");
            // Nobody waits any more.
            let later = channel_of(&node, "full");
            assert_eq!((later.stalls, later.stalled), (after.stalls, after.stalled));
            check_words(&node.stats(), "full");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("an end");
            let first = receiver.recv().expect("a message");
            assert_eq!(first.len(), 3 << 20);
            first.ack();
            let held = receiver.recv().expect("a message");
            stage.hear("it is full", &node);
            check_words(&node.stats(), "full");
            let stats = channel_of(&node, "full");
            assert_eq!(
                (stats.end, stats.state),
                (Role::Receiver, ChannelState::Open)
            );
            assert_eq!((stats.received, stats.released), (2, 1));
            assert_eq!((stats.held, stats.held_oldest), (1, Some(2)));
            assert_eq!((stats.large_messages, stats.large_bytes), (1, 3 << 20));
            held.ack();
            for _ in 0..WINDOW {
                receiver.recv().expect("a message").ack();
            }
            stage.hear("done", &node);
        }
    }
}

const WINDOW: u64 = 16;

fn channel_of(node: &Node, name: &str) -> ChannelStats {
    let stats = node.stats();
    let [session] = &stats.sessions[..] else {
        panic!("one session: {stats:?}");
    };
    assert!(session.is_up);
    let found = session.channels.iter().find(|channel| channel.name == name);
    found.unwrap_or_else(|| panic!("{name}: {stats}")).clone()
}

/// The table and what is serialized say the same.
fn check_words(stats: &NodeStats, name: &str) {
    let session = &stats.sessions[0];
    let table = stats.to_string();
    for part in [
        name,
        &session.peer.to_string(),
        &stats.id.to_string(),
        "held from",
    ] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    #[cfg(feature = "serde")]
    {
        let json = serde_json::to_value(stats).expect("it can be serialized");
        let there = &json["sessions"][0];
        assert_eq!(there["peer"], session.peer.to_string());
        assert_eq!(there["fabric"], session.fabric.to_string());
        assert_eq!(
            there["counters"]["frames_sent"],
            session.counters.frames_sent
        );
        let channels = there["channels"].as_array().expect("a list");
        assert_eq!(channels.len(), session.channels.len());
        assert!(channels.iter().any(|channel| channel["name"] == name));
    }
}
