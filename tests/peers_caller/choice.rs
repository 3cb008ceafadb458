//! Which peer a call goes to, and what it waits for.

use ibex::prelude::*;
use std::{future::Future, pin::pin, task::Context};

use futures_util::future::join;
use ibex_harness::proxy::Proxy;

use super::*;

#[test]
fn threads_and_tasks_call_whichever_peer_is_there() {
    for cell in CELLS {
        let replicas = [(); 3].map(|()| Replica::answering(cell, ANY));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        assert_eq!(put.name(), "put");
        for number in 0..100 {
            assert_eq!(put.call(&number).unwrap().to_native(), number);
        }
        let numbers: Vec<u64> = (100..200).collect();
        let answers = run(
            &node,
            join_all(numbers.iter().map(|one| put.call_async(one))),
        );
        let answers: Vec<u64> = answers
            .into_iter()
            .map(|answer| answer.unwrap().to_native())
            .collect();
        assert_eq!(answers, numbers);
        thread::scope(|scope| {
            for thread in 2..6 {
                let put = put.clone();
                scope.spawn(move || {
                    for number in thread * 100..(thread + 1) * 100 {
                        assert_eq!(put.call(&number).unwrap().to_native(), number);
                    }
                });
            }
        });
        let _ = node.close(FOR_EVER);
        let mut got = BTreeMap::<u64, u32>::new();
        for replica in replicas {
            let one = replica.close(&node);
            // Each is one of two for two of three calls.
            assert!(one.len() > 20, "{}", one.len());
            one.into_iter()
                .for_each(|number| *got.entry(number).or_default() += 1);
        }
        assert_eq!(got.len(), 600);
        assert!(got.values().all(|times| *times == 1), "each once");
    }
}

#[test]
fn a_call_waits_for_a_peer_and_finds_its_successor() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        for number in 0..3 {
            // The call begins before the peer starts, or after.
            let call = |put: PeersCaller<u64, u64>| put.call(&number).unwrap().to_native();
            let replica = thread::scope(|scope| {
                let put = put.clone();
                let waits = scope.spawn(move || call(put));
                let replica = Replica::answering(cell, address);
                assert_eq!(waits.join().unwrap(), number);
                replica
            });
            assert_eq!(run(&node, put.call_async(&7)).unwrap().to_native(), 7);
            assert_eq!(replica.close(&node), [number, 7]);
            until(&node, || peers.connected().is_empty());
        }
    }
}

#[test]
fn a_task_that_waits_for_a_peer_is_woken() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let starts = thread::spawn(move || Replica::answering(cell, address));
        assert_eq!(run(&node, put.call_async(&1)).unwrap().to_native(), 1);
        assert_eq!(starts.join().unwrap().close(&node), [1]);
    }
}

/// The caller in a session is opened anew when the service has ended and another is there.
#[test]
fn a_service_that_is_made_anew_is_called() {
    for cell in CELLS {
        let (server, address) = listen(cell, ANY);
        let node = builder(cell).build().unwrap();
        let serving = thread::spawn(move || {
            for _ in 0..3 {
                let mut service = server.service::<u64, u64>("put").unwrap();
                for _ in 0..2 {
                    answer(service.next().unwrap().unwrap());
                }
            }
            let _ = server.close(FOR_EVER);
        });
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        // A request may be on its way when a service ends.
        let again = put.with(CallOptions::new().timeout(FOR_EVER).idempotent(100));
        for number in 0..3 {
            assert_eq!(again.call(&number).unwrap().to_native(), number);
            let answer = run(&node, again.call_async(&number)).unwrap();
            assert_eq!(answer.to_native(), number);
        }
        let _ = node.close(FOR_EVER);
        serving.join().unwrap();
    }
}

