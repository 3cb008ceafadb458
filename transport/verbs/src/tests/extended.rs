//! Extended completion queues: batches as the manual has them, the self-test that decides
//! whether they are used, and the times that come with completions.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::*;
use crate::{
    CompletionPolling, PollingChoice, PollingWish,
    abi::Wc,
    provider::fake::{Call, FakeClock, FakeExtended, FaultScript},
};

fn queue(fake: &FakeProvider, kind: CompletionPolling) -> CompletionQueue {
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    CompletionQueue::of_kind(&device, 63, 0, kind, false).unwrap()
}

fn complete(fake: &FakeProvider, queue: &CompletionQueue, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        let completion = Wc {
            wr_id,
            ..Wc::default()
        };
        fake.complete(queue.tag(), completion);
    }
}

fn taken(queue: &mut CompletionQueue, room: usize) -> Vec<u64> {
    let mut room = vec![WorkCompletion::EMPTY; room];
    let found = queue.poll(&mut room).unwrap();
    found.iter().map(|one| one.id().to_raw()).collect()
}

#[test]
fn a_batch_takes_what_fits_and_the_rest_waits() {
    let fake = one_device();
    let mut queue = queue(&fake, CompletionPolling::Extended);
    assert!(taken(&mut queue, 4).is_empty());
    complete(&fake, &queue, 1..7);
    assert!(taken(&mut queue, 0).is_empty());
    assert_eq!(taken(&mut queue, 4), [1, 2, 3, 4]);
    assert_eq!(taken(&mut queue, 4), [5, 6]);
    assert!(taken(&mut queue, 4).is_empty());
    assert_eq!(fake.batches(), (2, 6));
    drop(queue);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_start_that_finds_the_queue_busy_is_tried_again() {
    let fake = one_device();
    let mut queue = queue(&fake, CompletionPolling::Extended);
    complete(&fake, &queue, 1..3);
    for _ in 0..5 {
        fake.refuse(Call::StartPoll, Errno::BUSY);
    }
    assert_eq!(taken(&mut queue, 4), [1, 2]);
}

#[test]
fn a_start_that_fails_is_not_ended_and_the_queue_is_lost() {
    let fake = one_device();
    let mut queue = queue(&fake, CompletionPolling::Extended);
    fake.refuse(Call::StartPoll, Errno::IO);
    let error = queue.poll(&mut [WorkCompletion::EMPTY]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0: ibv_start_poll failed: Input/output error (os error 5); the \
         completion queue is lost, and with it every connection that completes into it"
    );
}

/// The fake refuses a batch that begins before the last one has ended.
#[test]
fn a_failed_next_poll_ends_the_batch_behind_the_completions_taken() {
    let fake = one_device();
    let mut queue = queue(&fake, CompletionPolling::Extended);
    complete(&fake, &queue, 1..4);
    fake.play(&FaultScript::new().refuse(Call::NextPoll, 2, Errno::IO));
    assert_eq!(taken(&mut queue, 4), [1, 2]);
    let error = queue.poll(&mut [WorkCompletion::EMPTY]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ibv_next_poll failed: Input"), "{text}");
    assert_eq!(taken(&mut queue, 4), [3]);
}

#[test]
fn only_the_valid_fields_of_a_failed_completion_are_read() {
    let fake = one_device();
    let mut queue = queue(&fake, CompletionPolling::Extended);
    let failed = Wc {
        wr_id: send_id(3).to_raw(),
        status: 12,
        vendor_err: 0x81,
        qp_num: 7,
        ..Wc::default()
    };
    fake.complete(queue.tag(), failed);
    let mut room = [WorkCompletion::EMPTY];
    let failure = queue.poll(&mut room).unwrap()[0].outcome().unwrap_err();
    let notified = (failure.id, failure.queue_pair, failure.vendor_error);
    assert_eq!(notified, (send_id(3), 7, 0x81));
}

// ---- The self-test ---------------------------------------------------------------------

/// The wish of a hardware device, unless a test says otherwise.
const WISH: PollingWish = PollingWish {
    forced: None,
    times: false,
    is_hardware: true,
};

fn decided(fake: &FakeProvider, wish: PollingWish) -> PollingChoice {
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let local = || LocalPort::with_gid(&device, 1, |_| true);
    let polling = PollingChoice::make(&domain, &device, local, wish);
    drop((domain, device));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
    polling
}

fn with(extended: FakeExtended) -> FakeProvider {
    let fake = one_device();
    fake.change(DEVICE, |device| device.extended = extended);
    fake
}

#[test]
fn the_self_test_decides_how_a_hardware_device_is_polled() {
    let cases = [
        (FakeExtended::Works, "extended: it passed the self-test"),
        (
            FakeExtended::DrainsBeyond,
            "plain: extended: it showed a completion of no request",
        ),
        (
            FakeExtended::Absent,
            "plain: extended: RDMA device rxe0: ibv_create_cq_ex failed: Operation not \
             supported (os error 95); the device refuses what is within all limits that it tells",
        ),
        (
            FakeExtended::Loses,
            "plain: extended: 3 of 6 completions came",
        ),
    ];
    for (extended, says) in cases {
        let decided = decided(&with(extended), WISH);
        assert_eq!(decided.to_string(), says);
    }
}

#[test]
fn a_device_that_cannot_be_tested_is_polled_plainly() {
    let fake = one_device();
    fake.refuse(Call::PostSend, Errno::IO);
    fake.refuse(Call::PostSend, Errno::IO);
    let decided = decided(&fake, WISH);
    assert_eq!(decided.polling, CompletionPolling::Plain);
    assert!(
        decided.reason.contains("its queues take no requests"),
        "{decided}"
    );
}

#[test]
fn a_software_device_is_polled_plainly_and_a_forced_way_is_obeyed() {
    let fake = with(FakeExtended::DrainsBeyond);
    let software = PollingWish {
        is_hardware: false,
        ..WISH
    };
    let polling = decided(&fake, software).polling;
    assert_eq!(polling, CompletionPolling::Plain);
    let forced = PollingWish {
        forced: Some(CompletionPolling::Extended),
        ..software
    };
    let says = "extended: the settings say so";
    assert_eq!(decided(&fake, forced).to_string(), says);
    assert!(fake.posted().is_empty(), "no test was made");
}

// ---- Times -----------------------------------------------------------------------------

fn with_clock(kilohertz: u64, mask: u64) -> FakeProvider {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.clock = Some(FakeClock { kilohertz, mask });
    });
    fake
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64
}

