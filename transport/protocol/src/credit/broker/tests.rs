//! The broker alone, against a model of what sessions do: they use, surrender, want, fall
//! silent and end, in any order and as late as they like.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

mod silence;

/// A session as the broker knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    /// Given beside the floor and not come back.
    out: u64,
    floor: u64,
    /// The recalled part of it.
    recalled: u64,
    used: u64,
    wants: bool,
    is_silent: bool,
}

#[derive(Debug)]
struct Host {
    broker: CreditBroker,
    sessions: BTreeMap<SessionId, Model>,
    gifts: u64,
    recalls: u64,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Join(SessionId),
    Leave(SessionId),
    Want(SessionId),
    /// Uses so much of what it has: what was recalled of it comes back.
    Use(SessionId, u64),
    /// Gives back what was recalled.
    Surrender(SessionId),
    FallSilent(SessionId),
}

impl Host {
    fn new(settings: BrokerSettings) -> Self {
        Self {
            broker: CreditBroker::new(settings),
            sessions: BTreeMap::new(),
            gifts: 0,
            recalls: 0,
        }
    }

    fn make(&mut self, what: Move) -> Result<(), TestCaseError> {
        let wishes = match what {
            Move::Join(id) if !self.sessions.contains_key(&id) => Some(id),
            Move::Want(id) => Some(id),
            _ => None,
        };
        match what {
            Move::Join(id) => {
                let is_full = self.sessions.len() as u64 == self.broker.settings.max_sessions;
                if !self.sessions.contains_key(&id) {
                    prop_assert_eq!(self.broker.join(id).is_err(), is_full);
                    if !is_full {
                        self.sessions.insert(id, Model::default());
                    }
                }
            }
            Move::Leave(id) => {
                self.sessions.remove(&id);
                self.broker.leave(id);
            }
            Move::Want(id) => {
                // A session that wants credit has used or surrendered all that it was granted, or it
                // is parting.
                if let Some(model) = self.alive(id) {
                    model.wants = true;
                    let returned = std::mem::take(&mut model.recalled);
                    model.out -= returned;
                    let wants = true;
                    self.report(
                        id,
                        CreditReport {
                            returned,
                            wants,
                            ..CreditReport::default()
                        },
                    );
                }
            }
            Move::Use(id, credit) => {
                if let Some(model) = self.alive(id) {
                    let credit = credit.min(model.out);
                    model.used += credit;
                    let returned = credit.min(model.recalled);
                    model.recalled -= returned;
                    model.out -= returned;
                    self.report(
                        id,
                        CreditReport {
                            returned,
                            ..CreditReport::default()
                        },
                    );
                }
            }
            Move::Surrender(id) => {
                if let Some(model) = self.alive(id) {
                    let returned = std::mem::take(&mut model.recalled);
                    let is_idle = returned > 0;
                    model.out -= returned;
                    self.report(
                        id,
                        CreditReport {
                            returned,
                            is_idle,
                            ..CreditReport::default()
                        },
                    );
                }
            }
            Move::FallSilent(id) => {
                if let Some(model) = self.sessions.get_mut(&id) {
                    model.is_silent = true;
                }
            }
        }
        self.act()?;
        // Whatever others hold, who wants credit has some.
        let has_spare = self.broker.settings.spare > 0;
        if let Some(model) = wishes.and_then(|id| self.alive(id)) {
            prop_assert!(
                model.out + model.floor > 0 || !has_spare,
                "{what:?} gave nothing"
            );
        }
        Ok(())
    }

    fn alive(&mut self, id: SessionId) -> Option<&mut Model> {
        self.sessions.get_mut(&id).filter(|model| !model.is_silent)
    }

    fn report(&mut self, id: SessionId, report: CreditReport) {
        self.broker.report(id, report);
    }

    /// Does what the broker says, and checks what holds after every call.
    fn act(&mut self) -> Result<(), TestCaseError> {
        let sessions = &mut self.sessions;
        for actions in 0.. {
            prop_assert!(actions <= 2 * sessions.len() + 1, "a storm");
            let used = |id| sessions.get(&id).map_or(0, |model: &Model| model.used);
            match self.broker.poll_action(used) {
                None => break,
                Some(CreditAction::Give {
                    session,
                    credit,
                    term,
                }) => {
                    prop_assert!(credit > 0);
                    let model = sessions.get_mut(&session).expect("given to nobody");
                    if term == Term::Floor {
                        model.floor += credit;
                        prop_assert_eq!(model.floor, self.broker.settings.floor);
                        continue;
                    }
                    model.out += credit;
                    model.wants = false;
                    model.recalled += if term == Term::Turn { credit } else { 0 };
                    self.gifts += 1;
                }
                Some(CreditAction::Recall { session, credit }) => {
                    let model = sessions.get_mut(&session).expect("recalled from nobody");
                    model.recalled += credit;
                    self.recalls += 1;
                    prop_assert!(credit > 0 && model.recalled <= model.out);
                }
            }
            prop_assert!(self.broker.is_sound());
        }
        let lendable = self.broker.lendable;
        let mut shared = 0;
        for (&id, model) in sessions.iter() {
            let holding = self.broker.holdings.get(id).expect("it has joined");
            prop_assert_eq!(self.broker.held(id), model.out + model.floor);
            prop_assert!(holding.spare <= self.broker.settings.spare);
            shared += model.out - holding.spare;
            prop_assert!(model.out - holding.spare <= self.broker.settings.most);
        }
        prop_assert!(shared + self.broker.free() == lendable);
        Ok(())
    }
}

