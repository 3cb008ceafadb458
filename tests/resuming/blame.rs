//! While a session has no connection, whatever waits in vain says so, and blames nobody at the other
//! end. A receiver that is slow is told apart from one that takes nothing.

use std::{
    error::Error,
    future,
    io::{self, Read},
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    EndCause, Event, Fabric, Node, Peer, SendErrorKind, Sender, Suspension,
    calls::{CallErrorKind, CallOptions, Execution},
    io::{Listener, Stream},
    log::{LogAnswer, LogSender, LogSent, LogSource, LogTurn},
};

use super::{LONG, builder, join, pair, pair_over, wait_until};

/// Checks a text of a wait that a cut was in the way of.
fn tells_of_the_cut(said: &str, plan: &str) {
    assert!(
        said.contains("there has been no connection to 127.0.0."),
        "{said}"
    );
    assert!(said.contains(plan), "{said}");
    for blame in ["see that", "gone", "stayed full", "falls behind"] {
        assert!(!said.contains(blame), "{blame}: {said}");
    }
}

fn has_account(suspended: Option<&Suspension>, dials: bool) {
    let account = suspended.expect("it is suspended");
    assert_eq!(account.dials, dials, "{account}");
    assert!(account.until.is_some(), "{account}");
}

const DIALS: &str = "this node dials it again";
const WAITS: &str = "it dialed before, and has to dial again";

struct Endless(Option<Sender<u64>>);

type Sourced<R> = Result<R, Box<dyn Error + Send + Sync>>;

impl LogSource<u64> for Endless {
    fn end(&self) -> u64 {
        1_000_000
    }

    fn resume(&mut self, _: Peer) -> LogAnswer<u64> {
        Box::pin(future::ready(Ok((self.0.take().unwrap(), 0))))
    }

    fn send_next(&mut self, at: u64, turn: LogTurn<'_, u64>) -> Sourced<LogSent> {
        Ok(turn.send(&at, at + 1))
    }
}

/// The handles of one end, which had all been opened before the cut.
struct Handles {
    node: Node,
    peer: Peer,
    sender: Sender<u64>,
    receiver: ibex::Receiver<u64>,
    caller: ibex::calls::Caller<u64, u64>,
    group: ibex::group::Group<u64>,
    fan_in: ibex::FanIn<u64>,
    stream: Stream,
    _accepted: Stream,
    log: (LogSender<u64>, Endless),
}

const TIME: Duration = Duration::from_millis(50);

impl Handles {
    fn open(node: Node, peer: Peer, ours: &str, theirs: &str) -> Self {
        let name = |kind: &str| format!("{kind} {ours}");
        let small = |kind: &str| peer.channel(&name(kind)).window_messages(4);
        let mut listener = Listener::bind(&node, &format!("stream {theirs}")).unwrap();
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let stream = Stream::connect(&peer, &name("stream")).unwrap();
        let accepted = accepting.join().unwrap();
        let mut group = node.group::<u64>(&name("group")).unwrap();
        group.join(&peer).unwrap();
        Self {
            sender: small("numbers").sender().unwrap(),
            receiver: peer.receiver(&format!("numbers {theirs}")).unwrap(),
            caller: peer.caller(&name("service")).unwrap(),
            fan_in: node.fan_in(&format!("group {theirs}")).unwrap(),
            log: {
                let mut log = LogSender::new();
                log.go_on_with(peer.clone());
                (log, Endless(Some(small("log").sender().unwrap())))
            },
            group,
            stream,
            _accepted: accepted,
            node,
            peer,
        }
    }

    fn begin(&mut self) {
        self.sender.opened(LONG).unwrap();
        self.receiver.opened(LONG).unwrap();
        // A fan-in opens its ends when it is asked.
        let _ = self.fan_in.try_next();
        self.group.send(&1).unwrap();
        assert_eq!(*self.caller.call(&1).unwrap(), 2);
    }

