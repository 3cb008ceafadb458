//! The claims about crowds of senders.

use super::*;

const BUFFERS: Carriage = Carriage::Buffers {
    bytes: LEAST_BUFFER_BYTES,
};

/// Returns settings for a receive queue of `entries` and this many sessions, and one entry more that
/// is kept for each.
fn entries(entries: u64, max_sessions: u64) -> BrokerSettings {
    BrokerSettings {
        capacity: entries + max_sessions * BUFFERS.grain(),
        reserve: reserved_buffers(false),
        floor: 0,
        spare: BUFFERS.grain(),
        max_sessions,
        grain: BUFFERS.grain(),
        most: 64,
    }
}

fn spread(shares: &[u64]) -> f64 {
    let most = shares.iter().max().copied().unwrap_or_default();
    most as f64 / shares.iter().min().copied().unwrap_or_default().max(1) as f64
}

#[test]
fn two_hundred_senders_share_256_buffers() {
    for seed in 0..2 {
        let mut crowd = Crowd::new(seed, BUFFERS, entries(256, 200));
        (0..200).for_each(|_| crowd.join(Life::Busy(64)));
        let shares = crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(spread(&shares) <= 1.5, "seed {seed}: {shares:?}");
        // Messages go out; the last of a turn asks for the next turn and answers for its own; and
        // the next turn comes back, or the one buffer that is kept for the session.
        let [there, back] = crowd.frames_per_message();
        assert!(there < 1.1 && back < 1.1, "{there} and {back}");
    }
}

/// There is credit for four of ten at a time.
#[test]
#[ignore = "`cargo xtask torture` runs it, since a build without optimisation takes minutes"]
fn ten_thousand_senders_share_4096_buffers() {
    let reserved = SENDERS * reserved_buffers(false);
    let mut crowd = Crowd::new(3, BUFFERS, entries(reserved + 4096, SENDERS));
    (0..SENDERS).for_each(|_| crowd.join(Life::Busy(16)));
    let shares = crowd.run(50_000).unwrap();
    assert!(spread(&shares) <= 5.0, "some wait for long");
    let [there, back] = crowd.frames_per_message();
    assert!(there < 1.3 && back < 1.1, "{there} and {back}");
}

/// A slow program visits its senders in turn, so that each has nothing more to send at the next
/// visit, and there is not a grain of credit for each. A sender that took credit from another at
/// every visit would send twice as many frames.
#[test]
fn a_slow_program_with_two_hundred_senders_makes_them_take_turns() {
    for every in [2, 4, 16] {
        let mut crowd = Crowd::new(1, BUFFERS, entries(256, 200));
        (0..200).for_each(|_| crowd.join(Life::Fed(32)));
        for step in 0.. {
            if step % every == 0 {
                crowd.feed();
            }
            crowd.step().unwrap();
            if crowd.peers.iter().all(|peer| peer.is_done() == Some(true)) {
                break;
            }
            assert!(step < 200_000, "not done");
        }
        // A visit takes a question, its messages, and the surrender of the rest of the turn.
        let [there, back] = crowd.frames_per_message();
        assert!(there < 1.7 && back < 0.8, "{there} and {back}");
    }
}

/// Holds if there is more than a grain for each.
#[test]
fn any_number_of_senders_shares_fairly() {
    for senders in [2, 3, 4, 5, 7, 10, 19, 33, 59] {
        let mut crowd = Crowd::new(senders, BUFFERS, entries(160, 60));
        (0..senders).for_each(|_| crowd.join(Life::Busy(1000)));
        let shares = crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("{senders}: {error}"));
        assert!(spread(&shares) <= 1.5, "{senders}: {shares:?}");
    }
}

#[test]
fn a_stream_shares_bytes_in_the_same_way() {
    let settings = BrokerSettings {
        capacity: 20 * Carriage::Stream.grain() + 40 * 4096,
        reserve: 4096,
        floor: 0,
        spare: 0,
        max_sessions: 40,
        grain: Carriage::Stream.grain(),
        most: 8 * Carriage::Stream.grain(),
    };
    for senders in [1, 3, 10, 19, 25, 40] {
        let mut crowd = Crowd::new(senders, Carriage::Stream, settings);
        (0..senders).for_each(|_| crowd.join(Life::Busy(2000)));
        let shares = crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("{senders}: {error}"));
        assert!(spread(&shares) <= 1.5, "{senders}: {shares:?}");
    }
}

#[test]
fn a_session_alone_has_its_full_credit_and_is_never_recalled() {
    let mut crowd = Crowd::new(1, BUFFERS, entries(256, 100));
    crowd.join(Life::Busy(1000));
    crowd.step().unwrap();
    assert_eq!(crowd.broker.held(0), 64);
    crowd.run(50_000).unwrap();
    assert_eq!(crowd.recalls(), 0);
    assert_eq!(crowd.broker.held(0), 64);
}

/// Idle sessions that hold all credit lose it to a session that wants some.
#[test]
fn idle_credit_goes_to_a_session_that_wants_it() {
    let mut crowd = Crowd::new(2, BUFFERS, entries(256, 64));
    (0..63).for_each(|_| crowd.join(Life::Busy(1)));
    crowd.run(50_000).unwrap();
    crowd.join(Life::Busy(4000));
    crowd.run(50_000).unwrap();
    let held = crowd.broker.held(63);
    assert!(held >= 48, "{held} of 64 at a time");
}

