//! Messages, replies and requests that outlive the handle they came from, its session or its node:
//! their memory, and its charge against `memory_limit`, goes with them, in whatever order the
//! program drops things. No other node is made or closed meanwhile, and no other event helps.
//!
//! Both nodes are in this process, so that what either leaves behind is counted.

use std::{any::Any, mem, thread};

use ibex::prelude::*;
use ibex::{Fabric, FanInEvent, Message, Node, Peer, Raw};

use crate::{
    belongings::{Belongings, anonymous_kib},
    processes::{Party, Setup, step},
};

pub(crate) fn give_everything_back(party: &mut Party) {
    for bytes in [SHORT, LONG] {
        for thing in [
            Thing::Message,
            Thing::Gathered,
            Thing::Reply,
            Thing::Request,
        ] {
            repeat(party, bytes, thing);
        }
    }
}

/// What comes, and is held for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A message of a receiver.
    Message,
    /// A message of a fan-in.
    Gathered,
    Reply,
    Request,
}

/// What the program does with it in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Drop,
    /// Acknowledges a message, or answers a request.
    Answer,
    /// Copies it out as soon as it has come, and drops it in the end.
    Detach,
}

/// What has ended by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Nothing,
    /// The receiver, fan-in, caller or service.
    Handle,
    Session,
    Nodes,
}

/// Plays every order many times, and compares the memory early and late.
fn repeat(party: &Party, bytes: usize, thing: Thing) {
    let mut stage = Stage::new(party.setup);
    let mut settled = None;
    for round in 0..ROUNDS {
        for (at, use_) in [Use::Drop, Use::Answer, Use::Detach]
            .into_iter()
            .enumerate()
        {
            let ends = [End::Nothing, End::Handle, End::Session, End::Nodes];
            // All of them make some 1,000 sessions, so an emulated device plays one with each use,
            // in turn.
            let played = match party.setup.is_emulated() {
                true => &ends[(at + round as usize) % ends.len()..][..1],
                false => &ends[..],
            };
            for &end in played {
                let times = match (party.setup.fabric, bytes, end) {
                    // A leak of such a message is small.
                    (Fabric::Tcp, SHORT, End::Handle) => 20,
                    _ => 1,
                };
                (0..times).for_each(|_| stage.play(bytes, thing, use_, end));
            }
        }
        if round == WARM_UP {
            settled = Some((Belongings::settle(party, None), anonymous_kib()));
        }
    }
    let (belongings, before) = settled.expect("there are more rounds");
    let left = Belongings::settle(party, Some(&belongings));
    assert!(
        left.is_within(&belongings),
        "{thing:?} of {bytes} B left behind: {left:?}, beside {belongings:?}"
    );
    let after = anonymous_kib();
    // A pool of the node, or the allocator, may keep more buffers than it did early.
    let slack = SLACK_KIB + 4 * bytes as u64 / 1024;
    assert!(
        after <= before + slack,
        "{thing:?} of {bytes} B left memory behind: {after} KiB, and {before} KiB before"
    );
}

/// Two nodes with a session between them.
struct Stage {
    setup: Setup,
    /// The node that receives.
    here: Node,
    there: Node,
    to_there: Peer,
    to_here: Peer,
}

impl Stage {
    fn new(setup: Setup) -> Self {
        let builder = || setup.node().memory_limit(LIMIT);
        let here = builder().listen("127.0.0.1:0").build().expect("a node");
        let there = builder().build().expect("a node");
        let (to_here, to_there) = meet(&there, &here);
        Self {
            setup,
            here,
            there,
            to_there,
            to_here,
        }
    }

    fn play(&mut self, bytes: usize, thing: Thing, use_: Use, end: End) {
        step();
        let to_here = self.to_here.clone();
        let sending = thread::spawn(move || send(&to_here, bytes, thing));
        let (handle, held) = fetch(&self.here, &self.to_there, bytes, thing, use_);
        match end {
            End::Nothing => {
                held(use_);
                drop(handle);
            }
            End::Handle => {
                drop(handle);
                held(use_);
            }
            End::Session => {
                drop(handle);
                let there = self.setup.node().build().expect("a node");
                drop(mem::replace(&mut self.there, there));
                held(use_);
                (self.to_here, self.to_there) = meet(&self.there, &self.here);
            }
            End::Nodes => {
                drop(handle);
                let next = Self::new(self.setup);
                drop(mem::replace(self, next));
                held(use_);
            }
        }
        sending.join().expect("it sends");
    }
}

