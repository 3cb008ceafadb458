//! A caller as a tower service.

use ibex::prelude::*;
use std::future::poll_fn;

use futures_util::future::join_all;
use tower_service::Service as _;

use super::*;

#[test]
fn a_caller_is_a_service_of_tower() {
    in_each_cell(
        |node, peer| {
            let calls = peer.channel("echo").max_in_flight(2);
            let echo = calls.caller::<Question, Answer>().unwrap();
            run(node, async {
                let mut callers = [echo.clone(), echo.clone(), echo.clone()];
                for _ in 0..50 {
                    let calls = callers
                        .iter_mut()
                        .enumerate()
                        .map(|(number, caller)| async move {
                            poll_fn(|context| caller.poll_ready(context)).await.unwrap();
                            let number = number as u64;
                            let reply = caller.call(question(number)).await.unwrap();
                            assert_eq!(reply.number, number);
                        });
                    join_all(calls).await;
                }
                // Two calls may be under way, and a ready caller counts as one of them.
                let [one, two, three] = &mut callers;
                poll_fn(|context| one.poll_ready(context)).await.unwrap();
                poll_fn(|context| two.poll_ready(context)).await.unwrap();
                let mut waiting = poll_fn(|context| three.poll_ready(context));
                assert!(poll_once(&mut waiting).is_pending());
                assert_eq!(echo.in_flight(), 2);
                *one = echo.clone();
                waiting.await.unwrap();
            });
            assert_eq!((echo.in_flight(), echo.queued()), (0, 0));
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            while let Some(request) = service.next().unwrap() {
                let number = request.number.into();
                let text = String::new();
                request.reply(&Answer { number, text }).unwrap();
            }
        },
    );
}
