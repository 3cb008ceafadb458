//! The bytes of two whole handshakes, written down: a change here is a change
//! of the protocol and needs another version number.

use super::tests::{Meeting, Unix, host, local};
use crate::fuzz;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Without the blanks and line ends that make it readable.
fn compact(transcript: &str) -> String {
    transcript.split_whitespace().collect()
}

#[test]
fn the_wire_is_as_it_was_over_shm() {
    let mut meeting = Meeting::new(&local(0x11), &local(0x22));
    meeting.run();
    assert_eq!(hex(&meeting.from_dialer), compact(SHM_DIALER));
    assert_eq!(hex(&meeting.from_acceptor), compact(SHM_ACCEPTOR));
}

#[test]
fn the_wire_is_as_it_was_when_shm_cannot_be_reached() {
    let mut meeting = Meeting::new(&local(0x11), &local(0x22));
    meeting.unix = Unix::IsElsewhere;
    meeting.run();
    assert_eq!(hex(&meeting.from_dialer), compact(FALL_BACK_DIALER));
    assert_eq!(hex(&meeting.from_acceptor), compact(FALL_BACK_ACCEPTOR));
}

/// What was recorded is what the fuzzing entry points accept, so the
/// transcripts serve as seeds of a corpus.
#[test]
fn a_recorded_half_takes_the_fuzzing_entry_points_to_the_end() {
    let mut meeting = Meeting::on_hosts(&local(0x11), host(1), &local(0x22), host(2));
    meeting.run();
    assert!(fuzz::acceptor(&meeting.from_dialer));
    assert!(fuzz::dialer(&meeting.from_acceptor));
    assert!(!fuzz::acceptor(&meeting.from_acceptor));
}

const SHM_DIALER: &str = "
    89696265780d0a1a
    2200010100000001000000000000000000000000d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0
    4e0002111111111111111111111111111111111100000000000000010101010101010101010101010101
        0192100000e8030000e8030000000000000200000000f0000003010000000200000003000000
    1d000301190073686d3a2073616d6520686f73742c2073616d652075736572
    02000600
";
const SHM_ACCEPTOR: &str = "
    89696265780d0a1a
    2200010100000001000000000000000000000000a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0
    4e0002222222222222222222222222222222222200000000000000010101010101010101010101010101
        0192100000e8030000e8030000000000000200000000f0000003010000000200000003000000
    490004012500696265782d61316131613161316131613161316131613161316131613161316131613161
        31a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2
    32000601a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4
        a4a4a4a4a4a4a4a4a4a4
";
const FALL_BACK_DIALER: &str = "
    89696265780d0a1a
    2200010100000001000000000000000000000000d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0
    4e0002111111111111111111111111111111111100000000000000010101010101010101010101010101
        0192100000e8030000e8030000000000000200000000f0000003010000000200000003000000
    1d000301190073686d3a2073616d6520686f73742c2073616d652075736572
    4d00030249007463703a206e6f742073686d3a206e6f7420686572653b206e6f742076657262733a2074
        686520636f6e6e656374696e67206e6f646520686173206e6f2052444d4120646576696365
    02000600
";
const FALL_BACK_ACCEPTOR: &str = "
    89696265780d0a1a
    2200010100000001000000000000000000000000a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0
    4e0002222222222222222222222222222222222200000000000000010101010101010101010101010101
        0192100000e8030000e8030000000000000200000000f0000003010000000200000003000000
    490004012500696265782d61316131613161316131613161316131613161316131613161316131613161
        31a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2
    02000402
    32000601a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a3a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4
        a4a4a4a4a4a4a4a4a4a4
";
