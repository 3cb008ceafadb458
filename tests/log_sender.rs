//! Logs sent to a far end that ends and comes back in mid-stream.
#![forbid(unsafe_code)]

#[path = "common/listen_again.rs"]
mod listen_again;
#[path = "common/numbers.rs"]
mod numbers;
#[path = "common/over.rs"]
mod over;

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{self, Write},
    net::SocketAddr,
    process::{self, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    Driver, Fabric, Message, Node, Peer, Pod, Raw, Receiver,
    log::{LogAnswer, LogError, LogErrorKind, LogSender, LogSent, LogSource, LogTurn},
};
use ibex_harness::process::{Process, again};
use listen_again::listen_again;
use numbers::{Disk, Numbers, SourceResult, answered, await_next, free_address, numbers};
use over::Over;

/// The last message; each message is the number of its place.
const END: u64 = 10_000;
/// The counts of messages after which the far end ends.
const LIVES: [u64; 5] = [1, 2_500, 2_501, 7_000, END];
/// The fabrics that need no device.
const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];

// ---- The log and the far end -----------------------------------------------------------

/// Runs a far end whose lives end at these counts of messages.
fn far_end(over: &Over, address: SocketAddr, disk: &Disk, lives: &[u64]) {
    for (life, &until) in lives.iter().enumerate() {
        let driver = [Driver::Threads, Driver::Caller][life % 2];
        let node = over.builder(driver).build().expect("a node");
        let peer = node.connect(address).expect("the log's node listens");
        live(&peer, disk, until);
        // The first of these says no goodbye, like a killed process.
        let patience = [Duration::ZERO, Duration::MAX][life % 2];
        let _ = node.close(patience);
    }
}