/// Connects one node to another.
pub(crate) fn meet(there: &Node, here: &Node) -> (Peer, Peer) {
    let address = here.local_addr().expect("it listens");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| here.accept().expect("it connects"));
        let to_here = there.connect(address).expect("it accepts");
        (to_here, accepting.join().expect("no panic"))
    })
}

/// Sends what [`fetch`] waits for.
fn send(to_here: &Peer, bytes: usize, thing: Thing) {
    // Not from the heap, whose arenas keep what they have freed.
    static PAYLOAD: [u8; LONG] = [7; LONG];
    let payload = &PAYLOAD[..bytes];
    match thing {
        Thing::Message | Thing::Gathered => {
            let channel = to_here.channel(NAME).codec::<Raw>();
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            sender.send(payload).expect("it is sent");
            // The receiver may be gone by the time that it has arrived.
            let _ = sender.flush();
        }
        Thing::Reply => {
            let channel = to_here.channel(NAME).codec::<Raw>();
            let mut service = channel.service::<[u8], [u8]>().expect("a service");
            let request = service.next().expect("a session").expect("a call");
            let _ = request.reply(payload);
        }
        Thing::Request => {
            let channel = to_here.channel(NAME).codec::<Raw>();
            let caller = channel.caller::<[u8], [u8]>().expect("a caller");
            // Whether it is answered depends on the order of ends.
            let _ = caller.call(payload);
        }
    }
}

/// A use of something that has come.
pub(crate) type Held = Box<dyn FnOnce(Use)>;

/// Returns what has come, and the handle that it came from.
pub(crate) fn fetch(
    here: &Node,
    to_there: &Peer,
    bytes: usize,
    thing: Thing,
    use_: Use,
) -> (Box<dyn Any>, Held) {
    let copies = matches!(use_, Use::Detach);
    let of_message = |message: Message<[u8], Raw>| -> Held {
        assert_eq!(message.len(), bytes);
        let message = if copies {
            message.into_owned()
        } else {
            message
        };
        Box::new(move |use_| match use_ {
            Use::Answer => message.ack(),
            Use::Drop | Use::Detach => drop(message),
        })
    };
    let channel = to_there.channel(NAME).codec::<Raw>();
    match thing {
        Thing::Message => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            let message = receiver.recv().expect("a message");
            (Box::new(receiver), of_message(message))
        }
        Thing::Gathered => {
            let all = here.channel(NAME).codec::<Raw>();
            let mut fan_in = all.fan_in::<[u8]>().expect("a fan-in");
            let message = loop {
                match fan_in.next().expect("an event") {
                    FanInEvent::Message(_, message) => break message,
                    FanInEvent::Joined(_) => {}
                    other => panic!("{other:?}"),
                }
            };
            (Box::new(fan_in), of_message(message))
        }
        Thing::Reply => {
            let caller = channel.caller::<[u8], [u8]>().expect("a caller");
            let reply = caller.call(&[1]).expect("a reply");
            assert_eq!(reply.len(), bytes);
            let reply = if copies { reply.into_owned() } else { reply };
            (Box::new(caller), Box::new(move |_| drop(reply)))
        }
        Thing::Request => {
            let mut service = channel.service::<[u8], [u8]>().expect("a service");
            let request = service.next().expect("a session").expect("a call");
            assert_eq!(request.len(), bytes);
            let request = if copies {
                request.into_owned()
            } else {
                request
            };
            let held: Held = Box::new(move |use_| match use_ {
                // The caller may be gone.
                Use::Answer => drop(request.reply(&[1])),
                Use::Drop | Use::Detach => drop(request),
            });
            (Box::new(service), held)
        }
    }
}

pub(crate) const NAME: &str = "outlived";
pub(crate) const SHORT: usize = 64;
/// A message with memory of its own. A few of them fill the limit.
pub(crate) const LONG: usize = 3 << 20;
const LIMIT: u64 = 16 << 20;
/// Rounds whose leaks would add up to more than the slack.
const ROUNDS: u64 = 9;
/// The round after which a node has everything that it keeps.
const WARM_UP: u64 = 2;
/// Heap memory may be divided otherwise later.
pub(crate) const SLACK_KIB: u64 = 1024;
