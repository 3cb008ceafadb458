//! Ends of channels and sessions: in order and in any order, by closing, by killing, and in the
//! middle of a call.

use std::{
    panic,
    sync::{Barrier, mpsc},
    thread,
};

use ibex::{
    CloseReason, CloseReport, Codec, ConnectErrorKind, Counts, Driver, EndCause, Fabric, Node,
    Peer, Raw, RecvError, RecvErrorKind, SendError, SendErrorKind, WaitErrorKind,
    codec::{EncodeError, Invalid, SchemaInfo, SlotWriter},
};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side},
    stage::{BytesReceiver, BytesSender, LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("return_from_main_at_once", return_from_main),
    Scenario::new("sender_ends_first", sender_first),
    Scenario::new("receiver_ends_first", receiver_first),
    Scenario::new("sending_node_ends_first", sending_node_first),
    Scenario::new("receiving_node_ends_first", receiving_node_first),
    Scenario::new("unused_ends_dropped", unused),
    Scenario::new("close_reports", close_reports),
    Scenario::new("close_with_a_stopped_peer", close_with_a_stopped_peer),
    Scenario::new("close_interrupts", close_interrupts),
    Scenario::new("close_in_the_middle_of_a_send", close_in_a_send),
    Scenario::new("senders_give_up", senders_give_up),
    Scenario::new("sending_node_dropped_by_a_panic", sending_node_panics),
    Scenario::new("sender_killed", sender_killed).kills(Side::Dialer),
    Scenario::new("sender_killed_in_a_large_message", sender_killed_in_large).kills(Side::Dialer),
    Scenario::new("receiver_killed", receiver_killed).kills(Side::Listener),
];

/// Receives messages until the end and checks that they are numbered in order. Returns the last
/// number and the end.
fn receive_to_the_end(receiver: &mut BytesReceiver) -> (u64, Result<(), RecvError>) {
    let mut last = receiver.received();
    loop {
        match receiver.next() {
            Ok(Some(message)) => {
                last += 1;
                assert_eq!(message.sequence(), last);
                payload::check(last, &message);
            }
            Ok(None) => return (last, Ok(())),
            Err(error) => return (last, Err(error)),
        }
    }
}

/// Receives `count` messages, then an orderly end.
pub(crate) fn assert_all_come(receiver: &mut BytesReceiver, count: u64) {
    let (last, end) = receive_to_the_end(receiver);
    assert_eq!(last, count, "{end:?}");
    end.expect("an orderly end");
}

/// Sends to a peer that leaves until an error comes. Returns its cause. Messages on their way when
/// the peer leaves are accepted and lost.
fn send_until_refused(sender: &mut BytesSender) -> EndCause {
    loop {
        if let Err(error) = sender.send(b"to nobody") {
            return cause_of_send(error);
        }
    }
}

/// Panics unless the peer left in order.
fn assert_left(cause: EndCause) {
    assert!(
        matches!(
            cause,
            EndCause::Goodbye | EndCause::PeerClosed(CloseReason::Dropped)
        ),
        "{cause}"
    );
}

/// Panics unless the peer is known to have died; both processes have the same kernel, which knows.
fn assert_died(cause: Option<&EndCause>) {
    assert!(
        matches!(cause, Some(EndCause::PeerGone { certain: true, .. })),
        "{cause:?}"
    );
}

/// Sends behind message `sent` until the channel ends. Returns the last accepted message, and the
/// error.
fn stream_until_refused(sender: &mut BytesSender, mut sent: u64) -> (u64, SendError, Counts) {
    loop {
        match sender.send(&payload::numbered(sent + 1, 1000)) {
            Ok(sequence) => sent = sequence,
            Err(error) => {
                let counts = error.counts().expect("a disconnection");
                return (sent, error, counts);
            }
        }
    }
}

fn cause_of_send(error: SendError) -> EndCause {
    error.cause().expect("a disconnection").clone()
}

fn cause_of_recv(error: RecvError) -> EndCause {
    error.cause().expect("a disconnection").clone()
}

/// A program sends 1000 messages and returns from `main` at once: all arrive.
fn return_from_main(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "hasty");
            send_all(&mut sender, 1000, |_| 100);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "hasty");
            assert_all_come(&mut receiver, 1000);
        }
    }
}

