//! Sessions that fall silent with credit that others want.

use super::*;

/// Forty sessions share what a peer leaves that had nearly everything and stands still.
#[test]
fn a_crowd_takes_turns_at_the_credit_a_silent_peer_leaves() {
    for (lendable, most) in [(2, 1), (3, 2), (4, 3), (40, 39), (64, 63)] {
        let settings = BrokerSettings {
            capacity: lendable + 41,
            reserve: 1,
            floor: 0,
            spare: 0,
            max_sessions: 41,
            grain: 1,
            most,
        };
        let mut host = Host::new(settings);
        host.make(Move::Join(0)).unwrap();
        assert_eq!(host.sessions[&0].out, most, "it is alone");
        host.make(Move::FallSilent(0)).unwrap();
        for id in 1..=40 {
            host.make(Move::Join(id)).unwrap();
        }
        for id in (1..=40).cycle().take(40 * 200) {
            if host.sessions[&id].out > 0 {
                host.make(Move::Use(id, u64::MAX)).unwrap();
                host.make(Move::Want(id)).unwrap();
            }
        }
        let used: Vec<u64> = (1..=40).map(|id| host.sessions[&id].used).collect();
        assert!(
            used.iter().all(|&used| used > 0),
            "{lendable} buffers: {used:?}"
        );
    }
}

/// A session that waits, and could hold no more than a part of a grain besides what was recalled of it,
/// holds up nobody when it falls silent.
#[test]
fn a_silent_session_without_room_for_a_grain_does_not_hold_up_those_behind_it() {
    let mut host = Host::new(BrokerSettings {
        capacity: 22,
        reserve: 1,
        floor: 0,
        spare: 0,
        max_sessions: 10,
        grain: 2,
        most: 4,
    });
    for id in [0, 1, 4, 2] {
        host.make(Move::Join(id)).unwrap();
    }
    host.make(Move::Want(4)).unwrap();
    host.make(Move::Join(3)).unwrap();
    host.make(Move::FallSilent(4)).unwrap();
    for id in (0..4).cycle().take(4 * 40) {
        host.make(Move::Use(id, u64::MAX)).unwrap();
        host.make(Move::Want(id)).unwrap();
    }
    assert_eq!(host.sessions[&4].out, 3, "{host:?}");
    let mut used = (0..4).map(|id| host.sessions[&id].used);
    assert!(used.all(|used| used > 20), "{host:?}");
}

/// Peers that say nothing hold their floors and nothing else, and those that fall silent with all
/// credit that is lent leave a new session its floor.
#[test]
fn a_new_session_has_its_floor_whatever_silent_ones_hold() {
    let mut host = Host::new(BrokerSettings {
        capacity: 10 + 16 * 3,
        reserve: 1,
        floor: 2,
        spare: 0,
        max_sessions: 16,
        grain: 2,
        most: 5,
    });
    for id in 0..4 {
        host.make(Move::Join(id)).unwrap();
        assert_eq!((host.broker.held(id), host.broker.free()), (2, 10));
    }
    for id in 0..2 {
        host.make(Move::Want(id)).unwrap();
        assert_eq!(
            host.broker.held(id),
            7,
            "it is given the most once it wants"
        );
        host.make(Move::FallSilent(id)).unwrap();
    }
    assert_eq!(host.broker.free(), 0);
    for id in 4..12 {
        host.make(Move::Join(id)).unwrap();
        host.make(Move::Want(id)).unwrap();
        assert_eq!(host.broker.held(id), 2);
    }
}

/// A session whose wires are gone cannot send, so what it was lent is there for others at once.
#[test]
fn a_suspended_session_leaves_what_it_was_lent() {
    let mut host = Host::new(BrokerSettings {
        capacity: 10 + 16 * 3,
        reserve: 1,
        floor: 2,
        spare: 0,
        max_sessions: 16,
        grain: 2,
        most: 10,
    });
    host.make(Move::Join(0)).unwrap();
    host.make(Move::Want(0)).unwrap();
    assert_eq!((host.broker.held(0), host.broker.free()), (12, 0));
    let report = CreditReport {
        is_suspended: true,
        ..CreditReport::default()
    };
    host.report(0, report);
    host.sessions.remove(&0);
    assert_eq!((host.broker.held(0), host.broker.free()), (0, 10));
    // It joins again with new wires.
    host.make(Move::Join(0)).unwrap();
    assert_eq!(host.broker.held(0), 2);
}
