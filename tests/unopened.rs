//! Waits for an end under a name that the peer never opens. An event reports them, with the ends
//! that the peer has opened instead, even for calls that `open_timeout` does not end.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use ibex::{Driver, Event, Events, Node, NotOpened, Peer, Role, Select};

#[test]
fn a_select_waits_on_and_an_event_names_the_missing_end() {
    for driver in [Driver::Threads, Driver::Caller] {
        let (node, _listener, peers) = meet(driver);
        let mut events = node.events();
        let mut news = peers[0].receiver::<u64>("news").expect("an end");
        let mut select = Select::new();
        let ready = select.ready_timeout(&mut [&mut news], 5 * MOMENT);
        assert_eq!(ready, None, "{driver:?}");
        let missing = told(&mut events);
        assert_eq!((&*missing.channel, missing.missing), ("news", Role::Sender));
        assert_eq!(missing.other_names, ["new"]);
        assert_eq!(
            missing.to_string(),
            format!(
                "channel \"news\": {} did not open a sender of this name within 20ms; it has a \
                 sender of another name, \"new\", that is not open here: check the name at both \
                 ends, or raise open_timeout",
                peers[0].address()
            )
        );
        // One report suffices.
        assert_eq!(select.ready_timeout(&mut [&mut news], 5 * MOMENT), None);
        assert_eq!(events.try_next(), None, "{driver:?}");
    }
}

#[test]
fn so_do_futures_of_both_ends() {
    let (node, _listener, peers) = meet(Driver::Threads);
    let mut events = node.events();
    let mut receiver = peers[0].receiver::<u64>("news").expect("an end");
    pend(receiver.recv_async());
    assert_eq!(told(&mut events).missing, Role::Sender);
    let mut sender = peers[0].sender::<u64>("news").expect("an end");
    pend(sender.send_async(&1));
    let missing = told(&mut events);
    assert_eq!(missing.missing, Role::Receiver);
    assert_eq!(missing.other_names, ["old"]);
}

/// Peers that never open a fan-in's channel use others.
#[test]
fn a_fan_in_misses_nobody() {
    let (node, _listener, _peers) = meet(Driver::Threads);
    let mut events = node.events();
    let mut gathered = node
        .channel("news")
        .fan_in::<u64>()
        .expect("settings in range");
    gathered
        .next_timeout(10 * MOMENT)
        .expect_err("nobody sends");
    assert!(connected(events.try_next()));
    assert_eq!(events.try_next(), None);
}

/// An end that the peer opened in the meantime is not reported, however long it took before.
#[test]
fn an_end_that_is_opened_in_time_is_not_told_of() {
    let (node, _listener, peers) = meet(Driver::Threads);
    let mut events = node.events();
    let channel = peers[0].channel("new").open_timeout(5 * MOMENT);
    let mut new = channel.receiver::<u64>().expect("an end");
    let nothing = Select::new().ready_timeout(&mut [&mut new], 10 * MOMENT);
    assert_eq!(nothing, None, "it is open, and nothing was sent");
    assert!(connected(events.try_next()));
    assert_eq!(events.try_next(), None);
}

/// Connects two nodes, of which the second has opened a sender "new" and a receiver "old".
fn meet(driver: Driver) -> (Node, Node, [Peer; 2]) {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let client = Node::builder().driver(driver).open_timeout(MOMENT);
    let client = client.build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = client.connect(address).expect("a session");
    let theirs = listener.accept().expect("the same session");
    let opened = (theirs.sender::<u64>("new"), theirs.receiver::<u64>("old"));
    // The ends live as long as the session does.
    std::mem::forget(opened);
    while peer.incoming().len() < 2 {
        client.poll();
        thread::yield_now();
    }
    (client, listener, [peer, theirs])
}

fn told(events: &mut Events) -> NotOpened {
    loop {
        match events.next_timeout(PATIENCE).expect("it is told") {
            Event::NotOpened { missing, .. } => return *missing,
            other => assert!(connected(Some(other))),
        }
    }
}

fn connected(event: Option<Event>) -> bool {
    matches!(event, Some(Event::Connected { .. }))
}

fn pend(future: impl Future) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(future).poll(&mut context).is_pending());
}

const MOMENT: Duration = Duration::from_millis(20);
/// The time-out of events that come unless the test fails.
const PATIENCE: Duration = Duration::from_secs(120);
