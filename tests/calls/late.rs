//! A call in a runtime that nobody runs for a while.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use ibex::calls::{CallErrorKind, CallOptions, Caller, Service};
use ibex::prelude::*;
use ibex_harness::events::{Each, line};
use tracing::{Event, Level, subscriber};

use super::*;

/// The program lets the runtime rest once the service has the request.
#[test]
fn a_time_out_that_passes_in_a_runtime_nobody_runs_is_warned_of() {
    let there = Node::builder().listen("127.0.0.1:0").build().unwrap();
    let address = there.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (here, peer) = runtime.block_on(async {
        let here = builder((Fabric::Tcp, Driver::Tasks, 1)).build().unwrap();
        let peer = here.connect_async(address).await.unwrap();
        (here, peer)
    });
    let mut service: Service<Question, Answer> = there.accept().unwrap().service("slow").unwrap();
    let caller: Caller<Question, Answer> = peer.caller("slow").unwrap();
    let caller = caller.with(CallOptions::new().timeout(TIME_OUT));

    let asked = question(7);
    let (mut call, request) = runtime.block_on(async {
        loop {
            let mut call = Box::pin(caller.call_async(&asked));
            let mut next = Box::pin(service.next_async());
            // On a busy machine the time may be up before the service has the request.
            if let Some(request) = request_of(&mut call, &mut next).await {
                break (call, request);
            }
        }
    });
    thread::sleep(TIME_OUT + LONG);

    let lines = Arc::<Mutex<Vec<String>>>::default();
    let kept = lines.clone();
    let log = Each(move |event: &Event<'_>| {
        if *event.metadata().level() == Level::WARN {
            kept.lock().unwrap().push(line(event));
        }
    });
    let error = subscriber::with_default(log, || runtime.block_on(&mut call)).unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
    let lines = lines.lock().unwrap().clone();
    let told = |words: &str| lines.iter().any(|line| line.contains(words));
    assert!(
        told("nothing turned its node: under Driver::Tasks"),
        "{lines:?}"
    );

    drop((call, request));
    let _ = runtime.block_on(here.close_async(FOR_EVER));
}

/// Returns what `next` yields, unless `call` ends first.
async fn request_of<C: Future, N: Future>(
    call: &mut Pin<Box<C>>,
    next: &mut Pin<Box<N>>,
) -> Option<N::Output> {
    std::future::poll_fn(|context| match next.as_mut().poll(context) {
        Poll::Ready(request) => Poll::Ready(Some(request)),
        Poll::Pending => call.as_mut().poll(context).map(|_| None),
    })
    .await
}

const TIME_OUT: Duration = Duration::from_secs(1);
/// The least delay of which a node warns.
const LONG: Duration = Duration::from_secs(5);
