//! Tests of the prefix against a list of messages.

use proptest::prelude::*;

use super::*;
use crate::cells::size_units;
use crate::parking::bell::Bell;

const CELLS: u64 = 16;

/// The model: every message's state and size, never forgotten.
#[derive(Debug, Default)]
struct Model {
    messages: Vec<(CellState, u64)>,
}

impl Model {
    fn prefix(&self) -> Prefix {
        let released = self
            .messages
            .iter()
            .take_while(|(state, _)| *state != CellState::Held);
        let acknowledged = self
            .messages
            .iter()
            .take_while(|(state, _)| *state == CellState::Acknowledged)
            .count();
        Prefix {
            released: released.clone().count() as u64,
            position: released.map(|(_, size)| size).sum::<u64>(),
            acknowledged: acknowledged as u64,
            acknowledgement_ended: self
                .messages
                .get(acknowledged)
                .is_some_and(|(state, _)| *state == CellState::Dropped),
        }
    }

    fn oldest_unsettled(&self) -> u64 {
        let settled = |(state, _): &&(CellState, u64)| {
            matches!(state, CellState::Dropped | CellState::Acknowledged)
        };
        self.messages.iter().take_while(settled).count() as u64
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    HandOut(usize),
    Settle(prop::sample::Index, CellState),
    Run,
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![
        2 => Just(CellState::Detached),
        1 => Just(CellState::Dropped),
        6 => Just(CellState::Acknowledged),
    ];
    prop_oneof![
        4 => (1..50usize).prop_map(|words| Step::HandOut(8 * words)),
        4 => (any::<prop::sample::Index>(), state)
            .prop_map(|(which, state)| Step::Settle(which, state)),
        1 => Just(Step::Run),
    ]
}

proptest! {
    #[test]
    fn counts_like_the_naive_model(steps in prop::collection::vec(step(), 0..400)) {
        let bell = Bell::lease().unwrap();
        let lease = CellBlock::lease(CELLS as usize, bell.bell()).expect("memory");
        let cells = lease.block();
        let advance = Advance::default();
        let mut model = Model::default();
        let mut notified = advance.prefix();
        for step in steps {
            match step {
                Step::HandOut(size) => {
                    let sequence = model.messages.len() as u64 + 1;
                    advance.run(cells, |prefix| notified = *prefix);
                    let free = sequence - model.oldest_unsettled() <= CELLS;
                    prop_assert_eq!(advance.last_cell(cells) >= sequence, free);
                    if free {
                        cells.hold(sequence, size);
                        model.messages.push((CellState::Held, size as u64));
                    }
                }
                Step::Settle(which, state) => {
                    // Only messages that still have an owner can be settled, and only a held
                    // message can be detached.
                    let owned: Vec<_> = (0..model.messages.len())
                        .filter(|index| match model.messages[*index].0 {
                            CellState::Held => true,
                            CellState::Detached => state != CellState::Detached,
                            _ => false,
                        })
                        .collect();
                    if !owned.is_empty() {
                        let index = *which.get(&owned);
                        let (message, size) = &mut model.messages[index];
                        cells.settle(index as u32 + 1, size_units(*size as usize), state);
                        *message = state;
                    }
                }
                Step::Run => advance.run(cells, |prefix| notified = *prefix),
            }
        }
        advance.run(cells, |prefix| notified = *prefix);
        prop_assert_eq!(notified, model.prefix());
        prop_assert_eq!(advance.prefix(), notified);
        let open = model.messages.iter().any(|(state, _)| {
            matches!(state, CellState::Held | CellState::Detached)
        });
        prop_assert_eq!(lease.is_settled(), !open);
    }
}

#[test]
fn a_detached_message_can_be_acknowledged_after_a_later_one_was_dropped() {
    let bell = Bell::lease().unwrap();
    let lease = CellBlock::lease(CELLS as usize, bell.bell()).expect("memory");
    let cells = lease.block();
    let advance = Advance::default();
    for sequence in 1..=3 {
        cells.hold(sequence, 64);
    }
    cells.settle(1, 8, CellState::Detached);
    cells.settle(2, 8, CellState::Dropped);
    cells.settle(3, 8, CellState::Detached);
    advance.run(cells, |_| ());
    let prefix = advance.prefix();
    assert_eq!((prefix.released, prefix.acknowledged), (3, 0));
    assert!(!prefix.acknowledgement_ended);
    assert!(advance.last_cell(cells) < CELLS + 1);

    cells.settle(1, 8, CellState::Acknowledged);
    advance.run(cells, |_| ());
    let prefix = advance.prefix();
    assert_eq!((prefix.released, prefix.acknowledged), (3, 1));
    assert!(prefix.acknowledgement_ended);
    // The third message still has an owner, although no acknowledgement counts any more. Its
    // cell must not become another message's.
    assert!(advance.last_cell(cells) >= CELLS + 2);
    assert!(advance.last_cell(cells) < CELLS + 3);
    cells.settle(3, 8, CellState::Acknowledged);
    advance.run(cells, |_| ());
    assert!(advance.last_cell(cells) >= CELLS + 3);
    assert_eq!(advance.prefix(), prefix);
}
