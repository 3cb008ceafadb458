//! Sleeping on completions, by an I/O thread and by callers that lead.

use std::time::Duration;

use super::*;

/// Runs two programs that answer each other and sleep in between.
fn ping_pong(driver: Driver, rounds: u64) {
    let stage = Stage::driven(driver, one_device(), settings());
    let (mut there, mut arrives) = stage.open(0, "there", WINDOW);
    let (mut back, mut returns) = stage.open(1, "back", WINDOW);
    let within = || Patience::at_most(Duration::from_secs(300));
    let echo = std::thread::spawn(move || {
        for number in 0..rounds {
            let message = arrives.receive(within()).unwrap();
            assert_eq!(message.bytes(), payload(number, 100));
            blocking_send(&mut back, message.bytes());
        }
        // The loop ends when the other end is gone, in order or not.
        while arrives.receive(within()).is_ok() {}
    });
    for number in 0..rounds {
        blocking_send(&mut there, &payload(number, 100));
        let message = returns.receive(within()).unwrap();
        assert_eq!(message.bytes(), payload(number, 100));
    }
    drop((there, returns));
    let [one, other] = stage.nodes.each_ref().map(|node| node.runtime.clone());
    // A caller's node answers a goodbye when it is turned, and no thread turns it any more.
    let _ = one.close(Duration::from_millis(100));
    echo.join().unwrap();
    let _ = other.close(Duration::from_millis(100));
    let stats = stage.stats()[0];
    assert!(stats.polls > 0 && stats.completions >= rounds, "{stats:?}");
}

fn blocking_send(sender: &mut SendHandle, bytes: &[u8]) {
    let patience = Patience::at_most(Duration::from_secs(300));
    sender
        .send(Some(bytes.len()), patience, |slot| fill(slot, bytes))
        .unwrap();
}

#[test]
fn io_threads_sleep_and_are_woken_by_each_completion() {
    ping_pong(Driver::Threads, 2000);
}

#[test]
fn callers_sleep_and_are_woken_by_each_completion() {
    ping_pong(Driver::Caller, 2000);
}

/// Sleeps on the epoll set as a program would.
fn is_readable_within(runtime: &Runtime, seconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let set = runtime.watch();
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn a_program_that_sleeps_on_the_set_itself_is_woken() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("watch", WINDOW);
    let watching = &stage.nodes[1].runtime;
    let is_readable = || is_readable_within(watching, 0);
    let _ = watching.watch();
    for number in 0..100 {
        while watching.poll_ready() {}
        assert!(!is_readable(), "{number}");
        send(&mut sender, number, 64);
        stage.nodes[0].runtime.poll_ready();
        assert!(is_readable(), "{number}");
        while watching.poll_ready() {}
        assert_eq!(consume(&mut receiver), 1);
    }
}

/// A program may first poll until nothing moves, and ask for the set only when it is about to
/// sleep: the queue is armed all the same.
#[test]
fn a_program_that_asks_for_the_set_last_is_woken() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("watch", WINDOW);
    let program = &stage.nodes[1].runtime;
    let sleep = || assert!(is_readable_within(program, 300), "it slept for ever");
    let is_received = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            send(&mut sender, 0, 64);
            // The sender may have to ask for credit first.
            while !is_received.load(Ordering::Relaxed) {
                stage.nodes[0].runtime.poll_ready();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        loop {
            while program.poll_ready() {}
            if consume(&mut receiver) > 0 {
                break;
            }
            sleep();
        }
        is_received.store(true, Ordering::Relaxed);
    });
}

/// Both engines sleep whenever they wait for credit or for the application, and neither sleeps for
/// ever.
#[test]
fn a_stream_with_little_credit_flows_while_both_sides_sleep() {
    let settings = PortSettings {
        receive_buffers: 64,
        held_buffers: 16,
        session_credit: 4,
        send_requests: 64,
        ..settings()
    };
    for driver in [Driver::Threads, Driver::Caller] {
        let stage = Stage::driven(driver, one_device(), settings);
        let (mut sender, mut receiver) = stage.open(0, "stream", WINDOW);
        let within = || Patience::at_most(Duration::from_secs(300));
        let sending = std::thread::spawn(move || {
            for number in 0..3000 {
                blocking_send(&mut sender, &payload(number, 3000));
            }
            sender.wait_received(3000, within()).unwrap();
            sender
        });
        // The ring holds a tenth of the messages, so the sender waits for the receiver repeatedly.
        for number in 0..3000 {
            let message = receiver.receive(within()).unwrap();
            assert_eq!(message.bytes(), payload(number, 3000));
        }
        let sender = sending.join().unwrap();
        let stats = stage.stats()[0];
        assert!(stats.credit_stalls > 100, "{stats:?}");
        drop((sender, receiver));
        for node in &stage.nodes {
            let _ = node.runtime.close(Duration::ZERO);
        }
    }
}
