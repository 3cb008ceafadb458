//! Callers and services that are dropped and created again while their session lives.

use ibex::prelude::*;
use ibex::{
    Node, Peer,
    calls::{CallErrorKind, Caller, Execution, Service},
};

use crate::{Answer, MOMENT, Question, in_each_cell, poll_once, question, run, until};

fn caller(peer: &Peer, name: &str) -> Caller<Question, Answer> {
    peer.caller(name).expect("the name is free")
}

fn reply(number: u64) -> Answer {
    let text = "again".to_owned();
    Answer { number, text }
}

/// Answers one request.
fn answer_one(service: &mut Service<Question, Answer>) {
    let request = service.next().unwrap().expect("a request");
    let number = request.number.to_native();
    request.reply(&reply(number)).unwrap();
}

/// Lets `service` see what has arrived, until `until` gets a request.
fn serve_until(
    node: &Node,
    service: &mut Service<Question, Answer>,
    signal: &mut Service<Question, Answer>,
) {
    until(node, || {
        let mut next = Box::pin(service.next_async());
        assert!(poll_once(&mut next).is_pending(), "nobody calls");
        let mut next = Box::pin(signal.next_async());
        match poll_once(&mut next) {
            std::task::Poll::Ready(request) => {
                request.unwrap().unwrap().reply(&reply(0)).unwrap();
                true
            }
            std::task::Poll::Pending => false,
        }
    });
}

#[test]
fn callers_of_a_session_come_one_after_the_other() {
    in_each_cell(
        |node, peer| {
            for number in 0..CALLERS {
                // Some callers make no call.
                drop(caller(peer, "echo"));
                let echo = caller(peer, "echo");
                let answer = echo.call(&question(number)).unwrap();
                assert_eq!(answer.number, number);
                drop(answer);
                // The call of a task is the last user of the line.
                let asked = question(number);
                let call = echo.call_async(&asked);
                drop(echo);
                assert_eq!(run(node, call).unwrap().number, number);
            }
        },
        |node, _| {
            let mut service = node.service("echo").unwrap();
            for _ in 0..2 * CALLERS {
                answer_one(&mut service);
            }
        },
    );
}

const CALLERS: u64 = 20;

#[test]
fn a_caller_of_another_type_comes_again_with_the_right_one() {
    in_each_cell(
        |_, peer| {
            for number in 0..3 {
                let wrong = peer.caller::<Question, u64>("echo").unwrap();
                let error = wrong.call(&question(number)).unwrap_err();
                assert_eq!(error.execution(), Execution::NotExecuted, "{error}");
                drop(wrong);
                let right = caller(peer, "echo");
                assert_eq!(right.call(&question(number)).unwrap().number, number);
            }
        },
        |node, _| {
            let mut service = node.service("echo").unwrap();
            for _ in 0..3 {
                answer_one(&mut service);
            }
        },
    );
}

#[test]
fn a_caller_is_answered_while_a_handler_of_the_one_before_is_at_work() {
    in_each_cell(
        |_, peer| {
            let soon = ibex::calls::CallOptions::new().timeout(MOMENT);
            let first = caller(peer, "echo").with(soon);
            let late = first.call(&question(1)).unwrap_err();
            assert_eq!(late.kind(), CallErrorKind::DeadlineExceeded, "{late}");
            drop(first);
            let second = caller(peer, "echo");
            assert_eq!(second.call(&question(2)).unwrap().number, 2);
        },
        |node, _| {
            let mut service = node.service::<Question, Answer>("echo").unwrap();
            // The deadline may have passed before the request was handed out.
            let mut held = service.next().unwrap().unwrap();
            let mut first = None;
            if held.number == 1 {
                let next = service.next().unwrap().unwrap();
                first = Some(std::mem::replace(&mut held, next));
            }
            let number = held.number.to_native();
            held.reply(&reply(number)).unwrap();
            assert!(first.is_none_or(|first| first.is_cancelled()));
        },
    );
}

#[test]
fn a_service_that_is_made_again_is_called_in_the_same_session() {
    in_each_cell(
        |_, peer| {
            let signal = caller(peer, "signal");
            let first = caller(peer, "echo");
            assert_eq!(first.call(&question(1)).unwrap().number, 1);
            signal.call(&question(0)).unwrap();
            let error = first.call(&question(2)).unwrap_err();
            assert_eq!(error.execution(), Execution::NotExecuted, "{error}");
            drop(first);
            for number in 3..6 {
                let answer = loop {
                    match caller(peer, "echo").call(&question(number)) {
                        Ok(answer) => break answer,
                        // The call was made before the end of the last service was known here.
                        Err(error) => {
                            let known = [CallErrorKind::NotSent, CallErrorKind::Lost];
                            assert!(known.contains(&error.kind()), "{error}");
                        }
                    }
                };
                assert_eq!(answer.number, number);
                drop(answer);
                // The service opens an end for its next caller, which does not come.
                signal.call(&question(0)).unwrap();
                signal.call(&question(0)).unwrap();
            }
        },
        |node, _| {
            let mut signal = node.service::<Question, Answer>("signal").unwrap();
            let mut service = node.service::<Question, Answer>("echo").unwrap();
            answer_one(&mut service);
            drop(service);
            answer_one(&mut signal);
            for _ in 3..6 {
                let mut service = node.service::<Question, Answer>("echo").unwrap();
                answer_one(&mut service);
                serve_until(node, &mut service, &mut signal);
                drop(service);
                answer_one(&mut signal);
            }
        },
    );
}
