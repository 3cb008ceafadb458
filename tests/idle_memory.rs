//! A session takes memory as its messages need it, and an idle one is a small record, as is each of
//! its channels: memory of rings, arrivals and release cells goes back to the system.
//!
//! The tests measure the memory of both processes together, beyond that with a single session:
//! private and shared pages, with those that both map counted once, including pools and excluding
//! files. Each channel has carried one message, which the receiver holds, or is then idle. (Data in
//! a socket's buffers belongs to the kernel and is empty here.)

mod processes;

use std::{process::ExitCode, thread, time::Duration};

use ibex::{Fabric, Message, Peer, Raw, Receiver, Sender};
use ibex_harness::process::memory_kib;
use processes::{Party, Proof, Setup, own_pid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn main() -> ExitCode {
    let setups = Setup::with_threads().filter(|setup| setup.fabric != Fabric::Verbs);
    let proofs = |setup| {
        let in_use = Proof::new("one_message_held", setup, measure_in_use, |party| {
            hold_one_message_each(party, Side::There);
        });
        let at_rest = Proof::new("at_rest", setup, measure, |party| {
            take_part(party, Side::There);
        });
        [in_use, at_rest]
    };
    processes::run(setups.flat_map(proofs).collect())
}

/// The end of a channel that a process has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

/// The ends that a process keeps open.
struct Ends {
    senders: Vec<Sender<[u8], Raw>>,
    receivers: Vec<Receiver<[u8], Raw>>,
}

/// A sending ring takes memory for what was written, and not for its window.
fn measure_in_use(party: &mut Party) {
    let [one, all] = hold_one_message_each(party, Side::Here);
    let per_channel = (all - one) / IN_USE as f64;
    let found = format!("{per_channel:.1} KiB per channel that carried one message");
    eprintln!("{}: {found}", party.setup);
    assert!(per_channel <= PER_CHANNEL_IN_USE, "{found}");
}

/// Returns the memory of both processes in KiB: with one session, and with many more. Each has a
/// channel whose only message the receiver holds, so no engine gives the channel's memory back.
fn hold_one_message_each(party: &mut Party, side: Side) -> [f64; 2] {
    let first = party.peer.clone();
    let _first = hold_one_message(party, side, &[first]);
    let one = both_resident_kib(party, side);
    let peers: Vec<Peer> = (0..IN_USE).map(|_| meet_again(party, side)).collect();
    let _held = hold_one_message(party, side, &peers);
    let all = both_resident_kib(party, side);
    party.meet();
    [one, all]
}

/// The ends of a channel, and the messages that its receiver holds.
type Held = (Ends, Vec<Message<[u8], Raw>>);

/// Sends one message over a new channel of each session.
fn hold_one_message(party: &mut Party, side: Side, peers: &[Peer]) -> Held {
    let mut ends = Ends::with_room_for(2 * peers.len());
    let mut messages = Vec::with_capacity(peers.len());
    for peer in peers {
        let channel = peer.channel("one message").codec::<Raw>();
        if side == Side::Here {
            ends.senders.push(channel.sender().expect("an end"));
        } else {
            ends.receivers.push(channel.receiver().expect("an end"));
        }
    }
    for sender in &mut ends.senders {
        sender.send(&[7; 64]).expect("sent");
    }
    for receiver in &mut ends.receivers {
        messages.push(receiver.recv().expect("a message"));
    }
    party.meet();
    (ends, messages)
}

fn measure(party: &mut Party) {
    let [one, first, further] = take_part(party, Side::Here);
    let sessions = sessions(party.setup);
    let per_session = (first - one) / sessions as f64;
    let per_channel = (further - first) / (sessions * FURTHER) as f64;
    let found = format!("{per_session:.1} KiB per session, {per_channel:.1} per further channel");
    eprintln!("{}: {found}", party.setup);
    assert!(
        per_session <= PER_SESSION && per_channel <= PER_CHANNEL,
        "{found}"
    );
}

/// Returns the memory of both processes in KiB: with one session, with many sessions of one channel
/// each, and with further channels.
fn take_part(party: &mut Party, side: Side) -> [f64; 3] {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).expect("a process may have what it may have");

    let mut ends = Ends::with_room_for((sessions(party.setup) + 1) * (FURTHER + 1));
    // The first session includes one-time costs: code, threads, pools.
    let first = party.peer.clone();
    ends.carry_over(party, side, std::slice::from_ref(&first), 0..=FURTHER);
    let one = at_rest(party, side, |_| true);
    let peers: Vec<Peer> = (0..sessions(party.setup))
        .map(|_| meet_again(party, side))
        .collect();
    ends.carry_over(party, side, &peers, 0..=0);
    let setup = party.setup;
    let per_session = |kib: f64| (kib - one) / sessions(setup) as f64 <= PER_SESSION;
    let many = at_rest(party, side, per_session);
    ends.carry_over(party, side, &peers, 1..=FURTHER);
    let channels = (sessions(setup) * FURTHER) as f64;
    let further = at_rest(party, side, |kib| (kib - many) / channels <= PER_CHANNEL);
    party.meet();
    drop(ends);
    [one, many, further]
}

