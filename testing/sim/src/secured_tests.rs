//! Nodes that authenticate each other, under the usual faults.

use ibex_protocol::framing::{Carriage, LEAST_BUFFER_BYTES};

use super::{
    tests::{busy, finish, story},
    *,
};

/// Sessions between two authenticated nodes begin, break and resume as others do, and no node with
/// another secret gets in.
#[test]
fn nodes_that_authenticate_each_other_meet_under_every_fault() {
    let buffers = Carriage::Buffers {
        bytes: LEAST_BUFFER_BYTES,
    };
    let (mut resumed, mut messages, mut faults) = (0, 0, Faults::default());
    for seed in 0..36 {
        let (carriage, data_in_band) = [
            (Carriage::Stream, true),
            (Carriage::Stream, false),
            (buffers, true),
        ][seed as usize % 3];
        let options = SimOptions {
            secured: true,
            carriage,
            data_in_band,
            credit: if carriage == buffers { 16 } else { 1 << 14 },
            piece_bytes: [16, 100, 1000][seed as usize / 3 % 3],
            break_per_mille: 5,
            break_again_per_mille: 200,
            late_per_mille: 200,
            stranger_per_mille: 10,
            impostor_per_mille: 200,
            errand_fails_per_mille: 50,
            ..busy()
        };
        let run = finish(seed, story(seed, options));
        resumed += run.resumed;
        messages += run.messages;
        faults += run.faults;
    }
    assert!(resumed > 60 && messages > 1000, "{resumed}, {messages}");
    for (fault, times) in faults.by_kind() {
        let is_wanted = [Fault::Stranger, Fault::Impostor, Fault::MeetingCut].contains(&fault);
        assert!(!is_wanted || times >= 5, "{fault}: {times} times");
    }
}

/// The meeting of two authenticated nodes is cut at many bytes of its records.
#[test]
fn a_meeting_inside_tls_may_be_cut_anywhere() {
    let (mut cut, mut messages) = (0, 0);
    for byte in (0..MOST_SEALED_MEETING_BYTES).step_by(41) {
        for meeting in [0, 1] {
            let options = SimOptions {
                secured: true,
                meeting_cut: Some(MeetingCut { meeting, byte }),
                break_at: Some(100),
                delay_steps: 1,
                redial_steps: 5,
                busy_steps: 200,
                ..busy()
            };
            let run = finish(byte as u64, story(byte as u64, options));
            let mut kinds = run.faults.by_kind();
            let of_meetings = kinds.find(|(fault, _)| *fault == Fault::MeetingCut);
            cut += of_meetings.map_or(0, |(_, times)| times);
            messages += run.messages;
            assert!(run.resumed >= 1, "{run:?}");
        }
    }
    assert!(cut > 60 && messages > 500, "{cut} cut, {messages} messages");
}

/// Each side gives a slow handshake up by its own clock, inside TLS as well.
#[test]
fn a_handshake_inside_tls_has_its_time() {
    let mut expired = 0;
    for seed in 0..10 {
        let options = SimOptions {
            secured: true,
            handshake_steps: [40, 40],
            piece_bytes: 16,
            delay_steps: 5,
            break_per_mille: 5,
            ..busy()
        };
        let run = finish(seed, story(seed, options));
        let mut kinds = run.faults.by_kind();
        let late = kinds.find(|(fault, _)| *fault == Fault::Expired);
        expired += late.map_or(0, |(_, times)| times);
    }
    assert!(expired > 20, "{expired} expired");
}

/// More bytes than a meeting inside TLS has.
const MOST_SEALED_MEETING_BYTES: usize = 1600;
