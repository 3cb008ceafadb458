//! Errors of calls and byte streams, which use channels below but never mention them. Each names
//! the service or stream and the peer, and tells the owner of a caller, service or stream what to
//! do.
#![forbid(unsafe_code)]

mod pair;

use ibex_harness::wait_until;
use std::{
    fmt::Display,
    io::{self, ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use futures_util::future::join;
use ibex::prelude::*;
use ibex::{
    Fabric, Node, Peer, Pod, SendErrorKind,
    calls::{CallError, CallOptions, Caller, Execution, Service},
    io::{Listener, Stream},
};
use pair::{FABRICS, Pair};

/// Words of channels that do not apply to callers, services and streams.
const OF_CHANNELS: [&str; 9] = [
    "sender",
    "receiver",
    "fan-in",
    "`versioned_",
    "acknowledge",
    "send what was",
    "clone of this",
    "open_receiver",
    "channel \"",
];

/// Checks that the text contains all of `parts`, and no word of channels.
fn check(error: &dyn Display, parts: &[&str]) {
    let text = error.to_string();
    for word in OF_CHANNELS {
        assert!(!text.contains(word), "{word:?} is in: {text}");
    }
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Checks the text, and also that the advice fits the certainty of the call's execution: whether it
/// may be repeated, or only if it may be executed twice.
fn check_call(error: &CallError, execution: Execution, parts: &[&str]) {
    check(error, parts);
    assert_eq!(error.execution(), execution, "{error}");
    let is_doubtful = error
        .to_string()
        .contains("only if it may be executed twice");
    assert_eq!(is_doubtful, execution == Execution::Unknown, "{error}");
}

fn check_io(error: &io::Error, kind: ErrorKind, parts: &[&str]) {
    check(error, parts);
    assert_eq!(error.kind(), kind, "{error}");
}

type Echo = Caller<String, u64>;

fn caller(peer: &Peer) -> Echo {
    peer.caller("quotes").expect("a caller")
}

fn service(peer: &Peer) -> Service<String, u64> {
    peer.service("quotes").expect("a service")
}

fn call(echo: &Echo) -> CallError {
    echo.call(&"symbol".to_owned()).expect_err("it fails")
}

/// A time-out that is meant to pass.
const MOMENT: Duration = Duration::from_millis(20);

// ---- Calls -----------------------------------------------------------------------------

#[test]
fn a_call_whose_types_differ_is_told_of_types_and_not_of_versions() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;
        let echo = caller(there);
        let mut other = here.service::<u64, u64>("quotes").expect("a service");
        let theirs = thread::spawn(move || other.next().expect_err("the types differ"));
        let address = there.address().to_string();
        let parts = [
            "service \"quotes\"",
            &*address,
            "make both programs' the same",
        ];
        check_call(&call(&echo), Execution::NotExecuted, &parts);
        check(
            &theirs.join().expect("told"),
            &["service \"quotes\"", parts[2]],
        );
    }
}

#[test]
fn a_second_caller_of_a_name_is_told_to_clone_the_first_one() {
    let pair = Pair::over(Fabric::Shm);
    let peer = &pair.peers[0];
    let address = peer.address().to_string();
    let first = caller(peer);
    let second = peer.caller::<String, u64>("quotes").expect_err("taken");
    let parts = [
        "service \"quotes\"",
        &*address,
        "this node has a caller of this name",
        "clone that one, or drop it and its clones first",
    ];
    check(&second, &parts);
    // A node may serve the name as well.
    let served = peer.service::<String, u64>("quotes").expect("a service");
    drop((first.clone(), first, served));
    drop(caller(peer));
}

#[test]
fn a_second_service_of_a_name_is_told_of_the_first_one() {
    let pair = Pair::over(Fabric::Shm);
    let peer = &pair.peers[0];
    let address = peer.address().to_string();
    let _first = service(peer);
    let second = peer.service::<String, u64>("quotes").expect_err("taken");
    let parts = [
        "service \"quotes\"",
        &*address,
        "this node has a service of this name",
        "take requests from that one, or drop it first",
    ];
    check(&second, &parts);
    // The service for all peers has the name, although no request was taken yet.
    let _of_all = pair.nodes[0]
        .service::<String, u64>("prices")
        .expect("a service");
    let second = pair.nodes[0]
        .service::<String, u64>("prices")
        .expect_err("taken");
    check(
        &second,
        &["has a service \"prices\" already", "choose another name"],
    );
    let second = peer.service::<String, u64>("prices").expect_err("taken");
    check(
        &second,
        &[
            "\"prices\"",
            &address,
            "this node has a service of this name",
        ],
    );
    let messages = peer.receiver::<u64>("quotes").expect_err("taken");
    let text = messages.to_string();
    assert!(
        text.contains("this node has a service of this name"),
        "{text}"
    );
}

#[test]
fn a_service_that_is_not_opened_in_time_is_missed_as_a_service() {
    let pair = Pair::over(Fabric::Shm);
    let peer = &pair.peers[0];
    let address = peer.address().to_string();
    let hasty = |name| {
        let caller = peer.channel(name).open_timeout(MOMENT);
        caller.caller::<String, u64>().expect("a caller")
    };
    let parts = [
        "service \"quotes\"",
        &*address,
        "asks it for its next request",
        "raise open_timeout",
    ];
    check_call(&call(&hasty("quotes")), Execution::NotExecuted, &parts);
    let soon = CallOptions::new().timeout(MOMENT);
    let late = call(&hasty("quotes").with(soon));
    check_call(&late, Execution::NotExecuted, &["\"quotes\"", &address]);
    // The two ends use different names.
    let _quote = pair.peers[1].service::<String, u64>("quote").expect("one");
    wait_until(|| !peer.incoming().is_empty());
    let parts = ["\"quotes\"", "\"quote\"", "check the name at both nodes"];
    check_call(&call(&hasty("quotes")), Execution::NotExecuted, &parts);
    // The service waits for its caller.
    let served = pair.peers[1].channel("prices").open_timeout(MOMENT);
    let mut served = served.service::<String, u64>().expect("a service");
    let missed = served.next().expect_err("nobody calls");
    check(
        &missed,
        &["service \"prices\"", "makes a caller of this name"],
    );
}

#[test]
fn requests_and_replies_that_are_too_long_are_told_as_such() {
    let pair = Pair::over(Fabric::Shm);
    let [there, here] = &pair.peers;
    let short = there.channel("texts").max_message_bytes(1024);
    let texts = short.caller::<String, String>().expect("a caller");
    let mut served = here.service::<String, String>("texts").expect("a service");
    let serving = thread::spawn(move || {
        let request = served.next().expect("no error").expect("a request");
        let unsent = request.reply(&"x".repeat(2000)).expect_err("too long");
        assert_eq!(unsent.kind(), SendErrorKind::TooLong, "{unsent}");
        unsent
    });
    let error = texts.call(&"x".repeat(2000)).expect_err("too long");
    let address = there.address().to_string();
    let parts = ["a request of 20", &*address, "raise max_message_bytes here"];
    check_call(&error, Execution::NotExecuted, &parts);
    let error = texts
        .call(&String::new())
        .expect_err("the reply is too long");
    let parts = [
        "service \"texts\"",
        "its reply was not sent: it has 20",
        "raise max_message_bytes at both ends",
    ];
    check_call(&error, Execution::Executed, &parts);
    let unsent = serving.join().expect("served");
    check(&unsent, &["a reply of 20", "raise max_message_bytes there"]);
}

#[test]
fn a_refused_call_was_not_executed_and_may_be_repeated() {
    let pair = Pair::over(Fabric::Shm);
    let [there, here] = &pair.peers;
    let echo = caller(there);
    let mut served = service(here);
    let address = there.address().to_string();
    let serving = thread::spawn(move || {
        let mut next = || served.next().expect("no error").expect("a request");
        next().refuse();
        // The request is dropped: its handler is lost.
        drop(next());
        let mut held = Vec::new();
        loop {
            let request = next();
            if &*request == "enough" {
                break;
            }
            held.push(request);
        }
        drop(held);
        served
    });
    let parts = ["service \"quotes\"", &*address, "call again"];
    check_call(&call(&echo), Execution::NotExecuted, &parts);
    check_call(&call(&echo), Execution::Unknown, &parts);
    // The time ends while a handler has the call, unless it ended before the call was sent.
    let soon = echo.with(CallOptions::new().timeout(MOMENT));
    let late = loop {
        let late = call(&soon);
        check(&late, &parts);
        if late.execution() == Execution::Unknown {
            break late;
        }
    };
    check_call(&late, Execution::Unknown, &parts);
    echo.call(&"enough".to_owned()).expect_err("it is dropped");
    // The service ends.
    drop(serving.join().expect("served"));
    let parts = ["\"quotes\"", &*address, "call again"];
    let gone = call(&echo);
    check(&gone, &parts);
    while echo
        .call(&String::new())
        .expect_err("it is gone")
        .execution()
        != Execution::NotExecuted
    {
        thread::yield_now();
    }
    check_call(&call(&echo), Execution::NotExecuted, &parts);
}

#[test]
fn a_node_that_drains_says_where_to_call_instead() {
    let pair = Pair::over(Fabric::Shm);
    let [there, here] = &pair.peers;
    let echo = caller(there);
    let _served = service(here);
    pair.nodes[1].drain(Duration::ZERO);
    let parts = ["\"quotes\"", "drains", "to another node, or again after"];
    check_call(&call(&echo), Execution::NotExecuted, &parts);
}

#[test]
fn a_call_whose_service_is_lost_may_have_been_executed_and_the_next_was_not() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;
        let echo = caller(there);
        let address = there.address().to_string();
        let mut served = service(here);
        let [_client, server] = pair.nodes;
        let serving = thread::spawn(move || {
            let held = served.next().expect("no error").expect("a request");
            let _ = server.close(Duration::ZERO);
            (served, held)
        });
        let parts = ["\"quotes\"", &*address, "call again"];
        check_call(&call(&echo), Execution::Unknown, &parts);
        let next = loop {
            // The first calls may be sent before this end learns that the service has ended.
            let next = call(&echo);
            check(&next, &parts);
            if next.execution() != Execution::Unknown {
                break next;
            }
        };
        let parts = ["\"quotes\"", &*address, "the caller anew", "call again"];
        check_call(&next, Execution::NotExecuted, &parts);
        drop(serving.join().expect("served"));
        let late = there.caller::<String, u64>("others").expect_err("over");
        check(&late, &["\"others\"", &address, "connect or accept again"]);
    }
}

