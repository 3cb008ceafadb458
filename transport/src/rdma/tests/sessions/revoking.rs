//! Offers and reads that end in other ways than that their message is taken.

use ibex_protocol::transfer::rendezvous::LARGE_PER_CHANNEL;
use ibex_verbs::{
    abi::{Wc, wc_opcode, wr_opcode},
    provider::{
        RawEvent,
        fake::{Call, FaultScript},
    },
};
use rustix::io::Errno;

use super::{pulling::*, *};

/// `IBV_EVENT_QP_FATAL`.
const QUEUE_PAIR_FATAL: u32 = 1;

/// Returns how many messages' memory the first node may use again.
fn kept(stage: &Stage) -> usize {
    stage.nodes[0].runtime.large_pool.kept()
}

fn windows(stage: &Stage) -> Option<usize> {
    stage.fake.alive().get("memory windows").copied()
}

fn invalidations(stage: &Stage) -> usize {
    let posted = stage.fake.posted().into_iter();
    posted
        .filter(|send| send.opcode == wr_opcode::LOCAL_INVALIDATE)
        .count()
}

/// Turns the first node until nothing moves there.
fn settle_first(stage: &Stage) {
    while stage.nodes[0].runtime.poll_ready() {}
}

/// Drops the receiver of a channel, and lets the sender's node learn of it. Sends are held back.
fn drop_receiver(stage: &Stage, receiver: ReceiveHandle) {
    drop(receiver);
    while stage.nodes[1].runtime.poll_ready() {}
    stage.fake.release(stage.queue_pairs()[1], 100);
    settle_first(stage);
}

/// Completions of receives and of sends have no common order.
#[test]
fn a_read_that_failed_brings_nothing_although_a_frame_arrives_behind_it() {
    let stage = Stage::with(reading());
    let (_sender, mut receiver) = half_read(&stage, 100_000);
    let [_, reads] = stage.queue_pairs();
    stage.fake.fail_send(reads, 12, 0);
    let (completions, receives) = stage.fake.tags();
    let arrived = Wc {
        wr_id: stage.fake.shared_receives(receives[1])[0].wr_id,
        opcode: wc_opcode::RECV,
        qp_num: reads,
        ..Wc::default()
    };
    stage.fake.complete(completions[1], arrived);
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(matches!(why(&mut receiver), EndCause::PeerGone { .. }));
}

#[test]
fn an_offer_whose_window_is_not_bound_yet_ends_behind_the_binding() {
    let stage = Stage::with(reading());
    let (mut sender, receiver) = stage.channel("binding", WINDOW);
    stage.fake.hold_sends(true);
    send(&mut sender, 1, LONG);
    settle_first(&stage);
    assert_eq!((offers(&stage).len(), open_offers(&stage)), (1, 0));
    drop_receiver(&stage, receiver);
    assert_eq!(invalidations(&stage), 1);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!(open_offers(&stage), 0);
    drop(sender);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn memory_is_used_again_when_nobody_may_read_there_any_more() {
    let stage = Stage::with(reading());
    let made = windows(&stage);
    let (sender, receiver) = offered(&stage);
    settle_first(&stage);
    stage.fake.hold_sends(true);
    drop_receiver(&stage, receiver);
    assert_eq!((invalidations(&stage), open_offers(&stage)), (1, 1));
    assert_eq!(kept(&stage), 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!((kept(&stage), open_offers(&stage)), (1, 0));
    assert_eq!(windows(&stage), made, "no window comes or goes");
    drop(sender);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn memory_waits_for_room_to_revoke_its_offer() {
    let settings = PortSettings {
        send_requests: 64,
        session_credit: 100,
        ..reading()
    };
    let stage = Stage::with(settings);
    let (mut other, _other) = stage.channel("other", WINDOW);
    let (_sender, receiver) = offered(&stage);
    settle_first(&stage);
    stage.fake.hold_sends(true);
    for number in 0..settings.send_requests.into() {
        send(&mut other, number, 4000);
        settle_first(&stage);
    }
    drop_receiver(&stage, receiver);
    assert_eq!((invalidations(&stage), kept(&stage)), (0, 0));
    stage.fake.release(stage.queue_pairs()[0], 100);
    settle_first(&stage);
    assert_eq!((invalidations(&stage), kept(&stage)), (1, 0));
    stage.fake.hold_sends(false);
    stage.settle();
    assert_eq!((open_offers(&stage), kept(&stage)), (0, 1));
}

/// A handle may be in the middle of a message when its node closes.
#[test]
fn a_message_that_is_sent_while_the_node_closes_leaves_others_as_they_are() {
    let stage = Stage::with(reading());
    let (_sender, mut receiver) = offered(&stage);
    stage.nodes[0].runtime.begin_close();
    let session = &stage.nodes[0].session;
    let memory = session.lease_large(LONG).unwrap();
    session.requests.send_large(1, 2, LONG, memory.into());
    settle_first(&stage);
    assert_eq!((open_offers(&stage), kept(&stage)), (1, 0));
    stage.settle();
    let message = receiver.poll().unwrap().expect("it was sent");
    assert_eq!(message.bytes(), payload(3, LONG));
    assert_eq!(open_offers(&stage), 0);
}

#[test]
fn memory_waits_for_the_end_of_a_queue_pair_whose_windows_cannot_be_freed() {
    let stage = Stage::with(reading());
    let (_sender, receiver) = offered(&stage);
    settle_first(&stage);
    stage.fake.hold_sends(true);
    drop_receiver(&stage, receiver);
    stage.fake.lose_last_events(true);
    stage.fake.refuse(Call::DestroyWindow, Errno::BUSY);
    let [pair, _] = stage.queue_pairs();
    stage.fake.raise(
        DEVICE,
        RawEvent {
            event_type: QUEUE_PAIR_FATAL,
            element: pair.into(),
        },
    );
    settle_first(&stage);
    assert_eq!(kept(&stage), 0, "nothing shows that the queue pair is over");
}

#[test]
fn a_window_that_cannot_be_bound_is_no_offer() {
    let stage = Stage::with(reading());
    let (mut sender, mut receiver) = stage.channel("refused", WINDOW);
    send(&mut sender, 1, 10);
    stage.settle();
    // The announcement is posted first.
    stage
        .fake
        .play(&FaultScript::new().refuse(Call::PostSend, 2, Errno::NOMEM));
    send(&mut sender, 2, 100_000);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages[1].bytes(), payload(2, 100_000));
    assert_eq!((offers(&stage).len(), reads(&stage).len()), (0, 0));
    drop(messages);
    stage.settle();
    check_goes_on(&stage);
}

#[test]
fn no_window_is_made_for_a_message() {
    let fake = one_device();
    // Each port makes one to try; then one node has one for its session, and the other has none.
    let refused = [4, 5].into_iter();
    let script = refused.fold(FaultScript::new(), |script, nth| {
        script.refuse(Call::CreateWindow, nth, Errno::NOMEM)
    });
    fake.play(&script);
    let stage = Stage::on(fake, reading());
    assert_eq!(windows(&stage), Some(1));
    let (mut sender, mut receiver) = stage.channel("few", WINDOW);
    for number in 0..10 {
        for _ in 0..LARGE_PER_CHANNEL {
            send(&mut sender, number, 100_000);
        }
        stage.settle();
        assert_eq!(consume(&mut receiver), 2);
        stage.settle();
    }
    assert_eq!(windows(&stage), Some(1));
}