/// Creates one more session between the two nodes.
fn meet_again(party: &mut Party, side: Side) -> Peer {
    match side {
        Side::Here => {
            party
                .other
                .say(party.node.local_addr().expect("it listens"));
            party.node.accept().expect("the peer connects")
        }
        Side::There => {
            let address: String = party.other.hear();
            party.node.connect(address).expect("the runner listens")
        }
    }
}

impl Ends {
    /// Reserves room for `channels` channels, half in each direction, so that these lists never
    /// grow: a list that doubles would count as memory of the channels.
    fn with_room_for(channels: usize) -> Self {
        Self {
            senders: Vec::with_capacity(channels.div_ceil(2)),
            receivers: Vec::with_capacity(channels.div_ceil(2)),
        }
    }

    /// Opens channels of these numbers, in alternating directions, and sends a message over each.
    /// Works on a few sessions at a time, since a ring in use takes its window.
    fn carry_over(
        &mut self,
        party: &mut Party,
        side: Side,
        peers: &[Peer],
        numbers: std::ops::RangeInclusive<usize>,
    ) {
        for few in peers.chunks(AT_A_TIME) {
            let (senders, receivers) = (self.senders.len(), self.receivers.len());
            for peer in few {
                for number in numbers.clone() {
                    let channel = peer.channel(&number.to_string()).codec::<Raw>();
                    if (number % 2 == 0) == (side == Side::There) {
                        self.senders.push(channel.sender().expect("an end"));
                    } else {
                        self.receivers.push(channel.receiver().expect("an end"));
                    }
                }
            }
            for sender in &mut self.senders[senders..] {
                sender.send(&[7; 64]).expect("sent");
            }
            for receiver in &mut self.receivers[receivers..] {
                assert_eq!(receiver.recv().expect("a message")[..], [7; 64]);
            }
            party.meet();
        }
    }
}

/// Waits until the memory of both processes stops shrinking and is little enough, however long a
/// busy machine keeps them from returning it. Returns it, on this side.
fn at_rest(party: &mut Party, side: Side, is_so_little: impl Fn(f64) -> bool) -> f64 {
    let mut least = f64::INFINITY;
    if side == Side::Here {
        let (mut looks, mut looks_since) = (0, 0);
        while looks_since < SETTLED || !is_so_little(least) && looks < PATIENCE {
            thread::sleep(LOOK);
            let kib = of_both(party);
            looks += 1;
            looks_since = if kib < least { 0 } else { looks_since + 1 };
            least = least.min(kib);
        }
    }
    party.meet();
    least
}

/// Returns the present memory of both processes in KiB, on this side.
fn both_resident_kib(party: &mut Party, side: Side) -> f64 {
    let kib = match side {
        Side::Here => of_both(party),
        Side::There => 0.0,
    };
    party.meet();
    kib
}

fn of_both(party: &Party) -> f64 {
    let both = [own_pid(), party.other.pid()].map(resident_kib);
    both.iter().sum::<u64>() as f64
}

/// Returns the pages of a process without a file, each divided by the number of processes that map
/// it (`Pss_Anon` and `Pss_Shmem`, proc_pid_smaps(5)). Programs and libraries are excluded, since
/// the number of processes that share them varies.
fn resident_kib(pid: u32) -> u64 {
    let field = |name| memory_kib(pid, name).expect("the process lives");
    field("Pss_Anon") + field("Pss_Shmem")
}

/// Returns the number of idle sessions beside the first.
fn sessions(setup: Setup) -> usize {
    match setup.fabric {
        Fabric::Shm => 200,
        _ => 1000,
    }
}

/// Sessions with a channel that carried one message, beside the first.
const IN_USE: usize = 200;
/// The most that such a session and its channel may take in both processes together, in KiB.
const PER_CHANNEL_IN_USE: f64 = 64.0;
/// The most that an idle session with one channel may take in both processes together, in KiB: a tenth
/// above the present figure, since the holes in an allocator's heap differ between runs.
const PER_SESSION: f64 = 17.0;
/// The most that each of a session's further channels may take, in KiB.
const PER_CHANNEL: f64 = 4.7;
/// Channels of a session beside its first.
const FURTHER: usize = 3;
const AT_A_TIME: usize = 250;
/// The pause between two measurements of both processes.
const LOOK: Duration = Duration::from_secs(1);
/// The number of measurements in a row without a decrease, which together take longer than an idle
/// channel keeps its memory.
const SETTLED: u32 = 4;
/// The most measurements.
const PATIENCE: u32 = 200;