/// The sender's handle is dropped with messages on their way; its node lives on.
fn sender_first(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "ends");
            send_all(&mut sender, 100, |_| 5000);
            let clone = sender.clone();
            drop(sender);
            drop(clone);
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "ends");
            assert_all_come(&mut receiver, 100);
            assert!(matches!(
                receiver.try_recv(),
                Err(error) if error.kind() == RecvErrorKind::Ended
            ));
            assert!(!peer.is_gone());
            stage.tell("done");
        }
    }
}

/// The receiver's handle is dropped in mid-stream: the sender gets an error with counters.
fn receiver_first(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "ends");
            let (sent, error, counts) = stream_until_refused(&mut sender, 0);
            let cause = EndCause::PeerClosed(CloseReason::Dropped);
            assert_eq!(error.cause(), Some(&cause));
            assert_eq!(counts.sent, sent);
            assert!((10..=sent).contains(&counts.received), "{}", counts);
            assert_eq!(counts.acknowledged, 10);
            assert!(matches!(
                sender.try_send(b"more"),
                Err(error) if !error.is_transient()
            ));
            assert!(!peer.is_gone());
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "ends");
            for _ in 0..10 {
                receiver.recv().expect("a message").ack();
            }
            drop(receiver);
            stage.hear("done", &node);
        }
    }
}

/// The sending node ends before its handles: everything arrives, then the orderly end.
fn sending_node_first(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            let mut back = receiver(&peer, "back");
            back.opened(LONG).expect("the peer opens");
            send_all(&mut out, 100, |_| 5000);
            if stage.driver() == Driver::Tasks {
                // A node dropped here would be closed by its tasks.
                let _ = node.close(LONG);
            }
            drop(node);
            assert_eq!(
                cause_of_send(out.send(b"late").expect_err("closed")),
                EndCause::NodeClosed
            );
            // Messages that had arrived are handed out first.
            let error = back.iter().find_map(Result::err).expect("no orderly end");
            assert_eq!(cause_of_recv(error), EndCause::NodeClosed);
            assert!(peer.is_gone());
            assert!(
                peer.channel("late")
                    .codec::<Raw>()
                    .sender::<[u8]>()
                    .is_err()
            );
        }
        Side::Listener => {
            let mut out = receiver(&peer, "out");
            let mut back = sender(&peer, "back");
            assert_all_come(&mut out, 100);
            assert_left(send_until_refused(&mut back));
        }
    }
}

/// Drops `owned` by a panic in another thread, without output on the terminal.
fn drop_by_a_panic(owned: impl Send + 'static) {
    let thread = thread::spawn(move || {
        let _owned = owned;
        panic::resume_unwind(Box::new("planned"));
    });
    thread.join().expect_err("it panics");
}

/// Closes its sender when it is dropped, as programs that clean up do.
struct ClosedOnDrop(Option<BytesSender>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        let sender = self.0.take().expect("it is dropped once");
        sender.close().expect("delivered");
    }
}

/// Receives `count` messages, then an error that says that more was to come.
fn assert_given_up(receiver: &mut BytesReceiver, count: u64) {
    let (last, end) = receive_to_the_end(receiver);
    assert_eq!(last, count);
    assert_eq!(
        cause_of_recv(end.expect_err("not in order")),
        EndCause::PeerClosed(CloseReason::Aborted)
    );
}

/// Senders that are aborted or dropped by a panic do not count as complete. Their messages arrive,
/// short and large; then the channel can be opened again.
fn senders_give_up(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let size = |sequence| if sequence == 100 { 300_000 } else { 5000 };
    match stage.side {
        Side::Dialer => {
            let sent = |name| {
                let mut sender = sender(&peer, name);
                send_all(&mut sender, 100, size);
                sender
            };
            sent("aborted").abort();
            drop_by_a_panic(sent("panicked"));
            drop_by_a_panic(ClosedOnDrop(Some(sent("closed"))));
            // The last of several handles ends the channel, and remembers a handle that gave up.
            let mut last = sender(&peer, "cloned");
            drop_by_a_panic(last.clone());
            send_all(&mut last, 100, size);
            drop(last);
            stage.hear("heard", &node);
            drop(sent("aborted"));
            stage.hear("done", &node);
        }
        Side::Listener => {
            assert_given_up(&mut receiver(&peer, "aborted"), 100);
            assert_given_up(&mut receiver(&peer, "panicked"), 100);
            assert_all_come(&mut receiver(&peer, "closed"), 100);
            assert_given_up(&mut receiver(&peer, "cloned"), 100);
            assert!(!peer.is_gone());
            stage.tell("heard");
            assert_all_come(&mut receiver(&peer, "aborted"), 100);
            stage.tell("done");
        }
    }
}

