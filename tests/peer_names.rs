//! The names of peers: where a program, an operator and a log find them. No text that a peer chose
//! reaches a log or an error as it is.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "other tests need more of it")]
#[path = "common/log_lines.rs"]
mod log_lines;

use std::{thread, time::Duration};

use ibex::prelude::*;
use ibex::{Event, Fabric, Node, Policy, Raw, RecvErrorKind};
use log_lines::Log;

/// What a peer plants in each text that it chooses.
const PLANTED: &str = "one\ntwo\r\x1b[2J\u{202e}\u{2028}\u{200b}";

/// The time for which an end is waited for that nobody opens.
const SOON: Duration = Duration::from_millis(1);

/// A type whose schema has a text of the peer's choice.
#[ibex::message]
struct Hostile {
    #[ibex(schema_name = "one\ntwo\r\x1b[2J\u{202e}\u{2028}\u{200b}")]
    field: u64,
}

/// Two nodes of these names with a session: the listening one, and the one that connected.
fn nodes(names: [&str; 2]) -> [Node; 2] {
    let builder = |name| {
        let builder = Node::builder().fabric(Fabric::Tcp, Policy::Require);
        builder.name(name)
    };
    let listening = builder(names[0]).listen("127.0.0.1:0").build();
    [
        listening.expect("a node"),
        builder(names[1]).build().expect("a node"),
    ]
}

#[test]
fn a_peer_is_known_by_name_to_handlers_events_statistics_and_errors() {
    let [server, client] = nodes(["server", "client"]);
    let there = client.connect(server.local_addr().expect("it listens"));
    let there = there.expect("a session");
    let here = server.accept().expect("the same session");
    assert_eq!(
        (there.name(), here.name()),
        (Some("server"), Some("client"))
    );
    assert!(
        there.to_string().ends_with(" (named \"server\")"),
        "{there}"
    );
    assert!(there.authenticated_as().is_none());

    // A handler.
    let mut service = server.service::<u64, u64>("double").expect("a service");
    let caller = there.caller::<u64, u64>("double").expect("a caller");
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = service.next().expect("a call").expect("it came");
            assert_eq!(request.names(), here.names());
            let twice = request.to_native() * 2;
            request.reply(&twice).expect("room");
        });
        let reply = caller.call(&21).expect("a reply");
        assert_eq!(reply.to_native(), 42);
    });

    // An event, and the statistics.
    let event = server.events().next().expect("the session began");
    assert!(matches!(event, Event::Connected { .. }), "{event}");
    assert_eq!(event.names(), here.names());
    let shown = format!("at {} (named \"client\") over", here.address());
    assert!(event.to_string().contains(&shown), "{event}");
    let stats = server.stats();
    assert_eq!(stats.sessions[0].names, *here.names());
    assert!(stats.to_string().contains(&shown), "{stats}");

    // An error.
    let news = there.channel("news").open_timeout(SOON);
    let mut news = news.receiver::<u64>().expect("an end");
    let error = news.recv().expect_err("nobody sends").to_string();
    let told = format!("{} (named \"server\", via node client)", there.address());
    assert!(error.contains(&told), "{error}");
}

#[test]
fn no_text_of_a_peer_reaches_a_log_or_an_error_as_it_is() {
    let log = Log::of_process();
    let [server, client] = nodes([PLANTED, "client"]);
    let there = client.connect(server.local_addr().expect("it listens"));
    let there = there.expect("a session");
    let here = server.accept().expect("the same session");

    let mut texts = vec![there.to_string(), format!("{there:?}")];
    // The text of a failed call.
    let mut service = server.service::<u64, u64>("fail").expect("a service");
    let caller = there.caller::<u64, u64>("fail").expect("a caller");
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = service.next().expect("a call").expect("it came");
            request.fail(7, PLANTED);
        });
        let failed = caller.call(&1).expect_err("it failed");
        assert_eq!(
            failed.failure(),
            Some((7, PLANTED)),
            "the program gets the text"
        );
        texts.push(failed.to_string());
    });
    // The schema of the other end, and the name of a channel that it opened.
    let _ends = [PLANTED, "typed"].map(|name| here.sender::<Hostile>(name).expect("an end"));
    let raw = |name| there.channel(name).codec::<Raw>();
    let mut typed = raw("typed").receiver::<[u8]>().expect("an end");
    let error = typed.recv().expect_err("other types");
    assert_eq!(error.kind(), RecvErrorKind::Mismatch, "{error}");
    texts.push(error.to_string());
    let missing = raw("missing").open_timeout(SOON).receiver::<[u8]>();
    let mut missing = missing.expect("an end");
    let error = missing.recv().expect_err("nobody opens it");
    assert!(error.to_string().contains("of another name"), "{error}");
    texts.push(error.to_string());
    // What is kept of the peer.
    texts.push(client.stats().to_string());
    drop((here, service, server));
    texts.extend(
        std::iter::from_fn(|| client.events().next_timeout(Duration::from_secs(60)))
            .take(2)
            .map(|event| event.to_string()),
    );
    assert!(
        texts.last().is_some_and(|text| text.contains("is over")),
        "{texts:?}"
    );

    texts.extend(log.lines());
    assert!(
        texts.iter().any(|text| text.contains("session up")),
        "{texts:?}"
    );
    let escaped = r"one\ntwo\r\u{1b}[2J\u{202e}\u{2028}\u{200b}";
    assert!(
        texts.iter().filter(|text| text.contains(escaped)).count() > 3,
        "{texts:#?}"
    );
    for text in texts {
        // The table of the statistics has lines of its own.
        let lines = text.split('\n').filter(|line| line.starts_with("two"));
        assert_eq!(lines.count(), 0, "{text}");
        assert!(
            !text.contains(['\r', '\x1b', '\u{202e}', '\u{2028}', '\u{200b}']),
            "{text}"
        );
    }
}
