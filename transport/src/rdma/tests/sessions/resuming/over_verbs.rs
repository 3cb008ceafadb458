//! Sessions whose wires break, and that continue over other queue pairs.

use super::*;

fn gets_another_pair_behind(how: Breaks, at: u64, settings: PortSettings) {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), settings);
    let receives = match settings.shared_receives {
        true => posted_receives(&test.stage),
        false => 0,
    };
    // One session breaks repeatedly.
    for times in 1..3 {
        test.carry(at);
        test.calm_down();
        test.stage.fake.hold_sends(true);
        test.carry(1 + (at + times) % 5);
        test.breaks(how);
        test.stage.fake.hold_sends(false);
        test.carry(5);
        test.settle_resumed(times);
        test.settle_over(Fabric::Verbs);
    }
    let written = test.written();
    test.carry(40);
    test.finish();
    if settings.grants_memory || settings.reads_large.is_some() {
        assert!(
            test.written() > written,
            "large messages go by writes or reads again"
        );
    }
    if settings.shared_receives {
        test.check_accounts_over_verbs(receives);
    }
    // The windows of the queue pairs that broke are gone, and their keys.
    let windows = test.stage.fake.alive().get("memory windows").copied();
    let are_read = settings.reads_large == Some(true);
    assert_eq!(windows, are_read.then_some(8));
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(2, 2); 2], "{how:?}");
}

#[test]
fn a_stream_goes_on_over_another_queue_pair_wherever_it_breaks() {
    for (at, how) in (3..).step_by(7).zip(WAYS_TO_BREAK) {
        gets_another_pair_behind(how, at, trusting());
    }
}

#[test]
fn large_messages_are_read_over_another_queue_pair_too() {
    for (at, how) in (6..).step_by(7).zip(WAYS_TO_BREAK) {
        gets_another_pair_behind(how, at, reading());
    }
}

#[test]
fn another_queue_pair_is_as_good_where_no_memory_is_granted_or_no_queue_shared() {
    for (at, how) in [(9, Breaks::Send(5)), (16, Breaks::Connection)] {
        gets_another_pair_behind(how, at, settings());
    }
    let own = PortSettings {
        shared_receives: false,
        ..trusting()
    };
    for (at, how) in [(5, Breaks::Receive(5)), (14, Breaks::Connection)] {
        gets_another_pair_behind(how, at, own);
    }
}

#[test]
fn where_no_queue_pair_is_to_be_had_it_goes_on_over_tcp_when_it_is_time() {
    for after in [Duration::ZERO, Duration::from_secs(1)] {
        let ways = FailoverPolicy::VerbsThenTcp { after };
        let mut test = Resuming::by(ways, one_device(), trusting());
        test.carry(30);
        *test.way.rdma_ports.lock().unwrap() = None;
        let broken = clock::now();
        test.breaks(Breaks::PairEvent(1));
        test.settle_resumed(1);
        test.settle_over(Fabric::Tcp);
        assert!(clock::now() >= broken + after);
        let asked = test.way.asked.lock().unwrap().clone();
        let (last, before) = asked.split_last().unwrap();
        assert_eq!(*last, Fabric::Tcp);
        assert!(before.iter().all(|fabric| *fabric == Fabric::Verbs));
        assert_eq!(before.is_empty(), after.is_zero());
        test.carry(40);
        test.finish();
        test.each(Stream::release);

        // The session stays on its connection even if it is offered a queue pair, because its
        // messages may be too long.
        let rdma_ports = test
            .stage
            .nodes
            .each_ref()
            .map(|node| node.rdma_port.clone());
        let pairs = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap();
        let [_here, there] = reconnections(100, Some(pairs));
        test.stage.nodes[1].runtime.resume(there);
        test.settle_resumed(2);
        test.settle_over(Fabric::Tcp);
        test.carry(20);
        test.finish();
    }
}

