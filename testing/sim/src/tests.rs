//! Runs of many seeds, and a few targeted stories that random seeds would hit too seldom.

use ibex_protocol::framing::{Carriage, LEAST_BUFFER_BYTES};

use super::*;

/// Runs many seeds; `IBEX_SIM_SEED=n` repeats the run of one seed.
#[test]
fn no_seed_breaks_a_rule() {
    if let Ok(seed) = std::env::var("IBEX_SIM_SEED") {
        let seed = seed.parse().expect("IBEX_SIM_SEED is a number");
        println!("{:#?}", SimOptions::from_seed(seed));
        println!("{:#?}", finish(seed, Simulation::new(seed)));
        return;
    }
    let mut sum = Summary::default();
    for seed in 0..SEEDS {
        let run = finish(seed, Simulation::new(seed));
        sum.opened += run.opened;
        sum.mismatched += run.mismatched;
        sum.aborted += run.aborted;
        sum.messages += run.messages;
        sum.large += run.large;
        sum.written += run.written;
        sum.landed += run.landed;
        sum.returned += run.returned;
        sum.out_of_credit += run.out_of_credit;
        sum.resumed += run.resumed;
        sum.replayed += run.replayed;
        sum.lone += run.lone;
        sum.lone_in += run.lone_in;
        sum.grants_waited += run.grants_waited;
        sum.leftovers += run.leftovers;
    }
    // A rule holds trivially if nothing challenges it.
    assert!(
        sum.opened > 5 * SEEDS && sum.mismatched > SEEDS / 10,
        "{sum:?}"
    );
    assert!(sum.aborted > SEEDS / 8, "{sum:?}");
    assert!(sum.messages > 50 * SEEDS && sum.large > SEEDS, "{sum:?}");
    assert!(sum.written > SEEDS / 8, "{sum:?}");
    assert!(sum.landed > SEEDS / 8, "{sum:?}");
    assert!(sum.returned > SEEDS / 8, "{sum:?}");
    assert!(sum.resumed > 5 * SEEDS && sum.replayed > SEEDS, "{sum:?}");
    assert!(sum.out_of_credit > SEEDS, "{sum:?}");
    assert!(sum.lone > SEEDS && sum.lone_in > SEEDS, "{sum:?}");
    assert!(sum.grants_waited > SEEDS / 8, "{sum:?}");
    assert!(sum.leftovers > SEEDS / 8, "{sum:?}");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in [1, 2, 3, u64::MAX] {
        let [first, again] = [(); 2].map(|()| finish(seed, Simulation::new(seed)));
        assert_eq!(first, again);
    }
    assert_ne!(
        finish(1, Simulation::new(1)).trace,
        finish(2, Simulation::new(2)).trace
    );
}

/// A campaign's seed also makes the same runs, on any number of threads.
#[test]
fn the_same_seed_makes_the_same_campaign() {
    let (first, again) = (campaign(1, 150_000, 1), campaign(1, 150_000, 3));
    assert_eq!(first, again);
    assert_ne!(first.trace, campaign(2, 150_000, 2).trace);
}

/// In this run the acceptor's refusal crosses the dialer's *Ready*, and the connection breaks within
/// the refusal's TLS record: the dialer has to dial again.
#[test]
fn a_refusal_that_breaks_off_within_a_record_resumes_nothing() {
    campaign(13_087_148_535_052_087_763, 1, 1);
}

/// A few hundred runs have every kind of fault.
#[test]
fn a_campaign_has_every_kind_of_fault() {
    let totals = campaign(7, 1_000_000, 2);
    for (fault, times) in totals.faults.by_kind() {
        assert!(times > 0, "no {fault} in {totals:?}");
    }
    assert!(totals.coverage.pairs() > 40, "{totals:?}");
}

fn campaign(seed: u64, steps: u64, threads: usize) -> Totals {
    let until = Until::Steps(steps);
    let totals = Campaign { seed, until }.run(threads);
    totals.unwrap_or_else(|violation| panic!("{violation}"))
}

