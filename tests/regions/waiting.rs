//! Tasks that wait until no message needs a region.

use ibex_harness::wait_until;
use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use ibex::{Fabric, Node};

use super::{LONG, MOMENT, Over, Pair};

/// Enters the node again, as the waker of an executor may that runs the task at once, and panics
/// afterwards.
struct Entering {
    node: Weak<Node>,
    calls: AtomicU32,
}

impl Wake for Entering {
    fn wake(self: Arc<Self>) {
        if let Some(node) = self.node.upgrade() {
            // This takes the locks of all engines.
            assert!(node.stats().sessions.len() < 2);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        panic!("planted: a waker panics");
    }
}

impl Entering {
    fn new(node: &Arc<Node>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::downgrade(node),
            calls: AtomicU32::new(0),
        })
    }

    fn is_called(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Arc<Entering>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(waker.clone())))
}

/// The ways in which a node drops the last slice of a message that its peer has not taken.
type End = fn(&mut Option<Pair>, &Node);

/// Has a message of a region on its way, which `end` ends while a task waits for the region.
fn wait_while(name: &str, end: End) {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let region = pair.region(name);
        pair.sender.send_region(&region.slice(..)).expect("sent");
        let here = pair.here.clone();
        let mut pair = Some(pair);
        let waker = Entering::new(&here);
        let mut wait = pin!(region.wait_free_async());
        let is_free = poll(wait.as_mut(), &waker).is_ready();
        assert!(!is_free, "over {}", over.fabric);
        end(&mut pair, &here);
        while !waker.is_called() {
            turn(&pair);
        }
        assert!(poll(wait.as_mut(), &waker).is_ready());
        assert!(region.is_free());
        // The thread that called it may still be inside.
        wait_until(|| Arc::strong_count(&waker) == 1);
    }
}

fn turn(pair: &Option<Pair>) {
    if let Some(pair) = pair {
        pair.there.poll();
    }
}

#[test]
fn a_task_waits_until_a_message_has_gone() {
    wait_while("gone", |pair, _| {
        let pair = pair.as_mut().expect("a pair");
        // The peer reads it there.
        if pair.fabric == Fabric::Shm {
            drop(pair.receiver.recv_timeout(LONG).expect("a message"));
        }
    });
}

#[test]
fn a_task_waits_until_the_receiver_has_gone() {
    wait_while("closed", |pair, _| {
        let pair = pair.as_mut().expect("a pair");
        pair.receiver.close();
    });
}

#[test]
fn a_task_waits_until_the_peer_has_gone() {
    wait_while("peer", |pair, _| {
        let pair = pair.take().expect("a pair");
        let _ = pair.there.close(LONG);
    });
}

#[test]
fn a_task_waits_until_its_node_is_closed() {
    wait_while("node", |_, here| {
        let _ = here.close(Duration::ZERO);
    });
}

#[test]
fn a_wait_that_is_given_up_leaves_nothing() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let region = pair.region("given-up");
        let slice = region.slice(..);
        pair.sender.send_region(&slice).expect("sent");
        let waker = Entering::new(&pair.here);
        {
            let mut wait = pin!(region.wait_free_async());
            assert!(poll(wait.as_mut(), &waker).is_pending());
        }
        assert_eq!(Arc::strong_count(&waker), 1, "a waker is kept");
        pair.take(&slice);
        drop(slice);
        // The wait of a thread is the same one.
        while !region.wait_free(MOMENT) {
            pair.there.poll();
        }
        assert!(!waker.is_called());
    }
}
