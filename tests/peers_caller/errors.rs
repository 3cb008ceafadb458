//! The errors of calls that are not tried again.

use ibex::prelude::*;
use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use super::*;

#[test]
fn a_deadline_without_a_peer_names_what_was_waited_for() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        // The failure of the first attempt is known.
        let mut events = peers.events();
        events.next_timeout(FOR_EVER).expect("it is not reached");
        let soon = put.with(CallOptions::new().timeout(MOMENT));
        for error in [
            soon.call(&1).unwrap_err(),
            run(&node, soon.call_async(&1)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
            assert_eq!(error.service(), "put");
            let text = error.to_string();
            assert!(text.contains(&address.to_string()), "{text}");
            assert!(text.contains("none is connected"), "{text}");
        }
    }
}

#[test]
fn a_deadline_is_that_of_all_attempts() {
    for cell in CELLS {
        let refusing = Replica::start(cell, ANY, |_, request| request.refuse());
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &[&refusing]);
        let soon = put.with(CallOptions::new().timeout(MOMENT * 3));
        for error in [
            soon.call(&1).unwrap_err(),
            run(&node, soon.call_async(&1)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            // The deadline may pass while an attempt is under way.
            assert_ne!(error.execution(), Execution::Executed, "{error}");
        }
        let _ = node.close(FOR_EVER);
        refusing.close(&node);
    }
}

#[test]
fn the_end_of_the_keeping_ends_calls_and_wakes_those_that_wait() {
    for cell in CELLS {
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([vacant()]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let waits = {
            let put = put.clone();
            thread::spawn(move || put.call(&1).unwrap_err())
        };
        let mut task = pin!(put.call_async(&2));
        let waker = waker();
        let mut context = Context::from_waker(&waker);
        assert!(task.as_mut().poll(&mut context).is_pending());
        drop(peers);
        for error in [
            waits.join().unwrap(),
            run(&node, task).unwrap_err(),
            put.call(&3).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::NoSession, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
        }
        let peers = node.keep_connected([vacant()]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let _ = node.close(FOR_EVER);
        let error = put.call(&4).unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::NoSession, "{error}");
    }
}

/// A task whose call waits for a peer to open the service learns of the end too.
#[test]
fn the_end_of_the_keeping_ends_calls_that_were_not_sent() {
    for cell in CELLS {
        let (without, silent) = listen(cell, ANY);
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([silent]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        peers.wait_for_timeout(silent, FOR_EVER).unwrap();
        let mut task = pin!(put.call_async(&1));
        let waker = waker();
        let mut context = Context::from_waker(&waker);
        assert!(task.as_mut().poll(&mut context).is_pending());
        drop(peers);
        let error = run(&node, task).unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::NoSession, "{error}");
        let _ = node.close(FOR_EVER);
        let _ = without.close(FOR_EVER);
    }
}

/// In one session, a service of other types is followed by one of these.
#[test]
fn a_service_whose_types_are_mended_is_called() {
    for cell in CELLS {
        let (server, address) = listen(cell, ANY);
        let other = server.channel("put").codec::<Raw>().service::<[u8], [u8]>();
        let mut other = other.unwrap();
        let is_mended = Arc::new(AtomicBool::new(false));
        let ends = is_mended.clone();
        // It opens its end while it is asked for requests.
        let opens = thread::spawn(move || {
            let mut next = pin!(other.next_async());
            let mut context = Context::from_waker(Waker::noop());
            while !ends.load(Ordering::Relaxed) {
                assert!(next.as_mut().poll(&mut context).is_pending());
                thread::sleep(Duration::from_millis(1));
            }
        });
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        for _ in 0..3 {
            let error = put.call(&1).unwrap_err();
            let kind = error.send_error().map(ibex::SendError::kind);
            assert_eq!(kind, Some(SendErrorKind::Mismatch), "{error}");
        }
        is_mended.store(true, Ordering::Relaxed);
        opens.join().unwrap();
        let mut service = server.service::<u64, u64>("put").unwrap();
        let serving = thread::spawn(move || {
            while let Ok(Some(request)) = service.next() {
                answer(request);
            }
        });
        // The caller that the last call opened may have met the old service.
        while let Err(error) = put.call(&2) {
            let kind = error.send_error().map(ibex::SendError::kind);
            assert_eq!(kind, Some(SendErrorKind::Mismatch), "{error}");
        }
        let answer = run(&node, put.call_async(&3)).unwrap();
        assert_eq!(answer.to_native(), 3);
        let _ = node.close(FOR_EVER);
        let _ = server.close(FOR_EVER);
        serving.join().unwrap();
    }
}

#[test]
fn peers_whose_service_has_other_types_are_left_out() {
    for cell in CELLS {
        let (other, address) = listen(cell, ANY);
        let mut service = other.channel("put").codec::<Raw>().service::<[u8], [u8]>();
        let service = service.as_mut().unwrap();
        let node = builder(cell).build().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || assert!(service.next().unwrap().is_none()));
            let peers = node.keep_connected([address]).unwrap();
            let put = peers.caller::<u64, u64>("put").unwrap();
            for error in [
                put.call(&1).unwrap_err(),
                run(&node, put.call_async(&1)).unwrap_err(),
            ] {
                let kind = error.send_error().map(ibex::SendError::kind);
                assert_eq!(kind, Some(SendErrorKind::Mismatch), "{error}");
            }
            drop((put, peers));

            let answering = Replica::answering(cell, ANY);
            let both = [address, answering.address];
            let peers = node.keep_connected(both).unwrap();
            let put = peers.caller::<u64, u64>("put").unwrap();
            for one in both {
                assert!(peers.wait_for_timeout(one, FOR_EVER).is_some());
            }
            for number in 0..20 {
                assert_eq!(put.call(&number).unwrap().to_native(), number);
                let answer = run(&node, put.call_async(&number)).unwrap();
                assert_eq!(answer.to_native(), number);
            }
            drop(peers);
            let _ = node.close(FOR_EVER);
            assert_eq!(answering.close(&node).len(), 40);
            let _ = other.close(FOR_EVER);
        });
    }
}

#[test]
fn errors_that_no_other_attempt_mends_come_at_once() {
    for cell in CELLS {
        let fails = |_: &Node, request: Request<u64, u64>| request.fail(7, "no");
        let replicas = [(); 2].map(|()| Replica::start(cell, ANY, fails));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let error = put.call(&1).unwrap_err();
        assert_eq!(error.failure(), Some((7, "no")));
        let error = run(&node, put.call_async(&1)).unwrap_err();
        assert_eq!(error.execution(), Execution::Executed);
        let _ = node.close(FOR_EVER);
        let got = replicas.into_iter().map(|one| one.close(&node).len());
        assert_eq!(got.sum::<usize>(), 2);
    }
}
