//! In the steady state a message costs no allocation, in any thread of either process.
//!
//! The test counts every allocation of both processes, in rounds of many messages. A path
//! that is new to a thread may allocate once: the first full window, the first sleep, a report that
//! a call has waited for long. The machine's load decides which round has it, so one round without
//! any allocation is asked for. An allocation that belongs to messages is in every round, as in the
//! control, where a thread plants one.

mod processes;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    process::ExitCode,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use ibex::{Codec, Raw, Receiver, Rkyv};
use processes::{Party, Proof, Setup};

/// The system's allocator, with a counter.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to `System`, unchanged, under the promises that our caller made
// for it; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[ibex::message]
struct Entry {
    offset: u64,
    data: Vec<u8>,
}

/// The pattern of messages between the processes.
#[derive(Clone, Copy)]
enum Traffic {
    /// A stream: one side sends as fast as possible, and the other acknowledges each message.
    Stream,
    /// Each message is answered before the next: both sides wait each time.
    Echo,
}

/// The allocations here and there in each round.
type Rounds = Vec<(u64, u64)>;

/// The most rounds that are played until one is without allocations.
const ROUNDS: usize = 10;
/// The messages of a round.
const STREAMED: u64 = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};
const ECHOED: u64 = STREAMED / 50;

fn main() -> ExitCode {
    let mut proofs = Vec::new();
    for setup in Setup::all() {
        for (name, traffic) in [("stream", Traffic::Stream), ("echo", Traffic::Echo)] {
            proofs.push(proof::<[u8], Raw>(
                format!("raw/{name}"),
                setup,
                traffic,
                || &[7; 64],
            ));
            proofs.push(proof::<Entry, Rkyv>(
                format!("rkyv/{name}"),
                setup,
                traffic,
                || {
                    Box::leak(Box::new(Entry {
                        offset: 1,
                        data: vec![7; 100],
                    }))
                },
            ));
        }
    }
    for setup in Setup::all() {
        proofs.push(Proof::new(
            "group",
            setup,
            acknowledging_member,
            sending_group,
        ));
    }
    proofs.push(control(Setup::SHM[0]));
    proofs.push(control(Setup::TCP[1]));
    processes::run(proofs)
}

fn proof<T: ?Sized + 'static, C: Codec<T> + 'static>(
    name: String,
    setup: Setup,
    traffic: Traffic,
    value: fn() -> &'static T,
) -> Proof {
    let here = move |party: &mut Party| {
        if let Err(rounds) = receiving_side::<T, C>(party, traffic, value()) {
            let stats = party.peer.stats();
            panic!("allocations here and there, by round: {rounds:?}: {stats:?}");
        }
    };
    let there = move |party: &mut Party| {
        sending_side::<T, C>(party, traffic, value(), || ());
    };
    Proof::new(name, setup, here, there)
}

/// Runs the stream with a planted allocation in each round.
fn control(setup: Setup) -> Proof {
    let here = |party: &mut Party| {
        let verdict = receiving_side::<[u8], Raw>(party, Traffic::Stream, &[7; 64]);
        let rounds = verdict.expect_err("an allocation was planted");
        assert!(rounds.iter().all(|(_, there)| *there >= 1), "{rounds:?}");
    };
    let there = |party: &mut Party| {
        let now = Arc::new(Barrier::new(2));
        let planter = {
            let now = now.clone();
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    now.wait();
                    drop(black_box(Box::new(1u8)));
                    now.wait();
                }
            })
        };
        let plant = || {
            now.wait();
            now.wait();
        };
        sending_side::<[u8], Raw>(party, Traffic::Stream, &[7; 64], plant);
        planter.join().unwrap();
    };
    Proof::new("planted", setup, here, there)
}

/// Plays rounds here until one is without allocations in both processes. The other process
/// [follows](follow_rounds).
fn lead_rounds(party: &mut Party, mut round: impl FnMut()) -> Result<(), Rounds> {
    let mut counts = Rounds::new();
    loop {
        party.meet();
        let here = allocations_of(&mut round);
        party.meet();
        let there: u64 = party.other.hear();
        counts.push((here, there));
        let is_clean = (here, there) == (0, 0);
        let is_over = is_clean || counts.len() == ROUNDS;
        party.other.say(is_over);
        if is_clean {
            return Ok(());
        }
        if is_over {
            return Err(counts);
        }
    }
}

