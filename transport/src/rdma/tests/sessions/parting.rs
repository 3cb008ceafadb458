//! Sessions whose queue pairs break between two goodbyes.

use std::time::{Duration, Instant};

use super::{
    resuming::{Breaks, PATIENCE, Resuming, TICK, VERBS_FIRST, trusting},
    *,
};
use crate::{clock, node::What, session::EndCause};

impl Resuming {
    /// Makes a session whose second end has sent its goodbye, with the answer in flight.
    fn answering() -> Self {
        let mut test = Self::by(VERBS_FIRST, one_device(), trusting());
        test.carry(10);
        test.calm_down();
        let stage = &test.stage;
        stage.nodes[1].runtime.begin_close();
        stage.fake.hold_sends(true);
        let [ours, theirs] = stage.queue_pairs();
        let is_sent = || {
            let posted = stage.fake.posted();
            posted.last().is_some_and(|send| send.queue_pair == ours)
        };
        stage.fake.forget_posted();
        while !is_sent() {
            stage.nodes.iter().for_each(|node| {
                node.runtime.poll_ready();
            });
            stage.fake.release(theirs, 100);
        }
        test
    }

    /// Returns the cause for the end of the session that the first end gets.
    fn cause_told(&self) -> EndCause {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until);
            self.turn(10);
            self.clock.advance(TICK);
            let events = &self.stage.nodes[0].runtime;
            while let Some(event) = events.next_event(Patience::None) {
                if let What::Gone { cause } = event.what {
                    return cause;
                }
            }
        }
    }
}

#[test]
fn a_peer_that_cannot_be_answered_is_waited_for_no_longer_than_the_answer_may_take() {
    let test = Resuming::answering();
    test.block_way(true);
    test.breaks(Breaks::Send(12));
    let broken = clock::now();
    assert_eq!(test.cause_told(), EndCause::Goodbye);
    // The rest of one second was left; the session's time-out is half a minute.
    assert!(clock::now() <= broken + Duration::from_secs(1));
    assert_eq!(test.stage.stats()[0].suspensions, 1);
}

#[test]
fn a_peer_that_has_left_is_not_called_back_to_be_answered() {
    let test = Resuming::answering();
    test.cut();
    assert_eq!(test.cause_told(), EndCause::Goodbye);
    assert_eq!(test.stage.stats()[0].suspensions, 0);
}