fn any_move() -> impl Strategy<Value = Move> {
    let id = || 0..12_u64;
    prop_oneof![
        4 => id().prop_map(Move::Join),
        1 => id().prop_map(Move::Leave),
        6 => id().prop_map(Move::Want),
        6 => (id(), 0..50_u64).prop_map(|(id, credit)| Move::Use(id, credit)),
        6 => id().prop_map(Move::Surrender),
        1 => id().prop_map(Move::FallSilent),
    ]
}

fn settings() -> impl Strategy<Value = BrokerSettings> {
    let any = (1..4_u64, 1..30_u64, 1..20_u64, 0..3_u64, 0..3_u64);
    any.prop_map(|(grain, grains, most, floor, spare)| BrokerSettings {
        capacity: grain * grains + 10 * (1 + floor + spare),
        reserve: 1,
        floor,
        spare,
        max_sessions: 10,
        grain,
        most: grain * most,
    })
}

proptest! {
    /// In any sequence of events, no credit is lent twice and none is lost.
    #[test]
    fn credit_is_neither_lent_twice_nor_lost(
        settings in settings(),
        moves in proptest::collection::vec(any_move(), 0..200),
    ) {
        let mut host = Host::new(settings);
        for what in moves {
            host.make(what)?;
        }
        for id in 0..12 {
            host.make(Move::Leave(id))?;
        }
        prop_assert_eq!(host.broker.free(), host.broker.lendable);
    }

    /// After any sequence of events, a session that wants credit is given some, once the sessions
    /// have used theirs often enough for each to have had its turn.
    #[test]
    fn a_session_that_wants_credit_is_given_some_in_the_end(
        settings in settings(),
        moves in proptest::collection::vec(any_move(), 0..200),
    ) {
        let mut host = Host::new(settings);
        for what in moves {
            if !matches!(what, Move::FallSilent(_)) {
                host.make(what)?;
            }
        }
        let ids: Vec<_> = host.sessions.keys().copied().collect();
        for &id in &ids {
            host.make(Move::Want(id))?;
        }
        // A round serves at least one of the sessions that want credit.
        for _ in 0..2 * ids.len() + 2 {
            for &id in &ids {
                host.make(Move::Use(id, u64::MAX))?;
                let model = host.sessions[&id];
                if model.wants && model.out == 0 {
                    // A recall of all is an answer too, so it may ask again.
                    host.make(Move::Want(id))?;
                }
            }
        }
        for &id in &ids {
            let model = host.sessions[&id];
            let has_some = model.out + model.floor >= settings.grain;
            prop_assert!(!model.wants || has_some, "{id} waits: {host:?}");
        }
    }
}

proptest! {
    /// Peers that stand still keep what they have, and no more is lost to the others: as long as
    /// a grain is left, each of those that answer has its turn, and with spare credit always.
    #[test]
    fn sessions_that_answer_get_credit_while_silent_ones_leave_a_grain(
        settings in settings(),
        moves in proptest::collection::vec(any_move(), 0..200),
    ) {
        let mut host = Host::new(settings);
        for what in moves {
            host.make(what)?;
        }
        let alive = host.sessions.iter().filter(|(_, model)| !model.is_silent);
        let ids: Vec<_> = alive.map(|(&id, _)| id).collect();
        for &id in &ids {
            host.make(Move::Want(id))?;
        }
        let before: Vec<_> = ids.iter().map(|id| host.sessions[id].used).collect();
        // A session with credit uses it and wants more; a session without credit has wished
        // already.
        for _ in 0..8 * host.sessions.len() + 8 {
            for &id in &ids {
                if host.sessions[&id].out > 0 {
                    host.make(Move::Use(id, u64::MAX))?;
                    host.make(Move::Want(id))?;
                }
            }
        }
        let silent = host.sessions.iter().filter(|(_, model)| model.is_silent);
        let kept = silent.filter_map(|(&id, _)| host.broker.holdings.get(id));
        let kept: u64 = kept.map(|holding| holding.held).sum();
        let is_left = settings.spare > 0 || host.broker.lendable - kept >= settings.grain;
        for (&id, before) in ids.iter().zip(before) {
            let has_had_some = host.sessions[&id].used > before;
            prop_assert!(has_had_some || !is_left, "{id} waits: {host:?}");
        }
    }
}

