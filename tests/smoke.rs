//! Two nodes in one process.
use std::{thread, time::Duration};
use ibex::{Driver, Fabric, Node, Policy, Raw};

fn run(driver: Driver, fabric: Fabric) {
    let server = Node::builder().listen("127.0.0.1:0").driver(driver).fabric(fabric, Policy::Require).build().unwrap();
    let address = server.local_addr().unwrap();
    let t = thread::spawn(move || {
        let peer = server.accept().unwrap();
        eprintln!("accepted {} {}", peer.fabric(), peer.fabric_reason());
        let mut rx = peer.channel("a").codec::<Raw>().receiver::<[u8]>().unwrap();
        let mut tx = peer.channel("b").codec::<Raw>().sender::<[u8]>().unwrap();
        let mut n = 0u64;
        while let Some(m) = rx.next().unwrap() {
            n += 1;
            assert_eq!(m.sequence(), n);
            tx.send(&m).unwrap();
            m.ack();
        }
        tx.close().unwrap();
        n
    });
    let client = Node::builder().driver(driver).fabric(fabric, Policy::Require).build().unwrap();
    let peer = client.connect(address).unwrap();
    let mut tx = peer.channel("a").codec::<Raw>().sender::<[u8]>().unwrap();
    let mut rx = peer.channel("b").codec::<Raw>().receiver::<[u8]>().unwrap();
    for len in [0usize, 1, 8, 64, 1000, 65536, 200_000, 600_000, 5_000_000] {
        let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let s = tx.send(&data).unwrap();
        let m = rx.recv_timeout(Duration::from_secs(5)).unwrap_or_else(|e| panic!("{len} {e:?}"));
        assert_eq!(m.len(), len);
        assert!(m[..] == data[..], "{len}");
        drop(m);
        tx.wait_acked_timeout(s, Duration::from_secs(5)).unwrap_or_else(|e| panic!("{len} {e:?}"));
    }
    for _ in 0..20000 { tx.send(b"hello").unwrap(); drop(rx.recv().unwrap()); }
    tx.close().unwrap();
    assert!(rx.next().unwrap().is_none());
    assert_eq!(t.join().unwrap(), 20009);
}
#[test] fn shm_threads() { run(Driver::Threads, Fabric::Shm) }
#[test] fn shm_caller() { run(Driver::Caller, Fabric::Shm) }
#[test] fn tcp_threads() { run(Driver::Threads, Fabric::Tcp) }
#[test] fn tcp_caller() { run(Driver::Caller, Fabric::Tcp) }
