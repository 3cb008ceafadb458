//! Nodes with several engines over RDMA: each engine has queues of its own on the device port, and
//! a session keeps its engine's, also behind an outage. The device is made of memory.
#![cfg(feature = "fake-device")]
#![forbid(unsafe_code)]

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use ibex::{
    ConnectError, ConnectErrorKind, Fabric, Node, NodeBuilder, Peer, Pod, Policy, Receiver, Sender,
    rdma::{RdmaSettings, Tuning},
};
use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};

const LONG: Duration = Duration::from_secs(120);
const ENGINES: usize = 2;

fn device() -> FakeProvider {
    FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1])])
}

fn builder(fake: &FakeProvider) -> NodeBuilder {
    let settings = RdmaSettings::new().max_sessions(16).receive_buffers(64);
    let settings = settings
        .held_buffers(64)
        .tuning(Tuning::new().session_credit(16));
    let builder = Node::builder().fabric(Fabric::Verbs, Policy::Require);
    builder
        .io_threads(ENGINES)
        .rdma(settings.on_fake(fake, |_| ()))
}

fn listener(builder: NodeBuilder) -> Node {
    builder.listen("127.0.0.1:0").build().expect("a node")
}

/// Both ends of a session.
fn meet(client: &Node, server: &Node) -> [Peer; 2] {
    met(server, |address| client.connect(address))
}

fn met(server: &Node, connect: impl FnOnce(SocketAddr) -> Result<Peer, ConnectError>) -> [Peer; 2] {
    let address = server.local_addr().expect("it listens");
    let dialed = connect(address).expect("a session");
    let accepted = server.accept_timeout(LONG).expect("a session");
    [dialed, accepted]
}

type Channel = (Sender<u64, Pod>, Receiver<u64, Pod>);

fn channel([from, to]: [&Peer; 2]) -> Channel {
    let sender = from.channel("numbers").codec::<Pod>().sender();
    let receiver = to.channel("numbers").codec::<Pod>().receiver();
    (sender.expect("an end"), receiver.expect("an end"))
}

fn carry((sender, receiver): &mut Channel) {
    for number in 0..100 {
        sender.send(&number).expect("sent");
        assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), number);
    }
}

#[test]
fn each_engine_polls_queues_of_its_own_and_the_sessions_spread_over_them() {
    let fake = device();
    let (server, client) = (listener(builder(&fake)), builder(&fake).build().unwrap());
    let sessions = [(); 4].map(|()| meet(&client, &server));
    for (node, side) in [(&client, 0), (&server, 1)] {
        let counts = node
            .stats()
            .engines
            .iter()
            .map(|it| it.sessions)
            .collect::<Vec<_>>();
        assert_eq!(counts, [2, 2]);
        let engines: BTreeSet<_> = sessions
            .iter()
            .map(|session| session[side].engine())
            .collect();
        assert_eq!(engines.len(), ENGINES);
    }
    for peer in sessions.iter().flatten() {
        assert_eq!(peer.rdma_port(), Some(("fake0".to_owned(), 1)));
    }
    // One completion queue for each engine of both nodes, on the vectors in turn; those of
    // self-tests are gone.
    let queues = fake.completion_queues();
    let vectors: Vec<_> = queues.iter().map(|(vector, _)| *vector).collect();
    let of_vector = |wanted| vectors.iter().filter(|vector| **vector == wanted).count();
    assert_eq!(fake.alive()["completion queues"], 2 * ENGINES);
    assert_eq!(fake.alive()["shared receive queues"], 2 * ENGINES);
    assert!(of_vector(0) >= 2 && of_vector(1) >= 2, "{vectors:?}");
    for [there, here] in &sessions {
        assert_eq!(there.fabric(), Fabric::Verbs);
        carry(&mut channel([there, here]));
        carry(&mut channel([here, there]));
    }
    // Each session's receives are those of its engine: the queue pairs of one are not completed
    // into another's queue, or their messages would not have come.
    for node in [client, server] {
        assert!(node.close(LONG).undelivered.is_empty());
    }
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_session_goes_on_over_a_queue_pair_of_the_engine_that_it_has() {
    let fake = device();
    let (server, client) = (listener(builder(&fake)), builder(&fake).build().unwrap());
    let sessions = [(); 2].map(|()| meet(&client, &server));
    let engines = || {
        sessions
            .each_ref()
            .map(|ends| ends.each_ref().map(Peer::engine))
    };
    let before = engines();
    let mut channels = sessions
        .each_ref()
        .map(|[there, here]| channel([there, here]));
    channels.iter_mut().for_each(carry);
    for round in 1..=3 {
        for (ends, channel) in sessions.iter().zip(&mut channels) {
            // The send that fails breaks its queue pair, whoever's it is.
            fake.hold_sends(true);
            fake.forget_posted();
            channel.0.send(&round).expect("sent");
            let breaks = loop {
                match fake.posted().first() {
                    Some(send) => break send.queue_pair,
                    None => std::thread::yield_now(),
                }
            };
            fake.fail_send(breaks, RETRIES_EXCEEDED, 0);
            fake.hold_sends(false);
            assert_eq!(*channel.1.recv_timeout(LONG).expect("it comes"), round);
            carry(channel);
            for end in ends {
                assert_eq!(end.fabric(), Fabric::Verbs);
                assert_eq!(end.stats().resumes, round);
            }
        }
    }
    assert_eq!(engines(), before);
}

#[test]
fn the_program_places_sessions_at_both_ends() {
    let fake = device();
    let server = builder(&fake).place_accepted(|_, address| {
        assert!(address.ip().is_loopback());
        Some(1)
    });
    let (server, client) = (listener(server), builder(&fake).build().unwrap());
    for wanted in [0, 0, 1] {
        let [there, here] = met(&server, |address| client.connect_on(wanted, address));
        assert_eq!((there.engine(), here.engine()), (wanted, 1));
        carry(&mut channel([&there, &here]));
    }
    let address = server.local_addr().expect("it listens");
    let beyond = client.connect_on(ENGINES, address);
    let refused = beyond.expect_err("there is no such engine");
    assert_eq!(refused.kind(), ConnectErrorKind::NoSuchEngine);
    assert!(!refused.is_transient());
}

/// `IBV_WC_RETRY_EXC_ERR`.
const RETRIES_EXCEEDED: u32 = 12;