/// RELIABILITY.md names the traces of three seeds, so that a reader can repeat them.
#[test]
fn the_traces_of_single_runs_are_those_that_reliability_md_names() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../RELIABILITY.md");
    let page = std::fs::read_to_string(page).expect("RELIABILITY.md");
    let words: Vec<&str> = page.split_whitespace().collect();
    let words = words.join(" ");
    for seed in [1, 2, 20] {
        let named = format!("{:016x} for seed {seed}", campaign(seed, 1, 1).trace);
        assert!(
            words.contains(&named),
            "RELIABILITY.md does not say: {named}"
        );
    }
}

/// Covers a stream and buffers, with and without writes, and moves from one to the other.
#[test]
fn messages_over_wires_that_break_come_once() {
    let (mut resumed, mut replayed, mut read) = (0, 0, 0);
    for seed in 0..60 {
        let broken = SimOptions {
            break_per_mille: 10,
            break_again_per_mille: 200,
            late_per_mille: 200,
            long_per_mille: 50,
            immediate: seed % 3 == 0,
            reads: seed % 3 != 1,
            max_message_bytes: 200_000,
            ..busy()
        };
        let options = match seed % 2 {
            0 => broken,
            _ => SimOptions {
                carriage: Carriage::Buffers {
                    bytes: LEAST_BUFFER_BYTES,
                },
                credit: 16,
                fails_over: (seed % 4 == 1).then_some(1 << 14),
                ..broken
            },
        };
        let run = finish(seed, story(seed, options));
        resumed += run.resumed;
        replayed += run.replayed;
        read += run.read;
    }
    assert!(read > 20, "{read} messages are read");
    assert!(
        resumed > 300 && replayed > 300,
        "{resumed} times, {replayed} records"
    );
}

/// A node with up to 31 peers shares its memory between them.
#[test]
fn one_node_serves_many_whose_wires_break() {
    let mut messages = 0;
    for seed in 0..12 {
        let carriage = match seed % 2 {
            0 => Carriage::Stream,
            _ => Carriage::Buffers {
                bytes: LEAST_BUFFER_BYTES,
            },
        };
        let crowd = SimOptions {
            peers: [2, 5, 31][seed as usize % 3],
            carriage,
            break_per_mille: 5,
            busy_steps: 200,
            ..busy()
        };
        let run = finish(seed, story(seed, crowd));
        assert!(run.resumed > 0, "{run:?}");
        messages += run.messages;
    }
    assert!(messages > 1200, "{messages}");
}

/// Wires break at every step of a session, and again while both sides exchange what they know.
#[test]
fn wires_may_break_at_every_step() {
    for step in 0..400 {
        let options = SimOptions {
            break_at: Some(step),
            break_again_per_mille: 500,
            busy_steps: 450,
            ..busy()
        };
        finish(step, story(step / 40, options));
    }
}

/// The first meeting, or that of the first resumption, is cut behind every byte, over any fabric.
/// Both sides reach the same session and epoch, and every message arrives once.
#[test]
fn a_meeting_may_be_cut_behind_every_byte() {
    let buffers = Carriage::Buffers {
        bytes: LEAST_BUFFER_BYTES,
    };
    let (mut cut, mut one_sided, mut messages) = (0, 0, 0);
    for (carriage, data_in_band) in [
        (Carriage::Stream, true),
        (Carriage::Stream, false),
        (buffers, true),
    ] {
        for byte in 0..MOST_MEETING_BYTES {
            for meeting in [0, 1] {
                let options = SimOptions {
                    carriage,
                    data_in_band,
                    credit: if carriage == buffers { 16 } else { 1 << 14 },
                    meeting_cut: Some(MeetingCut { meeting, byte }),
                    break_at: Some(100),
                    delay_steps: 1,
                    redial_steps: 5,
                    busy_steps: 200,
                    ..busy()
                };
                let run = finish(byte as u64, story(byte as u64, options));
                let count = |kind| {
                    let mut kinds = run.faults.by_kind();
                    kinds
                        .find(|(fault, _)| *fault == kind)
                        .map_or(0, |(_, times)| times)
                };
                cut += count(Fault::MeetingCut);
                one_sided += count(Fault::OneSided);
                messages += run.messages;
                assert!(run.resumed >= 2, "{run:?}");
            }
        }
    }
    assert!(
        cut > 1500 && one_sided > 50,
        "{cut} cut, {one_sided} at one side"
    );
    assert!(messages > 10_000, "{messages}");
}

