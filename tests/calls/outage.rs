//! Calls over connections that break: none is lost, and none is executed twice.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{Driver, Fabric};

use ibex_harness::proxy::Proxy;

use super::*;

#[test]
fn calls_go_on_over_another_connection_exactly_once() {
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        let cell = (fabric, Driver::Threads, 1);
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
        let here = builder(cell).build().unwrap();
        let peer = here.connect(proxy.address()).unwrap();
        let other = there.accept().unwrap();
        let serving = thread::spawn(move || {
            let mut executed = BTreeMap::<u64, u64>::new();
            let mut service = other.service::<Question, Answer>("echo").unwrap();
            while let Some(request) = service.next().unwrap() {
                let number = request.number.into();
                *executed.entry(number).or_default() += 1;
                let text = String::new();
                request.reply(&Answer { number, text }).unwrap();
            }
            assert_eq!(service.in_progress(), 0);
            executed
        });
        let echo = peer.caller::<Question, Answer>("echo").unwrap();
        let done = AtomicBool::new(false);
        let called: u64 = thread::scope(|scope| {
            let calling: Vec<_> = (0..4)
                .map(|thread| {
                    let (echo, peer) = (echo.clone(), peer.clone());
                    scope.spawn(move || {
                        let mut number = 0;
                        while number < 2_000 || peer.stats().resumes < 3 {
                            let unique = thread << 32 | number;
                            assert_eq!(echo.call(&question(unique)).unwrap().number, unique);
                            number += 1;
                        }
                        number
                    })
                })
                .collect();
            let cutting = scope.spawn(|| {
                let mut pause = 3;
                while !done.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(pause));
                    if !peer.is_suspended() {
                        proxy.cut();
                    }
                    pause = (pause * 7) % 41;
                }
            });
            let called = calling.into_iter().map(|one| one.join().unwrap()).sum();
            done.store(true, Ordering::Release);
            cutting.join().unwrap();
            called
        });
        assert_eq!((echo.in_flight(), echo.strays()), (0, 0));
        drop(echo);
        let executed = serving.join().unwrap();
        assert!(executed.values().all(|&times| times == 1));
        assert_eq!(executed.len() as u64, called);
    }
}