/// Receives up to message `until`. The last few are not acknowledged, unless they are the end of
/// the log.
fn live(peer: &Peer, disk: &Disk, until: u64) {
    let positions = peer.channel("position").codec::<Pod>().sender::<u64>();
    let mut positions = positions.expect("a sender");
    positions.send(&disk.position()).expect("it is sent");
    let channel = peer.channel("numbers").codec::<Pod>();
    let mut numbers = channel.receiver::<u64>().expect("a receiver");
    let mut held = Vec::new();
    while disk.position() < until {
        let number = numbers.next().expect("a message").expect("no end");
        disk.apply(*number);
        match until == END || disk.position() + 5 < until {
            true => number.ack(),
            false => held.push(number),
        }
    }
    if until == END {
        // The log's end sees that everything is acknowledged, and ends the channel.
        assert!(numbers.next().expect("an orderly end").is_none());
    }
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

// ---- Far ends that connect ---------------------------------------------------------------

#[test]
fn a_far_end_that_connects_again_has_each_message_once() -> Outcome {
    for (over, driver) in cells() {
        let (node, address) = over.listener(driver);
        let disk = Disk::default();
        thread::scope(|scope| {
            scope.spawn(|| far_end(&over, address, &disk, &LIVES));
            let mut log = Numbers { end: 0 };
            let mut sender = LogSender::new();
            while sender.acked() < END {
                log.end = (log.end + 100).min(END);
                // The sender checks acknowledgements for half of the time, and otherwise runs
                // ahead.
                let position = log.end / 200 * 200;
                match sender.wait_acked(&mut log, position.max(sender.acked())) {
                    Ok(()) => {}
                    Err(error) if error.kind() == LogErrorKind::NoSession => {
                        sender.go_on_with(node.accept()?);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Outcome::Ok(())
        })?;
        disk.assert_has_each_once(END);
    }
    Ok(())
}

fn cells() -> impl Iterator<Item = (Over, Driver)> {
    let drivers = [Driver::Threads, Driver::Caller];
    let overs = Over::each().into_iter();
    overs.flat_map(move |over| drivers.map(|driver| (over.clone(), driver)))
}

#[test]
fn tasks_send_a_log_to_a_far_end_that_connects_again() -> Outcome {
    for over in Over::each() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let disk = Disk::default();
        runtime.block_on(async {
            let (node, address) = over.listener(Driver::Tasks);
            let far = {
                let (over, disk) = (over.clone(), disk.clone());
                thread::spawn(move || far_end(&over, address, &disk, &LIVES))
            };
            let mut log = Numbers { end: END };
            let mut sender = LogSender::new();
            while let Err(error) = sender.wait_acked_async(&mut log, END).await {
                if error.kind() != LogErrorKind::NoSession {
                    return Err(error.into());
                }
                sender.go_on_with(node.accept_async().await?);
            }
            drop(sender);
            while !far.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let _ = node.close_async(Duration::MAX).await;
            Outcome::Ok(())
        })?;
        disk.assert_has_each_once(END);
    }
    Ok(())
}

// ---- Far ends that are kept connected ------------------------------------------------------

/// Runs a far end at `address` whose lives end at growing counts of messages.
fn listening_far_end(over: &Over, address: SocketAddr, disk: &Disk) {
    // There are only a few lives, since the sender reconnects to short ones after longer and longer
    // pauses.
    for (life, until) in [2_500, 7_000, END].into_iter().enumerate() {
        let driver = [Driver::Threads, Driver::Caller][life % 2];
        let node = listen_again(over.builder(driver), address);
        let peer = node.accept().expect("the log sender's node connects");
        live(&peer, disk, until);
        let patience = [Duration::ZERO, Duration::MAX][life % 2];
        let _ = node.close(patience);
    }
}

#[test]
fn a_far_end_that_is_kept_connected_has_each_message_once() -> Outcome {
    for (over, driver) in cells() {
        let (address, disk) = (free_address(), Disk::default());
        let node = over.builder(driver).build()?;
        let peers = node.keep_connected([address])?;
        thread::scope(|scope| {
            scope.spawn(|| listening_far_end(&over, address, &disk));
            let mut log = Numbers { end: 0 };
            let mut sender = LogSender::at(&peers, address);
            for end in (0..=END).step_by(500) {
                log.end = end;
                sender.wait_acked(&mut log, end.saturating_sub(250))?;
            }
            sender.wait_acked(&mut log, END)
        })?;
        disk.assert_has_each_once(END);
    }
    Ok(())
}

/// A session that the program closes takes a moment to end, and fails what is asked in it at once.
/// A loan makes the moment longer.
#[test]
fn a_far_end_whose_session_the_program_closes_is_asked_in_the_next_one() -> Outcome {
    for over in Over::each() {
        let (address, disk) = (free_address(), Disk::default());
        let node = over.builder(Driver::Threads).build()?;
        let peers = node.keep_connected([address])?;
        thread::scope(|scope| {
            scope.spawn(|| {
                let node = listen_again(over.builder(Driver::Threads), address);
                let first = node.accept().expect("the log sender's node connects");
                let held = first.channel("held").codec::<Raw>().receiver::<[u8]>();
                let mut held = held.expect("a receiver");
                while let Ok(Some(_)) = held.next() {}
                live(&node.accept().expect("it connects again"), &disk, END);
            });
            let first = peers.wait_for(address).expect("it is kept");
            let mut held = first.channel("held").codec::<Raw>().sender::<[u8]>()?;
            let mut log = Numbers { end: END };
            let mut sender = LogSender::at(&peers, address);
            let asked = smol::block_on(smol::future::poll_once(sender.send_async(&mut log)));
            assert!(asked.is_none(), "{asked:?}");
            let loan = held.loan(8)?;
            thread::scope(|scope| {
                scope.spawn(|| first.close(Duration::MAX));
                sender.wait_acked(&mut log, END)?;
                drop(loan);
                Outcome::Ok(())
            })
        })?;
        disk.assert_has_each_once(END);
    }
    Ok(())
}

#[test]
fn tasks_send_a_log_to_a_far_end_that_is_kept_connected() -> Outcome {
    for over in Over::each() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (address, disk) = (free_address(), Disk::default());
        let far = {
            let (over, disk) = (over.clone(), disk.clone());
            thread::spawn(move || listening_far_end(&over, address, &disk))
        };
        runtime.block_on(async {
            let node = over.builder(Driver::Tasks).build()?;
            let peers = node.keep_connected([address])?;
            let mut sender = LogSender::at(&peers, address);
            let mut log = Numbers { end: END };
            sender.wait_acked_async(&mut log, END).await?;
            drop(sender);
            let _ = node.close_async(Duration::MAX).await;
            Outcome::Ok(())
        })?;
        far.join().expect("no panic");
        disk.assert_has_each_once(END);
    }
    Ok(())
}

#[test]
fn a_log_sender_that_waits_for_its_far_end_has_time_outs_and_ends_with_its_node() -> Outcome {
    for (over, driver) in cells() {
        let node = over.builder(driver).build()?;
        let address = free_address();
        let peers = node.keep_connected([address])?;
        let mut log = answered(1, || Ok(0));
        let mut sender = LogSender::at(&peers, address);
        assert!(!sender.try_send(&mut log)?);
        let timed_out = sender.send_timeout(&mut log, Duration::from_millis(20));
        let timed_out = timed_out.expect_err("nobody listens");
        assert!(
            timed_out.to_string().contains(&address.to_string()),
            "{timed_out}"
        );
        // The task gives up waiting, and then the sender does.
        let sent = smol::block_on(smol::future::poll_once(sender.send_async(&mut log)));
        assert!(sent.is_none(), "{sent:?}");
        drop(sender);

        let mut sender = LogSender::at(&peers, address);
        let ended = thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send(&mut log));
            let _ = node.close(Duration::MAX);
            waiting.join().expect("no panic")
        });
        let ended = ended.expect_err("the node is closed");
        assert_eq!(ended.kind(), LogErrorKind::NoSession, "{ended}");
    }
    Ok(())
}