/// Either side dies at every tenth step of its life.
#[test]
fn the_survivor_hands_out_what_arrived_whenever_its_peer_dies() {
    for side in [Side::Left, Side::Right] {
        for step in (0..600).step_by(10) {
            let crash = Some(Crash { side, step });
            finish(step, story(step, SimOptions { crash, ..busy() }));
        }
    }
}

#[test]
fn a_goodbye_in_the_middle_loses_nothing_that_was_published() {
    for seed in 0..40 {
        finish(
            seed,
            story(
                seed,
                SimOptions {
                    goodbye_per_mille: 5,
                    ..busy()
                },
            ),
        );
    }
}

/// The wire moves two bytes at a time, and stalls most of the time.
#[test]
fn a_wire_that_hardly_moves_is_slow_and_nothing_else() {
    let wire = SimOptions {
        piece_bytes: 2,
        wire_bytes: 8,
        stall_per_mille: 200,
        stall_steps: 20,
        ..busy()
    };
    for seed in 0..20 {
        finish(seed, story(seed, wire.clone()));
    }
}

/// Every channel is full, with large messages too, and its receiver takes messages seldom.
#[test]
fn slow_receivers_stop_their_channels_and_no_other() {
    let slow = SimOptions {
        receive_per_mille: 20,
        settle_per_mille: 10,
        ..busy()
    };
    for seed in 0..40 {
        finish(
            seed,
            story(
                seed,
                SimOptions {
                    long_per_mille: 200,
                    ..slow.clone()
                },
            ),
        );
    }
}

/// More memory is granted than may be in flight, amid many short messages.
#[test]
fn granted_messages_that_wait_are_written() {
    let granted = SimOptions {
        carriage: Carriage::Buffers {
            bytes: LEAST_BUFFER_BYTES,
        },
        credit: 64,
        wire_bytes: 1 << 12,
        names: 8,
        max_channels: 16,
        max_record_bytes: 40,
        long_per_mille: 50,
        send_per_mille: 900,
        close_per_mille: 0,
        lend_per_mille: 0,
        ..busy()
    };
    let mut written = 0;
    for seed in 0..100 {
        written += finish(seed, story(seed, granted.clone())).written;
    }
    assert!(written > 1000, "only {written} were written");
}

/// Half a window exceeds the credit, so only changes of credit keep the channel going.
#[test]
fn a_window_wider_than_the_credit_fills_up_all_the_same() {
    let narrow = SimOptions {
        carriage: Carriage::Stream,
        credit: 512,
        max_record_bytes: 40,
        window_bytes: 1 << 16,
        window_messages: 4096,
        wait_per_mille: 0,
        max_message_bytes: 40,
        ..busy()
    };
    let mut out_of_credit = 0;
    for seed in 0..40 {
        out_of_credit += finish(seed, story(seed, narrow.clone())).out_of_credit;
    }
    assert!(out_of_credit > 40, "credit was never short");
}

/// Credit moves all the time, over both carriages.
#[test]
fn credit_that_comes_and_goes_stops_nothing() {
    for carriage in [
        Carriage::Stream,
        Carriage::Buffers {
            bytes: LEAST_BUFFER_BYTES,
        },
    ] {
        for seed in 0..60 {
            finish(seed, story(seed, restless(carriage)));
        }
    }
}

