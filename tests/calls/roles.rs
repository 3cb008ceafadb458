//! Nodes that serve a name and call it, as the members of a Raft cluster do.

use std::thread;

use ibex::prelude::*;
use ibex::{Node, OpenErrorKind, Peer};

use super::*;

const MEMBERS: u64 = 3;
const CALLS: u64 = 100;

/// Makes the nodes of a cluster, and returns each with its session with each other node.
fn cluster(cell: Cell) -> Vec<(Node, Vec<Peer>)> {
    let nodes: Vec<_> = (0..MEMBERS)
        .map(|_| builder(cell).listen("127.0.0.1:0").build().unwrap())
        .collect();
    let mut peers: Vec<Vec<Peer>> = nodes.iter().map(|_| Vec::new()).collect();
    for (dialed, dialer) in [(0, 1), (0, 2), (1, 2)] {
        let address = nodes[dialed].local_addr().unwrap();
        thread::scope(|scope| {
            let accepting = scope.spawn(|| nodes[dialed].accept().unwrap());
            peers[dialer].push(nodes[dialer].connect(address).unwrap());
            peers[dialed].push(accepting.join().unwrap());
        });
    }
    nodes.into_iter().zip(peers).collect()
}

/// Calls the services of both others, and serves their calls.
fn member(number: u64, node: &Node, peers: &[Peer]) {
    let serve = || node.service::<Question, Answer>("append").unwrap();
    let call = || {
        let callers = peers
            .iter()
            .map(|peer| peer.caller::<Question, Answer>("append"));
        callers.collect::<Result<Vec<_>, _>>().unwrap()
    };
    // Either may be opened first.
    let (mut service, callers) = match number % 2 {
        0 => {
            let service = serve();
            (service, call())
        }
        _ => {
            let callers = call();
            (serve(), callers)
        }
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..CALLS * (MEMBERS - 1) {
                let request = service.next().unwrap().expect("a request");
                let (sender, text) = (request.number.to_native(), number.to_string());
                let reply = Answer {
                    number: sender,
                    text,
                };
                request.reply(&reply).unwrap();
            }
        });
        let mut answered: Vec<_> = callers
            .iter()
            .map(|caller| {
                let answers = (0..CALLS).map(|call| {
                    let answer = caller.call(&question(call)).unwrap();
                    assert_eq!(answer.number, call);
                    answer.text.parse::<u64>().unwrap()
                });
                let mut from: Vec<_> = answers.collect();
                from.dedup();
                assert_eq!(from.len(), 1, "one member answers all");
                from[0]
            })
            .collect();
        answered.sort_unstable();
        let others: Vec<_> = (0..MEMBERS).filter(|other| *other != number).collect();
        assert_eq!(answered, others);
    });
}

#[test]
fn three_members_serve_a_name_and_call_it() {
    for cell in CELLS {
        eprintln!("{cell:?}");
        let members = cluster(cell);
        // No member leaves before all have their answers.
        thread::scope(|scope| {
            for ((node, peers), number) in members.iter().zip(0..) {
                scope.spawn(move || member(number, node, peers));
            }
        });
    }
}

#[test]
fn each_end_of_a_session_has_one_caller_and_one_service_of_a_name() {
    let [there, here] = [(); 2].map(|()| {
        let node = builder(CELLS[0]).listen("127.0.0.1:0");
        node.build().unwrap()
    });
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let _caller = peer.caller::<Question, Answer>("append").unwrap();
    let _service = peer.service::<Question, Answer>("append").unwrap();
    let again = peer.caller::<Question, Answer>("append").unwrap_err();
    assert_eq!(again.kind(), OpenErrorKind::AlreadyOpen, "{again}");
    assert!(
        again.to_string().contains("service \"append\" of"),
        "{again}"
    );
    let again = peer.service::<Question, Answer>("append").unwrap_err();
    assert_eq!(again.kind(), OpenErrorKind::AlreadyOpen, "{again}");
}

#[test]
fn a_services_name_leaves_room_for_that_of_its_replies() {
    let there = builder(CELLS[0]).listen("127.0.0.1:0").build().unwrap();
    let here = builder(CELLS[0]).build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let longest = "s".repeat(247);
    let _caller = peer.caller::<Question, Answer>(&longest).unwrap();
    for name in [format!("{longest}s"), String::new()] {
        let refused = peer.caller::<Question, Answer>(&name).unwrap_err();
        assert_eq!(refused.kind(), OpenErrorKind::Name, "{refused}");
        let said = format!("its name has {} bytes; it may have 1 to 247", name.len());
        assert!(refused.to_string().contains(&said), "{refused}");
    }
}
