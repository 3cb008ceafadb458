//! Large messages that no device reads, although their sender would let it.

use super::*;

#[test]
fn a_device_that_cannot_gets_chunks() {
    let cannot: [fn(&mut FakeDevice); 3] = [
        |device| device.has_windows = false,
        |device| device.attributes.max_responder_resources = 0,
        |device| device.attributes.max_initiator_depth = 0,
    ];
    for change in cannot {
        let fake = one_device();
        fake.change(DEVICE, change);
        let stage = Stage::on(fake, reading());
        assert_eq!(stage.fake.alive().get("memory windows"), None);
        let (mut sender, mut receiver) = stage.channel("chunks", WINDOW);
        send(&mut sender, 1, 300_000);
        send(&mut sender, 2, 10);
        stage.settle();
        let messages = take(&mut receiver).unwrap();
        assert_eq!(messages[0].bytes(), payload(1, 300_000));
        assert_eq!(messages[1].bytes(), payload(2, 10));
        assert!(reads(&stage).is_empty() && offers(&stage).is_empty());
        assert_eq!(stage.stats()[1].bytes_copied, 300_000);
    }
}

#[test]
fn hardware_that_passes_the_test_reads_and_other_devices_do_not() {
    let good: fn(&mut FakeDevice) = |_| {};
    let no_windows: fn(&mut FakeDevice) = |device| device.has_windows = false;
    let no_reads: fn(&mut FakeDevice) = |device| device.attributes.max_initiator_depth = 0;
    for (kind, change, expected) in [
        (DeviceKind::Hardware, good, (3, 3)),
        (DeviceKind::Hardware, no_windows, (0, 0)),
        (DeviceKind::Hardware, no_reads, (0, 0)),
        (DeviceKind::Software, good, (0, 0)),
    ] {
        let fake = one_device();
        fake.change(DEVICE, change);
        let port = RdmaPort::open(&fake.provider(), &choice(kind), settings()).unwrap();
        let reads = port.prepare(true).unwrap().endpoint().reads;
        assert_eq!((reads.depth, reads.resources), expected);
        let windows = fake.alive().get("memory windows").copied();
        assert_eq!(windows, None, "the test and the queue pair are gone");
    }
}

#[test]
fn messages_for_which_a_device_has_no_windows_go_in_chunks() {
    let fake = one_device();
    // One window for each port's test, and one of its session's.
    let no_more = (4..20).fold(FaultScript::new(), |script, nth| {
        script.refuse(Call::CreateWindow, nth, Errno::NOMEM)
    });
    fake.play(&no_more);
    let stage = Stage::on(fake, reading());
    let mut channels = ["a", "b"].map(|name| stage.channel(name, WINDOW));
    for (sender, _) in &mut channels {
        send(sender, 1, 300_000);
        send(sender, 2, 300_000);
    }
    stage.settle();
    for (_, receiver) in &mut channels {
        let messages = take(receiver).unwrap();
        assert_eq!(messages[0].bytes(), payload(1, 300_000));
        assert_eq!(messages[1].bytes(), payload(2, 300_000));
    }
    let [ours, theirs] = stage.stats();
    assert!((1..4).contains(&ours.rendezvous_sent), "{ours:?}");
    assert_eq!(theirs.bytes_copied, 300_000 * (4 - ours.rendezvous_sent));
    assert_eq!(open_offers(&stage), 0);
}

#[test]
fn a_receiver_without_registered_memory_declines_and_gets_chunks() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("declines", WINDOW);
    // The sender's own ring and message come first.
    send(&mut sender, 1, 10);
    send(&mut sender, 2, 100_000);
    stage.fake.refuse(Call::Register, Errno::NOMEM);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[1].bytes(), payload(2, 100_000));
    assert!(reads(&stage).is_empty());
    assert_eq!((offers(&stage).len(), open_offers(&stage)), (1, 0));
    drop(messages);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn a_peer_that_is_trusted_writes_and_is_not_read() {
    let settings = PortSettings {
        grants_memory: true,
        ..reading()
    };
    let stage = Stage::with(settings);
    let (mut sender, mut receiver) = stage.channel("trusted", WINDOW);
    send(&mut sender, 1, 300_000);
    stage.settle();
    assert_eq!(take(&mut receiver).unwrap()[0].bytes(), payload(1, 300_000));
    assert!(reads(&stage).is_empty() && offers(&stage).is_empty());
    assert_eq!(stage.stats()[0].rdma_writes, 2);
}
