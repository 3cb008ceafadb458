//! A round trip between tasks over TCP costs no more system calls than over tokio's own socket, if
//! that waits for each message.
//!
//! The parent counts the calls of all threads of a child ([`stepping`]), which holds both ends: on
//! the one thread of a runtime, or on two runtimes with two workers each. Its sections have many
//! round trips over a socket, and then over ibex. The test compares medians, since threads that run
//! late find more at once, or nothing.

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
    use std::{env, process::ExitCode};

    use ibex::prelude::*;
    use ibex::{ChannelBuilder, Driver, Fabric, Node, NodeBuilder, Peer, Policy, Raw};
    use ibex_harness::process::again;
    use libtest_mimic::{Arguments, Failed, Trial};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        runtime::Builder,
        sync::oneshot::{Sender, channel},
    };

    use super::stepping::{self, system_calls::count_system_calls};

    /// The sections over each transport, and the round trips of a section.
    const SECTIONS: usize = 9;
    const TRIPS: usize = 100;
    /// The calls of a round trip whose ends wait for each message: each writes, reads in vain, waits
    /// and reads.
    const IDLE: usize = 8;
    const PAYLOAD: [u8; 64] = [7; 64];
    /// The variable that names the case for a child.
    const CASE: &str = "IBEX_TEST_SYSTEM_CALLS";

    #[derive(Clone, Copy, Debug)]
    enum Work {
        Channels,
        Calls,
    }

    pub(super) fn main() -> ExitCode {
        let works = [Work::Channels, Work::Calls].into_iter();
        let cases = works.flat_map(|work| [(work, false), (work, true)]);
        let name = |(work, is_one): (Work, bool)| {
            let threads = if is_one {
                "one_thread"
            } else {
                "several_threads"
            };
            format!("{work:?}/{threads}").to_lowercase()
        };
        if let Ok(played) = env::var(CASE) {
            let case = cases.clone().find(|&case| name(case) == played);
            let (work, is_one) = case.expect("the parent knows the same cases");
            play(work, is_one);
            return ExitCode::SUCCESS;
        }
        let mut arguments = Arguments::from_args();
        arguments.test_threads = Some(1);
        let trials = cases.map(|case| {
            let name = name(case);
            Trial::test(name.clone(), move || compare(&name))
        });
        libtest_mimic::run(&arguments, trials.collect()).exit_code()
    }

    fn compare(case: &str) -> Result<(), Failed> {
        let mut program = again().expect("it has a path");
        let sections = count_system_calls(program.env(CASE, case));
        assert_eq!(sections.len(), 1 + 2 * SECTIONS);
        let (socket, ibex) = sections[1..].split_at(SECTIONS);
        let all = |_| true;
        let (theirs, ours) = (median(socket, all), median(ibex, all));
        // A write to an eventfd wakes a thread that waits in epoll, and a futex another one.
        let wakes = median(ibex, |call| {
            [libc::SYS_futex, libc::SYS_write].contains(&call)
        });
        eprintln!(
            "{case}, {TRIPS} round trips: {theirs} calls, {ours} over ibex, {wakes} of them wake"
        );
        // On a busy machine a read finds what would have been waited for a moment before.
        let most = theirs.max(IDLE * TRIPS) + TRIPS;
        match ours <= most && wakes <= TRIPS / 2 {
            true => Ok(()),
            false => Err(format!("{ours} calls instead of {most}, of which {wakes} wake").into()),
        }
    }

    fn median(sections: &[Vec<i64>], which: impl Fn(i64) -> bool) -> usize {
        let count = |calls: &Vec<i64>| calls.iter().filter(|&&call| which(call)).count();
        let mut counts: Vec<_> = sections.iter().map(count).collect();
        counts.sort_unstable();
        counts[SECTIONS / 2]
    }

    // ---- The child whose system calls are counted ---------------------------------------

    fn play(work: Work, is_one: bool) {
        stepping::be_counted();
        stepping::mark_in_time();
        stepping::mark_in_time();
        let runtime = || {
            let mut builder = match is_one {
                true => Builder::new_current_thread(),
                false => Builder::new_multi_thread(),
            };
            let runtime = builder.worker_threads(2).enable_all().build();
            runtime.expect("a runtime")
        };
        let here = runtime();
        let other = (!is_one).then(runtime);
        let there = other.as_ref().unwrap_or(&here);
        for work in [None, Some(work)] {
            let (says, hears) = channel();
            there.spawn(async move {
                match work {
                    None => answer_socket(says).await,
                    Some(work) => answer(work, says).await,
                }
            });
            let asking = here.spawn(async move {
                let address = hears.await.expect("it listens");
                match work {
                    None => ask_socket(&address).await,
                    Some(work) => ask(work, &address).await,
                }
            });
            here.block_on(asking).expect("no panic");
        }
    }

    /// Plays counted sections of round trips, after one that is not counted.
    macro_rules! sections {
        ($trip:block) => {
            for section in 0..=SECTIONS {
                if section > 0 {
                    stepping::mark_in_time();
                }
                for _ in 0..TRIPS {
                    $trip
                }
                if section > 0 {
                    stepping::mark_in_time();
                }
            }
        };
    }

    async fn answer_socket(says: Sender<String>) {
        let listener = TcpListener::bind(LOOPBACK).await.expect("it listens");
        let address = listener.local_addr().expect("it has an address");
        says.send(address.to_string()).expect("it is awaited");
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket of TCP");
        let mut payload = PAYLOAD;
        while stream.read_exact(&mut payload).await.is_ok() {
            stream.write_all(&payload).await.expect("sent");
        }
    }

    async fn ask_socket(address: &str) {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket of TCP");
        let mut payload = PAYLOAD;
        sections!({
            stream.write_all(&PAYLOAD).await.expect("sent");
            stream.read_exact(&mut payload).await.expect("an answer");
        });
    }

    async fn answer(work: Work, says: Sender<String>) {
        let node = builder().listen(LOOPBACK).build().expect("a node");
        let address = node.local_addr().expect("it listens");
        says.send(address.to_string()).expect("it is awaited");
        let peer = node.accept_async().await.expect("a session");
        match work {
            Work::Channels => {
                let mut requests = channel_of(&peer, "requests")
                    .receiver::<[u8]>()
                    .expect("an end");
                let mut answers = channel_of(&peer, "answers")
                    .sender::<[u8]>()
                    .expect("an end");
                while let Ok(request) = requests.recv_async().await {
                    answers.send_async(&request).await.expect("sent");
                }
            }
            Work::Calls => {
                let service = channel_of(&peer, "calls").service::<[u8], [u8]>();
                let mut service = service.expect("an end");
                while let Ok(Some(request)) = service.next_async().await {
                    request.reply_async(&PAYLOAD).await.expect("sent");
                }
            }
        }
    }

    async fn ask(work: Work, address: &str) {
        let node = builder().build().expect("a node");
        let peer = node.connect_async(address).await.expect("a session");
        match work {
            Work::Channels => {
                let mut requests = channel_of(&peer, "requests")
                    .sender::<[u8]>()
                    .expect("an end");
                let mut answers = channel_of(&peer, "answers")
                    .receiver::<[u8]>()
                    .expect("an end");
                sections!({
                    requests.send_async(&PAYLOAD).await.expect("sent");
                    answers.recv_async().await.expect("an answer");
                });
            }
            Work::Calls => {
                let caller = channel_of(&peer, "calls").caller::<[u8], [u8]>();
                let caller = caller.expect("an end");
                sections!({
                    caller.call_async(&PAYLOAD).await.expect("a reply");
                });
            }
        }
    }

    fn builder() -> NodeBuilder {
        let builder = Node::builder().driver(Driver::Tasks);
        builder.fabric(Fabric::Tcp, Policy::Require)
    }

    fn channel_of(peer: &Peer, name: &str) -> ChannelBuilder<Raw> {
        peer.channel(name).codec::<Raw>()
    }

    const LOOPBACK: &str = "127.0.0.1:0";
}
