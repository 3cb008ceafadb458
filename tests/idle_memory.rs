//! A session that rests is a small record, and so is each of its channels: what rings,
//! arrival memory and release cells took goes back to the system.
//!
//! Measured is what both processes together have more than with one such session: private
//! and shared pages, what both map counted once, pools included and files not, after each
//! channel has carried one message and then rests. (What waits in a socket's buffers is
//! the kernel's, and is nothing here.)

mod processes;

use std::{fs, process::ExitCode, thread, time::Duration};

use ibex::{Fabric, Peer, Raw, Receiver, Sender};
use processes::{Party, Proof, Setup, own_pid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn main() -> ExitCode {
    let setups = Setup::with_threads().filter(|setup| setup.fabric != Fabric::Verbs);
    let proof = |setup| {
        Proof::new("at_rest", setup, measure, |party| {
            take_part(party, Side::There);
        })
    };
    processes::run(setups.map(proof).collect())
}

/// Which end of a channel a process has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

/// The ends that a process has, kept open.
struct Ends {
    senders: Vec<Sender<[u8], Raw>>,
    receivers: Vec<Receiver<[u8], Raw>>,
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

/// What both processes have, in KiB: with one session, with many of one channel each, and
/// with further channels.
fn take_part(party: &mut Party, side: Side) -> [f64; 3] {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).expect("a process may have what it may have");

    let mut ends = Ends::with_room_for((sessions(party.setup) + 1) * (FURTHER + 1));
    // The first has what comes with the first: code, threads, pools.
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

/// One session more between the two nodes.
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
    /// Room for so many channels, half of them in each direction, so that these lists never grow:
    /// a list that doubles would count as memory of the channels.
    fn with_room_for(channels: usize) -> Self {
        Self {
            senders: Vec::with_capacity(channels.div_ceil(2)),
            receivers: Vec::with_capacity(channels.div_ceil(2)),
        }
    }

    /// Opens channels of these numbers, in either direction by turns, and has each carry a
    /// message. A few sessions at a time: a ring in use takes its window.
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

/// Waits until the memory of both processes does not become less any more and is so little,
/// however long a busy machine keeps them from giving it back. Returns it, here.
fn at_rest(party: &mut Party, side: Side, is_so_little: impl Fn(f64) -> bool) -> f64 {
    let mut least = f64::INFINITY;
    if side == Side::Here {
        let (mut looks, mut looks_since) = (0, 0);
        while looks_since < SETTLED || !is_so_little(least) && looks < PATIENCE {
            thread::sleep(LOOK);
            let both = [own_pid(), party.other.pid()].map(resident_kib);
            let kib = both.iter().sum::<u64>() as f64;
            looks += 1;
            looks_since = if kib < least { 0 } else { looks_since + 1 };
            least = least.min(kib);
        }
    }
    party.meet();
    least
}

/// The pages of a process that hold no file, each divided by the number of processes that map it
/// (`Pss_Anon` and `Pss_Shmem`, proc_pid_smaps(5)). Programs and libraries are left out: how many
/// processes share them changes with what else runs here.
fn resident_kib(pid: u32) -> u64 {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(rollup).expect("the process lives");
    let field = |name: &str| -> u64 {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        let field = line.and_then(|line| line.split_ascii_whitespace().next());
        let field = field.and_then(|field| field.parse().ok());
        field.expect("the kernel knows it")
    };
    field("Pss_Anon:") + field("Pss_Shmem:")
}

/// How many sessions rest beside the first.
fn sessions(setup: Setup) -> usize {
    match setup.fabric {
        Fabric::Shm => 200,
        _ => 1000,
    }
}

/// The most that a session with one channel may take in both processes together, in KiB: a tenth
/// above the present figure, since the holes in an allocator's heap differ between runs.
const PER_SESSION: f64 = 17.0;
/// The most that each of a session's further channels may take, in KiB.
const PER_CHANNEL: f64 = 4.4;
/// Channels of a session beside its first.
const FURTHER: usize = 3;
const AT_A_TIME: usize = 250;
/// Between two looks at what both have.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks in turn find it no less, longer than what is silent keeps its memory.
const SETTLED: u32 = 4;
/// And after so many it is enough.
const PATIENCE: u32 = 200;
