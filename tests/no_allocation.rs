//! In the steady state a message costs no allocation: not in the thread that sends or
//! receives, not in an I/O thread, in neither process.
//!
//! Every allocation of the process is counted, whoever makes it. First each side walks
//! the ways that are new to it (a full window, an empty channel, sleeping), then come
//! 10 000 messages of warm-up, then the messages that count. The control has a few
//! allocations planted, by a thread of its own, and must be found out.

mod processes;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    iter,
    process::ExitCode,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use ibex::{Codec, Events, Raw, Receiver, Rkyv, SendErrorKind, Sender};
use processes::{Party, Proof, Setup};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to `System`, unchanged, under the promises that our
// caller made for it; counting allocates nothing.
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

/// How messages go between the processes.
#[derive(Clone, Copy)]
enum Traffic {
    /// One side sends as fast as it may, the other acknowledges each message.
    Stream,
    /// Each message is answered before the next: both sides wait each time.
    Echo,
}

const WARM_UP: u64 = 10_000;
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
        let (here, there) = receiving_side::<T, C>(party, traffic, value());
        if let Err(why) = verdict(here, there) {
            panic!("{why}: {:?}", party.peer.stats());
        }
    };
    let there = move |party: &mut Party| {
        sending_side::<T, C>(party, traffic, value(), || ());
    };
    Proof::new(name, setup, here, there)
}

