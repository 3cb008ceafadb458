//! The terms of the formula in the documentation of [`ibex::NodeBuilder`], compared with the
//! kernel's counts.
//!
//! Both nodes are in one process, so that both ends of a term are counted together: private and
//! shared memory, with pages that are mapped twice counted once (`Pss_Anon` and `Pss_Shmem`). Each
//! term has its own node, one after the other, since one term's memory would hide in the pools of
//! another. The lower bound shows that the memory belongs to the term.
#![forbid(unsafe_code)]

use std::{ops::RangeInclusive, process, time::Duration};

use ibex::{
    ChannelBuilder, Fabric, Message, Node, NodeBuilder, Peer, Policy, Raw, Receiver, SendErrorKind,
    Sender,
};
use ibex_harness::process::memory_kib;

#[test]
fn a_node_takes_the_memory_that_the_formula_says() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        rings(fabric);
        settled_cells(fabric);
        large_messages(fabric);
    }
    unread(Fabric::Tcp);
    held_between_others(Fabric::Tcp);
}

/// A sending end that has gone through its window takes it.
fn rings(fabric: Fabric) {
    let pair = Pair::meet(fabric);
    let ends: Vec<_> = (0..RINGS)
        .map(|end| pair.open(&end.to_string(), |b| b))
        .collect();
    let grown = Grown::from_here();
    let ends: Vec<_> = ends
        .into_iter()
        .map(|(mut sender, mut receiver)| {
            for _ in 0..WINDOW / 1000 {
                sender.send(&[1; 1000]).expect("sent");
                receiver.recv().expect("a message").ack();
            }
            (sender, receiver)
        })
        .collect();
    // The receiving end over tcp takes up to 52 bytes for each message of its window, and messages
    // arrive in blocks of the node.
    let most = RINGS * (WINDOW + 52 * 16384) + 2 * BLOCK + SLACK;
    // Where the machine is slow, all but the last have rested long enough to give theirs back.
    grown.check("rings", fabric, WINDOW..=most);
    drop(ends);
}

/// A receiving end that has gone through its whole window takes 4 bytes for each message of it.
fn settled_cells(fabric: Fabric) {
    // Cells come from a stock of the process, so each case uses another size.
    let messages = match fabric {
        Fabric::Shm => 1 << 20,
        _ => 1 << 19,
    };
    let pair = Pair::meet(fabric);
    let (mut sender, mut receiver) = pair.open("a", |channel| channel.window_messages(messages));
    let grown = Grown::from_here();
    for _ in 0..messages / AT_A_TIME {
        for _ in 0..AT_A_TIME {
            sender.send(&[1; 8]).expect("sent");
        }
        for _ in 0..AT_A_TIME {
            receiver.recv().expect("a message").ack();
        }
    }
    let cells = 4 * messages;
    let most = WINDOW + 2 * BLOCK + 52 * messages + SLACK;
    grown.check("cells", fabric, cells..=most);
}

/// Messages longer than the ring, to a receiver that does not read: over any fabric, twice the
/// longest may be unreleased, and is at the receiver. In addition the sender keeps messages until
/// it knows that they have arrived, and memory for the next ones.
fn large_messages(fabric: Fabric) {
    let longest = 24 << 20;
    let pair = Pair::meet(fabric);
    let (mut sender, receiver) = pair.open("large", |b| b.max_message_bytes(longest));
    let message = vec![1; longest as usize];
    let grown = Grown::from_here();
    let sent = fill(&mut sender, &message);
    assert_eq!(sent, 2, "{fabric}: messages until it waits");
    let most = UNRELEASED_TIMES * 2 * longest + 2 * WINDOW + SLACK;
    grown.check("large", fabric, 2 * longest..=most);
    drop((sender, receiver));
}

/// A receiver that does not read over tcp takes its window, and the unused parts of its blocks.
fn unread(fabric: Fabric) {
    let pair = Pair::meet(fabric);
    let (mut sender, receiver) = pair.open("unread", |b| b);
    let grown = Grown::from_here();
    fill(&mut sender, &[1; 1000]);
    let most = WINDOW + (2 * WINDOW + 3 * BLOCK) + 52 * 16384 + SLACK;
    grown.check("unread", fabric, 2 * WINDOW..=most);
    drop(receiver);
}

