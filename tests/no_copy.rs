//! A message is read where it arrived.
//!
//! Over shared memory `deref` returns memory in a mapping of the sender's ring, or of the segment
//! into which a message longer than the ring was encoded; the kernel names both in /proc/self/maps.
//! A slice of a region is read at its place in the region.
//! Over tcp it returns anonymous memory that is neither heap nor stack. Successive messages lie
//! there as they came off the wire: one directly behind the other, or with a frame's head between
//! them, which a copy would leave out.
//!
//! Over verbs it returns memory in the slab of receive buffers, one mapping that exists before the
//! first message and contains every message: messages of one frame one behind the other, each frame
//! at a buffer's start. A message longer than a buffer comes in chunks, which are put together, so
//! only shorter ones are tested there.
//!
//! The session counts the bytes that had to be copied nevertheless (frames cut by the end of an
//! arrival block, bytes of a long message that came together with its head): none over shared
//! memory and verbs, at most an eighth of the received bytes over tcp.

mod processes;

use std::{fs, process::ExitCode};

use ibex::{Fabric, Raw, Region};
use processes::{Party, Proof, Setup};

fn main() -> ExitCode {
    let mut proofs = Vec::new();
    for setup in Setup::all() {
        for length in [64, 1 << 10, 64 << 10, 1 << 20] {
            if setup.fabric == Fabric::Verbs && length > LARGEST_IN_BUFFER {
                continue;
            }
            proofs.push(Proof::new(
                length,
                setup,
                move |party| receive(party, length),
                move |party| send(party, length),
            ));
        }
        proofs.push(Proof::new("detached", setup, receive_detached, |party| {
            send(party, 64);
        }));
        if setup.fabric == Fabric::Shm {
            proofs.push(Proof::new("region", setup, receive_of_region, send_region));
        }
    }
    processes::run(proofs)
}

/// Sends slices of one region, each of which begins at another odd place.
fn send_region(party: &mut Party) {
    let raw = party.peer.channel("bytes").codec::<Raw>();
    let mut sender = raw.sender::<[u8]>().unwrap();
    let mut region = Region::zeroed(3 << 20).unwrap();
    region.get_mut().unwrap().fill(7);
    for start in STARTS {
        let slice = region.slice(start..start + (1 << 20));
        sender.send_region(&slice).unwrap();
    }
    sender.flush().unwrap();
    party.meet();
    assert_eq!(party.peer.stats().bytes_copied, 0);
}

/// All messages lie in one mapping, each where it begins in the region: in a copy's segment it would
/// begin with the segment.
fn receive_of_region(party: &mut Party) {
    let raw = party.peer.channel("bytes").codec::<Raw>();
    let mut receiver = raw.receiver::<[u8]>().unwrap();
    let mut maps = Maps::default();
    let mut region = None;
    for start in STARTS {
        let message = receiver.recv().unwrap();
        assert!(message.iter().all(|&byte| byte == 7));
        let (address, length) = (message.as_ptr().addr(), message.len());
        assert_eq!(length, 1 << 20);
        let mapping = maps.holding(address, length);
        assert!(mapping.name.contains("memfd:ibex-message"), "{mapping:?}");
        assert_eq!(address - mapping.start, start);
        let first = *region.get_or_insert(mapping.start);
        assert_eq!(mapping.start, first, "it was mapped anew");
        message.ack();
    }
    party.meet();
    assert_eq!(party.peer.stats().bytes_copied, 0);
}

/// Returns the number of messages that fill each posted buffer at least once over verbs.
fn messages(setup: Setup, length: usize) -> usize {
    setup.count(64 << 20, 4) as usize / length
}

fn send(party: &mut Party, length: usize) {
    let mut sender = party
        .peer
        .channel("bytes")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let message = vec![7; length];
    for _ in 0..messages(party.setup, length) {
        sender.send(&message).unwrap();
    }
    sender.flush().unwrap();
    party.meet();
    assert_eq!(
        party.peer.stats().bytes_copied,
        0,
        "the sender receives no messages"
    );
}