/// Runs the stream with allocations planted.
fn control(setup: Setup) -> Proof {
    let here = |party: &mut Party| {
        let (here, there) = receiving_side::<[u8], Raw>(party, Traffic::Stream, &[7; 64]);
        let failure = verdict(here, there).expect_err("allocations were planted");
        assert!(there >= 1, "{failure}");
    };
    let there = |party: &mut Party| {
        let now = Arc::new(Barrier::new(2));
        let planter = {
            let now = now.clone();
            thread::spawn(move || {
                now.wait();
                for _ in 0..PLANTED {
                    drop(black_box(Box::new(1u8)));
                }
                now.wait();
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

fn verdict(here: u64, there: u64) -> Result<(), String> {
    match (here, there) {
        (0, 0) => Ok(()),
        _ => Err(format!(
            "the receiving process allocated {here} times, the sending one {there}"
        )),
    }
}

/// Counts the allocations of this process during a play.
///
/// A call that waits for more than a second is told of as an event, which has the names of channel
/// and peer. That says how busy the machine is, and nothing of messages: what events may have
/// allocated is taken off.
fn allocations_of(events: &mut [Events], play: impl FnOnce()) -> u64 {
    let mut told = || {
        let counts = events.iter_mut().map(|events| {
            let taken = iter::from_fn(|| events.try_next());
            taken.count() as u64
        });
        counts.sum::<u64>()
    };
    told();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    play();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    allocations.saturating_sub(told() * OF_AN_EVENT)
}

/// The most that an event allocates. The counted messages are thousands.
const OF_AN_EVENT: u64 = 8;
/// The allocations of the control: more than a few events have.
const PLANTED: u64 = 100;

/// Sends, counts this process's allocations and tells them the other side; `plant` is
/// called half way through.
fn sending_side<T: ?Sized, C: Codec<T>>(
    party: &mut Party,
    traffic: Traffic,
    value: &T,
    plant: impl Fn(),
) {
    let mut sender = party
        .peer
        .channel("there")
        .codec::<C>()
        .sender::<T>()
        .unwrap();
    let mut answers = party
        .peer
        .channel("back")
        .codec::<C>()
        .receiver::<T>()
        .unwrap();
    sender.opened(PATIENCE).unwrap();
    answers.opened(PATIENCE).unwrap();

    // A full window, and waiting for nothing in both directions.
    let mut last = 0;
    loop {
        match sender.try_send(value) {
            Ok(sequence) => last = sequence,
            Err(error) if error.kind() == SendErrorKind::Full => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        sender.send_timeout(value, MOMENT).is_err(),
        "nobody reads, the window is full"
    );
    assert!(answers.recv_timeout(MOMENT).is_err(), "nobody answers");
    party.other.say(last);
    sender.wait_acked(last).unwrap();
    party.meet();

    let mut exchange = |messages: u64, plant: &dyn Fn()| match traffic {
        Traffic::Stream => {
            for number in 0..messages {
                let sequence = sender.send(value).unwrap();
                if number == messages / 2 {
                    plant();
                    sender.wait_acked(sequence).unwrap();
                }
            }
            sender.flush().unwrap();
            sender.wait_acked(last_of(&sender)).unwrap();
        }
        Traffic::Echo => {
            for _ in 0..messages {
                sender.send(value).unwrap();
                answers.recv().unwrap().ack();
            }
        }
    };
    let (warm_up, counted) = traffic.messages(party.setup);
    exchange(warm_up, &|| ());
    party.meet();
    let events = &mut [party.node.events()];
    let allocations = allocations_of(events, || exchange(counted, &plant));
    party.meet();
    party.other.say(allocations);
}

/// Receives, and counts this process's allocations; returns them with the other side's.
fn receiving_side<T: ?Sized, C: Codec<T>>(
    party: &mut Party,
    traffic: Traffic,
    answer: &T,
) -> (u64, u64) {
    let mut receiver = party
        .peer
        .channel("there")
        .codec::<C>()
        .receiver::<T>()
        .unwrap();
    let mut answers = party
        .peer
        .channel("back")
        .codec::<C>()
        .sender::<T>()
        .unwrap();
    receiver.opened(PATIENCE).unwrap();
    answers.opened(PATIENCE).unwrap();

    let first: u64 = party.other.hear();
    receive_and_acknowledge(&mut receiver, first);
    assert!(receiver.recv_timeout(MOMENT).is_err(), "all was received");
    party.meet();

    let mut exchange = |messages: u64| match traffic {
        Traffic::Stream => receive_and_acknowledge(&mut receiver, messages),
        Traffic::Echo => {
            for _ in 0..messages {
                receiver.recv().unwrap().ack();
                answers.send(answer).unwrap();
            }
        }
    };
    let (warm_up, counted) = traffic.messages(party.setup);
    exchange(warm_up);
    party.meet();
    let here = allocations_of(&mut [party.node.events()], || exchange(counted));
    party.meet();
    (here, party.other.hear())
}

/// Sends to a group of two, the other process and another node of this one, and waits for both
/// now and then. Allocations of either process count.
fn sending_group(party: &mut Party) {
    let second = party.setup.node().listen("127.0.0.1:0").build().unwrap();
    let address = second.local_addr().unwrap();
    let mut events = [party.node.events(), second.events()];
    let (warm_up, counted) = Traffic::Echo.messages(party.setup);
    let both = Arc::new(Barrier::new(2));
    let asleep = both.clone();
    let member = thread::spawn(move || {
        let wal = second.accept().unwrap().channel("wal");
        let mut wal = wal.receiver::<Entry>().unwrap();
        fall_asleep(&mut wal);
        asleep.wait();
        warm_up_receiving(&mut wal, warm_up);
        receive_and_acknowledge(&mut wal, counted);
        tell(&mut wal);
        (wal, second)
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
    let mut exchange = |messages: u64| {
        for number in 1..=messages {
            let sequence = group.send(&entry).unwrap();
            if number.is_multiple_of(1000) || number == messages {
                group.wait_acked(sequence, 1).unwrap();
                group.wait_acked(sequence, 2).unwrap();
            }
        }
    };
    both.wait();
    party.meet();
    exchange(warm_up);
    party.meet();
    let allocations = allocations_of(&mut events, || exchange(counted));
    party.meet();
    party.other.say(allocations);
    drop(group);
    member.join().unwrap();
}

fn acknowledging_member(party: &mut Party) {
    let wal = party.peer.channel("wal");
    let mut wal = wal.receiver::<Entry>().unwrap();
    let (warm_up, counted) = Traffic::Echo.messages(party.setup);
    fall_asleep(&mut wal);
    party.meet();
    warm_up_receiving(&mut wal, warm_up);
    tell(&mut wal);
    party.meet();
    let here = allocations_of(&mut [party.node.events()], || {
        receive_and_acknowledge(&mut wal, counted);
        tell(&mut wal);
    });
    party.meet();
    verdict(here, party.other.hear()).unwrap();
}

/// Sleeps before it is counted, as it may while it is.
fn fall_asleep(receiver: &mut Receiver<Entry, Rkyv>) {
    for _ in 0..3 {
        assert!(receiver.recv_timeout(MOMENT).is_err(), "nothing is sent");
    }
}

/// The sender sleeps as well, since its messages are not acknowledged at once.
fn warm_up_receiving(receiver: &mut Receiver<Entry, Rkyv>, messages: u64) {
    receive_and_acknowledge(receiver, 1);
    thread::sleep(MOMENT);
    receive_and_acknowledge(receiver, messages - 1);
}

fn receive_and_acknowledge<T: ?Sized, C: Codec<T>>(receiver: &mut Receiver<T, C>, messages: u64) {
    for _ in 0..messages {
        receiver.recv().unwrap().ack();
    }
}

/// Has the sender hear of all acknowledgements, where callers turn the engine and this one
/// calls no more.
fn tell(receiver: &mut Receiver<Entry, Rkyv>) {
    assert!(receiver.try_recv().is_err(), "all was received");
}

fn last_of<T: ?Sized, C: Codec<T>>(sender: &Sender<T, C>) -> u64 {
    sender.counts().sent
}

impl Traffic {
    /// How many to exchange before what counts, and how many that count.
    fn messages(self, setup: Setup) -> (u64, u64) {
        let (messages, part) = match self {
            Traffic::Stream => (STREAMED, 10),
            Traffic::Echo => (ECHOED, 100),
        };
        (setup.count(WARM_UP, part), setup.count(messages, part))
    }
}

/// Few enough for a group to wait for room again and again.
const WINDOW: u64 = 256;
/// Long enough for a thread to fall asleep.
const MOMENT: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(120);
