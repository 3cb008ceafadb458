//! A receiver that does not read costs its window and no more, however long the sender continues. A
//! held message costs no more either, whatever flows beside it.
//!
//! The test measures the resident memory of both processes together, private or shared, from the
//! moment at which the window was first full to the end: it may grow by 10 %. Over tcp it grows not
//! steadily but by whole arrival blocks of 1 MiB: now and then the scheduler lets the reader fall
//! behind further than before, and one more block is in use. That is 7 % of the memory of the two
//! small processes; two blocks are too many. (Data in a socket's buffers belongs to the kernel,
//! which bounds it itself.)
//!
//! A sender finds no room a million times, or a quarter of a million messages flow; both counts are
//! lower over a software device, and `MEMORY_FLAT_TIMES` multiplies them.
//!
//! A session also stays as small as it was when its handles and messages are dropped, in whatever
//! order. `leaves_nothing`, `orders`, has the orders in which the session and the node end as well.

mod processes;

use std::{any::Any, collections::VecDeque, env, process::ExitCode, thread, time::Duration};

use ibex::{Raw, Receiver, SendErrorKind, Sender};
use ibex_harness::process::memory_kib;
use processes::{Party, Proof, Setup, orders, own_pid};

fn main() -> ExitCode {
    let mut proofs = Vec::new();
    for setup in Setup::with_threads() {
        for (name, beside) in [
            ("stuck", Beside::Nothing),
            ("stuck_beside_flow", Beside::Flow),
        ] {
            let here = move |party: &mut Party| stay_stuck(party, beside);
            proofs.push(Proof::new(name, setup, here, move |party| {
                push(party, beside);
            }));
        }
        let there = |party: &mut Party| push(party, Beside::Held);
        proofs.push(Proof::new("held_beside_flow", setup, hold_one, there));
        proofs.push(Proof::new("dropped", setup, take_and_drop, send_and_drop));
    }
    processes::run(proofs)
}

/// Other traffic of the session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Another channel flows.
    Flow,
    /// Another channel flows, and the first sends only one message.
    Held,
}

/// Sends as fast as possible on a channel that is not read, and on one that is.
fn push(party: &mut Party, beside: Beside) {
    let mut stuck = party
        .peer
        .channel("stuck")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut flow = party
        .peer
        .channel("flow")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    stuck.opened(PATIENCE).unwrap();
    flow.opened(PATIENCE).unwrap();
    if beside == Beside::Held {
        stuck.send(&[7; MESSAGE]).unwrap();
    } else {
        fill(&mut stuck);
    }
    if beside != Beside::Nothing {
        // Repeats until every block and buffer that the flow needs has been in use.
        for _ in 0..BURSTS {
            let messages = fill(&mut flow);
            party.other.say(messages);
            party.meet();
        }
        flow_once(&mut flow, party.setup.count(WARM_UP, 10));
    }
    party.meet();

    for _ in 0..rounds(party.setup, beside) {
        if beside != Beside::Nothing {
            flow_once(&mut flow, FLOWING);
        }
        if beside != Beside::Held {
            match stuck.try_send(&[7; MESSAGE]) {
                Err(error) if error.kind() == SendErrorKind::Full => {}
                other => panic!("nobody reads, and yet: {other:?}"),
            }
        }
    }
    party.meet();
    // The other side measures both processes now.
    party.meet();
    drop(flow);
}

/// Fills the window, and waits until everything has arrived. Returns the number of messages.
fn fill(sender: &mut Sender<[u8], Raw>) -> u64 {
    let mut messages = 0;
    loop {
        match sender.try_send(&[7; MESSAGE]) {
            Ok(_) => messages += 1,
            Err(error) if error.kind() == SendErrorKind::Full => break,
            Err(error) => panic!("{error}"),
        }
    }
    sender.flush().unwrap();
    messages
}

fn flow_once(sender: &mut Sender<[u8], Raw>, messages: u64) {
    for _ in 0..messages {
        sender.send(&[7; MESSAGE]).unwrap();
    }
}

/// Never reads the first channel, always the second.
fn stay_stuck(party: &mut Party, beside: Beside) {
    let stuck = receiver(party, "stuck");
    let flow = receiver(party, "flow");
    receive(party, flow, beside);
    drop(stuck);
}

/// Holds the first channel's only message all the time, and always reads the second.
fn hold_one(party: &mut Party) {
    let mut stuck = receiver(party, "stuck");
    let flow = receiver(party, "flow");
    let held = stuck.recv().unwrap();
    receive(party, flow, Beside::Held);
    assert_eq!(held[..], [7; MESSAGE]);
}

fn receiver(party: &Party, name: &str) -> Receiver<[u8], Raw> {
    let channel = party.peer.channel(name).codec::<Raw>();
    channel.receiver::<[u8]>().unwrap()
}

