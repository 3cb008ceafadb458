//! Calls with a time limit keep to it while their session has no connection. Work that they do not
//! do is neither lost nor done twice.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Driver, Fabric, Node, Peer, Receiver, RecvErrorKind, SendErrorKind, Sender, WaitErrorKind,
};
use ibex_harness::proxy::Proxy;

use crate::{LONG, node_over};

#[test]
fn limits_hold_over_tcp_under_threads() {
    limits_hold(Fabric::Tcp, Driver::Threads);
}

#[test]
fn limits_hold_over_tcp_under_callers() {
    limits_hold(Fabric::Tcp, Driver::Caller);
}

#[test]
fn limits_hold_over_shm_under_threads() {
    limits_hold(Fabric::Shm, Driver::Threads);
}

#[test]
fn limits_hold_over_shm_under_callers() {
    limits_hold(Fabric::Shm, Driver::Caller);
}

/// Runs once with dialing refused, and once with dialing unanswered.
fn limits_hold(fabric: Fabric, driver: Driver) {
    for is_silent in [false, true] {
        let (here, there) = (node_over(fabric, driver), node_over(fabric, driver));
        let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
        let place = Place::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                let peer = there.accept().unwrap();
                let mut end = End::open(&there, &peer, fabric, "back", "out");
                end.begin();
                place.meet(&there, 2);
                end.is_cut_off();
                end.keeps_to_limits();
                place.meet(&there, 4);
                end.goes_on();
                place.meet(&there, 6);
            });
            let peer = here.connect(proxy.address()).unwrap();
            let mut end = End::open(&here, &peer, fabric, "out", "back");
            end.begin();
            place.meet(&here, 2);
            match is_silent {
                false => proxy.cut_off(),
                true => {
                    proxy.hold(true);
                    proxy.cut();
                }
            }
            end.is_cut_off();
            end.keeps_to_limits();
            place.meet(&here, 4);
            proxy.mend();
            proxy.hold(false);
            end.goes_on();
            place.meet(&here, 6);
        });
    }
}

/// An end of a session, with a channel in each direction that is used and one that is silent.
struct End<'n> {
    node: &'n Node,
    peer: &'n Peer,
    fabric: Fabric,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
    silent_sender: Sender<u64>,
    silent_receiver: Receiver<u64>,
    /// The last number sent.
    sent: u64,
}

impl<'n> End<'n> {
    fn open(node: &'n Node, peer: &'n Peer, fabric: Fabric, out: &str, back: &str) -> Self {
        let silent = |name: &str| format!("silent {name}");
        let channel = |name| peer.channel(name).window_messages(WINDOW);
        Self {
            node,
            peer,
            fabric,
            sender: channel(out).sender().unwrap(),
            receiver: channel(back).receiver().unwrap(),
            silent_sender: peer.sender(&silent(out)).unwrap(),
            silent_receiver: peer.receiver(&silent(back)).unwrap(),
            sent: 0,
        }
    }

    /// Exchanges the first message of each channel.
    fn begin(&mut self) {
        self.sent = self.sender.send(&1).unwrap();
        self.silent_sender.send(&1).unwrap();
        let message = self.receiver.recv().unwrap();
        assert_eq!(*message, 1);
        message.ack();
        assert_eq!(*self.silent_receiver.recv().unwrap(), 1);
        self.sender.wait_acked(1).unwrap();
    }

    fn is_cut_off(&self) {
        wait_until(self.node, || self.peer.is_suspended());
    }

    fn keeps_to_limits(&mut self) {
        // Messages that fit the window are accepted without waiting.
        let last = loop {
            let began = Instant::now();
            match self.sender.send_timeout(&(self.sent + 1), LIMIT) {
                Ok(sequence) => self.sent = sequence,
                Err(error) => break (began, error),
            }
        };
        assert!((WINDOW..=1 + WINDOW).contains(&self.sent), "{}", self.sent);
        assert!(last.1.kind() == SendErrorKind::Timeout, "{}", last.1);
        is_in_time("send_timeout", last.0);

        let began = Instant::now();
        let error = self.silent_receiver.recv_timeout(LIMIT).err();
        assert!(
            matches!(&error, Some(error) if error.kind() == RecvErrorKind::Timeout),
            "{error:?}"
        );
        is_in_time("recv_timeout", began);

        let began = Instant::now();
        let error = self.sender.wait_acked_timeout(self.sent, LIMIT).err();
        assert!(
            matches!(&error, Some(error) if error.kind() == WaitErrorKind::Timeout),
            "{error:?}"
        );
        is_in_time("wait_acked_timeout", began);

        let began = Instant::now();
        match (self.fabric, self.sender.flush_timeout(LIMIT)) {
            // The message lies in memory that the peer has mapped.
            (Fabric::Shm, Ok(())) => {}
            (_, Err(error)) if error.kind() == WaitErrorKind::Timeout => {
                is_in_time("flush_timeout", began);
            }
            (_, other) => panic!("{other:?}"),
        }
        assert!(
            self.peer.is_suspended(),
            "the time was one without a connection"
        );
    }

    /// Receives the other messages behind the accepted ones; no number comes twice.
    fn goes_on(&mut self) {
        for number in 2..=LAST {
            let message = self.receiver.recv().unwrap();
            assert_eq!(*message, number);
            message.ack();
            if self.sent < LAST {
                self.sent = self.sender.send(&(self.sent + 1)).unwrap();
            }
        }
        self.sender.wait_acked(LAST).unwrap();
        self.silent_sender.send(&2).unwrap();
        assert_eq!(*self.silent_receiver.recv().unwrap(), 2);
        let silent = self.silent_receiver.try_recv();
        assert!(silent.is_err(), "nothing comes twice");
        // Over shm, messages do not travel by the connection.
        wait_until(self.node, || self.peer.stats().resumes > 0);
    }
}

/// A place where both ends meet before either continues. Their engines run meanwhile.
#[derive(Default)]
struct Place(AtomicUsize);

impl Place {
    /// Waits until there have been `count` arrivals in all.
    fn meet(&self, node: &Node, count: usize) {
        self.0.fetch_add(1, Ordering::AcqRel);
        wait_until(node, || self.0.load(Ordering::Acquire) >= count);
    }
}

fn wait_until(node: &Node, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG);
        while node.poll() {}
        thread::sleep(Duration::from_millis(1));
    }
}

/// Panics if a call that began at `began` has given up before its limit. The caller checks
/// afterwards that there was no connection, so nothing else can have ended the call.
fn is_in_time(call: &str, began: Instant) {
    let took = began.elapsed();
    assert!(took >= LIMIT, "{call} gave up after {took:?}");
}

const WINDOW: u64 = 16;
const LIMIT: Duration = Duration::from_millis(300);
/// The number of messages, far beyond the window.
const LAST: u64 = 200;
