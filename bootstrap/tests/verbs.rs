//! Two nodes that meet over real sockets and agree on queue pairs, which are numbers here.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::dialing::dial;
use common::fake_devices::{FakeDevices, FakePair};
use common::{LONG, Listening, node, wait_readable};
use ibex_bootstrap::handshake::{Handshake, HandshakeEvent, HandshakeStep};
use ibex_bootstrap::{Acceptor, Established, Fabric, HostHint, Local, Policy, VerbsDevices};

fn with(identity: u8, devices: &Arc<FakeDevices>) -> Local {
    let mut local = node(identity);
    local.shm = Policy::Forbid;
    local.verbs_devices = Some(devices.clone());
    local
}

fn pair(established: Established) -> Box<FakePair> {
    let pair = established.verbs.expect("a queue pair").into_any();
    pair.downcast().expect("a fake one")
}

#[test]
fn both_ends_get_their_queue_pair_back_connected() {
    let (here, there) = (
        Arc::new(FakeDevices::default()),
        Arc::new(FakeDevices::default()),
    );
    let listening = Listening::with(with(2, &there));
    let dialer = dial(&listening.address, &with(1, &here), LONG).unwrap();
    let acceptor = listening.established.recv_timeout(LONG).unwrap();
    for end in [&dialer, &acceptor] {
        assert_eq!(end.fabric, Fabric::Verbs);
        assert_eq!(end.reason, "verbs: RDMA hardware on both nodes");
    }
    let loopback = IpAddr::from([127, 0, 0, 1]);
    for (devices, this) in [
        (&here, thread::current().id()),
        (&there, listening.thread_id()),
    ] {
        let asked = devices.asked.lock().unwrap();
        let (address, by) = asked[0];
        // A device is never waited for in a turn.
        assert!(asked.len() == 1 && address == loopback && by != this);
    }
    let pairs = [pair(dialer), pair(acceptor)];
    assert!(pairs.iter().all(|pair| pair.peer.is_some()));
    drop(pairs);
    for devices in [here, there] {
        assert_eq!(devices.pairs.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_device_is_never_waited_for_in_a_turn() {
    let slow = Arc::new(FakeDevices {
        delay: Duration::from_millis(20),
        ..FakeDevices::default()
    });
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), with(2, &slow)).unwrap();
    let address = acceptor.local_addr().to_string();
    let quick = Arc::new(FakeDevices::default());
    let dialing = thread::spawn(move || dial(&address, &with(1, &quick), LONG));
    let established = loop {
        if let Some(established) = acceptor.poll_established() {
            break established;
        }
        wait_readable(&acceptor, LONG);
        acceptor.turn(Instant::now());
    };
    let asked = slow.asked.lock().unwrap();
    assert!(asked.iter().all(|(_, by)| *by != thread::current().id()));
    assert_eq!(established.fabric, Fabric::Verbs);
    drop(dialing.join().unwrap().unwrap());
}

#[test]
fn a_dialer_that_goes_leaves_no_queue_pair_behind() {
    let devices = Arc::new(FakeDevices::default());
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), with(2, &devices)).unwrap();
    let stream = TcpStream::connect(acceptor.local_addr()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let now = Instant::now();
    let host = HostHint {
        boot_id: [0; 16],
        pid: 1,
        uid: 1,
        pid_namespace: 0,
        network_namespace: 0,
    };
    let local = with(1, &Arc::new(FakeDevices::default()));
    let mut machine = Handshake::dial(&local, host, [0; 16], now, now + LONG);
    // Runs as far as the acceptor's endpoint, and no further.
    while devices.pairs.load(Ordering::Relaxed) == 0 || machine.step() != HandshakeStep::QueuePair {
        while let Some(event) = machine.poll_event() {
            match event {
                HandshakeEvent::FindDevice => {
                    machine.handle_device(devices.device(IpAddr::from([127, 0, 0, 1])));
                }
                HandshakeEvent::PreparePair => {}
                other => panic!("{other:?}"),
            }
        }
        while let Some(bytes) = machine.poll_transmit() {
            (&stream).write_all(&bytes).unwrap();
        }
        wait_readable(&acceptor, Duration::from_millis(1));
        acceptor.turn(Instant::now());
        let mut buffer = [0; 4096];
        if let Ok(length) = (&stream).read(&mut buffer) {
            machine.handle_bytes(&buffer[..length]);
        }
    }
    drop(stream);
    while acceptor.poll_failure().is_none() {
        wait_readable(&acceptor, LONG);
        acceptor.turn(Instant::now());
    }
    assert_eq!(devices.pairs.load(Ordering::Relaxed), 0);
    assert_eq!(acceptor.next_deadline(), None);
}