/// Silent senders keep their credit and take no more. It is free again when their sessions end.
#[test]
fn silent_senders_keep_what_they_have_until_they_are_gone() {
    for seed in 0..5 {
        let mut crowd = Crowd::new(seed, BUFFERS, entries(96, 32));
        let silent = [0, 3];
        for index in 0..8 {
            crowd.join(Life::Busy(if silent.contains(&index) {
                1
            } else {
                100_000
            }));
        }
        for _ in 0..200 {
            crowd.step().unwrap();
        }
        for index in silent {
            crowd.peers[index].life = Life::Silent;
        }
        for index in 0..8 {
            if !silent.contains(&index) {
                crowd.peers[index].life = Life::Busy(crowd.peers[index].received + 500);
            }
        }
        (0..24).for_each(|_| crowd.join(Life::Busy(100)));
        crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let kept: u64 = silent
            .iter()
            .map(|&index| crowd.broker.held(index as u64))
            .sum();
        assert!(kept > 0, "they had nothing to keep");
        (0..crowd.peers.len()).for_each(|index| crowd.end(index));
        assert_eq!(crowd.broker.free(), 64);
    }
}

/// Senders die at any moment, with recalls open.
#[test]
fn a_sender_that_dies_during_a_recall_leaves_its_credit() {
    for seed in 0..14 {
        let mut crowd = Crowd::new(seed, BUFFERS, entries(96, 32));
        (0..8).for_each(|_| crowd.join(Life::Busy(300)));
        for _ in 0..100 {
            crowd.step().unwrap();
        }
        (0..24).for_each(|_| crowd.join(Life::Busy(300)));
        for index in 0..8 {
            for _ in 0..seed % 7 {
                crowd.step().unwrap();
            }
            crowd.end(index);
        }
        crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        (8..32).for_each(|index| crowd.end(index));
        assert_eq!(crowd.broker.free(), 64);
    }
}

/// A new session gets credit only after the surrender of the others has arrived. Otherwise more
/// would be on its way than there is room for.
#[test]
fn a_broker_gives_nothing_before_its_surrender_arrived() {
    for seed in 0..4 {
        let mut crowd = Crowd::new(seed, BUFFERS, entries(96, 32));
        (0..8).for_each(|_| crowd.join(Life::Busy(300)));
        let begins = (0..100).try_for_each(|_| crowd.step());
        (0..24).for_each(|_| crowd.join(Life::Busy(300)));
        begins
            .and_then(|()| crowd.run(50_000))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Peers that have every buffer that all share, and stand still, leave each newcomer one, whatever
/// other newcomers do with theirs.
#[test]
fn buffers_of_silent_peers_keep_no_newcomer_from_sending() {
    for seed in 0..3 {
        let mut crowd = Crowd::new(seed, BUFFERS, entries(256, 200));
        (0..140).for_each(|_| crowd.join(Life::Silent));
        for index in 140..150 {
            crowd.join(Life::Busy(100));
            crowd
                .run(20_000)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            crowd.join(Life::Silent);
            assert_eq!(crowd.broker.free(), 0, "{index}");
        }
    }
}

/// Returns settings for streams: what is lent suffices for `lent` of them.
fn streams(lent: u64) -> BrokerSettings {
    let grain = Carriage::Stream.grain();
    BrokerSettings {
        capacity: lent * MOST + 200 * (4096 + grain),
        reserve: 4096,
        floor: grain,
        spare: 0,
        max_sessions: 200,
        grain,
        most: MOST,
    }
}

/// The most that a stream is lent beside its floor.
const MOST: u64 = 7 * Carriage::Stream.grain();

/// Peers that say nothing take no credit from those that come later.
#[test]
fn streams_that_say_nothing_hold_their_floors_alone() {
    let mut crowd = Crowd::new(4, Carriage::Stream, streams(4));
    (0..140).for_each(|_| crowd.join(Life::Silent));
    (0..2).for_each(|_| crowd.join(Life::Busy(2000)));
    crowd
        .run(20_000)
        .unwrap_or_else(|error| panic!("beside silent peers: {error}"));
    let grain = Carriage::Stream.grain();
    assert!((0..140).all(|index| crowd.broker.held(index) == grain));
    assert!((140..142).all(|index| crowd.broker.held(index) == grain + MOST));
}

/// Peers that have everything that is lent, and fall silent, leave the others their floors.
#[test]
fn streams_that_fall_silent_keep_what_they_are_lent_and_no_floor_of_others() {
    for seed in 0..3 {
        let mut crowd = Crowd::new(seed, Carriage::Stream, streams(4));
        (0..4).for_each(|_| crowd.join(Life::Busy(100_000)));
        while crowd.broker.free() > 0 {
            crowd.step().unwrap();
        }
        for peer in &mut crowd.peers {
            peer.life = Life::Silent;
        }
        (0..20).for_each(|_| crowd.join(Life::Busy(500)));
        let shares = crowd
            .run(50_000)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(spread(&shares) <= 4.0, "seed {seed}: {shares:?}");
        // Without its wires a session sends nothing more, so its credit is there for others.
        let before = crowd.broker.free();
        let floor = Carriage::Stream.grain();
        let lent: u64 = (0..4).map(|index| crowd.broker.held(index) - floor).sum();
        for index in 0..4 {
            crowd.peers[index].up.frames.clear();
            crowd.peers[index].here.suspend();
            crowd.report(index);
        }
        assert_eq!(crowd.broker.free(), before + lent);
        crowd.join(Life::Busy(4000));
        crowd.run(50_000).unwrap();
    }
}