#[test]
fn a_log_sender_hears_that_its_address_is_not_kept_any_more() -> Outcome {
    for (over, driver) in cells() {
        let node = over.builder(driver).build()?;
        let address = free_address();
        let peers = node.keep_connected([address])?;
        let mut log = answered(1, || Ok(0));
        let mut sender = LogSender::at(&peers, address);
        let ended = thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.send(&mut log));
            drop(peers);
            waiting.join().expect("no panic")
        });
        let ended = ended.expect_err("nobody connects any more");
        assert_eq!(ended.kind(), LogErrorKind::NoSession, "{ended}");
    }
    Ok(())
}

// ---- Far ends that are killed --------------------------------------------------------------

const CHILD: &str = "IBEX_TEST_FAR_END";

/// Plays a far end in a process of its own, if this process was started as one. It keeps applied
/// messages in a file, and exits without a goodbye at a given count.
#[test]
fn far_end_process() -> Outcome {
    let Ok(arguments) = env::var(CHILD) else {
        return Ok(());
    };
    let arguments: Vec<&str> = arguments.splitn(4, ' ').collect();
    let [address, fabric, until, path] = arguments[..] else {
        return Err("the address, the fabric, the number of messages and the file".into());
    };
    let fabrics = FABRICS.into_iter();
    let fabric = { fabrics }.find(|one| one.to_string() == fabric);
    let until: u64 = until.parse()?;
    let mut file = File::options().append(true).create(true).open(path)?;
    let mut position = file.metadata()?.len() / 8;

    let over = Over::new(fabric.ok_or("no such fabric")?);
    let node = over.builder(Driver::Threads).build()?;
    let peer = node.connect(address)?;
    let mut positions = peer.channel("position").codec::<Pod>().sender::<u64>()?;
    positions.send(&position)?;
    let mut numbers = peer.channel("numbers").codec::<Pod>().receiver::<u64>()?;
    while let Some(number) = numbers.next()? {
        file.write_all(&number.to_le_bytes())?;
        position += 1;
        if position == until && until < END {
            process::abort();
        }
        number.ack();
    }
    Ok(())
}

#[test]
fn a_far_end_that_is_killed_has_each_message_once() -> Outcome {
    for fabric in FABRICS {
        let (node, address) = Over::new(fabric).listener(Driver::Threads);
        let path = env::temp_dir().join(format!("ibex-log-sender-{fabric}-{}", process::id()));
        let _ = fs::remove_file(&path);
        let start = |until: u64| -> io::Result<Process> {
            let arguments = format!("{address} {fabric} {until} {}", path.display());
            let mut again = again()?;
            let again = again.args(["--exact", "far_end_process", "--nocapture"]);
            let again = again.env(CHILD, arguments).stdout(Stdio::null());
            Process::start("the far end", again)
        };
        thread::scope(|scope| {
            let lives = scope.spawn(|| -> io::Result<ExitStatus> {
                let ends = LIVES.map(|until| start(until)?.wait());
                let [.., last] = ends;
                last
            });
            let mut log = Numbers { end: END };
            let mut sender = LogSender::new();
            while let Err(error) = sender.wait_acked(&mut log, END) {
                if error.kind() != LogErrorKind::NoSession {
                    return Err(error.into());
                }
                let moment = Duration::from_millis(100);
                while let Err(late) = node
                    .accept_timeout(moment)
                    .map(|peer| sender.go_on_with(peer))
                {
                    assert!(!lives.is_finished(), "the last far end has ended: {late}");
                }
            }
            drop(sender);
            assert!(lives.join().expect("no panic")?.success());
            Outcome::Ok(())
        })?;
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        let (numbers, rest) = bytes.as_chunks::<8>();
        let numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        assert!(numbers.eq(1..=END) && rest.is_empty(), "over {fabric}");
    }
    Ok(())
}

