//! The listening process: it receives the messages of each session, and sends others back.
#![forbid(unsafe_code)]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ibex::{ConnectErrorKind, Node, Peer};
use ibex_harness::draw::Draw;

use crate::{
    fact::Feed,
    news,
    node::{Life, builder},
    options::NodeOptions,
    stream::{DOWN, Incoming, Outgoing, PAUSE, UP, down_of},
};

pub(crate) fn run(options: &NodeOptions) -> io::Result<()> {
    let life = Life::begin(options)?;
    let node = listen(options)?;
    news::pass_on(&node, &life, options.process);
    let mut threads = Vec::new();
    while !life.is_over() {
        match node.accept_timeout(LOOK) {
            Ok(peer) => {
                let (feed, options) = (life.feed.clone(), options.clone());
                let serve = move || serve(&peer, &options, &feed);
                threads.push(
                    thread::Builder::new()
                        .stack_size(STACK_BYTES)
                        .spawn(serve)?,
                );
                threads.retain(|thread| !thread.is_finished());
            }
            Err(error) if error.kind() == ConnectErrorKind::Timeout => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    for thread in threads {
        thread
            .join()
            .map_err(|_| io::Error::other("a session's thread panicked"))?;
    }
    Ok(())
}

/// Creates the listening node. The address is that of the killed hub, so it may take a moment to be
/// free.
fn listen(options: &NodeOptions) -> io::Result<Node> {
    let mut tries = 0..1000;
    loop {
        match builder(options)
            .listen(options.address)
            .insecure_network()
            .build()
        {
            Ok(node) => return Ok(node),
            Err(_) if tries.next().is_some() => thread::sleep(PAUSE),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Serves both streams of a session.
fn serve(peer: &Peer, options: &NodeOptions, feed: &Feed) {
    let Some(mut incoming) = Incoming::open(peer, UP, None, options.process, feed) else {
        return;
    };
    // The first message names the session.
    while incoming.stream().is_none() {
        if incoming.wait_for_some().is_err() {
            return;
        }
    }
    let stream = down_of(incoming.stream().expect("it has come"));
    let Some(outgoing) = Outgoing::open(peer, DOWN, stream, options.process, options.rarity, feed)
    else {
        return incoming.drain();
    };
    let is_done = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| send_back(outgoing, &is_done));
        incoming.drain();
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Sends until the other stream ends, then ends in order.
fn send_back(mut outgoing: Outgoing<'_>, is_done: &AtomicBool) {
    let mut draw = Draw::new(outgoing.accepted());
    while !is_done.load(Ordering::Relaxed) {
        if outgoing.send_some().is_err() {
            return;
        }
        thread::sleep(Duration::from_micros(draw.of(0..4000)));
    }
    outgoing.close();
}

/// Interval at which it looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);
/// Each session has two such threads.
const STACK_BYTES: usize = 256 << 10;