#[test]
fn ticks_become_time_also_where_the_clock_is_short_and_starts_anew() {
    // A clock of 500 MHz with 32 bits wraps round each 8.6 s.
    let fake = with_clock(500_000, 0xffff_ffff);
    fake.set_clock(0xffff_ff00);
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let before = now();
    let made = CompletionQueue::of_kind(&device, 63, 0, CompletionPolling::Extended, true);
    let mut queue = made.unwrap();
    let after = now();
    assert!(queue.has_times());
    let mut time_at = |ticks| {
        fake.set_clock(ticks);
        let arrived = Wc {
            opcode: crate::abi::wc_opcode::RECV,
            ..Wc::default()
        };
        fake.complete(queue.tag(), arrived);
        let mut room = [WorkCompletion::EMPTY];
        queue.poll(&mut room).unwrap()[0].time()
    };
    let first = time_at(0xffff_ff00);
    assert!(
        (before..=after).contains(&first),
        "{before} {first} {after}"
    );
    // The stamps are 0x200 ticks of 2 ns apart.
    assert_eq!(time_at(0x1_0000_0100) - first, 1024);
    assert_eq!(first - time_at(0xffff_fe00), 512);
    // Two seconds later both clocks are read again.
    let read_again = now();
    assert!(time_at(1_000_000_000) >= read_again);
}

#[test]
fn times_are_left_out_where_the_device_has_none() {
    let wanted = PollingWish {
        times: true,
        ..WISH
    };
    let decided_with = decided(&with_clock(1_000_000, u64::MAX), wanted);
    assert_eq!(
        decided_with.to_string(),
        "extended with times: it passed the self-test"
    );
    let decided_without = decided(&one_device(), wanted);
    assert_eq!(
        (decided_without.polling, decided_without.times),
        (CompletionPolling::Extended, false)
    );
    assert!(
        decided_without.reason.contains("with times: "),
        "{decided_without}"
    );
}

/// A failed queue pair is destroyed by any thread, and takes its completions out of a queue that
/// another thread is draining.
#[test]
fn nothing_is_destroyed_in_the_middle_of_a_batch() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let kind = CompletionPolling::Extended;
    let mut queue = CompletionQueue::of_kind(&device, 63, 0, kind, false).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let made = QueuePairBuilder::new(&domain, &queue);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| {
            for _ in 0..2_000 {
                let made = made.clone();
                drop(made.build(1, ConnectionSettings::default()).unwrap());
            }
        });
        while !destroying.is_finished() {
            complete(&fake, &queue, 0..32);
            while !taken(&mut queue, 8).is_empty() {}
        }
        destroying.join().unwrap();
    });
}
