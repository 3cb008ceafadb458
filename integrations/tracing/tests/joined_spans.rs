//! Spans of two processes are one trace: this program starts the example in both roles, and is the
//! collector of what they export.

use std::{collections::HashMap, path::PathBuf, process::Stdio};

use ibex_harness::process::{Process, ours};

/// A span that was exported.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
}

/// Takes in all spans that a process exports until it ends.
fn collect(process: &mut Process) -> HashMap<String, Vec<Span>> {
    let said = process.hear_out().expect("it ends well");
    let mut spans = HashMap::<String, Vec<Span>>::new();
    for line in said.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let ["span", name, "trace", trace, "id", id, "parent", parent] = words[..] {
            let [trace, id, parent] = [trace, id, parent].map(str::to_owned);
            let span = Span { trace, id, parent };
            spans.entry(name.to_owned()).or_default().push(span);
        }
    }
    spans
}

/// Starts the example.
fn start(arguments: &[&str]) -> Process {
    let mut command = ours(example());
    command.args(arguments).stdout(Stdio::piped());
    Process::start(arguments[0], &mut command).expect("a process")
}

#[test]
fn spans_of_two_processes_are_parent_and_child() {
    let mut server = start(&["serve"]);
    let address = server.hear("listening on ").expect("its address");
    let mut caller = start(&["call", &address]);
    let calling = collect(&mut caller);
    let serving = collect(&mut server);
    let [purchase] = &calling["purchase"][..] else {
        panic!("{calling:?}")
    };
    let [discount] = &calling["discount"][..] else {
        panic!("{calling:?}")
    };
    assert_eq!(purchase.parent, "0000000000000000");
    assert_eq!(discount.parent, purchase.id);
    let [first, second] = &serving["double"][..] else {
        panic!("{serving:?}")
    };
    let [note] = &serving["take_note"][..] else {
        panic!("{serving:?}")
    };
    let parents = [&first.parent, &second.parent, &note.parent];
    assert_eq!(parents, [&purchase.id, &discount.id, &purchase.id]);
    for span in [discount, first, second, note] {
        assert_eq!(span.trace, purchase.trace);
    }
}

/// Returns the path of the example, which cargo builds with the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    profile.join("examples/traced")
}
