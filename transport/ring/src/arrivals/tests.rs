//! Tests of the arrival ring, in one thread.

use std::collections::VecDeque;
use std::sync::Arc as StdArc;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Advance,
    Retire(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Push),
        2 => Just(Step::Advance),
        1 => (0..6usize).prop_map(Step::Retire),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_queue_that_keeps_what_was_read(
        capacity in 1..9usize,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let witness = StdArc::new(());
        let (mut writer, mut reader, mut retirer) = arrival_ring(capacity).expect("memory");
        let capacity = capacity.next_power_of_two();
        // The model: arrivals that were pushed and not retired. The first `completed` of them
        // have been read.
        let (mut kept, mut completed, mut next) = (VecDeque::new(), 0, 0u32);
        for step in steps {
            match step {
                Step::Push => {
                    let full = kept.len() == capacity;
                    prop_assert_eq!(writer.has_room(), !full);
                    prop_assert_eq!(writer.push((next, witness.clone())), !full);
                    if !full {
                        kept.push_back(next);
                    }
                    next += 1;
                }
                Step::Advance => {
                    let seen = reader.peek().map(|(number, _)| *number);
                    prop_assert_eq!(seen, kept.get(completed).copied());
                    if seen.is_some() {
                        reader.advance();
                        completed += 1;
                    }
                }
                Step::Retire(mut most) => {
                    retirer.retire_while(|(number, _)| {
                        assert_eq!(kept.front(), Some(number));
                        if most == 0 {
                            return false;
                        }
                        most -= 1;
                        completed -= 1;
                        kept.pop_front();
                        true
                    });
                    prop_assert!(most == 0 || completed == 0);
                }
            }
            prop_assert_eq!(StdArc::strong_count(&witness), 1 + kept.len());
        }
        drop((writer, reader, retirer));
        prop_assert_eq!(StdArc::strong_count(&witness), 1);
    }
}

#[test]
fn an_empty_ring_rests_and_goes_on() {
    let (mut writer, mut reader, mut retirer) = arrival_ring(2).expect("memory");
    for number in 0..5 {
        assert!(writer.rest());
        assert!(writer.push(number));
        assert!(!writer.rest());
        assert_eq!(reader.peek(), Some(&number));
        reader.advance();
        assert!(!writer.rest(), "it is read, and not retired");
        retirer.retire_while(|_| true);
    }
}

#[test]
fn roles_move_between_threads() {
    fn assert_send<T: Send>() {}
    assert_send::<ArrivalWriter<Cell<u8>>>();
    assert_send::<ArrivalReader<Cell<u8>>>();
    assert_send::<ArrivalRetirer<Cell<u8>>>();
}

#[test]
#[should_panic(expected = "advanced beyond what was peeked")]
fn advancing_takes_a_peek() {
    let (mut writer, mut reader, _retirer) = arrival_ring(1).expect("memory");
    assert!(writer.push(1));
    reader.advance();
}
