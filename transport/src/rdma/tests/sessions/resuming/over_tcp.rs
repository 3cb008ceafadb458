//! Sessions whose queue pairs break, and that continue over their connection.

use super::*;

/// Breaks a session in the middle of a stream, after `at` messages.
fn goes_on_behind(how: Breaks, at: u64, settings: PortSettings) {
    let mut test = Resuming::new(settings);
    let receives = posted_receives(&test.stage);
    test.carry(at);
    test.calm_down();
    test.stage.fake.hold_sends(true);
    test.carry(1 + at % 5);
    test.breaks(how);
    test.stage.fake.hold_sends(false);
    test.carry(5);
    test.settle_over(Fabric::Tcp);
    test.carry(40);
    test.finish();
    test.check_accounts(receives);
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2], "{how:?}");
}

#[test]
fn a_stream_in_both_directions_goes_on_wherever_it_breaks() {
    for (at, how) in (3..).step_by(11).zip(WAYS_TO_BREAK) {
        goes_on_behind(how, at, trusting());
    }
}

#[test]
fn so_it_does_where_no_memory_is_granted() {
    for (at, how) in (9..).step_by(7).zip(WAYS_TO_BREAK.into_iter().step_by(2)) {
        goes_on_behind(how, at, settings());
    }
}

#[test]
fn so_it_does_where_large_messages_are_read() {
    for (at, how) in (4..).step_by(7).zip(WAYS_TO_BREAK) {
        goes_on_behind(how, at, reading());
    }
}

#[test]
fn so_it_does_where_each_session_has_its_own_receive_queue() {
    let settings = PortSettings {
        shared_receives: false,
        ..trusting()
    };
    let mut test = Resuming::new(settings);
    test.carry(30);
    test.breaks(Breaks::PairEvent(1));
    test.carry(30);
    test.settle_over(Fabric::Tcp);
    test.finish();
    assert_eq!(test.stage.fake.alive().get("queue pairs"), None);
}

#[test]
fn a_device_that_fails_or_is_removed_is_closed_and_the_session_goes_on() {
    for is_removed in [true, false] {
        let mut test = Resuming::new(trusting());
        test.carry(30);
        let fake = &test.stage.fake;
        if is_removed {
            fake.change(DEVICE, |device| device.is_listed = false);
            for node in &test.stage.nodes {
                node.runtime.check_for_device(node.rdma_port.clone());
            }
        } else {
            let event = RawEvent {
                event_type: 8,
                element: 1,
            };
            fake.raise(DEVICE, event);
        }
        test.carry(10);
        test.settle_over(Fabric::Tcp);
        let alive = test.stage.fake.alive();
        assert!(alive.is_empty(), "{alive:?}");
        test.carry(40);
        test.finish();
        test.each(Stream::release);
    }
}

#[test]
fn a_session_whose_peer_breaks_the_protocol_is_not_resumed() {
    let mut test = Resuming::new(trusting());
    test.carry(20);
    test.calm_down();
    let [_, breaks] = &test.stage.nodes;
    (&breaks.tcp)
        .write_all(b"over a queue pair's connection")
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while !test.stage.nodes[0].session.is_gone() {
        assert!(Instant::now() < until);
        test.turn(10);
        test.pass_time();
    }
    assert_eq!(test.stage.stats()[0].suspensions, 0);
}

#[test]
fn wires_that_come_early_wait_until_the_queue_pair_is_gone() {
    let mut test = Resuming::new(trusting());
    test.carry(20);
    test.calm_down();
    // The second node only learns of the new connection.
    let [here, there] = reconnections(1, None);
    test.stage.fake.hold_sends(true);
    test.each(|stream| stream.send(2));
    test.turn(4);
    test.stage.nodes[1].runtime.resume(there);
    assert_eq!(test.stage.nodes[1].session.fabric(), Fabric::Verbs);
    test.stage.nodes[0].runtime.resume(here);
    assert_eq!(test.stage.nodes[0].session.fabric(), Fabric::Verbs);
    test.stage.fake.hold_sends(false);
    test.settle_over(Fabric::Tcp);
    test.carry(20);
    test.finish();
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2]);
}

#[test]
fn a_sender_is_told_of_messages_that_its_peer_holds_on_to() {
    let mut test = Resuming::new(trusting());
    let [stream, _] = &mut test.channels;
    let mut held = Vec::new();
    for number in 1..100 {
        let message = payload(number, if number % 3 == 0 { 100_000 } else { 20_000 });
        if let Err(failure) = try_send(&mut stream.sender, &message) {
            panic!("message {number} waits for those before, which are held: {failure:?}");
        }
        test.stage.settle();
        held.extend(take(&mut stream.receiver).unwrap());
    }
    assert_eq!(held.len(), 99);
}