proptest! {
    /// After any sequence of events, when all sessions but one only answer recalls, no more than a
    /// grain is kept for each of them.
    #[test]
    fn the_only_active_session_is_found_to_be_alone(
        settings in settings(),
        moves in proptest::collection::vec(any_move(), 0..200),
    ) {
        let mut host = Host::new(settings);
        host.make(Move::Join(12))?;
        host.make(Move::Want(12))?;
        for what in moves {
            if !matches!(what, Move::FallSilent(_)) {
                host.make(what)?;
            }
        }
        let others: Vec<_> = host.sessions.keys().copied().filter(|&id| id != 12).collect();
        // Each wish looks at a few sessions. Each session is looked at twice, and twice again if
        // its witness is silent.
        for _ in 0..8 * (others.len() + 1) {
            for &id in &others {
                host.make(Move::Surrender(id))?;
            }
            host.make(Move::Use(12, u64::MAX))?;
            host.make(Move::Want(12))?;
        }
        let active = host.broker.holdings.active();
        // A session that has the most it may have has found enough credit at the others.
        let has_most = host.sessions[&12].out == settings.most;
        prop_assert!(active == 1 || has_most, "{host:?}");
    }
}

/// While credit is not short, the broker only gives, once for each session.
#[test]
fn as_long_as_there_is_enough_everybody_gets_the_most() {
    let settings = BrokerSettings {
        capacity: 100 + 64 * 10,
        reserve: 1,
        floor: 0,
        spare: 0,
        max_sessions: 100,
        grain: 1,
        most: 10,
    };
    let mut host = Host::new(settings);
    for id in 0..64 {
        host.make(Move::Join(id)).unwrap();
        assert_eq!(host.sessions[&id].out, 10, "session {id}");
        host.make(Move::Want(id)).unwrap();
    }
    assert_eq!(host.gifts, 64);
    assert!(host.sessions.values().all(|model| model.recalled == 0));
}

/// Each arrival could cost a recall of all others; the steps of the level make that a few
/// for each in all.
#[test]
fn the_arrival_of_many_recalls_each_a_few_times() {
    const SESSIONS: u64 = 100;
    let settings = BrokerSettings {
        capacity: SESSIONS + 4096,
        reserve: 1,
        floor: 0,
        spare: 0,
        max_sessions: SESSIONS,
        grain: 1,
        most: 4096,
    };
    let mut host = Host::new(settings);
    for id in 0..SESSIONS {
        host.make(Move::Join(id)).unwrap();
        for other in 0..=id {
            host.make(Move::Use(other, u64::MAX)).unwrap();
        }
    }
    // From 4096 to the last level there are fourteen steps.
    assert!(host.recalls < 14 * SESSIONS, "{}", host.recalls);
    for id in (0..SESSIONS).chain(0..SESSIONS).chain(0..SESSIONS) {
        host.make(Move::Want(id)).unwrap();
        for other in 0..SESSIONS {
            host.make(Move::Use(other, u64::MAX)).unwrap();
        }
    }
    let shares: Vec<u64> = host.sessions.values().map(|model| model.out).collect();
    assert!(
        shares.iter().max().unwrap() * 2 <= shares.iter().min().unwrap() * 3,
        "{shares:?}"
    );
}

/// In whatever order credit comes back, the turns of busy sessions are equal, and a session that is
/// not busy has one buffer.
#[test]
fn the_rest_of_a_turn_is_given_before_anybody_elses() {
    let settings = BrokerSettings {
        capacity: 18,
        reserve: 1,
        floor: 0,
        spare: 0,
        max_sessions: 12,
        grain: 1,
        most: 6,
    };
    let mut broker = CreditBroker::new(settings);
    let report = |returned, is_busy| CreditReport {
        returned,
        wants: is_busy,
        is_busy,
        ..CreditReport::default()
    };
    (0..12).for_each(|session| broker.join(session).unwrap());
    let given = |broker: &mut CreditBroker| {
        let actions = std::iter::from_fn(|| broker.poll_action(|_| 0));
        let gifts = actions.filter_map(|action| match action {
            CreditAction::Give {
                session,
                credit,
                term: Term::Turn,
            } => Some((session, credit)),
            _ => None,
        });
        gifts.collect::<Vec<_>>()
    };
    // Six buffers for twelve sessions; the other sessions wait.
    assert_eq!(given(&mut broker).len(), 6);
    for session in 0..6 {
        broker.report(session, report(1, session < 2));
    }
    assert_eq!(given(&mut broker).len(), 6);
    for (returned, expected) in [(6, (0, 1)), (7, (0, 1)), (8, (0, 1)), (9, (0, 1))] {
        broker.report(returned, report(1, false));
        assert_eq!(given(&mut broker), [expected]);
    }
    broker.report(10, report(1, false));
    broker.report(11, report(1, false));
    assert_eq!(given(&mut broker), [(1, 2)]);
    broker.report(0, report(4, false));
    assert_eq!(given(&mut broker), [(1, 2)]);
}

#[test]
fn more_sessions_than_there_are_reserves_for_are_refused() {
    let settings = BrokerSettings {
        capacity: 10,
        reserve: 2,
        floor: 0,
        spare: 0,
        max_sessions: 2,
        grain: 1,
        most: 10,
    };
    let mut broker = CreditBroker::new(settings);
    broker.join(1).unwrap();
    broker.join(2).unwrap();
    assert_eq!(broker.join(3), Err(TooManySessions { limit: 2 }));
    broker.leave(1);
    broker.join(3).unwrap();
}