/// A panic drops a node before its sender: everything arrives, and no orderly end.
fn sending_node_panics(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            let mut said = sender(&peer, "said");
            send_all(&mut out, 100, |_| 5000);
            // The other end may leave this many messages unread.
            send_all(&mut said, 10, |_| 100);
            drop(said);
            drop_by_a_panic(node);
            assert_eq!(
                cause_of_send(out.send(b"late").expect_err("closed")),
                EndCause::NodeClosed
            );
        }
        Side::Listener => {
            let (mut out, mut said) = (receiver(&peer, "out"), receiver(&peer, "said"));
            assert_given_up(&mut out, 100);
            assert_all_come(&mut said, 10);
        }
    }
}

/// The receiving node ends before its handles, with messages unread.
fn receiving_node_first(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "ends");
            send_all(&mut sender, 100, |_| 100);
            sender.flush().expect("delivered");
            stage.tell("sent");
            assert_left(send_until_refused(&mut sender));
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "ends");
            for sequence in 1..=10 {
                payload::check(sequence, &receiver.recv().expect("a message"));
            }
            stage.hear("sent", &node);
            drop(node);
            // Messages that have arrived are handed out first.
            let (last, end) = loop {
                match receiver.next() {
                    Ok(Some(message)) if message.sequence() <= 100 => {
                        payload::check(message.sequence(), &message);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break (receiver.received(), None),
                    Err(error) => break (receiver.received(), Some(error)),
                }
            };
            assert!(last >= 100, "{last} of 100 messages that had been flushed");
            assert_eq!(end.map(cause_of_recv), Some(EndCause::NodeClosed));
        }
    }
}

/// Ends that were never used, or never met, are dropped in every order.
fn unused(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let names = ["a", "b", "c", "d"];
    if stage.is_dialer() {
        let senders: Vec<_> = names.iter().map(|name| sender(&peer, name)).collect();
        drop(senders);
        stage.hear("ended", &node);
        let receivers: Vec<_> = names.iter().map(|name| receiver(&peer, name)).collect();
        stage.rendezvous("open", &node);
        drop(receivers);
        stage.hear("done", &node);
    } else {
        for name in names {
            // The channel was closed before this end was opened, which gives the end of an empty
            // channel.
            assert!(
                receiver(&peer, name)
                    .next()
                    .expect("an orderly end")
                    .is_none()
            );
        }
        stage.tell("ended");
        let mut senders: Vec<_> = names.iter().map(|name| sender(&peer, name)).collect();
        stage.rendezvous("open", &node);
        for sender in &mut senders {
            assert_eq!(
                send_until_refused(sender),
                EndCause::PeerClosed(CloseReason::Dropped)
            );
        }
        stage.tell("done");
    }
}

/// `close` drains, and reports that nothing is missing.
fn close_reports(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            send_all(&mut out, 1000, |_| 100);
            let report = node.close(LONG);
            assert!(report.undelivered.is_empty(), "{report:?}");
            assert!(
                node.close(LONG).undelivered.is_empty(),
                "closing again does nothing"
            );
            stage.hear_any();
        }
        Side::Listener => {
            let mut out = receiver(&peer, "out");
            assert_all_come(&mut out, 1000);
            stage.tell("received");
        }
    }
}

/// Stops the peer, sends to it and closes. The report has the messages that the peer's engine may
/// lack.
pub(crate) fn close_while_stopped(
    stage: &mut Stage,
    peer: &Peer,
    close: impl FnOnce() -> CloseReport,
) {
    let mut out = sender(peer, "out");
    out.opened(LONG).expect("the peer opens");
    stage.stop_other();
    send_all(&mut out, 10, |_| 100);
    let report = close();
    match (stage.fabric(), &report.undelivered[..]) {
        // The message lies in memory that the peer has mapped.
        (Fabric::Shm, []) => {}
        (Fabric::Tcp | Fabric::Verbs, [out]) => {
            assert_eq!((&out.channel[..], out.sent), ("out", 10));
            assert_eq!(out.received, 0);
        }
        other => panic!("the peer is stopped: {other:?}"),
    }
}