/// Recalled credit is not lent again before it has come back. Otherwise more would be in flight
/// than a node can take in. Long delays keep enough under way to show that.
#[test]
fn credit_that_is_on_its_way_is_not_lent() {
    for carriage in [
        Carriage::Stream,
        Carriage::Buffers {
            bytes: LEAST_BUFFER_BYTES,
        },
    ] {
        let far = SimOptions {
            delay_steps: 50,
            close_per_mille: 0,
            window_bytes: 1 << 14,
            wait_per_mille: 0,
            ..restless(carriage)
        };
        for seed in 0..60 {
            finish(seed, story(seed, far.clone()));
        }
    }
}

fn restless(carriage: Carriage) -> SimOptions {
    let credit = match carriage {
        Carriage::Stream => 1 << 12,
        Carriage::Buffers { .. } => 4,
    };
    SimOptions {
        carriage,
        credit,
        max_record_bytes: 500,
        lend_per_mille: 300,
        send_per_mille: 900,
        receive_per_mille: 900,
        settle_per_mille: 900,
        ..busy()
    }
}

/// Both sides open and close one name all the time.
#[test]
fn a_name_is_opened_again_and_again() {
    let names = SimOptions {
        names: 1,
        max_channels: 4,
        open_per_mille: 300,
        close_per_mille: 200,
        mismatch_per_mille: 100,
        ..busy()
    };
    let mut opened = 0;
    for seed in 0..40 {
        opened += finish(seed, story(seed, names.clone())).opened;
    }
    assert!(opened > 40 * 20, "only {opened} ends were opened");
}

/// Over shared memory, frames carry control messages alone.
#[test]
fn channels_open_and_close_without_data_in_the_frames() {
    for seed in 0..40 {
        finish(
            seed,
            story(
                seed,
                SimOptions {
                    data_in_band: false,
                    ..busy()
                },
            ),
        );
    }
}

/// A wire without faults, and programs that do everything often.
pub(super) fn busy() -> SimOptions {
    SimOptions {
        delay_steps: 5,
        piece_bytes: 1000,
        wire_bytes: 1 << 14,
        stall_per_mille: 1,
        stall_steps: 50,
        crash: None,
        peers: 1,
        writes: true,
        immediate: false,
        reads: false,
        data_in_band: true,
        max_channels: 8,
        carriage: Carriage::Stream,
        credit: 1 << 14,
        lend_per_mille: 50,
        alignments: [16, 8, 64],
        window_bytes: 1 << 12,
        window_messages: 64,
        max_record_bytes: 1 << 11,
        max_message_bytes: 70_000,
        names: 3,
        open_per_mille: 100,
        mismatch_per_mille: 0,
        close_per_mille: 5,
        send_per_mille: 500,
        long_per_mille: 20,
        wait_per_mille: 100,
        receive_per_mille: 500,
        settle_per_mille: 500,
        acknowledge_per_mille: 900,
        goodbye_per_mille: 0,
        pause_per_mille: 0,
        pause_steps: 0,
        large_bytes: 1 << 17,
        break_at: None,
        break_per_mille: 0,
        break_again_per_mille: 0,
        notice_steps: 20,
        redial_steps: 20,
        meeting_cut: None,
        handshake_steps: [5000; 2],
        stranger_per_mille: 0,
        impostor_per_mille: 0,
        secured: false,
        errand_fails_per_mille: 0,
        fails_back: true,
        late_per_mille: 0,
        outage_per_mille: 0,
        patience_steps: 400,
        fails_over: None,
        stop_per_mille: 0,
        stop_steps: 0,
        leap_per_mille: 0,
        reorder_per_mille: 0,
        duplicate_per_mille: 0,
        malform_per_mille: 0,
        busy_steps: 600,
    }
}

pub(super) fn story(seed: u64, options: SimOptions) -> Simulation {
    Simulation::with_options(seed, options)
}

pub(super) fn finish(seed: u64, simulation: Simulation) -> Summary {
    // A violation names its seed; the test itself repeats a story's run.
    simulation
        .run()
        .unwrap_or_else(|violation| panic!("{violation} (IBEX_SIM_SEED={seed})"))
}

const SEEDS: u64 = 300;
/// More bytes than any handshake takes, both ways together.
const MOST_MEETING_BYTES: usize = 480;
