//! The certainty of failed calls, and what follows from it.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use futures_util::future::join_all;
use ibex::prelude::*;
use ibex::{
    SendError, SendErrorKind,
    calls::{CallError, CallErrorKind, CallOptions, Execution, Service},
};

use super::*;

fn send_kind(error: &CallError) -> Option<SendErrorKind> {
    error.send_error().map(SendError::kind)
}

fn reply(number: u64) -> Answer {
    let text = String::new();
    Answer { number, text }
}

#[test]
fn types_that_differ_are_told_before_anything_is_executed() {
    in_each_cell(
        |_, peer| {
            // The requests have the same type, the replies do not.
            let echo = peer.caller::<Question, u64>("echo").unwrap();
            let error = echo.call(&question(1)).unwrap_err();
            assert_eq!(send_kind(&error), Some(SendErrorKind::Mismatch), "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            assert!(service.next().is_err());
            assert!(service.next().unwrap().is_none());
        },
    );
}

#[test]
fn a_service_that_ends_refuses_the_requests_that_nobody_took() {
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            let questions: Vec<_> = (0..5).map(question).collect();
            let calls = questions.iter().map(|one| echo.call_async(one));
            let answers = run(node, join_all(calls)).into_iter();
            let (served, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
            assert_eq!((served.len(), refused.len()), (1, 4));
            for error in refused.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.execution(), Execution::NotExecuted, "{error}");
                assert_eq!(error.kind(), CallErrorKind::ServiceEnded, "{error}");
            }
            let error = echo.call(&question(7)).unwrap_err();
            assert_ne!(error.execution(), Execution::Executed);
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let first = service.next().unwrap().unwrap();
            until(node, || !first.is_cancelled() && service.in_progress() == 5);
            drop(service);
            // A handler may still answer its request.
            first.reply(&reply(0)).unwrap();
        },
    );
}

#[test]
fn a_handler_that_is_lost_is_told_and_repeated_only_if_that_is_allowed() {
    static EXECUTED: AtomicU64 = AtomicU64::new(0);
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            let executed = || EXECUTED.swap(0, Ordering::SeqCst);
            for error in [
                echo.call(&question(1)).unwrap_err(),
                run(node, echo.call_async(&question(1))).unwrap_err(),
            ] {
                assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
                assert_eq!(error.execution(), Execution::Unknown);
            }
            assert_eq!(executed(), 2);
            let twice = echo.with(CallOptions::new().idempotent(1));
            twice.call(&question(1)).unwrap_err();
            assert_eq!(executed(), 2);
            let more = echo.with(CallOptions::new().idempotent(5));
            assert_eq!(more.call(&question(3)).unwrap().number, 3);
            assert_eq!(executed(), 4);
            let answer = run(node, more.call_async(&question(3))).unwrap();
            assert_eq!((answer.number.to_native(), executed()), (3, 4));
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let mut lost = 0;
            while let Some(request) = service.next().unwrap() {
                EXECUTED.fetch_add(1, Ordering::SeqCst);
                let number: u64 = request.number.into();
                // The third such call loses its handler three times.
                if number == 1 || lost < number {
                    lost += 1;
                    let handler = AssertUnwindSafe(move || {
                        let _request = request;
                        panic::resume_unwind(Box::new("planted: a handler panics"));
                    });
                    panic::catch_unwind(handler).unwrap_err();
                    lost = if number == 1 { 0 } else { lost };
                } else {
                    lost = 0;
                    request.reply(&reply(number)).unwrap();
                }
            }
        },
    );
}

#[test]
fn a_request_that_waits_beyond_its_deadline_is_given_to_nobody() {
    static STAGE: AtomicU64 = AtomicU64::new(0);
    static MILLIS: AtomicU64 = AtomicU64::new(0);
    in_each_cell(
        |node, peer| {
            STAGE.store(0, Ordering::SeqCst);
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            // Both ends are open from now on, so one poll sends.
            echo.call(&question(9)).unwrap();
            let first = question(0);
            let mut first = echo.call_async(&first);
            assert!(poll_once(&mut first).is_pending());
            // Time-outs grow until the service has received a call.
            let mut timeout = MOMENT;
            while STAGE.load(Ordering::SeqCst) == 0 {
                MILLIS.fetch_max(timeout.as_millis() as u64, Ordering::SeqCst);
                let soon = echo.with(CallOptions::new().timeout(timeout));
                let error = soon.call(&question(1)).unwrap_err();
                assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
                timeout *= 2;
            }
            STAGE.store(2, Ordering::SeqCst);
            assert_eq!(run(node, first).unwrap().number, 0);
            assert_eq!(run(node, echo.call_async(&question(2))).unwrap().number, 2);
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            service.next().unwrap().unwrap().reply(&reply(9)).unwrap();
            let first = service.next().unwrap().unwrap();
            until(node, || !first.is_cancelled() && service.in_progress() > 1);
            STAGE.store(1, Ordering::SeqCst);
            until(node, || STAGE.load(Ordering::SeqCst) == 2);
            // The time that was left when the call was sent has passed.
            thread::sleep(Duration::from_millis(MILLIS.load(Ordering::SeqCst)));
            first.reply(&reply(0)).unwrap();
            let request = service.next().unwrap().unwrap();
            assert_eq!(request.number, 2);
            request.reply(&reply(2)).unwrap();
            assert!(service.next().unwrap().is_none());
            assert_eq!(service.in_progress(), 0);
        },
    );
}

