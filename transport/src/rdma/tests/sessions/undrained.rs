//! Queue pairs that are destroyed before they are drained, for example because the device reports
//! nothing: the shared receives that they had are replaced.

use super::{
    resuming::{Resuming, VERBS_FIRST, posted_receives},
    *,
};

/// Returns settings with few posted buffers, which are soon used twice, and `held_buffers` spare
/// ones.
fn few_and(held_buffers: u32) -> PortSettings {
    PortSettings {
        receive_buffers: 64,
        held_buffers,
        ..settings()
    }
}

/// Messages in each direction that use all buffers twice.
const TWO_ROUNDS: u64 = 150;

impl Resuming {
    /// Breaks the second node's queue pair, which has taken `receives` receives and never reports
    /// them.
    fn breaks_and_keeps(&mut self, receives: usize, times: u64) {
        self.calm_down();
        let keeps = self.newest_pairs()[1];
        self.stage.fake.swallow_receives(keeps, receives);
        self.cut();
        self.settle_resumed(times);
        self.settle_over(Fabric::Verbs);
    }

    /// Returns the receives posted at the second node.
    fn posted(&self) -> usize {
        let (_, receive) = self.stage.fake.tags();
        self.stage.fake.shared_receives(receive[1]).len()
    }
}

#[test]
fn a_shared_receive_queue_is_as_long_after_mute_queue_pairs_as_before() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), few_and(256));
    test.fall_silent();
    let posted = posted_receives(&test.stage);
    for times in 1..=3 {
        test.carry(10);
        test.breaks_and_keeps(10, times);
        test.carry(TWO_ROUNDS);
        test.finish();
        assert!(test.posted() + 16 > posted, "{} {times}", test.posted());
    }
}

#[test]
fn a_queue_that_is_nearly_empty_is_filled_as_soon_as_the_device_says_so() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), few_and(256));
    test.fall_silent();
    let posted = posted_receives(&test.stage);
    // The first break keeps as much as one peer can be lent, and the second does so again before
    // anything else arrives.
    test.breaks_and_keeps(30, 1);
    test.breaks_and_keeps(30, 2);
    assert!(test.posted() > posted / 2, "{}", test.posted());
    test.carry(TWO_ROUNDS);
    test.finish();
    assert!(test.posted() + 16 > posted, "{}", test.posted());
}

#[test]
fn a_device_that_keeps_too_many_is_opened_anew_and_sessions_go_on() {
    let little = few_and(16);
    let mut test = Resuming::by(VERBS_FIRST, one_device(), little);
    test.fall_silent();
    test.breaks_and_keeps(10, 1);
    let opened_anew = [0, 1].map(|_| open_port(&test.stage.fake, little));
    let before = test.move_to(opened_anew);
    test.carry(TWO_ROUNDS);
    test.settle_resumed(2);
    test.settle_over(Fabric::Verbs);
    assert!(before[1].is_lost() && !before[0].is_lost());
    test.carry(20);
    test.finish();
    let (_, receive) = test.stage.fake.tags();
    let last = *receive.last().unwrap();
    assert!(test.stage.fake.shared_receives(last).len() + 16 > little.receive_buffers as usize);
}