#[test]
fn where_only_verbs_will_do_it_waits_for_it() {
    let only = FailoverPolicy::Only(Fabric::Verbs);
    let mut test = Resuming::by(only, one_device(), trusting());
    test.carry(30);
    let rdma_ports = test.way.rdma_ports.lock().unwrap().take();
    test.breaks(Breaks::PairEvent(1));
    test.carry(3);
    test.settle_asking();
    for _ in 0..1000 {
        test.carry(1);
        test.pass_time();
    }
    let sessions = || test.stage.nodes.iter().map(|node| &node.session);
    assert!(sessions().all(|session| session.is_suspended()));
    assert!(sessions().all(|session| session.fabric() == Fabric::Verbs));
    *test.way.rdma_ports.lock().unwrap() = rdma_ports;
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    test.carry(40);
    test.finish();
    let asked = test.way.asked.lock().unwrap();
    assert!(asked.iter().all(|fabric| *fabric == Fabric::Verbs));
}

#[test]
fn a_device_that_was_removed_and_is_back_is_used_again() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(30);
    *test.way.rdma_ports.lock().unwrap() = None;
    test.stage
        .fake
        .change(DEVICE, |device| device.is_listed = false);
    for node in &test.stage.nodes {
        node.runtime.check_for_device(node.rdma_port.clone());
    }
    test.carry(10);
    test.settle_asking();
    let alive = test.stage.fake.alive();
    assert!(alive.is_empty(), "{alive:?}");
    test.stage
        .fake
        .change(DEVICE, |device| device.is_listed = true);
    let rdma_ports = [0, 1].map(|_| open_port(&test.stage.fake, trusting()));
    *test.way.rdma_ports.lock().unwrap() = Some(rdma_ports);
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    let written = test.written();
    test.carry(40);
    test.finish();
    assert!(test.written() > written);
    test.each(Stream::release);
}

#[test]
fn queue_pairs_that_come_early_wait_until_the_one_before_is_gone() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(20);
    test.calm_down();
    let [here, there] = reconnections(1, Some(test.way.pairs().unwrap()));
    test.stage.fake.hold_sends(true);
    test.each(|stream| stream.send(2));
    test.turn(4);
    test.stage.nodes[1].runtime.resume(there);
    test.stage.nodes[0].runtime.resume(here);
    test.stage.fake.hold_sends(false);
    test.settle_resumed(1);
    test.settle_over(Fabric::Verbs);
    test.carry(20);
    test.finish();
    let stats = test.stage.stats();
    let counts = stats.map(|stats| (stats.suspensions, stats.resumes));
    assert_eq!(counts, [(1, 1); 2]);
}

/// The registrations at a port that a session has left end behind the turn: one that ends inside would
/// panic.
#[test]
fn a_session_moves_from_port_to_port() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    let mut left = Vec::new();
    for moves in 1..=3 {
        test.carry(20);
        test.calm_down();
        let rdma_ports = [0, 1].map(|_| open_port(&test.stage.fake, trusting()));
        left.push(test.move_to(rdma_ports));
        // Large messages are under way.
        test.stage.fake.hold_sends(true);
        test.each(|stream| stream.send(16));
        test.turn(20);
        test.breaks(Breaks::Send(12));
        test.stage.fake.hold_sends(false);
        test.settle_resumed(moves);
        test.settle_over(Fabric::Verbs);
    }
    test.carry(20);
    test.finish();
    test.each(Stream::release);
}

/// What is left of a wire that cannot be made is dropped behind the turn, too.
#[test]
fn a_session_whose_next_queue_pair_was_never_connected_ends() {
    let mut test = Resuming::by(VERBS_FIRST, one_device(), trusting());
    test.carry(20);
    test.calm_down();
    let pairs = [true, false].map(|dialed| {
        let rdma_port = &test.stage.nodes[usize::from(!dialed)].rdma_port;
        rdma_port.prepare(dialed).unwrap()
    });
    let [_, there] = reconnections(1, Some(pairs));
    test.stage.nodes[1].runtime.resume(there);
    test.stage.settle();
    let end = &mut test.channels[0].receiver;
    let cause = end_cause(&end.receive(Patience::None).unwrap_err()).to_string();
    assert!(cause.contains("never connected"), "{cause}");
}