#[test]
fn calls_of_a_node_that_was_closed_ask_for_another_node() {
    let pair = Pair::over(Fabric::Shm);
    let peer = &pair.peers[0];
    let echo = caller(peer);
    let _ = pair.nodes[0].close(Duration::ZERO);
    let parts = ["\"quotes\"", "call again"];
    check_call(&call(&echo), Execution::NotExecuted, &parts);
    let late = peer.caller::<String, u64>("others").expect_err("closed");
    check(&late, &["\"others\"", "this node was closed; make another"]);
}

// ---- Byte streams ----------------------------------------------------------------------

/// Returns a stream's two ends: of the connecting node, and of the listening one.
fn stream(pair: &Pair) -> (Stream, Stream) {
    let mut listener = Listener::bind(&pair.nodes[1], "quotes").expect("a name");
    let accepting = thread::spawn(move || listener.accept().expect("accepted").0);
    let there = Stream::connect(&pair.peers[0], "quotes").expect("connected");
    (there, accepting.join().expect("accepted"))
}

fn until_error(mut again: impl FnMut() -> io::Result<()>) -> io::Error {
    loop {
        if let Err(error) = again() {
            return error;
        }
    }
}

#[test]
fn a_stream_that_the_peer_ended_says_so_as_a_stream_does() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let address = pair.peers[0].address().to_string();
        let (mut there, here) = stream(&pair);
        drop(here);
        let error = until_error(|| there.write(&[0; 1000]).map(drop));
        let parts = [
            "byte stream \"quotes/",
            &*address,
            "the peer reads no more",
            "connect another stream",
        ];
        check_io(&error, ErrorKind::BrokenPipe, &parts);
        let pair = Pair::over(fabric);
        let (there, mut here) = stream(&pair);
        there.abort();
        let error = here.read(&mut [0]).expect_err("aborted");
        let parts = ["byte stream \"quotes/", "gave the stream up", "cut off"];
        check_io(&error, ErrorKind::ConnectionReset, &parts);
    }
}

