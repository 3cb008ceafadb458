//! Idle peers cost a fan-in nothing: a message takes as many instructions beside 256 idle peers as
//! alone.
//!
//! The test counts all instructions of the receiving thread outside the kernel, including the
//! engine's. Both nodes live in a child process under `Driver::Caller`, and the parent counts
//! ([`stepping`]). One thread makes all calls, so the count does not depend on timing. The test
//! compares medians, since now and then a message carries counters.

#[cfg(target_arch = "x86_64")]
mod extent;
#[cfg(target_arch = "x86_64")]
mod stepping;

fn main() -> std::process::ExitCode {
    #[cfg(target_arch = "x86_64")]
    return cost::main();
    #[cfg(not(target_arch = "x86_64"))]
    std::process::ExitCode::SUCCESS
}

#[cfg(target_arch = "x86_64")]
mod cost {
    use std::{
        env,
        future::Future,
        net::SocketAddr,
        pin::pin,
        process::ExitCode,
        task::{Context, Poll, Waker},
        thread,
        time::{Duration, Instant},
    };

    use ibex::{Driver, Fabric, FanIn, FanInEvent, Message, Node, Pod, Policy, Sender};
    use ibex_harness::process::again;
    use libtest_mimic::{Arguments, Trial};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::{extent, stepping};

    /// Peers that have joined and send nothing.
    const IDLE: usize = 256;
    const MESSAGES: usize = 21;
    const LONG: Duration = Duration::from_secs(600);
    /// The variable that names the case for a child.
    const CASE: &str = "IBEX_TEST_FAN_IN_COST";
    /// The variable with the number of idle peers.
    const PEERS: &str = "IBEX_TEST_FAN_IN_COST_IDLE";

    /// The way in which the receiver gets a message.
    #[derive(Clone, Copy, Debug)]
    enum Way {
        /// The engine is turned, then the message is there.
        There,
        /// A task is polled in vain, woken and polled again.
        Task,
    }

