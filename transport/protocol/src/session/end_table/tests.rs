//! Ids, pairs and turns.

use std::collections::VecDeque;

use super::*;
use crate::{
    format::counters::Counters,
    session::tests::peer::spec,
    transfer::{eager_write::EagerBlocks, rendezvous::WRITES_UNDER_WAY},
};

/// The id of the peer's first end.
const PEER: u32 = 7;
const LIMIT: usize = 3;

fn add(ends: &mut EndTable, role: Role, name: &str) -> Result<u32, CannotOpen> {
    let added = ends.add(role, name.into(), spec().into(), LIMIT, true);
    added.map(|(end, _)| end)
}

fn peer_opens(
    ends: &mut EndTable,
    end: u32,
    role: Role,
    name: &str,
    events: &mut VecDeque<SessionEvent>,
) -> Result<Option<u32>, PeerMisbehaved> {
    let open = PeerOpen {
        end,
        role,
        name: name.into(),
        spec: spec().into(),
        closed: None,
    };
    let waiting = ends.handle_open(open, LIMIT, events)?;
    Ok(waiting.map(|(local, open)| {
        ends.pair(local, open, events);
        local
    }))
}

/// A table with one end, paired with [`PEER`].
fn paired(role: Role) -> (EndTable, u32) {
    let mut ends = EndTable::new();
    let end = add(&mut ends, role, "wal").unwrap();
    let opened = peer_opens(
        &mut ends,
        PEER,
        role.opposite(),
        "wal",
        &mut VecDeque::new(),
    );
    assert_eq!(opened, Ok(Some(end)));
    (ends, end)
}

#[test]
fn ids_only_grow_and_names_are_open_once() {
    let mut ends = EndTable::new();
    assert_eq!(add(&mut ends, Role::Sender, "wal"), Ok(1));
    assert_eq!(add(&mut ends, Role::Receiver, "wal"), Ok(2));
    let again = add(&mut ends, Role::Sender, "wal");
    assert_eq!(again, Err(CannotOpen::AlreadyOpen));
    ends.free_name(1);
    assert_eq!(add(&mut ends, Role::Sender, "wal"), Ok(3));
    assert!(ends.has_given(3) && !ends.has_given(4));
    let more = add(&mut ends, Role::Sender, "page");
    assert_eq!(more, Err(CannotOpen::TooMany { limit: LIMIT }));
}

#[test]
fn the_peers_ends_meet_the_oldest_or_wait_within_the_limit() {
    let mut ends = EndTable::new();
    let mut events = VecDeque::new();
    let mut opens =
        |ends: &mut EndTable, end, name| peer_opens(ends, end, Role::Receiver, name, &mut events);
    let first = add(&mut ends, Role::Sender, "wal").unwrap();
    ends.free_name(first);
    let second = add(&mut ends, Role::Sender, "wal").unwrap();
    assert_eq!(opens(&mut ends, 1, "wal"), Ok(Some(first)));
    assert_eq!(opens(&mut ends, 2, "wal"), Ok(Some(second)));
    let twice = PeerMisbehaved::OpenedTwice { end: 2 };
    assert_eq!(opens(&mut ends, 2, "wal"), Err(twice));
    assert_eq!(opens(&mut ends, 9, "page"), Ok(None));
    assert!(ends.has_received(9) && !ends.has_received(10));
    assert!(ends.unpaired().eq([("page", Role::Receiver)]));
    let many = PeerMisbehaved::TooManyChannels { limit: LIMIT };
    assert_eq!(opens(&mut ends, 10, "page"), Err(many));
    let third = add(&mut ends, Role::Sender, "page").unwrap();
    assert_eq!(ends.take_counterpart(third).map(|open| open.end), Some(9));
    assert_eq!(ends.unpaired().count(), 0);
}

#[test]
fn an_end_stands_in_its_queue_once() {
    let (mut ends, end) = paired(Role::Sender);
    for _ in 0..2 {
        assert!(ends.mark_ready(end));
        assert_eq!(ends.turns.ready, [end]);
    }
    assert_eq!(ends.turns.ready.pop_front(), Some(end));
    ends.leaves_ready(end);
    assert!(ends.mark_ready(end));
    assert_eq!(ends.turns.ready, [end]);
    assert!(!ends.mark_ready(end + 1), "there is no such end");
}

#[test]
fn an_end_that_waits_for_a_write_has_a_turn_when_it_is_done() {
    let (mut ends, end) = paired(Role::Sender);
    ends.suspend();
    assert_eq!(ends.turns.ready, [], "there are no wires");
    ends.leaves_ready(end);
    ends.turns.writes_under_way = WRITES_UNDER_WAY;
    assert!(!ends.turns.may_write());
    ends.turns.await_write(end);
    ends.turns.await_write(end);
    ends.writes_are_done(1);
    assert!(ends.turns.may_write());
    assert_eq!(ends.turns.ready, [end]);
}

#[test]
fn news_are_told_once_and_those_that_are_wanted_first() {
    let (mut ends, end) = paired(Role::Receiver);
    let mut events = VecDeque::new();
    let other = add(&mut ends, Role::Receiver, "page").unwrap();
    let opened = peer_opens(&mut ends, 8, Role::Sender, "page", &mut events);
    assert_eq!(opened, Ok(Some(other)));
    events.clear();
    for (end, wanted) in [(end, false), (other, true)] {
        let channel = ends.receiver_mut(end).unwrap();
        let released = Counters {
            released: 1,
            ..channel.counters()
        };
        channel.handle_released(&released);
        channel.owes_changes = wanted;
        ends.queue_changes(end);
        assert_eq!(ends.changes_are_urgent(), wanted);
    }
    assert_eq!(ends.turns.changes, [other, end]);
    let mut notified = || {
        let changes = ends.take_changes(&mut EagerBlocks::default(), &mut events);
        changes.map(|(peer, counters)| (peer, counters.released))
    };
    assert_eq!(
        [notified(), notified(), notified()],
        [Some((8, 1)), Some((PEER, 1)), None]
    );
    assert_eq!(events.len(), 2);
}

#[test]
fn an_end_is_gone_when_both_sides_know_that_it_is_closed() {
    let (mut ends, end) = paired(Role::Sender);
    ends.close_sender(end, 0, CloseReason::Dropped);
    assert!(!ends.remove_if_over(end));
    ends.entries.get_mut(end).unwrap().close_is_out = true;
    assert!(!ends.remove_if_over(end), "the peer's end lives");
    let mut events = VecDeque::new();
    let (peer, reason) = ((PEER, Role::Receiver), CloseReason::Dropped);
    let closed = ends.handle_close(peer, reason, 0, DataPath::Framed, &mut events);
    assert_eq!(closed, Ok(Some(end)));
    assert!(ends.remove_if_over(end));
    assert!(ends.turns.ready.is_empty());
    assert_eq!(ends.paired(Role::Receiver, PEER), None);
    assert_eq!(ends.of_peer(), 0);
}