// ---- Answers, ends and times -------------------------------------------------------------

/// A log sender's node and its far end, in one session.
struct Pair {
    node: Node,
    far: Node,
    here: Peer,
    there: Peer,
}

impl Pair {
    fn over(over: &Over, driver: Driver) -> Pair {
        let (node, address) = over.listener(driver);
        let far = over.builder(Driver::Threads).build().expect("a node");
        let (here, there) = thread::scope(|scope| {
            let there = scope.spawn(|| far.connect(address).expect("it listens"));
            let here = node.accept().expect("it connects");
            (here, there.join().expect("no panic"))
        });
        Pair {
            node,
            far,
            here,
            there,
        }
    }

    fn log_sender(&self) -> LogSender<u64, Pod> {
        let mut sender = LogSender::new();
        sender.go_on_with(self.here.clone());
        sender
    }

    fn receiver(&self) -> Receiver<u64, Pod> {
        let channel = self.there.channel("numbers").codec::<Pod>();
        channel.receiver().expect("a receiver")
    }

    /// Receives the next message, and drives the log sender's node meanwhile.
    fn next(&self, receiver: &mut Receiver<u64, Pod>) -> Message<u64, Pod> {
        loop {
            self.node.poll();
            match receiver.try_recv() {
                Ok(message) => return message,
                Err(nothing) if nothing.is_transient() => thread::yield_now(),
                Err(error) => panic!("no message: {error}"),
            }
        }
    }
}

#[test]
fn an_answer_of_zero_brings_all_again() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let mut sender = pair.log_sender();
        let mut log = answered(3, || Ok(0));
        for _ in 0..3 {
            let mut receiver = pair.receiver();
            assert_eq!(sender.send(&mut log).expect("it is sent"), 3);
            assert_eq!(sender.acked(), 0, "its log is lost");
            for number in 1..=3 {
                let message = pair.next(&mut receiver);
                assert_eq!(*message, number);
                message.ack();
            }
            // The receiver reports its acknowledgements when it looks again.
            assert!(
                receiver
                    .try_recv()
                    .is_err_and(|nothing| nothing.is_transient())
            );
            sender.wait_acked(&mut log, 3).expect("it has all");
            assert_eq!(sender.acked(), 3);
            drop(receiver);
            // The far end opens its end again in the same session.
            sender.go_on_with(pair.here.clone());
            assert_eq!(sender.position(), 3);
        }
    }
}

#[test]
fn an_answer_beyond_the_log_is_an_error_and_the_next_call_asks_again() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let _receiver = pair.receiver();
        let mut sender = pair.log_sender();
        let mut answers = [4, 3].into_iter();
        let mut log = answered(3, || Ok(answers.next().expect("two questions")));
        let refused = sender.send(&mut log).expect_err("it has too much");
        let text = refused.to_string();
        assert_eq!(refused.kind(), LogErrorKind::Ahead, "{text}");
        assert_eq!((refused.position(), refused.end()), (Some(4), Some(3)));
        assert!(text.contains("have the source answer"), "{text}");
        assert_eq!(sender.send(&mut log).expect("nothing lacks"), 3);
        assert_eq!(sender.acked(), 3);
        sender.wait_acked(&mut log, 3).expect("it was answered");
    }
}

