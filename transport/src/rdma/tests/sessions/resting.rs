//! A silent sender's ring is given back when the device is done with it.

use std::time::Duration;

use super::*;
use crate::clock::StoppedClock;

/// Time from one turn of both engines to the next.
const TICK: Duration = Duration::from_millis(10);
/// Number of ticks that take longer than two checks for silent channels.
const SILENCE: usize = 350;
/// Number of ticks within which every ring that can be given back is. The number of checks that this
/// takes depends on what the device has reported by then.
const PATIENCE: usize = 6000;

impl Stage {
    /// Returns the number of regions that are registered at both ends.
    fn regions(&self) -> usize {
        self.fake.alive()["memory regions"]
    }

    /// Turns both engines until `regions` regions are registered, or time is up. Returns whether
    /// that number was reached.
    fn settles_at(&self, regions: usize, clock: &StoppedClock) -> bool {
        for _ in 0..PATIENCE {
            if self.regions() == regions {
                return true;
            }
            clock.advance(TICK);
            self.settle();
        }
        false
    }

    fn stays_at(&self, regions: usize, clock: &StoppedClock) {
        for _ in 0..SILENCE {
            clock.advance(TICK);
            self.settle();
            assert_eq!(self.regions(), regions);
        }
    }
}

#[test]
fn a_ring_goes_back_although_its_last_sends_asked_for_no_completion() {
    let clock = StoppedClock::stop();
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("rests", WINDOW);
    let before = stage.regions();
    for number in 1..4 {
        send(&mut sender, number, 100);
        stage.settle();
        let message = take(&mut receiver).unwrap().remove(0);
        assert_eq!(message.bytes(), payload(number, 100));
        message.acknowledge();
        assert_eq!(stage.regions(), before + 1);
        assert!(stage.settles_at(before, &clock));
    }
}

#[test]
fn a_ring_stays_until_the_device_has_completed_its_send() {
    let clock = StoppedClock::stop();
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("rests", WINDOW);
    let before = stage.regions();
    send(&mut sender, 1, 100);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    // The request whose completion would show that the device is done waits in its queue.
    stage.fake.hold_sends(true);
    stage.stays_at(before + 1, &clock);
    stage.fake.hold_sends(false);
    assert!(stage.settles_at(before, &clock));
}

#[test]
fn a_ring_goes_back_while_another_channel_of_the_session_is_busy() {
    let clock = StoppedClock::stop();
    let stage = Stage::new();
    let (mut silent, mut receiver) = stage.channel("silent", WINDOW);
    let (mut busy, mut taker) = stage.channel("busy", WINDOW);
    send(&mut busy, 0, 100);
    let before = stage.regions();
    send(&mut silent, 1, 100);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    for _ in 0..PATIENCE {
        if stage.regions() == before {
            return;
        }
        clock.advance(TICK);
        send(&mut busy, 1, 100);
        stage.settle();
        consume(&mut taker);
    }
    panic!("the ring stays");
}
