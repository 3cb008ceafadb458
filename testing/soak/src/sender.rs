//! A connecting process: session after session, each with a stream in both directions.
#![forbid(unsafe_code)]

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use ibex::{ListenErrorKind, Node};
use ibex_harness::draw::Draw;

use crate::{
    fact::Fact,
    news,
    node::{Life, builder},
    options::NodeOptions,
    stream::{DOWN, Incoming, Outgoing, PAUSE, UP, down_of, up_of},
};

pub(crate) fn run(options: &NodeOptions) -> io::Result<()> {
    let life = Life::begin(options)?;
    let sessions = AtomicU64::new(options.process << 24);
    let draw = |number| Draw::new(options.seed ^ number);
    if options.crowd == 0 {
        while !life.is_over() {
            let mut draw = draw(sessions.load(Ordering::Relaxed));
            with_a_node(options, &life, |node| {
                one_session(node, options, &life, &sessions, &mut draw)
            });
        }
        return Ok(());
    }
    with_a_node(options, &life, |node| {
        thread::scope(|scope| {
            for number in 0..options.crowd {
                let (life, sessions, mut draw) = (&life, &sessions, draw(number));
                scope.spawn(move || one_session(node, options, life, sessions, &mut draw));
            }
        });
        Some(())
    });
    Ok(())
}

/// Runs `play` with a node. A session lives as long as its node, so each session has its own; a
/// crowd shares one.
fn with_a_node(options: &NodeOptions, life: &Life, play: impl FnOnce(&Node) -> Option<()>) {
    let played = match builder(options).build() {
        Ok(node) => {
            news::pass_on(&node, life, options.process);
            play(&node)
        }
        Err(error) if error.kind() == ListenErrorKind::Setting => panic!("{error}"),
        Err(_) => None,
    };
    if played.is_none() {
        life.feed.tell(Fact::Refused {
            process: options.process,
        });
        thread::sleep(PAUSE);
    }
}

/// Plays one session. Returns `None` if it could not be established.
fn one_session(
    node: &Node,
    options: &NodeOptions,
    life: &Life,
    sessions: &AtomicU64,
    draw: &mut Draw,
) -> Option<()> {
    let session = sessions.fetch_add(1, Ordering::Relaxed);
    let peer = node.connect(options.address).ok()?;
    let (process, feed) = (options.process, &life.feed);
    let (up, down) = (up_of(session), down_of(up_of(session)));
    let mut outgoing = Outgoing::open(&peer, UP, up, process, options.rarity, feed)?;
    let Some(mut incoming) = Incoming::open(&peer, DOWN, Some(down), process, feed) else {
        // The session broke between the two calls; sending reports that.
        while outgoing.send_some().is_ok() {}
        return Some(());
    };
    let count = draw.of(1..options.messages.max(2));
    // The loop runs at least once: the first message names the session.
    loop {
        if outgoing.send_some().is_err() {
            incoming.drain();
            return Some(());
        }
        if incoming.take_some().is_err() {
            // The session broke, and the other end reports that, too.
            outgoing.close();
            return Some(());
        }
        if outgoing.accepted() >= count || life.is_over() {
            break;
        }
        if draw.once_in(4) {
            thread::sleep(Duration::from_micros(draw.of(0..2000)));
        }
    }
    // Receives while the last messages are acknowledged.
    thread::scope(|scope| {
        scope.spawn(|| outgoing.close());
        incoming.drain();
    });
    Some(())
}