#[test]
fn an_answer_that_fails_is_the_callers_and_the_next_call_asks_again() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let mut receiver = pair.receiver();
        let mut sender = pair.log_sender();
        let mut answers = [Err("no answer".into()), Ok(2)].into_iter();
        let mut log = answered(3, || answers.next().expect("two questions"));
        let failed = sender.send(&mut log).expect_err("no answer");
        assert_eq!(failed.kind(), LogErrorKind::Source, "{failed}");
        assert!(failed.to_string().contains("no answer"), "{failed}");
        sender.send(&mut log).expect("it is answered");
        assert_eq!(*pair.next(&mut receiver), 3);
    }
}

/// A release of the far end has the wrong type; the next one has the right one.
#[test]
fn a_far_end_of_another_type_is_an_error_and_the_next_session_goes_on() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let channel = pair.there.channel("numbers").codec::<Pod>();
        let _other = channel.receiver::<u32>().expect("a receiver");
        let mut sender = pair.log_sender();
        let mut log = answered(3, || Ok(2));
        let refused = sender
            .send(&mut log)
            .and_then(|_| sender.wait_acked(&mut log, 3));
        let refused = refused.expect_err("it is another type");
        assert_eq!(refused.kind(), LogErrorKind::Send, "{refused}");
        let repaired = Pair::over(&over, driver);
        let mut receiver = repaired.receiver();
        sender.go_on_with(repaired.here.clone());
        sender.send(&mut log).expect("it is the type");
        assert_eq!(*repaired.next(&mut receiver), 3);
    }
}

#[test]
fn a_message_that_the_log_has_no_more_is_the_callers_error() {
    struct CutOff;

    impl LogSource<u64, Pod> for CutOff {
        fn end(&self) -> u64 {
            9
        }

        fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
            Box::pin(async move { Ok((numbers(&peer)?, 3)) })
        }

        fn send_next(&mut self, position: u64, _: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
            Err(format!("{position} was cut off").into())
        }
    }

    let pair = Pair::over(&Over::new(Fabric::Shm), Driver::Threads);
    let _receiver = pair.receiver();
    let mut sender = pair.log_sender();
    let failed = sender.send(&mut CutOff).expect_err("it is not there");
    assert!(failed.to_string().contains("3 was cut off"), "{failed}");
    assert_eq!(sender.position(), 3);
}

#[test]
fn a_far_end_that_drops_a_message_is_asked_again_in_the_same_session() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let mut sender = pair.log_sender();
        let disk = Disk::default();
        thread::scope(|scope| {
            let mut receiver = pair.receiver();
            scope.spawn(|| {
                disk.apply(1);
                await_next(&mut receiver).ack();
                drop(await_next(&mut receiver));
                while let Ok(Some(message)) = receiver.next() {
                    drop(message);
                }
                drop(receiver);
                let mut receiver = pair.receiver();
                for number in 2..=4 {
                    let message = await_next(&mut receiver);
                    assert_eq!(*message, number);
                    message.ack();
                }
            });
            let mut log = answered(4, || Ok(disk.position()));
            sender.wait_acked(&mut log, 4).expect("it has all");
        });
    }
}

#[test]
fn a_position_beyond_the_log_is_waited_for_in_vain() {
    let pair = Pair::over(&Over::new(Fabric::Shm), Driver::Threads);
    let mut receiver = pair.receiver();
    let mut sender = pair.log_sender();
    let mut log = answered(3, || Ok(2));
    let refused = sender.wait_acked(&mut log, 4).expect_err("it ends at 3");
    assert_eq!(refused.kind(), LogErrorKind::Beyond, "{refused}");
    assert_eq!((refused.position(), refused.end()), (Some(4), Some(3)));
    pair.next(&mut receiver).ack();
    sender.wait_acked(&mut log, 3).expect("it is acknowledged");
}

#[test]
fn a_time_out_leaves_what_was_sent() {
    const SOON: Duration = Duration::from_millis(20);
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let mut sender = pair.log_sender();
        let mut log = answered(1000, || Ok(0));
        let unopened = sender.send_timeout(&mut log, SOON).expect_err("no end");
        let timeout_at = |error: &LogError| match error.kind() {
            LogErrorKind::Timeout => error.position(),
            kind => panic!("{kind:?}: {error}"),
        };
        assert_eq!(timeout_at(&unopened), Some(0), "{unopened}");
        assert!(!sender.try_send(&mut log).expect("later"));
        let mut receiver = pair.receiver();
        let full = loop {
            match sender.send_timeout(&mut log, SOON) {
                // A busy machine may send less than the window in that time.
                Err(error) if timeout_at(&error) < Some(256) => {}
                full => break full.expect_err("the window is full"),
            }
        };
        assert_eq!(timeout_at(&full), Some(256), "{full}");
        for number in 1..=256 {
            let message = pair.next(&mut receiver);
            assert_eq!(*message, number);
            message.ack();
        }
        // The far end may report its acknowledgements late.
        while sender.acked() < 256 {
            let unacked = sender.wait_acked_timeout(&mut log, 1000, SOON);
            let unacked = unacked.expect_err("not all is sent");
            assert_eq!(unacked.kind(), LogErrorKind::Timeout, "{unacked}");
        }
        assert_eq!(sender.acked(), 256);
        assert_eq!(*pair.next(&mut receiver), 257);
    }
}

