//! Bytes that are flipped, lost, doubled or swapped on their way over tcp. Every message that is
//! handed out was sent, none is lost or comes twice, no acknowledgement is false, and nothing
//! hangs. `DAMAGE_SEED` repeats a run, as far as threads allow.

mod content;
mod ends;
mod far;
mod lost;
#[path = "../namespace/mod.rs"]
mod namespace;
mod session;
mod stubborn;

use std::{
    env, mem, process,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use ibex::{Event, Integrity, Raw, RecvErrorKind};
use ibex_harness::{
    draw::Draw,
    proxy::{DAMAGES, Damage, Proxy},
};

use crate::far::Far;
use crate::session::{Counted, Damaged, Traffic};

fn main_seed() -> u64 {
    let seed = env::var("DAMAGE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(Draw::seed);
    println!("DAMAGE_SEED={seed}");
    seed
}

/// Runs `sessions` sessions at once, each under its part of the damage. Returns the sums.
fn under_damage(test: &'static str, traffic: Traffic, sessions: u64, faults: u64) -> Counted {
    let mut draw = Draw::new(main_seed());
    let (done, is_done) = mpsc::channel();
    let running: Vec<_> = (0..sessions)
        .map(|_| {
            let (mut draw, done) = (Draw::new(draw.word()), done.clone());
            thread::spawn(move || {
                let mut session = Damaged::begin(traffic);
                let result = session.run(faults / sessions, &mut draw);
                let _ = done.send(());
                result
            })
        })
        .collect();
    drop(done);
    // A failed session disconnects without a result, and reports its failure itself.
    let mut progress = session::progress();
    loop {
        match is_done.recv_timeout(HUNG) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let now = session::progress();
                if mem::replace(&mut progress, now) == now {
                    eprintln!("{test}: a session hangs");
                    session::tell_all();
                    process::abort();
                }
            }
        }
    }
    let mut all = Counted::default();
    for one in running {
        all.add(&one.join().expect("a session under damage"));
    }
    println!("{test}: {all}");
    all
}

/// The number of faults: 10 000 in optimized builds, which `cargo xtask test` uses.
const FAULTS: u64 = if cfg!(debug_assertions) {
    1_000
} else {
    10_000
};

#[test]
fn messages_of_all_codecs_under_fire() {
    let faults = FAULTS * 9 / 10;
    let counted = under_damage("small", Traffic::Codecs, 4, faults);
    assert!(counted.faults() >= faults, "{counted}");
    assert!(
        DAMAGES
            .iter()
            .all(|damage| counted.damaged[*damage as usize] > faults / 9)
    );
    // Some faults hit only padding, others a connection that was about to end.
    assert!(counted.noticed > counted.faults() / 2, "{counted}");
    assert!(counted.opened > faults / 90, "{counted}");
}

#[test]
fn large_messages_under_fire() {
    let counted = under_damage("large", Traffic::Large, 2, FAULTS * 9 / 100);
    assert!(counted.noticed > FAULTS * 4 / 100, "{counted}");
}

/// Both ends wait for answers before they send more, so no later byte completes a cut frame.
#[test]
fn an_end_that_waits_for_an_answer_gets_it_under_damage() {
    let counted = under_damage("quiet", Traffic::Quiet, 25, FAULTS.div_ceil(100).max(50));
    assert!(counted.damaged[Damage::Drop as usize] > 3, "{counted}");
}

/// The end that notices the flip reports and counts it; the other loses its connection.
#[test]
fn a_flip_is_told_and_counted() {
    let mut draw = Draw::new(main_seed());
    let there = session::builder()
        .integrity(Integrity::On)
        .listen("127.0.0.1:0");
    let (there, here) = (there.build().unwrap(), session::builder().build().unwrap());
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let peer = here.connect(proxy.address()).unwrap();
    let other = there.accept().unwrap();
    let mut events = there.events();
    let mut sender = peer
        .channel("bytes")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = other
        .channel("bytes")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    sender.opened(Duration::MAX).unwrap();
    // The flip hits the middle of a message, which the checksum covers.
    proxy.damage(proxy.newest(), Damage::Flip, false, 2_000, &mut draw);
    let message = [7; 4_000];
    while proxy.damaged(Damage::Flip) == 0 {
        sender.send(&message[..]).unwrap();
        let taken = receiver.recv().unwrap();
        assert!(*taken == message);
    }
    let told = loop {
        match events.next() {
            Some(Event::Suspended { cause, .. }) => break cause.to_string(),
            Some(_) => {}
            None => panic!("no break was told"),
        }
    };
    println!("{told}");
    assert!(told.contains("checksum"), "{told}");
    assert!(told.contains("goes on over a new connection"), "{told}");
    assert!(matches!(events.next(), Some(Event::Resumed { .. })));
    assert_eq!(other.stats().checksum_errors, 1);
    assert_eq!(peer.stats().checksum_errors, 0);
    sender.close().unwrap();
}

/// Damages handshakes of connections over which sessions resume.
#[test]
fn sessions_get_through_damaged_handshakes() {
    let counted = under_damage("handshakes", Traffic::Handshakes, 10, FAULTS * 3 / 100);
    assert!(counted.resumes > FAULTS / 100, "{counted}");
}

/// Payloads are checked between hosts by default.
#[test]
fn flips_between_two_hosts_are_noticed() {
    const TEST: &str = "flips_between_two_hosts_are_noticed";
    if far::echoes() || !namespace::is_inside(TEST) {
        return;
    }
    let mut draw = Draw::new(main_seed());
    let mut far = Far::begin(TEST, &mut draw);
    let proxy = Proxy::start(far.network.address).unwrap();
    let here = session::builder().build().unwrap();
    let peer = loop {
        // The far process may not listen yet.
        if let Ok(peer) = here.connect(proxy.address()) {
            break peer;
        }
        assert!(far.runs(), "the far process ended");
    };
    assert!(peer.payload_checksums());
    let mut sender = peer
        .channel("there")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = peer
        .channel("back")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let content = |number| content::of_message(far::STREAM, number, far::LENGTHS);
    let (mut sent, mut received, mut last) = (0, 0, (0, 0));
    while proxy.damaged(Damage::Flip) < FLIPS {
        for _ in 0..draw.of(1..40) {
            sent += 1;
            sender.send(&content(sent)[..]).unwrap();
        }
        // Only one flip at a time: a second one on the same connection would come behind its end.
        let (connection, flipped) = (proxy.newest(), proxy.damaged(Damage::Flip));
        if !peer.is_suspended() && last != (connection, flipped) {
            let (is_back, after) = (draw.once_in(2), draw.of(0..20_000));
            proxy.damage(connection, Damage::Flip, is_back, after, &mut draw);
            last = (connection, flipped);
        }
        while received < sent {
            received += 1;
            assert!(
                *receiver.recv().unwrap() == content(received)[..],
                "message {received}"
            );
        }
    }
    sender.close().unwrap();
    let there = receiver.recv().unwrap();
    let there = u64::from_le_bytes(there[..].try_into().unwrap());
    let noticed = peer.stats().checksum_errors + there;
    println!("{noticed} of {FLIPS} flips noticed, {received} messages there and back");
    assert!(noticed > FLIPS * 3 / 4 && there > 0 && noticed > there);
    assert!(matches!(receiver.recv(), Err(error) if error.kind() == RecvErrorKind::Ended));
    drop((receiver, peer, here));
    far.end();
}

const FLIPS: u64 = 200;
/// The time without progress after which a run counts as hung.
const HUNG: Duration = Duration::from_secs(120);