#[test]
fn a_task_leaves_a_peer_that_does_not_open_the_service_for_one_that_does() {
    for cell in CELLS {
        let (without, silent) = listen(cell, ANY);
        let (server, address) = listen(cell, ANY);
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([silent, address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        for one in [silent, address] {
            assert!(peers.wait_for_timeout(one, FOR_EVER).is_some());
        }
        let numbers: Vec<u64> = (0..10).collect();
        let mut calls = pin!(join_all(numbers.iter().map(|one| put.call_async(one))));
        let waker = waker();
        let mut context = Context::from_waker(&waker);
        assert!(calls.as_mut().poll(&mut context).is_pending());
        let serving = thread::spawn(move || {
            let mut service = server.service::<u64, u64>("put").unwrap();
            for _ in 0..10 {
                answer(service.next().unwrap().unwrap());
            }
            let _ = server.close(FOR_EVER);
        });
        for answer in run(&node, calls) {
            answer.unwrap();
        }
        let _ = node.close(FOR_EVER);
        serving.join().unwrap();
        let _ = without.close(FOR_EVER);
    }
}

#[test]
fn calls_carry_metadata_and_settings_hold() {
    for cell in CELLS {
        let replica = Replica::start(cell, ANY, |_, request| {
            let tenant = request.metadata().get("tenant");
            let is_blue = tenant == Some(MetadataValue::Text("blue"));
            request.reply(&u64::from(is_blue)).unwrap();
        });
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([replica.address]).unwrap();
        let refused = peers.channel("put").max_in_flight(0).caller::<u64, u64>();
        assert!(refused.unwrap_err().setting().is_some());
        let put = peers.channel("put").max_in_flight(1);
        let put: PeersCaller<u64, u64> = put.caller().unwrap();
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "blue").unwrap();
        let blue = put.with_metadata(metadata);
        assert_eq!(put.call(&1).unwrap().to_native(), 0);
        assert_eq!(blue.call(&1).unwrap().to_native(), 1);
        let answer = run(&node, blue.call_async(&1)).unwrap();
        assert_eq!(answer.to_native(), 1);
        let _ = node.close(FOR_EVER);
        replica.close(&node);
    }
}

#[test]
fn it_is_a_service_of_tower() {
    use tower_service::Service;
    for cell in CELLS {
        let replicas = [(); 2].map(|()| Replica::answering(cell, ANY));
        let node = builder(cell).build().unwrap();
        let (_peers, mut put) = keep(&node, &replicas.each_ref());
        run(&node, async {
            std::future::poll_fn(|context| Service::poll_ready(&mut put, context))
                .await
                .unwrap();
            let answer = Service::call(&mut put, 5).await.unwrap();
            assert_eq!(answer.to_native(), 5);
        });
        let _ = node.close(FOR_EVER);
        let got = replicas.into_iter().map(|one| one.close(&node).len());
        assert_eq!(got.sum::<usize>(), 1);
    }
}

/// A peer without a connection is called only if there is no other one.
#[test]
fn a_suspended_peer_is_left_for_another() {
    for driver in [Driver::Threads, Driver::Caller] {
        let cell = (Fabric::Tcp, driver);
        let replicas = [(); 2].map(|()| Replica::answering(cell, ANY));
        let proxy = Proxy::start(replicas[0].address).unwrap();
        let node = builder(cell).build().unwrap();
        let addresses = [proxy.address(), replicas[1].address];
        let peers = node.keep_connected(addresses).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let [behind, _] = addresses.map(|one| peers.wait_for_timeout(one, FOR_EVER).unwrap());
        while replicas.iter().any(|one| one.got().is_empty()) {
            put.call(&0).unwrap();
        }
        proxy.cut_off();
        until(&node, || behind.is_suspended());
        let before = replicas[0].got().len();
        for number in 1..20 {
            assert_eq!(put.call(&number).unwrap().to_native(), number);
            let answer = run(&node, put.call_async(&number)).unwrap();
            assert_eq!(answer.to_native(), number);
        }
        assert_eq!(replicas[0].got().len(), before);
        proxy.mend();
        until(&node, || !behind.is_suspended());
        while replicas[0].got().len() == before {
            put.call(&20).unwrap();
        }
        let _ = node.close(FOR_EVER);
        for replica in replicas {
            replica.close(&node);
        }
    }
}

/// While no peer has a connection, calls wait and empty no budget.
#[test]
fn calls_wait_while_all_peers_are_suspended() {
    const CALLS: u64 = 300;
    for driver in [Driver::Threads, Driver::Caller] {
        let cell = (Fabric::Tcp, driver);
        let replicas = [(); 2].map(|()| Replica::answering(cell, ANY));
        let proxies = replicas
            .each_ref()
            .map(|one| Proxy::start(one.address).unwrap());
        let addresses = proxies.each_ref().map(Proxy::address);
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected(addresses).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let behind = addresses.map(|one| peers.wait_for_timeout(one, FOR_EVER).unwrap());
        while replicas.iter().any(|one| one.got().is_empty()) {
            put.call(&0).unwrap();
        }
        proxies.iter().for_each(Proxy::cut_off);
        until(&node, || behind.iter().all(ibex::Peer::is_suspended));
        let numbers: Vec<u64> = (0..CALLS).collect();
        let calls = join_all(numbers.iter().map(|one| put.call_async(one)));
        let soon = put.with(CallOptions::new().timeout(MOMENT));
        let late = async { soon.call_async(&0).await.unwrap_err() };
        let mends = async {
            let error = late.await;
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            assert!(error.suspended().is_some(), "{error}");
            proxies.iter().for_each(Proxy::mend);
        };
        let (answers, ()) = run(&node, join(calls, mends));
        for (number, answer) in numbers.iter().zip(answers) {
            assert_eq!(answer.unwrap().to_native(), *number);
        }
        let _ = node.close(FOR_EVER);
        for replica in replicas {
            replica.close(&node);
        }
    }
}
