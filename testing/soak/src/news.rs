//! What a node says of its sessions' suspensions, for the checker to count.
#![forbid(unsafe_code)]

use std::thread;

use ibex::{Event, Node};

use crate::{fact::Fact, node::Life};

/// Passes on, in a thread of its own, what the node says until it is closed.
pub(crate) fn pass_on(node: &Node, life: &Life, process: u64) {
    let (events, feed) = (node.events(), life.feed.clone());
    thread::spawn(move || {
        let facts = events.filter_map(|event| fact_of(&event, process));
        facts.for_each(|fact| feed.tell(fact));
    });
}

/// What counts of an event.
fn fact_of(event: &Event, process: u64) -> Option<Fact> {
    match *event {
        Event::Suspended { .. } => Some(Fact::Suspended { process }),
        Event::Resumed { replayed, .. } => Some(Fact::Resumed { process, replayed }),
        _ => None,
    }
}
