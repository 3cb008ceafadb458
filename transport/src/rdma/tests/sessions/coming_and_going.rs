//! Sessions that come and go, and handshakes that break: none of their resources is left.

use std::net::Shutdown;

use super::*;

/// Number of sessions that a node has had after this test. It suffices to show a leak of one byte
/// in 32 KiB of registered memory, or of one place.
const ROUNDS: usize = 2000;

#[test]
fn two_thousand_sessions_leave_nothing_behind() {
    // There is room for the first session, which stays, and one more.
    let stage = Stage::with(PortSettings {
        max_sessions: 4,
        ..settings()
    });
    let (mut sender, mut receiver) = stage.channel("stays", WINDOW);
    let mut alive = None;
    for round in 0..ROUNDS {
        let pairs = pairs(stage.nodes.each_ref().map(|node| &node.rdma_port)).unwrap();
        let mut streams = connection();
        let breaks = streams[0].try_clone().unwrap();
        if round % 4 == 3 {
            // The dialing end has everything it needs, and the other gave up.
            let [dialed, accepted] = pairs;
            drop(accepted);
            let [stream, _] = streams;
            let session = stage.nodes[0]
                .runtime
                .admit(admission(stream, dialed))
                .unwrap();
            breaks.shutdown(Shutdown::Both).unwrap();
            until_gone(&stage, &[session]);
        } else {
            let mut ends = pairs.into_iter().zip(&mut streams);
            let sessions = stage.nodes.each_ref().map(|node| {
                let (pair, stream) = ends.next().unwrap();
                let stream = stream.try_clone().unwrap();
                node.runtime.admit(admission(stream, pair)).unwrap()
            });
            if round % 4 > 0 {
                stage.settle();
            }
            streams[round % 2].shutdown(Shutdown::Both).unwrap();
            until_gone(&stage, &sessions);
        }
        stage.fake.forget_posted();
        let now = stage.fake.alive();
        assert_eq!(*alive.get_or_insert_with(|| now.clone()), now, "{round}");
    }
    send(&mut sender, 1, 100);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
}

fn until_gone(stage: &Stage, sessions: &[Arc<SessionShared>]) {
    while !sessions.iter().all(|session| session.is_gone()) {
        stage.settle();
    }
    stage.settle();
}

#[test]
fn a_handshake_that_breaks_gives_its_place_back() {
    let fake = one_device();
    let narrow = PortSettings {
        max_sessions: 2,
        ..settings()
    };
    let rdma_ports = [open_port(&fake, narrow), open_port(&fake, narrow)];
    let before = fake.alive();
    for round in 0..ROUNDS {
        let mut dialed = rdma_ports[0].prepare(true).unwrap();
        if round % 4 == 0 {
            continue;
        }
        let mut accepted = rdma_ports[1].prepare(false).unwrap();
        if round % 4 == 1 {
            let mut wrong = accepted.endpoint();
            wrong.buffer_bytes = 0;
            dialed.connect(&wrong).unwrap_err();
            continue;
        }
        dialed.connect(&accepted.endpoint()).unwrap();
        if round % 4 == 3 {
            accepted.connect(&dialed.endpoint()).unwrap();
        }
    }
    assert_eq!(fake.alive(), before);
    // Each step of the opening may be refused, too.
    use ibex_verbs::provider::fake::Call;
    for call in [
        Call::QueryPort,
        Call::QueryGid,
        Call::CreatePair,
        Call::ModifyPair,
        Call::Register,
    ] {
        fake.refuse(call, rustix::io::Errno::NOMEM);
        rdma_ports[0].prepare(true).unwrap_err();
        assert_eq!(fake.alive(), before, "{call:?}");
    }
    rdma_ports[0].prepare(true).unwrap();
}

/// What is left of a session that cannot begin, or cannot go on, is dropped behind the turn: a
/// registration that ends inside would panic.
#[test]
fn a_session_without_a_connected_queue_pair_does_not_begin_and_leaves_nothing_behind() {
    let stage = Stage::new();
    let before = stage.fake.alive();
    let node = &stage.nodes[0];
    let [stream, _peer] = connection();
    let unconnected = node.rdma_port.prepare(true).unwrap();
    let refused = node.runtime.admit(admission(stream, unconnected));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("never connected"), "{refused}");
    assert_eq!(stage.fake.alive(), before);
}
