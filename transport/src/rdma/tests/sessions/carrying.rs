//! Messages of sessions over queue pairs, and their cost.

use std::{iter, slice};

use ibex_verbs::{GidEntry, discovery::Choice, provider::fake::FakeClock};

use super::*;
use crate::wire::{MessageBytes, MessageMemory, register_with};

#[test]
fn records_arrive_in_order_several_to_a_frame_and_are_read_in_place() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("records", WINDOW);
    let before = stage.stats()[0];
    for number in 0..200 {
        send(&mut sender, number, 40);
    }
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages.len(), 200);
    let slab = stage.nodes[1].rdma_port.arrival_memory();
    for (number, message) in messages.iter().enumerate() {
        assert_eq!(message.bytes(), payload(number as u64, 40));
        assert!(slab.contains(&message.bytes().as_ptr().addr()));
    }
    let after = stage.stats();
    let frames = after[0].frames_sent - before.frames_sent;
    assert!(frames < 20, "{frames} frames for 200 records");
    assert_eq!(after[1].bytes_copied, 0);
}

#[test]
fn a_stream_of_small_records_costs_few_doorbells_and_fewer_completions() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("stream", WINDOW);
    let before = stage.stats()[0];
    stage.fake.forget_posted();
    let (mut sent, mut taken) = (0, 0);
    while sent < 100_000 {
        match try_send(&mut sender, &[7; 64]) {
            Ok(_) => sent += 1,
            Err(ChannelError::WouldBlock) => {
                stage.settle();
                taken += consume(&mut receiver);
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    stage.settle();
    assert_eq!(taken + consume(&mut receiver), sent);
    let after = stage.stats()[0];
    let doorbells = after.doorbells - before.doorbells;
    assert!(
        sent >= 8 * doorbells,
        "{doorbells} doorbells for {sent} records"
    );
    let requests = after.work_requests - before.work_requests;
    let signaled = after.signaled - before.signaled;
    assert!(16 * signaled <= requests, "{signaled} of {requests}");
    // The device counted the same, for both ends together.
    let posted = stage.fake.posted();
    let flagged = posted.iter().filter(|send| send.flags & 2 != 0).count();
    assert!(
        16 * flagged <= posted.len(),
        "{flagged} of {}",
        posted.len()
    );
}

#[test]
fn messages_have_the_time_at_which_the_device_had_them_if_it_is_wanted() {
    let lengths = [40, 1000, 300_000];
    for times in [true, false] {
        let fake = one_device();
        fake.change(DEVICE, |device| {
            let (kilohertz, mask) = (1_000_000, u64::MAX);
            device.clock = Some(FakeClock { kilohertz, mask });
        });
        let wanted = PortSettings {
            completion_times: times,
            ..settings()
        };
        let stage = Stage::on(fake, wanted);
        let (mut sender, mut receiver) = stage.channel("times", WINDOW);
        let mut notified = Vec::new();
        for (number, length) in lengths.into_iter().enumerate() {
            stage.fake.set_clock(1000 * number as u64);
            send(&mut sender, number as u64, length);
            stage.settle();
            let mut message = receiver.poll().unwrap().unwrap();
            message.detach();
            notified.extend(message.received_at());
        }
        let apart: Vec<_> = notified
            .windows(2)
            .map(|two| two[1].get() - two[0].get())
            .collect();
        assert_eq!(apart, if times { vec![1000; 2] } else { Vec::new() });
    }
}

#[test]
fn a_sender_that_only_tries_hears_of_a_release_that_an_idle_receiver_kept_back() {
    let stage = Stage::new();
    let one = ChannelWindow {
        messages: 1,
        bytes: 1 << 12,
    };
    let (mut sender, mut receiver) = stage.channel("one", one);
    for _ in 0..20 {
        if matches!(
            try_send(&mut sender, &[7; 8]),
            Err(ChannelError::WouldBlock)
        ) {
            stage.settle();
            try_send(&mut sender, &[7; 8]).unwrap();
        }
        stage.settle();
        // The receiver looks once more, and may not look again for long.
        assert!(receiver.receive(Patience::None).is_ok());
        assert!(receiver.receive(Patience::None).is_err());
    }
}

/// A peer treats an end with a LID as one on InfiniBand.
#[test]
fn an_ethernet_port_with_a_lid_tells_none() {
    let mut device = soft_roce();
    device.ports[0].attributes.lid = 1;
    let fake = FakeProvider::new(vec![device]);
    let rdma_port = open_port(&fake, settings());
    assert_eq!(rdma_port.prepare(true).unwrap().endpoint().pair.lid, 0);
}

/// A VLAN's interface has its parent's link-local GID.
#[test]
fn packets_come_from_the_interface_that_was_chosen() {
    let mut device = soft_roce();
    let own = choice(DeviceKind::Software).gid;
    let of_vlan = GidEntry {
        index: 5,
        interface_index: own.interface_index + 1,
        ..own
    };
    device.ports[0].gids.push(of_vlan);
    let fake = FakeProvider::new(vec![device]);
    for (gid, index) in [
        (own, 1),
        (of_vlan, 5),
        // The interface was recreated since, and has another number.
        (
            GidEntry {
                interface_index: 99,
                ..own
            },
            1,
        ),
    ] {
        let chosen = Choice {
            gid,
            ..choice(DeviceKind::Software)
        };
        let open = || RdmaPort::open(&fake.provider(), &chosen, settings()).unwrap();
        let made = pairs([&open(), &open()]).unwrap();
        let connected = fake.modifications();
        let mut routes = connected
            .iter()
            .filter_map(|one| one.attributes.address.route);
        assert_eq!(routes.next_back().unwrap().source_index, index);
        drop(made);
    }
}

/// A session may get a device after its handle has handed a slice over.
#[test]
fn a_slice_that_a_device_cannot_have_is_copied_for_it() {
    let stage = Stage::new();
    let Node {
        session, rdma_port, ..
    } = &stage.nodes[0];
    let bytes = payload(1, 300_000);
    let heap = Region::from(bytes.clone()).slice(..);
    for from in [heap, mapped(&bytes)] {
        let (lies_at, length) = (from.as_ptr(), from.len());
        let from = MessageBytes::Slice(from, None);
        let mut message = MessageMemory::new(from, length, &session.frame_path);
        assert_eq!(message.base().as_ptr().cast_const(), lies_at);
        register_with(rdma_port, None, iter::once(&mut message), &mut Vec::new()).unwrap();
        assert_ne!(message.base().as_ptr().cast_const(), lies_at);
        // SAFETY: these are the message's bytes, which nobody writes.
        let copy = unsafe { slice::from_raw_parts(message.base().as_ptr(), length) };
        assert!(*copy == bytes[..]);
    }
}