    fn all_tell(&mut self, dials: bool) {
        let plan = if dials { DIALS } else { WAITS };
        has_account(self.peer.suspension().as_deref(), dials);

        let error = loop {
            match self.sender.send_timeout(&7, TIME) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), SendErrorKind::Timeout);
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let sequence = self.sender.counts().sent;
        for waited in [
            self.sender.wait_acked_timeout(sequence, TIME),
            self.sender.flush_timeout(TIME),
        ] {
            let error = waited.unwrap_err();
            has_account(error.suspended(), dials);
            tells_of_the_cut(&error.to_string(), plan);
        }

        let error = self.receiver.recv_timeout(TIME).err().unwrap();
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let mut unopened = self.peer.receiver::<u64>("opened during the cut").unwrap();
        let error = unopened.opened(TIME).unwrap_err();
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let late = self.caller.with(CallOptions::new().timeout(TIME));
        let error = late.call(&1).err().unwrap();
        assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded);
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let at_once = CallOptions::new().fail_while_suspended(true);
        let error = self.caller.with(at_once).call(&1).err().unwrap();
        assert_eq!(error.kind(), CallErrorKind::Suspended);
        assert_eq!(error.execution(), Execution::NotExecuted);
        tells_of_the_cut(&error.to_string(), plan);

        let sequence = self.group.send(&2).unwrap();
        let error = self
            .group
            .wait_acked_timeout(sequence, 1, TIME)
            .unwrap_err();
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);
        let error = self.group.flush_timeout(TIME).unwrap_err();
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let error = loop {
            match self.fan_in.next_timeout(TIME) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        has_account(error.suspended(), dials);
        tells_of_the_cut(&error.to_string(), plan);

        let (log, source) = &mut self.log;
        let error = log.send_timeout(source, TIME).unwrap_err();
        tells_of_the_cut(&error.to_string(), plan);

        self.stream.set_read_timeout(Some(TIME));
        let error = self.stream.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        tells_of_the_cut(&error.to_string(), plan);
    }
}

fn serve(peer: &Peer, name: &str) {
    let mut service = peer.service::<u64, u64>(name).unwrap();
    thread::spawn(move || {
        while let Ok(Some(request)) = service.next() {
            let answer = *request + 1;
            let _ = request.reply(&answer);
        }
    });
}

#[test]
fn everything_that_waits_tells_of_the_cut_at_both_ends() {
    let (here, peer, proxy, there, other) = pair();
    serve(&peer, "service out");
    serve(&other, "service back");
    let opening = thread::spawn(move || Handles::open(there, other, "out", "back"));
    let mut here = Handles::open(here, peer, "back", "out");
    let mut there = opening.join().unwrap();
    let beginning = thread::spawn(move || {
        there.begin();
        there
    });
    here.begin();
    let mut there = beginning.join().unwrap();
    proxy.cut_off();
    wait_until(|| here.peer.is_suspended() && there.peer.is_suspended());
    here.all_tell(true);
    there.all_tell(false);
    proxy.mend();
    wait_until(|| !here.peer.is_suspended() && !there.peer.is_suspended());
    assert!(here.peer.suspension().is_none());
    let at_once = CallOptions::new().fail_while_suspended(true);
    assert_eq!(*here.caller.with(at_once).call(&5).unwrap(), 6);
    drop((here.node, there.node));
}

#[test]
fn a_stall_during_a_cut_is_told_as_the_cut() {
    let (here, peer, proxy, _there, other) = pair();
    let mut events = here.events();
    let mut sender = peer
        .channel("numbers")
        .window_messages(2)
        .sender::<u64>()
        .unwrap();
    let receiver = other.receiver::<u64>("numbers").unwrap();
    sender.opened(LONG).unwrap();
    proxy.cut_off();
    wait_until(|| peer.is_suspended());
    let sending =
        thread::spawn(move || (0..6).try_for_each(|number| sender.send(&number).map(drop)));
    let stalled = loop {
        let event = events.next_timeout(LONG).expect("an event");
        if matches!(event, Event::Stalled { .. }) {
            break event;
        }
    };
    let Event::Stalled { suspended, .. } = &stalled else {
        unreachable!()
    };
    has_account(suspended.as_deref(), true);
    tells_of_the_cut(&stalled.to_string(), DIALS);
    drop(receiver);
    proxy.mend();
    let ended = sending.join().unwrap().unwrap_err();
    assert_eq!(ended.kind(), SendErrorKind::Disconnected);
}

