//! What goes out, in which order, and what new wires do to it.

use super::*;

fn close(end: u32) -> Control {
    Control::Close {
        end,
        role: crate::format::control::Role::Receiver,
        reason: crate::format::control::CloseReason::Dropped,
        final_sequence: 0,
    }
}

fn all(queue: &mut ControlQueue) -> Vec<Option<Control>> {
    std::iter::from_fn(|| queue.next()).collect()
}

#[test]
fn a_question_takes_the_place_of_an_older_one_for_the_same_end() {
    let mut queue = ControlQueue::new();
    queue.ask(1, Ask::acknowledged(3));
    queue.say(close(2));
    queue.ask(1, Ask::acknowledged(5));
    queue.ask(4, Ask::acknowledged(1));
    let ask = |channel, sequence| {
        let ask = Ask::acknowledged(sequence);
        Some(Control::Ask { channel, ask })
    };
    assert_eq!(all(&mut queue), [ask(1, 5), Some(close(2)), ask(4, 1)]);
}

#[test]
fn messages_go_before_questions_for_any_answer_and_these_before_answers() {
    let mut queue = ControlQueue::new();
    queue.answer();
    queue.query(2);
    queue.say(close(1));
    assert!(queue.has_any() && queue.has_errands);
    let query = Some(Control::Query);
    let due = [Some(close(1)), query.clone(), query, None];
    assert_eq!(all(&mut queue), due);
    assert!(!queue.has_any());
}

#[test]
fn without_wires_nothing_is_kept_but_what_follows_from_the_session() {
    let mut queue = ControlQueue::new();
    queue.say(close(1));
    queue.query(1);
    queue.answer();
    queue.found_damage();
    queue.suspend();
    assert!(queue.is_suspended());
    queue.say(close(2));
    assert_eq!(all(&mut queue), []);
    queue.resume();
    queue.say(close(3));
    assert_eq!(all(&mut queue), [Some(Control::Damaged { times: 1 })]);
    queue.stage = Stage::Live;
    queue.say(close(4));
    assert_eq!(all(&mut queue), [Some(close(4))]);
}

#[test]
fn a_goodbye_has_the_first_reason_and_is_said_again_over_new_wires() {
    let mut queue = ControlQueue::new();
    queue.repeat();
    assert!(!queue.goodbye_is_due(), "none was said");
    queue.say_goodbye(Some("done".into()));
    queue.say_goodbye(None);
    let goodbye = Control::Goodbye {
        reason: Some("done".into()),
    };
    for _ in 0..2 {
        assert!(queue.goodbye_is_due() && !queue.sent_goodbye());
        assert_eq!(queue.take_goodbye(), goodbye);
        assert!(queue.sent_goodbye() && !queue.goodbye_is_due());
        queue.repeat();
    }
}

#[test]
fn draining_is_said_as_it_goes_on_and_again_over_new_wires() {
    let mut queue = ControlQueue::new();
    let draining = |is_done| Some(Control::Draining { is_done });
    queue.say_draining(false);
    queue.say_draining(false);
    assert_eq!(all(&mut queue), [draining(false)]);
    queue.say_draining(true);
    queue.say_draining(false);
    assert_eq!(all(&mut queue), [draining(true)]);
    queue.repeat();
    assert_eq!(all(&mut queue), [draining(true)]);
}
