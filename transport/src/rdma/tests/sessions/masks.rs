//! Devices that lack an ability: each carries the same messages, over either kind of completion
//! queue.

mod suite;

use ibex_verbs::{
    CompletionPolling,
    abi::{send_flags, wr_opcode},
    provider::fake::Mask,
};

use super::*;
use crate::rdma::settings_of;

/// Returns each masked device, polled in each way.
fn masked() -> impl Iterator<Item = (FakeProvider, PortSettings, &'static Mask)> {
    Mask::ALL.iter().flat_map(|mask| {
        Mask::POLLINGS.iter().map(move |&polling| {
            println!("{}, {polling}", mask.name);
            let fake = one_device();
            fake.change(DEVICE, mask.device);
            let mut wanted = PortSettings {
                completion_polling: Some(polling),
                ..settings()
            };
            settings_of(mask)(&mut wanted);
            (fake, wanted, mask)
        })
    })
}

/// Plays a scenario on each masked device.
fn on_each(play: fn(&Stage)) {
    for (fake, settings, mask) in masked() {
        let stage = Stage::on(fake, settings);
        play(&stage);
        assert_eq!(
            stage.fake.batches().0 > 0,
            settings.completion_polling != Some(CompletionPolling::Plain)
        );
        check_posted(&stage, mask);
    }
}

/// Checks that the requests use all that the device can do. The fake refuses requests that need
/// more, which ends the session.
fn check_posted(stage: &Stage, mask: &Mask) {
    let posted = stage.fake.posted();
    let some = |flag| posted.iter().any(|send| send.flags & flag != 0);
    if mask.name == "whole" {
        assert!(some(send_flags::INLINE));
        assert!(posted.iter().any(|send| send.entries.len() > 1));
    }
    if mask.name == "no-immediate" {
        let plain = |send: &ibex_verbs::provider::fake::PostedSend| {
            send.opcode == wr_opcode::SEND || send.opcode == wr_opcode::RDMA_WRITE
        };
        assert!(posted.iter().all(plain));
    }
}

/// Sends all messages, and takes each as it arrives.
fn carry(stage: &Stage, sender: &mut SendHandle, receiver: &mut ReceiveHandle, lengths: &[usize]) {
    let (mut sent, mut taken, mut idle) = (0, 0, 0);
    while taken < lengths.len() {
        while sent < lengths.len() && try_send(sender, &payload(sent as u64, lengths[sent])).is_ok()
        {
            sent += 1;
        }
        stage.settle();
        let before = taken;
        while let Some(message) = receiver.poll().unwrap() {
            assert_eq!(message.sequence(), taken as u64 + 1);
            assert!(
                message.bytes() == payload(taken as u64, lengths[taken]),
                "message {taken}"
            );
            taken += 1;
        }
        stage.settle();
        // A long message takes some rounds.
        idle = if taken > before { 0 } else { idle + 1 };
        assert!(idle < 100, "nothing comes behind message {taken}");
    }
}

#[test]
fn every_size_arrives_whole() {
    on_each(|stage| {
        let (mut sender, mut receiver) = stage.channel("sizes", WINDOW);
        let around = |border: usize| border.saturating_sub(70)..border + 70;
        let mut lengths: Vec<usize> = (0..300).step_by(7).collect();
        for border in [4096, 8192, 65_536] {
            lengths.extend(around(border).step_by(9));
        }
        lengths.extend([100_000, (1 << 20) + 1, 1]);
        carry(stage, &mut sender, &mut receiver, &lengths);
    });
}

#[test]
fn many_messages_arrive_in_order_and_once() {
    on_each(|stage| {
        let window = ChannelWindow {
            messages: 64,
            bytes: 64 << 10,
        };
        let (mut sender, mut receiver) = stage.channel("order", window);
        let lengths: Vec<usize> = (0..800).map(|number| number * 37 % 3000).collect();
        carry(stage, &mut sender, &mut receiver, &lengths);
    });
}

#[test]
fn both_ways_and_many_channels_share_the_queues() {
    on_each(|stage| {
        let mut ends: Vec<_> = (0..64)
            .map(|number| stage.open(number % 2, &format!("channel {number}"), WINDOW))
            .collect();
        stage.settle();
        for round in 0..4 {
            for (sender, _) in &mut ends {
                send(sender, round, 200 + 100 * round as usize);
            }
            stage.settle();
            for (_, receiver) in &mut ends {
                let message = receiver.poll().unwrap().unwrap();
                assert_eq!(message.bytes(), payload(round, 200 + 100 * round as usize));
            }
        }
    });
}

#[test]
fn a_receiver_that_holds_messages_holds_back_only_their_sender() {
    on_each(|stage| {
        let window = ChannelWindow {
            messages: 16,
            bytes: 64 << 10,
        };
        let (mut sender, mut receiver) = stage.channel("held", window);
        let (mut other, mut others) = stage.channel("other", window);
        let mut sent = 0;
        let mut held = Vec::new();
        for _ in 0..40 {
            while try_send(&mut sender, &payload(sent, 900)).is_ok() {
                sent += 1;
            }
            stage.settle();
            held.extend(take(&mut receiver).unwrap());
        }
        assert_eq!((sent, held.len()), (16, 16));
        send(&mut other, 7, 900);
        stage.settle();
        assert_eq!(consume(&mut others), 1);
        for (number, message) in held.iter().enumerate() {
            assert_eq!(message.bytes(), payload(number as u64, 900));
        }
        held.clear();
        stage.settle();
        // A check by the receiver gives back what was released.
        assert!(receiver.receive(Patience::None).is_err());
        stage.settle();
        send(&mut sender, 16, 900);
    });
}

#[test]
fn a_channel_ends_behind_its_last_message() {
    on_each(|stage| {
        let (mut sender, mut receiver) = stage.channel("end", WINDOW);
        for number in 0..50 {
            send(&mut sender, number, 2000);
        }
        drop(sender);
        stage.settle();
        assert_eq!(consume_until_over(&mut receiver), 50);

        let (mut sender, receiver) = stage.channel("left", WINDOW);
        drop(receiver);
        stage.settle();
        assert!(try_send(&mut sender, &[1; 8]).is_err());
    });
}