#[test]
fn a_stream_whose_time_is_up_says_what_it_waited_for() {
    let pair = Pair::over(Fabric::Shm);
    let address = pair.peers[0].address().to_string();
    let (mut there, _here) = stream(&pair);
    there.set_read_timeout(Some(MOMENT));
    there.set_write_timeout(Some(MOMENT));
    let error = there.read(&mut [0]).expect_err("nothing comes");
    let parts = ["byte stream \"quotes/", &*address, "a later read goes on"];
    check_io(&error, ErrorKind::TimedOut, &parts);
    let error = until_error(|| there.write(&[0; 10_000]).map(drop));
    let parts = [
        "byte stream \"quotes/",
        &*address,
        "a later write may succeed; see that the process there runs, is not stopped, and reads",
    ];
    check_io(&error, ErrorKind::TimedOut, &parts);
    there.finish();
    let error = there.write(b"more").expect_err("finished");
    check_io(&error, ErrorKind::BrokenPipe, &["was finished"]);
}

#[test]
fn a_stream_of_a_session_that_is_over_is_connected_anew() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let address = pair.peers[0].address().to_string();
        let (mut there, mut here) = stream(&pair);
        let mut listener = Listener::bind(&pair.nodes[1], "others").expect("a name");
        let _ = pair.nodes[1].close(Duration::ZERO);
        let error = until_error(|| there.write(&[0; 1000]).map(drop));
        let parts = ["byte stream \"quotes/", &*address, "again"];
        check_io(&error, ErrorKind::BrokenPipe, &parts);
        let error = until_error(|| here.write(&[0; 1000]).map(drop));
        let parts = [
            "byte stream \"quotes/",
            "this node was closed",
            "make a new node",
        ];
        check_io(&error, ErrorKind::ConnectionAborted, &parts);
        let error = listener.accept().expect_err("closed");
        check_io(
            &error,
            ErrorKind::ConnectionAborted,
            &["this node was closed"],
        );
        let error = Stream::connect(&pair.peers[0], "quotes").expect_err("the session is over");
        check(&error, &["byte streams \"quotes\"", &address, "again"]);
        let error = Stream::connect(&pair.peers[1], "quotes").expect_err("closed");
        let parts = [
            "byte streams \"quotes\"",
            "this node was closed; make another",
        ];
        check_io(&error, ErrorKind::ConnectionAborted, &parts);
    }
}