#[test]
fn a_log_sender_without_a_session_says_why_it_has_none() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let mut receiver = pair.receiver();
        let mut sender = pair.log_sender();
        let mut log = answered(2, || Ok(0));
        sender.send(&mut log).expect("it is sent");
        pair.next(&mut receiver).ack();
        sender.wait_acked(&mut log, 1).expect("it is acknowledged");
        let is_over = thread::scope(|scope| {
            scope.spawn(|| {
                drop(receiver);
                pair.far.close(Duration::MAX)
            });
            sender.wait_acked(&mut log, 2)
        });
        let is_over = is_over.expect_err("the far end is gone");
        assert_eq!(is_over.kind(), LogErrorKind::NoSession, "{is_over}");
        let none = sender.send(&mut log).expect_err("no session");
        assert_eq!(none.to_string(), is_over.to_string());
        assert!(sender.until_acked(2).is_none());
        assert!(sender.into_channel().is_none());
    }
}

#[test]
fn a_node_that_is_closed_ends_the_wait() {
    for (over, driver) in cells() {
        let pair = Pair::over(&over, driver);
        let _receiver = pair.receiver();
        let mut sender = pair.log_sender();
        let mut log = answered(1, || Ok(0));
        sender.send(&mut log).expect("it is sent");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sender.wait_acked(&mut log, 1));
            let _ = pair.node.close(Duration::ZERO);
            let ended = waiting.join().expect("no panic").expect_err("it is closed");
            assert_eq!(ended.kind(), LogErrorKind::Send, "{ended}");
        });
    }
}

fn may_move_to_another_thread<F: Send>(future: F) -> F {
    future
}

#[test]
fn a_dropped_future_leaves_what_was_sent() {
    let pair = Pair::over(&Over::new(Fabric::Tcp), Driver::Threads);
    let mut receiver = pair.receiver();
    let mut sender = pair.log_sender();
    let mut log = answered(1000, || Ok(0));
    smol::block_on(async {
        let mut number = 0;
        while number < 1000 {
            // The send is polled until there is no room, and dropped.
            let sending = may_move_to_another_thread(sender.send_async(&mut log));
            let sent = smol::future::poll_once(sending).await;
            assert!(sent.is_none() || sender.position() == 1000, "{sent:?}");
            while number < sender.position() {
                let message = receiver.recv_async().await.expect("a message");
                number += 1;
                assert_eq!(*message, number);
                message.ack();
            }
        }
        sender.wait_acked_async(&mut log, 1000).await.expect("all");
    });
}

#[test]
fn a_task_that_has_room_for_much_lets_others_have_their_turn() {
    for over in Over::each() {
        let (node, address) = over.listener(Driver::Threads);
        let far = over.builder(Driver::Threads).build().expect("a node");
        let there = far.connect(address).expect("it listens");
        let mut sender = LogSender::new();
        sender.go_on_with(node.accept().expect("it connects"));
        let channel = there.channel("numbers").codec::<Pod>();
        let mut receiver = channel.receiver().expect("a receiver");
        let mut log = answered(1, || Ok(0));
        thread::scope(|scope| {
            scope.spawn(|| await_next(&mut receiver).ack());
            sender.wait_acked(&mut log, 1).expect("it is open");
        });
        log.numbers.end = 201;
        let first = smol::block_on(smol::future::poll_once(sender.send_async(&mut log)));
        assert!(first.is_none() && sender.position() > 1, "{sender:?}");
        let sent = smol::block_on(sender.send_async(&mut log));
        assert_eq!(sent.expect("the window has room"), 201);
    }
}