fn receive(party: &mut Party, length: usize) {
    let fabric = party.setup.fabric;
    let messages = messages(party.setup, length);
    let mut receiver = party
        .peer
        .channel("bytes")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut maps = Maps::default();
    let mut previous: Option<usize> = None;
    let mut slab: Option<Mapping> = None;
    let (mut adjacent, mut behind_a_head) = (0, 0);
    for _ in 0..messages {
        let message = receiver.recv().unwrap();
        assert_eq!(message.len(), length);
        let address = message.as_ptr().addr();
        let mapping = maps.holding(address, length);
        match (fabric, length > LARGEST_IN_RING) {
            (Fabric::Shm, false) => {
                assert!(mapping.name.contains("memfd:ibex-ring"), "{mapping:?}");
            }
            (Fabric::Shm, true) => {
                assert!(mapping.name.contains("memfd:ibex-message"), "{mapping:?}");
            }
            (Fabric::Verbs, _) => {
                let slab = slab.get_or_insert_with(|| mapping.clone());
                assert!(mapping.is_anonymous(), "{mapping:?}");
                assert!(mapping.end - mapping.start >= SLAB_BYTES, "{mapping:?}");
                assert_eq!(mapping.start, slab.start, "{mapping:?}");
            }
            _ => assert!(mapping.is_anonymous(), "{mapping:?}"),
        }
        if let Some(gap) = previous.and_then(|end| address.checked_sub(end)) {
            match gap {
                RECORD_HEADER => adjacent += 1,
                16..=192 => behind_a_head += 1,
                _ => {}
            }
        }
        previous = Some(address + length.next_multiple_of(8));
    }
    party.meet();

    let stats = party.peer.stats();
    match fabric {
        Fabric::Shm | Fabric::Verbs => assert_eq!(stats.bytes_copied, 0),
        _ => {
            let bytes = (messages * length) as u64;
            assert!(stats.bytes_received >= bytes);
            assert!(
                stats.bytes_copied * 8 <= stats.bytes_received,
                "{} of {} bytes were copied",
                stats.bytes_copied,
                stats.bytes_received,
            );
        }
    }
    if fabric == Fabric::Tcp && length <= 1 << 10 {
        assert!(
            adjacent + behind_a_head >= messages * 9 / 10,
            "{adjacent} + {behind_a_head} of {messages}"
        );
        assert!(
            behind_a_head > 0,
            "no head of a frame stands between messages"
        );
    }
}

/// The control: the bytes that `into_owned` copied must be found elsewhere.
fn receive_detached(party: &mut Party) {
    let messages = messages(party.setup, 64);
    let mut receiver = party
        .peer
        .channel("bytes")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut maps = Maps::default();
    let mut moved = 0;
    for _ in 0..messages {
        let message = receiver.recv().unwrap();
        let arrived = message.as_ptr().addr();
        let message = message.into_owned();
        let address = message.as_ptr().addr();
        moved += usize::from(address != arrived);
        if party.setup.fabric == Fabric::Shm {
            let mapping = maps.holding(address, 64);
            assert!(!mapping.name.contains("memfd:"), "{mapping:?}");
        }
    }
    assert_eq!(moved, messages);
    party.meet();
}

/// The mappings of this process, read again when an address is in none of the known ones.
#[derive(Default)]
struct Maps(Vec<Mapping>);

#[derive(Clone, Debug)]
struct Mapping {
    start: usize,
    end: usize,
    name: String,
}

impl Maps {
    fn holding(&mut self, address: usize, length: usize) -> &Mapping {
        let holds = |map: &Mapping| map.start <= address && address < map.end;
        if !self.0.iter().any(holds) {
            let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
            self.0 = maps.lines().map(Mapping::parse).collect();
        }
        let first = self
            .0
            .iter()
            .find(|map| holds(map))
            .expect("a message lies in memory");
        // A double mapping is two adjacent mappings.
        let is_next = |map: &&Mapping| map.start == first.end && map.name == first.name;
        let end = self
            .0
            .iter()
            .find(is_next)
            .map_or(first.end, |second| second.end);
        assert!(
            address + length <= end,
            "the message leaves its memory: {first:?}"
        );
        first
    }
}

impl Mapping {
    /// Parses a line of proc_pid_maps(5).
    fn parse(line: &str) -> Self {
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let (start, end) = range.expect("a line begins with a range");
        let address = |text| usize::from_str_radix(text, 16).expect("addresses are hexadecimal");
        let name = fields.skip(4).collect::<Vec<_>>().join(" ");
        Self {
            start: address(start),
            end: address(end),
            name,
        }
    }

    /// Returns whether the memory belongs to no file, and neither to the allocator's heap nor to a
    /// stack.
    fn is_anonymous(&self) -> bool {
        self.name.is_empty() && self.end - self.start >= 1 << 20
    }
}

/// Where slices of the region begin.
const STARTS: [usize; 6] = [1, 4099, 1 << 20, (2 << 20) - 1, 77, 0];
/// Bytes of the header before each payload.
const RECORD_HEADER: usize = 8;
/// The longest message that fits the default buffer of 4.5 KiB with its headers.
const LARGEST_IN_BUFFER: usize = 4 << 10;
/// The buffers that are posted by default, and as many that messages may hold.
const SLAB_BYTES: usize = 36 << 20;
/// The longest message in a ring, half of the default ring; longer ones get memory of their own.
const LARGEST_IN_RING: usize = 512 << 10;