/// Plays the rounds that the other process [leads](lead_rounds).
fn follow_rounds(party: &mut Party, mut round: impl FnMut()) {
    let mut is_over = false;
    while !is_over {
        party.meet();
        let allocations = allocations_of(&mut round);
        party.meet();
        party.other.say(allocations);
        is_over = party.other.hear();
    }
}

fn allocations_of(play: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    play();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Sends in rounds; `plant` is called half way through a round of the stream.
fn sending_side<T: ?Sized, C: Codec<T>>(
    party: &mut Party,
    traffic: Traffic,
    value: &T,
    plant: impl Fn(),
) {
    let there = party.peer.channel("there").codec::<C>();
    let mut sender = there.sender::<T>().unwrap();
    let back = party.peer.channel("back").codec::<C>();
    let mut answers = back.receiver::<T>().unwrap();
    sender.opened(PATIENCE).unwrap();
    answers.opened(PATIENCE).unwrap();

    let messages = traffic.messages(party.setup);
    follow_rounds(party, || match traffic {
        Traffic::Stream => {
            let mut last = 0;
            for number in 0..messages {
                last = sender.send(value).unwrap();
                if number == messages / 2 {
                    plant();
                    sender.wait_acked(last).unwrap();
                }
            }
            sender.flush().unwrap();
            sender.wait_acked(last).unwrap();
        }
        Traffic::Echo => {
            for _ in 0..messages {
                sender.send(value).unwrap();
                answers.recv().unwrap().ack();
            }
        }
    });
}

/// Receives in rounds, and answers where the traffic has answers.
fn receiving_side<T: ?Sized, C: Codec<T>>(
    party: &mut Party,
    traffic: Traffic,
    answer: &T,
) -> Result<(), Rounds> {
    let there = party.peer.channel("there").codec::<C>();
    let mut receiver = there.receiver::<T>().unwrap();
    let back = party.peer.channel("back").codec::<C>();
    let mut answers = back.sender::<T>().unwrap();
    receiver.opened(PATIENCE).unwrap();
    answers.opened(PATIENCE).unwrap();

    let messages = traffic.messages(party.setup);
    lead_rounds(party, || match traffic {
        Traffic::Stream => receive_and_acknowledge(&mut receiver, messages),
        Traffic::Echo => {
            for _ in 0..messages {
                receiver.recv().unwrap().ack();
                answers.send(answer).unwrap();
            }
        }
    })
}

/// Sends to a group of two, the other process and another node of this one, and waits for both now
/// and then. Allocations of either process count.
fn sending_group(party: &mut Party) {
    let second = party.setup.node().listen("127.0.0.1:0").build().unwrap();
    let address = second.local_addr().unwrap();
    let member = thread::spawn(move || {
        let wal = second.accept().unwrap().channel("wal");
        let mut wal = wal.receiver::<Entry>().unwrap();
        while let Ok(entry) = wal.recv() {
            entry.ack();
        }
    });
    let peer = party.node.connect(address).unwrap();
    let group = party.node.channel("wal").window_messages(WINDOW);
    let mut group = group.group::<Entry>().unwrap();
    for peer in [&party.peer, &peer] {
        group.join(peer).unwrap();
    }
    let entry = Entry {
        offset: 1,
        data: vec![7; 100],
    };
    let messages = Traffic::Echo.messages(party.setup);
    follow_rounds(party, || {
        for number in 1..=messages {
            let sequence = group.send(&entry).unwrap();
            if number.is_multiple_of(1000) || number == messages {
                group.wait_acked(sequence, 1).unwrap();
                group.wait_acked(sequence, 2).unwrap();
            }
        }
    });
    drop(group);
    member.join().unwrap();
}

fn acknowledging_member(party: &mut Party) {
    let wal = party.peer.channel("wal");
    let mut wal = wal.receiver::<Entry>().unwrap();
    let messages = Traffic::Echo.messages(party.setup);
    let round = || receive_and_acknowledge(&mut wal, messages);
    lead_rounds(party, round).unwrap();
}

fn receive_and_acknowledge<T: ?Sized, C: Codec<T>>(receiver: &mut Receiver<T, C>, messages: u64) {
    for _ in 0..messages {
        receiver.recv().unwrap().ack();
    }
}

impl Traffic {
    /// Returns the messages of a round.
    fn messages(self, setup: Setup) -> u64 {
        let (messages, part) = match self {
            Traffic::Stream => (STREAMED, 10),
            Traffic::Echo => (ECHOED, 100),
        };
        setup.count(messages, part)
    }
}

/// A window that is small enough for a group to wait for room repeatedly.
const WINDOW: u64 = 256;
const PATIENCE: Duration = Duration::from_secs(120);
