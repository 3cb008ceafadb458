use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use ibex_core::{Fabric, Node, NodeBuilder, Peer, Policy};

use crate::{Endpoints, KeepConnected, tried::Tried};

fn builder() -> NodeBuilder {
    let none: [(&str, &str); 0] = [];
    Node::builder()
        .environment(none)
        .fabric(Fabric::Tcp, Policy::Require)
}

/// Threads that find the endpoints stale together have one of them open the handles, although the
/// others try again and again.
#[test]
fn one_thread_at_a_time_opens_handles() {
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let address = there.local_addr().expect("it listens");
    let peers = here.keep_connected([address]).unwrap();
    let (begins, begun) = mpsc::channel();
    // The next opening lasts until the other half of this channel is dropped.
    let gate = Arc::<Mutex<Option<mpsc::Receiver<()>>>>::default();
    let passes = gate.clone();
    let open = move |_: &Peer| {
        begins.send(()).unwrap();
        let gate = passes.lock().unwrap().take();
        gate.map(|gate| gate.recv());
    };
    let endpoints: Endpoints<()> = peers.endpoints(Box::new(open), |()| Some(true));
    let choose = || endpoints.choose(&mut Tried::default(), None);
    let first = choose().expect("the peer");
    begun.recv().unwrap();
    let (goes_on, may_go_on) = mpsc::channel();
    *gate.lock().unwrap() = Some(may_go_on);
    endpoints.renew(&first);
    thread::scope(|scope| {
        let chooses = scope.spawn(|| choose().is_ok());
        begun.recv().unwrap();
        for _ in 0..3 {
            endpoints.refresh();
        }
        let others = begun.try_iter().count();
        drop(goes_on);
        assert!(chooses.join().unwrap());
        assert_eq!(others, 0, "one thread at a time opens handles");
    });
    endpoints.refresh();
    assert_eq!(begun.try_iter().count(), 0, "the session has its handle");
}