#[test]
fn errors_of_the_application_have_their_code_and_text() {
    in_each_cell(
        |_, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            let error = echo.call(&question(1)).unwrap_err();
            assert_eq!(error.failure(), Some((u32::MAX, "nothing there: ä")));
            assert_eq!(error.execution(), Execution::Executed);
            let error = echo.call(&question(2)).unwrap_err();
            let (_, text) = error.failure().unwrap();
            assert!(text.len() <= 4096 && text.chars().all(|each| each == 'ä'));
            let error = echo.call(&question(3)).unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::HandedBack);
            assert_eq!(error.execution(), Execution::NotExecuted);
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            while let Some(request) = service.next().unwrap() {
                match request.number.to_native() {
                    1 => request.fail(u32::MAX, "nothing there: ä"),
                    2 => request.fail(2, &"ä".repeat(5_000)),
                    _ => request.refuse(),
                }
            }
        },
    );
}

#[test]
fn a_service_takes_no_more_of_one_peer_than_its_max_in_flight() {
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            let questions: Vec<_> = (0..6).map(question).collect();
            let calls = questions.iter().map(|one| echo.call_async(one));
            let answers = run(node, join_all(calls));
            let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
            assert_eq!((served.len(), refused.len()), (2, 4));
            for error in refused.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.execution(), Execution::NotExecuted);
                assert_eq!(error.kind(), CallErrorKind::Overloaded, "{error}");
            }
        },
        |node, peer| {
            let calls = peer.channel("echo").max_in_flight(2);
            let mut service: Service<Question, Answer> = calls.service().unwrap();
            let both: Vec<_> = (0..2).map(|_| service.next().unwrap().unwrap()).collect();
            until(node, || !both[0].is_cancelled() && service.refused() == 4);
            for request in both {
                let number = request.number.into();
                request.reply(&reply(number)).unwrap();
            }
            assert!(service.next().unwrap().is_none());
        },
    );
}

#[test]
fn a_reply_that_cannot_be_sent_is_an_error_at_both_ends() {
    in_each_cell(
        |_, peer| {
            let calls = peer.channel("echo").max_message_bytes(10_000);
            let echo = calls.caller::<Question, Answer>().unwrap();
            let long = Question {
                number: 1,
                text: "x".repeat(20_000),
            };
            let error = echo.call(&long).unwrap_err();
            assert_eq!(send_kind(&error), Some(SendErrorKind::TooLong), "{error}");
            // The limit is known at both ends once the channel of replies is open.
            echo.call(&question(2)).unwrap();
            let error = echo.call(&question(1)).unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::ReplyTooLong, "{error}");
            echo.call(&question(2)).unwrap();
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            service.next().unwrap().unwrap().reply(&reply(2)).unwrap();
            let request = service.next().unwrap().unwrap();
            let text = "x".repeat(20_000);
            request.reply(&Answer { number: 1, text }).unwrap_err();
            service.next().unwrap().unwrap().reply(&reply(2)).unwrap();
            assert!(service.next().unwrap().is_none());
        },
    );
}

#[test]
fn a_session_that_ends_ends_its_calls_and_handlers() {
    for cell in CELLS {
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let peer = there.accept().unwrap();
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let one = service.next().unwrap().unwrap();
            let _ = there.close(FOR_EVER);
            assert!(one.is_cancelled());
            one.reply(&reply(1)).unwrap();
            let _ = service.next();
            assert!(service.next().unwrap().is_none());
        });
        let here = builder(cell).build().unwrap();
        let peer = here.connect(address).unwrap();
        let echo = peer.caller::<Question, Answer>("echo").unwrap();
        let error = echo.call(&question(1)).unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::Lost, "{error}");
        assert_eq!(error.execution(), Execution::Unknown);
        let error = run(&here, echo.call_async(&question(2))).unwrap_err();
        assert_ne!(error.execution(), Execution::Executed);
        assert_eq!(echo.in_flight(), 0);
        // If callers turn the engine, nothing else sends goodbye.
        let _ = here.close(FOR_EVER);
        serving.join().unwrap();
    }
}