/// Receives one message after the other on channels of their own, and drops the message, the
/// receiver and a handle of the peer in every order.
fn take_and_drop(party: &mut Party) {
    let processes = [own_pid(), party.other.pid()];
    for bytes in LENGTHS {
        let mut before = None;
        let rounds = party.setup.count(DROPPING, 10);
        for round in 0..rounds {
            for order in orders(&[0, 1, 2]) {
                let peer = party.peer.clone();
                let mut receiver = receiver(party, "dropped");
                let message = receiver.recv().unwrap();
                assert_eq!(message.len(), bytes);
                drop_in(
                    &order,
                    [Box::new(message), Box::new(receiver), Box::new(peer)],
                );
                party.meet();
            }
            if round == rounds / 4 {
                before = Some(processes.map(resident_kib));
            }
            party.meet();
        }
        let after = processes.map(resident_kib);
        party.meet();
        // The pools may keep more buffers for long messages than they did early.
        let slack = if bytes > MESSAGE {
            4 * bytes as u64 / 1024
        } else {
            0
        };
        assert_flat(before.unwrap(), after, slack);
    }
}

/// Sends what [`take_and_drop`] receives, and drops the sender and a handle of the peer.
fn send_and_drop(party: &mut Party) {
    let payload = vec![7; LENGTHS[1]];
    let of_receiver = orders(&[0, 1, 2]).len();
    for bytes in LENGTHS {
        for _ in 0..party.setup.count(DROPPING, 10) {
            for order in orders(&[0, 1]).iter().cycle().take(of_receiver) {
                let peer = party.peer.clone();
                let channel = peer.channel("dropped").codec::<Raw>();
                let mut sender = channel.sender::<[u8]>().unwrap();
                sender.send(&payload[..bytes]).unwrap();
                drop_in(order, [Box::new(sender), Box::new(peer)]);
                party.meet();
            }
            party.meet();
        }
        party.meet();
    }
}

fn drop_in<const N: usize>(order: &[usize], parts: [Box<dyn Any>; N]) {
    let mut parts = parts.map(Some);
    for &part in order {
        drop(parts[part].take());
    }
}

fn receive(party: &mut Party, mut flow: Receiver<[u8], Raw>, beside: Beside) {
    flow.opened(PATIENCE).unwrap();
    if beside != Beside::Nothing {
        // Some messages are always held, so that each burst begins where the last one ended.
        let mut held = VecDeque::new();
        for _ in 0..BURSTS {
            let messages: u64 = party.other.hear();
            for _ in 0..messages {
                held.push_back(flow.recv().unwrap());
                if held.len() > HELD {
                    held.pop_front();
                }
            }
            party.meet();
        }
    }
    let reader = thread::spawn(move || while flow.next().unwrap().is_some() {});
    party.meet();
    let processes = [own_pid(), party.other.pid()];
    let before = processes.map(resident_kib);
    party.meet();
    let after = processes.map(resident_kib);
    party.meet();
    reader.join().unwrap();
    assert_flat(before, after, 0);
}

/// Compares the memory of both processes, in KiB.
fn assert_flat(before: [u64; 2], after: [u64; 2], slack: u64) {
    let sum = |kib: [u64; 2]| kib.iter().sum::<u64>();
    assert!(
        sum(after) * 10 <= (sum(before) + slack) * 11,
        "from {before:?} to {after:?} KiB"
    );
}

/// Returns the resident memory of a process: private and shared pages that it has mapped and
/// touched (`VmRSS`, proc_pid_status(5)). Rings are touched whole before the first measurement.
fn resident_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS").expect("the process lives")
}

fn rounds(setup: Setup, beside: Beside) -> u64 {
    let usual = match beside {
        Beside::Nothing => setup.count(1_000_000, 10),
        Beside::Flow | Beside::Held => setup.count(500, 50),
    };
    let times = env::var("MEMORY_FLAT_TIMES").ok();
    usual * times.map_or(1, |times| times.parse().expect("a whole number"))
}

const MESSAGE: usize = 1000;
/// Full windows that are sent before the measurement, each with other bounds in memory.
const BURSTS: usize = 32;
/// The number of messages that are always held: less than half a window.
const HELD: usize = 400;
/// Messages that flow before the measurement.
const WARM_UP: u64 = 50_000;
/// Messages that flow in a round.
const FLOWING: u64 = 500;
/// Rounds of channels that are dropped in every order. A quarter of them comes before the
/// measurement.
const DROPPING: u64 = 40;
/// A message in a ring, and one with memory of its own.
const LENGTHS: [usize; 2] = [MESSAGE, 3 << 20];
/// A watchdog's time: nothing takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(200);
