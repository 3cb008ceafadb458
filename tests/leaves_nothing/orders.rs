//! The handles of a channel, what came over it, the peer and the node, dropped in every order.
//! After each order the process has no more memory and kernel objects than before, and the whole
//! `memory_limit` is free again: it has room for one long message only, and the next order needs
//! that room.
//!
//! Both nodes are in this process. The far node lives until the order is over.

use std::{
    any::Any,
    array,
    thread::{self, JoinHandle},
};

use ibex::prelude::*;
use ibex::{
    Node, Peer, Raw,
    log::{LogAnswer, LogSender, LogSent, LogSource, LogTurn},
};

use crate::{
    belongings::{Belongings, anonymous_kib},
    outlived::{LONG, NAME, SHORT, SLACK_KIB, Thing, Use, fetch, meet},
    processes::{Party, Setup, extent, orders, step},
};

/// What the program drops. The number is its place among the [`Parts`].
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The message, reply or request.
    Guard,
    /// The receiver, fan-in, caller or service that it came from.
    Handle,
    /// The far end's handle: a sender, group, log sender, service or caller.
    Source,
    /// The peer of the node that received.
    Peer,
    /// The node that received.
    Node,
}

const PARTS: [Part; 5] = [
    Part::Guard,
    Part::Handle,
    Part::Source,
    Part::Peer,
    Part::Node,
];

type FarHandle = Box<dyn Any + Send>;

type Parts = [Option<Box<dyn Any>>; PARTS.len()];

/// What sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Sender,
    Group,
    Log,
    Service,
    Caller,
}

pub(crate) fn give_everything_back(party: &mut Party) {
    let kinds = [
        (Thing::Message, Origin::Sender),
        (Thing::Message, Origin::Group),
        (Thing::Message, Origin::Log),
        (Thing::Gathered, Origin::Sender),
        (Thing::Reply, Origin::Service),
        (Thing::Request, Origin::Caller),
    ];
    for bytes in [SHORT, LONG] {
        for (number, (thing, from)) in kinds.into_iter().enumerate() {
            // Each order is played with two of the kinds, unless everything is.
            let one_of = if extent::is_whole() { 1 } else { 3 };
            let played = orders(&PARTS).into_iter();
            let played = played.skip(number % one_of).step_by(one_of);
            drop_in_orders(party, bytes, thing, from, played);
        }
    }
}

fn drop_in_orders(
    party: &Party,
    bytes: usize,
    thing: Thing,
    from: Origin,
    orders: impl Iterator<Item = Vec<Part>>,
) {
    for _ in 0..WARM_UP {
        play(party.setup, bytes, thing, from, &PARTS);
    }
    let start = Belongings::settle(party, None);
    let before = anonymous_kib();
    for order in orders {
        play(party.setup, bytes, thing, from, &order);
        let left = Belongings::settle(party, Some(&start));
        let after = anonymous_kib();
        let what = format!("{thing:?} of {bytes} B from {from:?}, dropped in the order {order:?}");
        assert!(
            left.is_within(&start),
            "{what}: {left:?} is left, beside {start:?}"
        );
        assert!(
            after <= before + SLACK_KIB,
            "{what}: {after} KiB of memory are left, and {before} KiB were there before"
        );
    }
}

/// Sends one message between two nodes, and drops the parts in this order.
fn play(setup: Setup, bytes: usize, thing: Thing, from: Origin, order: &[Part]) {
    step();
    let builder = || setup.node().memory_limit(LIMIT);
    let here = builder().listen("127.0.0.1:0").build().expect("a node");
    let there = builder().build().expect("a node");
    let (to_here, to_there) = meet(&there, &here);

    let (source, call) = begin(&there, &to_here, bytes, from);
    let (handle, guard) = fetch(&here, &to_there, bytes, thing, Use::Drop);
    let source: Box<dyn Any> = source.join().expect("it sends");
    let mut parts: Parts = array::from_fn(|_| None);
    parts[Part::Guard as usize] = Some(Box::new(guard));
    parts[Part::Handle as usize] = Some(handle);
    parts[Part::Source as usize] = Some(source);
    parts[Part::Peer as usize] = Some(Box::new(to_there));
    parts[Part::Node as usize] = Some(Box::new(here));
    for part in order {
        drop(parts[*part as usize].take());
    }
    if let Some(call) = call {
        call.join().expect("no panic");
    }
}

/// Begins to send what [`fetch`] waits for. Returns the handle, once it has sent, and the thread of
/// the call that a caller makes.
fn begin(
    there: &Node,
    to_here: &Peer,
    bytes: usize,
    from: Origin,
) -> (JoinHandle<FarHandle>, Option<JoinHandle<()>>) {
    // Not from the heap, whose arenas keep what they have freed.
    static PAYLOAD: [u8; LONG] = [7; LONG];
    let payload = &PAYLOAD[..bytes];
    let channel = to_here.channel(NAME).codec::<Raw>();
    let source = match from {
        Origin::Sender => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            in_thread(move || {
                sender.send(payload).expect("it is sent");
                sender
            })
        }
        Origin::Group => {
            let of_node = there.channel(NAME).codec::<Raw>();
            let mut group = of_node.group::<[u8]>().expect("a group");
            group.join(to_here).expect("a member");
            in_thread(move || {
                group.send(payload).expect("it is sent");
                group
            })
        }
        Origin::Log => {
            let mut log = LogSender::new();
            log.go_on_with(to_here.clone());
            in_thread(move || {
                log.send(&mut OneMessage(payload)).expect("it is sent");
                log
            })
        }
        Origin::Service => {
            let mut service = channel.service::<[u8], [u8]>().expect("a service");
            in_thread(move || {
                let request = service.next().expect("a session").expect("a call");
                request.reply(payload).expect("the caller waits");
                service
            })
        }
        Origin::Caller => {
            let caller = channel.caller::<[u8], [u8]>().expect("a caller");
            let calling = caller.clone();
            // The request is dropped without a reply.
            let call = thread::spawn(move || drop(calling.call(payload)));
            return (in_thread(move || caller), Some(call));
        }
    };
    (source, None)
}

fn in_thread<T: Any + Send>(send: impl FnOnce() -> T + Send + 'static) -> JoinHandle<FarHandle> {
    thread::spawn(move || Box::new(send()) as FarHandle)
}

/// A log of one message.
struct OneMessage(&'static [u8]);

type SourceResult<R> = Result<R, Box<dyn std::error::Error + Send + Sync>>;

impl LogSource<[u8], Raw> for OneMessage {
    fn end(&self) -> u64 {
        1
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        Box::pin(async move { Ok((peer.channel(NAME).codec::<Raw>().sender()?, 0)) })
    }

    fn send_next(&mut self, at: u64, turn: LogTurn<'_, [u8], Raw>) -> SourceResult<LogSent> {
        Ok(turn.send(self.0, at + 1))
    }
}

/// Has room for one long message, and not for two.
const LIMIT: u64 = 4 << 20;
/// Orders after which the process has everything that it keeps.
const WARM_UP: usize = 10;