    const WAYS: [Way; 2] = [Way::There, Way::Task];
    const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];

    pub(super) fn main() -> ExitCode {
        let cases = || {
            FABRICS
                .into_iter()
                .flat_map(|fabric| WAYS.map(|way| (fabric, way)))
        };
        let name = |(fabric, way): (Fabric, Way)| format!("{way:?}/{fabric}").to_lowercase();
        if let Ok(played) = env::var(CASE) {
            let case = cases().find(|&case| name(case) == played);
            let (fabric, way) = case.expect("the parent knows the same cases");
            let idle = env::var(PEERS).expect("the parent says so");
            play(fabric, way, idle.parse().expect("a number"));
            return ExitCode::SUCCESS;
        }
        let arguments = Arguments::from_args();
        let drawn = extent::drawn(
            cases().collect(),
            &arguments,
            |_| String::new(),
            |&case| name(case),
        );
        let trials = drawn.into_iter().map(|case| {
            let name = name(case);
            Trial::test(name.clone(), move || {
                let (alone, crowded) = (median(&name, 0), median(&name, IDLE));
                eprintln!("{name}: {alone} instructions, {crowded} beside {IDLE} idle peers");
                match crowded * 10 <= alone * 11 {
                    true => Ok(()),
                    false => Err(format!("{crowded} instructions instead of {alone}").into()),
                }
            })
        });
        libtest_mimic::run(&arguments, trials.collect()).exit_code()
    }

    /// Returns the median of instructions per message, with `idle` idle peers.
    fn median(case: &str, idle: usize) -> u64 {
        let mut program = again().expect("it has a path");
        program.env(CASE, case).env(PEERS, idle.to_string());
        let sections = stepping::count(&mut program);
        assert!(sections.len() >= MESSAGES && sections.len().is_multiple_of(MESSAGES));
        let each = sections.chunks_exact(sections.len() / MESSAGES);
        let mut messages: Vec<u64> = each.map(|sections| sections.iter().sum()).collect();
        messages.sort_unstable();
        messages[MESSAGES / 2]
    }

    // ---- The child whose instructions are counted ---------------------------------------

    /// The sending node, and its senders.
    struct Client {
        node: Node,
        senders: Vec<Sender<u64, Pod>>,
    }

    fn play(fabric: Fabric, way: Way, idle: usize) {
        open_all_files();
        let server = node(fabric).listen("127.0.0.1:0").build().expect("a node");
        let numbers = server.channel("numbers").codec::<Pod>().window_messages(64);
        let mut numbers = numbers.fan_in().expect("a fan-in");
        let address = server
            .local_addr()
            .expect("it listens")
            .inet()
            .expect("of TCP");
        let joining = thread::spawn(move || Client::join(fabric, address, idle + 1));
        let mut joined = 0;
        while joined <= idle || !joining.is_finished() {
            match numbers.next_timeout(MOMENT) {
                Ok(Some(FanInEvent::Joined(_))) => joined += 1,
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        let client = joining.join().expect("all have joined");
        // By the end of this time the fan-in looks at no idle peer, and idle channels have returned
        // their memory. Engines do that once a second, which is many messages but few
        // single-stepped instructions.
        let rested = Instant::now() + REST;
        while Instant::now() < rested {
            client.node.poll();
            numbers.next_timeout(MOMENT).expect_err("nobody sends");
        }
        stepping::be_counted();
        match way {
            Way::There => take_what_is_there(&mut numbers, client, &server),
            Way::Task => poll_for_each(&mut numbers, client, &server),
        }
    }

    const MOMENT: Duration = Duration::from_millis(30);
    const REST: Duration = Duration::from_secs(5);

    fn node(fabric: Fabric) -> ibex::NodeBuilder {
        let builder = Node::builder().fabric(fabric, Policy::Require);
        builder.driver(Driver::Caller)
    }

    /// Raises the limit of descriptors, since each session takes some.
    fn open_all_files() {
        let limit = getrlimit(Resource::Nofile);
        let all = Rlimit {
            current: limit.maximum,
            ..limit
        };
        setrlimit(Resource::Nofile, all).expect("a process may have what it may have");
    }

    impl Client {
        fn join(fabric: Fabric, address: SocketAddr, peers: usize) -> Self {
            let node = node(fabric).build().expect("a node");
            let senders = (0..peers).map(|_| {
                let peer = node.connect(address).expect("a session");
                let numbers = peer
                    .channel("numbers")
                    .codec::<Pod>()
                    .window_bytes(64 << 10);
                let mut sender = numbers.sender().expect("a sender");
                sender.opened(LONG).expect("the fan-in opens");
                // The peer may have opened its end already, without this end knowing.
                while node.poll() {}
                sender
            });
            Self {
                senders: senders.collect(),
                node,
            }
        }

        /// Only the last peer to join sends.
        fn send(&mut self) {
            let sender = self.senders.last_mut().expect("one");
            sender.send(&7).expect("sent");
            while self.node.poll() {}
        }
    }

    fn take(event: Option<FanInEvent<Message<u64, Pod>>>) {
        match event.expect("the node is open") {
            FanInEvent::Message(_, message) => message.ack(),
            other => panic!("{other:?}"),
        }
    }

    /// Receives as a program's own event loop does.
    fn take_what_is_there(numbers: &mut FanIn<u64, Pod>, mut client: Client, server: &Node) {
        for _ in 0..MESSAGES {
            client.send();
            stepping::mark();
            while server.poll() {}
            take(numbers.try_next().expect("it is there"));
            stepping::mark();
        }
    }

    fn poll_for_each(numbers: &mut FanIn<u64, Pod>, mut client: Client, server: &Node) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..MESSAGES {
            stepping::mark();
            let mut next = pin!(numbers.next_async());
            assert!(next.as_mut().poll(&mut context).is_pending());
            stepping::mark();
            client.send();
            stepping::mark();
            while server.poll() {}
            let event = loop {
                match next.as_mut().poll(&mut context) {
                    Poll::Ready(event) => break event,
                    Poll::Pending => _ = server.poll(),
                }
            };
            take(event);
            stepping::mark();
        }
    }
}