/// The peer lives and does not run: `close` gives up after its time-out. Messages on their way
/// still arrive.
fn close_with_a_stopped_peer(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            close_while_stopped(stage, &peer, || node.close(MOMENT));
            stage.resume_other();
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let mut out = receiver(&peer, "out");
            let (last, _) = receive_to_the_end(&mut out);
            assert_eq!(last, 10);
            stage.tell("received");
        }
    }
}

/// A call that blocks.
type Call<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Lets calls wait on each kind of channel end, and one more call. Each ends for this cause when
/// another thread closes the node or its session.
pub(crate) fn interrupt(
    stage: &mut Stage,
    node: &Node,
    peer: &Peer,
    cause: &EndCause,
    more: Option<Call<'_>>,
    close: impl FnOnce(),
) {
    const WINDOW: u64 = 16;
    let full = peer.channel("full").codec::<Raw>().window_messages(WINDOW);
    if stage.is_dialer() {
        let ends = (
            sender(peer, "silent"),
            full.receiver::<[u8]>(),
            receiver(peer, "unacknowledged"),
        );
        // The listener announces that it has closed; until then no end reads or sends.
        stage.hear("closed", node);
        drop(ends);
        return;
    }
    let mut silent = receiver(peer, "silent");
    let mut full = full.sender::<[u8]>().expect("a sender");
    let mut unacknowledged = sender(peer, "unacknowledged");
    let mut pending = sender(peer, "never opened");
    silent.opened(LONG).expect("the peer opens");
    for _ in 0..WINDOW {
        full.send(b"fills").expect("sent");
    }
    unacknowledged.send(b"unread").expect("sent");
    let mut calls: Vec<Call<'_>> = vec![
        Box::new(|| {
            let error = silent.recv().expect_err("nobody sends");
            assert_eq!(error.cause(), Some(cause));
        }),
        Box::new(|| {
            let error = full.send(b"one too many").expect_err("nobody reads");
            assert_eq!(error.cause(), Some(cause));
        }),
        Box::new(|| {
            let error = unacknowledged
                .wait_acked(1)
                .expect_err("nobody acknowledges");
            assert_eq!(error.cause(), Some(cause));
        }),
        Box::new(|| {
            let error = pending.send(b"early").expect_err("nobody opens");
            assert_eq!(error.cause(), Some(cause));
        }),
    ];
    calls.extend(more);
    thread::scope(|scope| {
        let (started, threads) = mpsc::channel();
        for call in calls {
            let started = started.clone();
            scope.spawn(move || {
                started.send(kernel::this_thread()).expect("somebody waits");
                drop(started);
                call();
            });
        }
        drop(started);
        threads.into_iter().for_each(kernel::wait_until_asleep);
        close();
        stage.tell("closed");
    });
}

/// Every blocking call returns when another thread closes the node.
fn close_interrupts(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let accept = || {
        let error = node.accept().expect_err("no peer");
        assert_eq!(error.kind(), ConnectErrorKind::Closed);
    };
    let accept: Call<'_> = Box::new(accept);
    interrupt(
        stage,
        &node,
        &peer,
        &EndCause::NodeClosed,
        Some(accept),
        || {
            let _ = node.close(MOMENT);
        },
    );
    if stage.is_dialer() {
        return;
    }
    assert_eq!(
        node.try_accept().expect_err("no peer").kind(),
        ConnectErrorKind::Closed
    );
    assert_eq!(
        node.accept_timeout(LONG).expect_err("no peer").kind(),
        ConnectErrorKind::Closed
    );
}

/// A node is closed while a thread builds a message, and the thread's call then succeeds: the
/// message arrives, then the orderly end.
fn close_in_a_send(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("out").codec::<Gated>();
    if stage.side == Side::Listener {
        let mut out = channel.receiver::<[u8]>().expect("a receiver");
        let silent = sender(&peer, "silent");
        for sequence in 1..=2 {
            let message = out.recv().expect("a message");
            assert_eq!(message.sequence(), sequence);
            message.ack();
        }
        assert!(out.next().expect("an orderly end").is_none());
        return drop(silent);
    }
    let mut out = channel.sender::<[u8]>().expect("a sender");
    let mut silent = receiver(&peer, "silent");
    silent.opened(LONG).expect("the peer opens");
    out.send(b"here").expect("sent");
    // The receiver waits behind the last message.
    out.wait_acked(1).expect("acknowledged");
    thread::scope(|scope| {
        let sending = scope.spawn(move || out.send(GATED).map(|sequence| (sequence, out)));
        GATE.wait();
        let closing = scope.spawn(|| node.close(LONG));
        // A waiting thread learns that the node closes.
        let error = silent.recv().expect_err("nobody sends");
        assert_eq!(cause_of_recv(error), EndCause::NodeClosed);
        GATE.wait();
        let (sequence, _out) = sending.join().expect("no panic").expect("sent");
        assert_eq!(sequence, 2);
        let report = closing.join().expect("no panic");
        assert!(report.undelivered.is_empty(), "{report}");
    });
}

