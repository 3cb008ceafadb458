//! Nodes with several engines over RDMA: each engine has its own queues on the device port, and a
//! session stays on its engine's, even after an outage. The device is made of memory.
#![cfg(feature = "fake-device")]
#![forbid(unsafe_code)]

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use ibex::{
    Address, ConnectError, ConnectErrorKind, Fabric, ListenErrorKind, Node, NodeBuilder, Peer, Pod,
    Policy, Receiver, Sender,
    rdma::{RdmaSettings, Tuning},
};
use ibex_verbs::{
    discovery::Sysfs,
    provider::fake::{Call, FakeDevice, FakeProvider},
};
use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity},
};

const LONG: Duration = Duration::from_secs(120);
const ENGINES: usize = 2;
/// More bytes than a session registers for itself, and fewer than the receive buffers of an engine.
const LARGE: u64 = 256 << 10;

fn device() -> FakeProvider {
    FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1])])
}

fn small() -> RdmaSettings {
    let settings = RdmaSettings::new().max_sessions(16).receive_buffers(64);
    settings
        .held_buffers(64)
        .tuning(Tuning::new().session_credit(16))
}

fn builder(fake: &FakeProvider) -> NodeBuilder {
    let builder = Node::builder().fabric(Fabric::Verbs, Policy::Require);
    builder
        .io_threads(ENGINES)
        .rdma(small().on_devices(fake.provider(), |_| ()))
}

fn listener(builder: NodeBuilder) -> Node {
    builder.listen("127.0.0.1:0").build().expect("a node")
}

/// Connects a session. Returns both of its ends.
fn meet(client: &Node, server: &Node) -> [Peer; 2] {
    met(server, |address| client.connect(address))
}

fn met(server: &Node, connect: impl FnOnce(Address) -> Result<Peer, ConnectError>) -> [Peer; 2] {
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

fn carry_all(sessions: &[[Peer; 2]]) {
    for [there, here] in sessions {
        carry(&mut channel([there, here]));
    }
}

/// Files like those of a machine with two NUMA nodes, removed when dropped.
struct KernelFiles(PathBuf);

impl KernelFiles {
    /// A device on the second node, which has one core.
    fn of_two_nodes(device: &str, core: usize) -> Self {
        let name = format!("ibex-numa-{}", std::process::id());
        let files = Self(std::env::temp_dir().join(name));
        files.write(&format!("class/infiniband/{device}/device/numa_node"), "1");
        files.write("devices/system/node/node0/cpulist", "8190-8191");
        let cores = core.to_string();
        files.write("devices/system/node/node1/cpulist", &cores);
        files
    }

    fn write(&self, path: &str, line: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("{line}\n")).expect("a file");
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(&self.0, &self.0)
    }
}

impl Drop for KernelFiles {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the cleaning of temporary files.
        let _ = fs::remove_dir_all(&self.0);
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
    // Each engine of both nodes has one completion queue, on alternating vectors; those of
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
    // Each session uses its engine's receives: if queue pairs of one engine completed into
    // another's queue, their messages would not have come.
    for node in [client, server] {
        assert!(node.close(LONG).undelivered.is_empty());
    }
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

/// Each engine's own thread touches its memory first, so that the memory is near its cores.
#[test]
fn each_engine_makes_its_queues_and_buffers_on_its_own_thread() {
    let fake = device();
    let (server, client) = (listener(builder(&fake)), builder(&fake).build().unwrap());
    let sessions = [(); 4].map(|()| meet(&client, &server));
    for makers in fake.makers(LARGE) {
        let mut threads: Vec<_> = makers.iter().map(|maker| &*maker.thread).collect();
        threads.sort_unstable();
        let each_twice = ["ibex-io-0", "ibex-io-0", "ibex-io-1", "ibex-io-1"];
        assert_eq!(threads, each_twice, "two nodes have two engines each");
    }
    carry_all(&sessions);
}

/// An engine that waiting threads turn has no thread of its own: the thread that connects makes
/// the memory, once for all sessions.
#[test]
fn without_a_thread_of_its_own_an_engine_has_its_memory_made_by_whoever_connects() {
    let fake = device();
    let one = |builder: NodeBuilder| builder.io_threads(1);
    let (server, client) = (listener(one(builder(&fake))), one(builder(&fake)));
    let client = client.build().unwrap();
    let sessions = [(); 2].map(|()| meet(&client, &server));
    for makers in fake.makers(LARGE) {
        assert_eq!(makers.len(), 2, "one for each node");
        let by_engine = makers.iter().find(|maker| maker.thread == "ibex-io");
        assert!(by_engine.is_none(), "{by_engine:?}");
    }
    carry_all(&sessions);
}

/// If the device refuses a queue to an engine's thread, the call that makes the node fails.
#[test]
fn a_refusal_on_an_engines_thread_reaches_the_caller() {
    let fake = device();
    let node = || {
        let settings = small().device("fake0").on_devices(fake.provider(), |_| ());
        builder(&fake).rdma(settings).listen("127.0.0.1:0").build()
    };
    fake.refuse(Call::CreateSharedReceive, Errno::NOMEM);
    let refused = node().expect_err("no queue");
    assert_eq!(refused.kind(), ListenErrorKind::Rdma);
    assert!(refused.to_string().contains("ibv_create_srq"), "{refused}");
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
    let server = node().expect("the device gives a queue now");
    let [_, receives, _] = fake.makers(LARGE);
    assert_eq!(receives[0].thread, "ibex-io-0");
    let client = builder(&fake).build().unwrap();
    carry_all(&[meet(&client, &server)]);
}

/// Engines whose cores the program leaves open run on those of the device's NUMA node.
#[test]
fn engines_stay_near_their_device_unless_the_program_chose_their_cores() {
    let allowed = sched_getaffinity(None).expect("a set");
    let allowed: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect();
    let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
    let files = KernelFiles::of_two_nodes("fake0", first);
    for (chosen, runs_on) in [(None, first), (Some(last), last)] {
        let fake = device();
        let node = || {
            let settings = small()
                .on_devices(fake.provider(), |_| ())
                .on_sysfs(files.sysfs());
            builder(&fake).rdma(settings).cores(chosen.as_slice())
        };
        let (server, client) = (listener(node()), node().build().unwrap());
        let sessions = [(); 2].map(|()| meet(&client, &server));
        for maker in fake.makers(LARGE).iter().flatten() {
            assert_eq!(maker.cores, [runs_on], "{maker:?}");
        }
        carry_all(&sessions);
    }
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
            // The failing send breaks its queue pair, whichever it is.
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
        assert!(address.is_loopback());
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