/// The worst case for a window: messages too long to be copied out of their blocks are held one by
/// one, while another channel fills the rest of each block.
fn held_between_others(fabric: Fabric) {
    let pair = Pair::meet(fabric);
    let (mut held, mut holder) = pair.open("held", |b| b);
    let (mut flow, mut reader) = pair.open("flow", |b| b);
    let long = [1; 66 << 10];
    let grown = Grown::from_here();
    let mut guards: Vec<Message<[u8], Raw>> = Vec::new();
    while held.try_send(&long).is_ok() {
        guards.push(holder.recv().expect("a message"));
        for _ in 0..BLOCK / 1000 {
            flow.send(&[2; 1000]).expect("sent");
            reader.recv().expect("a message").ack();
        }
    }
    let both_rings = 2 * WINDOW;
    let most = both_rings + 16 * WINDOW + 2 * (3 * BLOCK) + 2 * 52 * 16384 + SLACK;
    let least = both_rings + guards.len() as u64 * BLOCK / 2;
    grown.check("held between others", fabric, least..=most);
}

const RINGS: u64 = 16;
/// Unreleased messages take memory once at the receiver, and up to one and a half times at the
/// sender.
const UNRELEASED_TIMES: u64 = 3;
const WINDOW: u64 = 2 << 20;
/// Bytes of an arrival block over tcp.
const BLOCK: u64 = 1 << 20;
/// Memory that the program itself may take meanwhile, with some odd pages.
const SLACK: u64 = 4 << 20;
/// Messages that one side sends before the other receives them.
const AT_A_TIME: u64 = 1024;
const MOMENT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(120);

/// Two nodes of this process, and their session.
struct Pair {
    _nodes: [Node; 2],
    here: Peer,
    there: Peer,
}

impl Pair {
    fn meet(fabric: Fabric) -> Self {
        let builder = || -> NodeBuilder { Node::builder().fabric(fabric, Policy::Require) };
        let listener = builder().listen("127.0.0.1:0").build().expect("a node");
        let client = builder().build().expect("a node");
        let address = listener.local_addr().expect("it listens");
        let here = client.connect(address).expect("a session");
        let there = listener.accept().expect("a peer");
        Self {
            _nodes: [listener, client],
            here,
            there,
        }
    }

    /// Opens both ends of a channel.
    fn open(
        &self,
        name: &str,
        settings: impl Fn(ChannelBuilder<Raw>) -> ChannelBuilder<Raw>,
    ) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
        let [here, there] =
            [&self.here, &self.there].map(|peer| settings(peer.channel(name).codec::<Raw>()));
        let mut sender = here.sender().expect("an end");
        let receiver = there.receiver().expect("an end");
        sender.opened(LONG).expect("it is opened");
        (sender, receiver)
    }
}

/// Sends until the receiver would have to release something. Returns the number of messages sent.
/// All of them have arrived by then, so nothing else makes room, however slow the machine is.
fn fill(sender: &mut Sender<[u8], Raw>, message: &[u8]) -> u64 {
    let (mut sent, mut arrived) = (0, 0);
    loop {
        match sender.send_timeout(message, MOMENT) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == SendErrorKind::Timeout && sent == arrived => return sent,
            Err(error) if error.kind() == SendErrorKind::Timeout => {
                sender.flush_timeout(LONG).expect("there is room for them");
                arrived = sent;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The growth of the process since a moment.
struct Grown(u64);

impl Grown {
    fn from_here() -> Self {
        Self(resident())
    }

    fn check(&self, term: &str, fabric: Fabric, range: RangeInclusive<u64>) {
        let grown = resident().saturating_sub(self.0);
        let [grown_kib, least, most] =
            [grown, *range.start(), *range.end()].map(|bytes| bytes >> 10);
        eprintln!("{term} over {fabric}: {grown_kib} KiB, by the formula {least} to {most}");
        // Memory of the node before may be freed meanwhile.
        let bounds = range.start() / 10 * 9..=*range.end();
        assert!(
            bounds.contains(&grown),
            "{term} over {fabric}: {grown_kib} KiB"
        );
    }
}

/// Returns the memory of this process, with its shares of pages that are mapped several times, but
/// without pages of its program, which come when their code first runs.
fn resident() -> u64 {
    let of = |kind| memory_kib(process::id(), kind).expect("procfs") << 10;
    of("Pss_Anon") + of("Pss_Shmem")
}