/// A codec of bytes that waits at a gate in the middle of one message.
enum Gated {}

const GATED: &[u8] = b"behind the gate";
static GATE: Barrier = Barrier::new(2);

impl Codec<[u8]> for Gated {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        8
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<[u8]>("gated", &[])
    }

    fn size(value: &[u8]) -> Option<usize> {
        Some(value.len())
    }

    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        if value == GATED {
            GATE.wait();
            GATE.wait();
        }
        Ok(slot.write(value)?)
    }

    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

/// `kill -9` of the sender in mid-stream: everything that arrived is handed out in order, then
/// comes the error with exact counters.
fn sender_killed(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "stream");
            for sequence in 1.. {
                sender
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent until killed");
            }
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "stream");
            for sequence in 1..=2000 {
                let message = receiver.recv().expect("a message");
                payload::check(sequence, &message);
                message.ack();
            }
            stage.kill_other();
            let (last, end) = receive_to_the_end(&mut receiver);
            let error = end.expect_err("killed");
            assert_died(error.cause());
            let counts = error.counts().expect("a disconnection");
            assert_eq!(counts.received, last, "{error}");
            assert_eq!(counts.released, last, "{error}");
            assert_eq!(counts.acknowledged, 2000, "{error}");
            assert!(receiver.recv().is_err(), "and it stays so");
            assert!(peer.is_gone());
        }
    }
}

/// `kill -9` of the sender in the middle of a message that travels in parts: the part is no
/// message.
fn sender_killed_in_large(stage: &mut Stage) {
    const LENGTH: usize = 8 << 20;
    // The message behind a large one may arrive first.
    let length = |sequence: u64| if sequence % 2 == 1 { LENGTH } else { 100 };
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "large");
            let mut bytes = vec![0; LENGTH];
            for sequence in 1.. {
                let bytes = &mut bytes[..length(sequence)];
                payload::fill(sequence, bytes);
                sender.send(bytes).expect("sent until killed");
            }
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "large");
            for sequence in 1..=5 {
                let message = receiver.recv().expect("a message");
                assert_eq!(message.len(), length(sequence));
                payload::check(sequence, &message);
            }
            stage.kill_other();
            let (last, end) = receive_to_the_end(&mut receiver);
            assert!(last >= 5);
            let end = end.expect_err("killed");
            assert_died(end.cause());
            let counts = end.counts().expect("a disconnection");
            assert_eq!(counts.received, last, "nothing more is handed out");
        }
    }
}

/// `kill -9` of the receiver in mid-stream: any call of the sender gets the error with its
/// counters.
fn receiver_killed(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "stream");
            send_all(&mut sender, 100, |_| 1000);
            sender.wait_acked(100).expect("acknowledged");
            stage.kill_other();
            let (sent, error, counts) = stream_until_refused(&mut sender, 100);
            assert_died(error.cause());
            assert_eq!(counts.sent, sent);
            assert!((100..=sent).contains(&counts.received), "{error}");
            assert!((100..=sent).contains(&counts.acknowledged), "{error}");
            // A message that was not taken is not delivered, over any fabric.
            let all_received = counts.received == sent;
            assert_eq!(sender.flush().is_ok(), all_received, "{error}");
            // Sending after the peer has gone fails, and so does waiting.
            assert!(matches!(
                sender.send(b"late"),
                Err(error) if error.kind() == SendErrorKind::Disconnected
            ));
            sender.wait_acked(100).expect("acknowledged before");
            assert!(matches!(
                sender.wait_acked(sent + 1),
                Err(error) if error.kind() == WaitErrorKind::Disconnected
            ));
            assert!(
                peer.channel("late")
                    .codec::<Raw>()
                    .sender::<[u8]>()
                    .is_err()
            );
            assert!(peer.is_gone());
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "stream");
            loop {
                receiver.recv().expect("a message until killed").ack();
            }
        }
    }
}
