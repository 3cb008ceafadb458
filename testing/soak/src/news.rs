//! A node's suspensions and resumptions, which the checker counts.
#![forbid(unsafe_code)]

use std::thread;

use ibex::{Event, Node};

use crate::{fact::Fact, node::Life};

/// Passes a node's events on until the node is closed, in a thread of its own.
pub(crate) fn pass_on(node: &Node, life: &Life, process: u64) {
    let (events, feed) = (node.events(), life.feed.clone());
    thread::spawn(move || {
        let facts = events.filter_map(|event| fact_of(&event, process));
        facts.for_each(|fact| feed.tell(fact));
    });
}

/// Returns the fact in an event, if the checker counts it.
fn fact_of(event: &Event, process: u64) -> Option<Fact> {
    match *event {
        Event::Suspended { .. } => Some(Fact::Suspended { process }),
        Event::Resumed { replayed, .. } => Some(Fact::Resumed { process, replayed }),
        _ => None,
    }
}
