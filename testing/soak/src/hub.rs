//! The process that listens: it takes what comes over each session, and sends back.
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

/// The address is that of the hub that was killed, so it may take a moment.
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

/// One session: both of its streams.
fn serve(peer: &Peer, options: &NodeOptions, feed: &Feed) {
    let Some(mut incoming) = Incoming::open(peer, UP, None, options.process, feed) else {
        return;
    };
    // The first message says what session it is.
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

/// Sends until nothing comes any more, and ends in order.
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

/// How long until it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// There are two for each session.
const STACK_BYTES: usize = 256 << 10;
