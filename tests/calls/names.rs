//! Services of one name: a node has one for all peers, or one each for some peers.

use ibex::prelude::*;
use ibex::{Node, OpenErrorKind, Peer, calls::Service};

use crate::{Answer, Question, in_each_cell, question};

#[track_caller]
fn expect_taken(node: &Node) {
    let taken = node.service::<Question, Answer>("echo");
    let taken = taken.expect_err("a service has the name");
    assert_eq!(taken.kind(), OpenErrorKind::AlreadyOpen, "{taken}");
    assert_eq!(taken.channel(), Some("echo"));
    assert!(taken.to_string().contains("\"echo\""), "{taken}");
}

#[track_caller]
fn expect_open_already(peer: &Peer) {
    let open = peer.service::<Question, Answer>("echo");
    let open = open.expect_err("a service has the name");
    assert_eq!(open.kind(), OpenErrorKind::AlreadyOpen, "{open}");
}

fn answer_one(mut service: Service<Question, Answer>) {
    let request = service.next().unwrap().expect("a request");
    let number = request.number.to_native();
    let text = "here".to_owned();
    request.reply(&Answer { number, text }).unwrap();
}

#[test]
fn a_second_service_of_a_name_is_refused_and_the_first_one_serves() {
    in_each_cell(
        |_, peer| {
            for number in 0..2 {
                // A caller that met the meanwhile dropped service is created again.
                let is_answered = || {
                    let caller = peer.caller::<Question, Answer>("echo").unwrap();
                    let answer = caller.call(&question(number));
                    answer.is_ok_and(|answer| answer.number == number)
                };
                while !is_answered() {}
            }
        },
        |node, peer| {
            // Neither service has got a call yet.
            let of_all = node.service("echo").unwrap();
            expect_taken(node);
            expect_open_already(peer);
            let _other = node.service::<Question, Answer>("other").unwrap();
            answer_one(of_all);
            // Dropping the service frees the name.
            let of_peer = peer.service("echo").unwrap();
            expect_taken(node);
            expect_open_already(peer);
            answer_one(of_peer);
            drop(node.service::<Question, Answer>("echo").unwrap());
        },
    );
}
