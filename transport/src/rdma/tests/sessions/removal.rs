//! A device that is removed while sessions use it: it is closed, whatever handles exist.

use std::time::{Duration, Instant};

use super::*;
use crate::{clock::StoppedClock, session::EndCause};

/// Watchdog, much longer than the interval between checks.
const PATIENCE: Duration = Duration::from_secs(300);

impl Stage {
    /// Takes the device out of the machine's list. Open objects keep working.
    fn remove_device(&self) {
        self.fake.change(DEVICE, |device| device.is_listed = false);
    }

    /// Turns both engines until the whole device is closed, which must take at most five seconds of
    /// their clock.
    fn settle_until_closed(&self, clock: &StoppedClock) {
        for _ in 0..500 {
            clock.advance(Duration::from_millis(10));
            self.settle();
        }
        // Other threads do part of the work, which may take long on a busy machine.
        let until = Instant::now() + PATIENCE;
        while !self.fake.alive().is_empty() {
            assert!(Instant::now() < until, "left: {:?}", self.fake.alive());
            self.settle();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_device_that_is_removed_is_closed_under_its_handles_and_nothing_that_came_is_lost() {
    let clock = StoppedClock::stop();
    let stage = Stage::with(PortSettings {
        grants_memory: true,
        ..settings()
    });
    let (mut sender, mut receiver) = stage.channel("cut", WINDOW);
    for number in 0..10 {
        send(&mut sender, number, 1000);
    }
    // This message is written into granted memory, with a key of the peer.
    send(&mut sender, 10, 300_000);
    stage.settle();
    // The held messages lie in buffers that are registered with the device.
    let mut held = take(&mut receiver).unwrap();
    assert_eq!(held.len(), 11);
    for number in 11..20 {
        send(&mut sender, number, 1000);
    }
    stage.settle();
    stage.remove_device();
    stage.settle_until_closed(&clock);
    // Handles, rings, messages and RDMA ports all still exist.
    assert!(stage.nodes.iter().all(|node| node.rdma_port.is_lost()));
    for _ in 11..20 {
        held.push(receiver.poll().unwrap().expect("what came before"));
    }
    for (number, message) in (0_u64..).zip(&held) {
        let length = if number == 10 { 300_000 } else { 1000 };
        assert!(*message.bytes() == payload(number, length)[..], "{number}");
    }
    let Err(ChannelError::Failed(end)) = receiver.poll() else {
        panic!("the session is over");
    };
    assert_eq!(end.counts.received, 20);
    let mut causes = vec![end_cause(&end.into())];
    let failure = try_send(&mut sender, &[1]).unwrap_err();
    let ChannelError::Failed(end) = failure else {
        panic!("{failure:?}");
    };
    assert_eq!(end.counts.sent, 20);
    assert!(end.counts.received <= 20, "{:?}", end.counts);
    // The end that looks first reports the device; for the other end the peer is gone.
    causes.push(end_cause(&end.into()));
    let why = "RDMA device rxe0 was removed from this machine".to_owned();
    assert!(causes.contains(&EndCause::DeviceLost { why }), "{causes:?}");
    // No new object can be made on the device.
    let refused = stage.nodes[0].rdma_port.prepare(true).unwrap_err();
    assert!(matches!(refused, VerbsError::Closed { .. }), "{refused}");
}

#[test]
fn a_port_without_sessions_is_closed_as_well() {
    let fake = one_device();
    let rdma_port = open_port(&fake, settings());
    let runtime = runtime(Driver::Threads);
    runtime.attach_port(&rdma_port).unwrap();
    fake.change(DEVICE, |device| device.is_listed = false);
    let until = Instant::now() + PATIENCE;
    while !fake.alive().is_empty() {
        assert!(Instant::now() < until, "left: {:?}", fake.alive());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(runtime.attach_port(&rdma_port).is_err());
}

#[test]
fn a_renamed_device_stays() {
    let fake = one_device();
    let rdma_port = open_port(&fake, settings());
    fake.change(DEVICE, |device| device.name = "another".to_owned());
    assert!(rdma_port.is_listed());
}

#[test]
fn a_closed_node_keeps_no_device_open_whatever_handles_there_are() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("kept", WINDOW);
    send(&mut sender, 0, 1000);
    stage.settle();
    let held = take(&mut receiver).unwrap();
    let file = mapped(&payload(1, 300_000));
    sender.send_region((&file).into(), Patience::None).unwrap();
    for node in &stage.nodes {
        let _ = node.runtime.close(Duration::ZERO);
    }
    assert!(stage.fake.alive().is_empty(), "{:?}", stage.fake.alive());
    assert_eq!(held[0].bytes(), payload(0, 1000));
}