/// Memory that both processes map needs no connection, so a cut is not what a call waits for.
#[test]
fn over_shared_memory_a_full_channel_is_not_laid_to_the_cut() {
    let (_here, peer, proxy, _there, other) = pair_over(Fabric::Shm);
    let mut sender = peer
        .channel("numbers")
        .window_messages(2)
        .sender::<u64>()
        .unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    receiver.recv().unwrap();
    proxy.cut_off();
    wait_until(|| peer.is_suspended());
    let error = loop {
        match sender.send_timeout(&7, TIME) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.suspended().is_none() && peer.suspension().is_some());
    let said = error.to_string();
    assert!(
        said.contains("released nothing for ") && said.contains(": see that the process"),
        "{said}"
    );
}

#[test]
fn a_slow_receiver_is_told_apart_from_one_that_takes_nothing() {
    let (_here, peer, _cable, _there, other) = pair();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.opened(LONG).unwrap();
    let mut last = 0;
    while let Ok(sequence) = sender.try_send(&7) {
        last = sequence;
    }
    let error = sender.send_timeout(&7, TIME).unwrap_err();
    assert_eq!(error.released_meanwhile(), Some(0));
    for said in [
        error.to_string(),
        sender
            .wait_acked_timeout(last, TIME)
            .unwrap_err()
            .to_string(),
    ] {
        assert!(said.contains(": see that the process there runs"), "{said}");
    }
    // From here on the receiver takes a message now and then.
    thread::spawn(move || {
        while let Ok(message) = receiver.recv() {
            message.ack();
            thread::sleep(TIME / 5);
        }
    });
    let said = loop {
        let said = sender
            .wait_acked_timeout(last, TIME)
            .unwrap_err()
            .to_string();
        if !said.contains("nothing moved in that time") {
            break said;
        }
    };
    assert!(said.contains("the receiver came on by "), "{said}");
    assert!(said.contains("is slower than this sender"), "{said}");
    assert!(!said.contains("see that"), "{said}");
}

/// A refusal says that no process listens at the peer's address.
#[test]
fn a_host_that_refuses_every_dial_ends_the_session_before_its_time() {
    let here = builder(Fabric::Tcp).peer_gone_after(TIME * 4);
    let (here, peer, proxy, _there, other) = join(here, builder(Fabric::Tcp));
    let mut events = here.events();
    proxy.unplug();
    let cause = loop {
        if let Event::Gone { cause, .. } = events.next_timeout(LONG).expect("an event") {
            break cause;
        }
    };
    let said = cause.to_string();
    assert!(
        said.contains("its host has refused connections for"),
        "{said}"
    );
    assert!(said.contains("peer_gone_after (200ms)"), "{said}");
    // A proxy before a living peer refuses as well.
    assert!(
        matches!(cause, EndCause::PeerGone { certain: false, .. }),
        "{said}"
    );
    assert!(peer.is_gone() && !other.is_gone());
}

/// A path on which dialing ends otherwise is no sign that the process is gone.
#[test]
fn a_peer_whose_host_does_not_refuse_is_waited_for() {
    let here = builder(Fabric::Tcp).peer_gone_after(TIME / 5);
    let (_here, peer, proxy, _there, other) = join(here, builder(Fabric::Tcp));
    proxy.cut_off();
    wait_until(|| {
        peer.suspension()
            .is_some_and(|account| account.attempts >= 8)
    });
    proxy.mend();
    wait_until(|| peer.stats().resumes == 1 && other.stats().resumes == 1);
    assert!(!peer.is_gone() && !other.is_gone());
}