#[test]
fn a_listener_that_is_missing_or_does_not_accept_is_told_as_a_listener() {
    let server = Node::listen("127.0.0.1:0").expect("a node");
    let hasty = Node::builder().open_timeout(MOMENT).build().expect("one");
    let address = server.local_addr().expect("it listens");
    let peer = hasty.connect(address).expect("a session");
    let theirs = server.accept().expect("the same");
    let address = address.to_string();
    let error = Stream::connect(&peer, "quotes").expect_err("nobody listens");
    let parts = [
        "byte streams \"quotes\"",
        &*address,
        "see that the program there has a listener of this name and accepts",
    ];
    check_io(&error, ErrorKind::TimedOut, &parts);
    // The listener accepts one stream, and no other.
    let mut listener = Listener::bind(&server, "quotes").expect("a name");
    let one = join(
        Stream::connect_async(&peer, "quotes"),
        listener.accept_async(),
    );
    let (there, here) = smol::block_on(one);
    let _one = (there.expect("connected"), here.expect("accepted"));
    let error = Stream::connect(&peer, "quotes").expect_err("it accepts no more");
    let parts = [
        "byte streams \"quotes\"",
        &*address,
        "did not accept the stream within the time-out",
        "raise open_timeout, and connect again",
    ];
    check_io(&error, ErrorKind::TimedOut, &parts);
    drop(theirs);
}

#[test]
fn a_name_that_something_else_has_is_told_as_taken_and_by_what() {
    let pair = Pair::over(Fabric::Shm);
    let [there, here] = &pair.peers;
    let _listener = Listener::bind(&pair.nodes[1], "quotes").expect("a name");
    let error = Listener::bind(&pair.nodes[1], "quotes").expect_err("the first has it");
    check_io(
        &error,
        ErrorKind::AddrInUse,
        &["\"quotes\"", "drop that listener"],
    );
    // The listening node has a service and a channel of messages.
    let _served = here.service::<String, u64>("prices").expect("a service");
    let mut second = Listener::bind(&pair.nodes[1], "prices").expect("it hears of peers later");
    let error = second.accept().expect_err("the service has the name");
    let address = here.address().to_string();
    let parts = [
        "byte streams \"prices\"",
        &*address,
        "this node has a service of this name",
        "choose another name",
    ];
    check_io(&error, ErrorKind::AddrInUse, &parts);
    let messages = here.channel("messages").codec::<Pod>();
    let _messages = messages.receiver::<u64>().expect("a receiver");
    let error = Stream::connect(there, "messages").expect_err("no listener");
    let address = there.address().to_string();
    let parts = [
        "byte streams \"messages\"",
        &*address,
        "choose another name",
    ];
    check_io(&error, ErrorKind::InvalidData, &parts);
}
