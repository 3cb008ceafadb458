//! The proof that the checker finds faults: without it, a clean verdict means nothing.
#![forbid(unsafe_code)]

use std::io;

use super::{Checker, Verdict};
use crate::fact::{Fact, Side};

/// A manipulated stream of messages, and the faults that a checker must find in it.
struct Case {
    name: &'static str,
    tamper: fn(&mut Vec<Fact>),
    expected: fn(&Verdict) -> u64,
}

const STREAM: u64 = 1;
const COUNT: u64 = 100;
/// The index of the first fact about receiving, behind those of both ends and of all sending.
const FIRST_RECEIVED: usize = 2 + COUNT as usize;

const CASES: &[Case] = &[
    Case {
        name: "one dropped",
        tamper: |facts| _ = facts.remove(FIRST_RECEIVED + 40),
        expected: |verdict| verdict.lost,
    },
    Case {
        name: "the last one dropped",
        tamper: |facts| _ = facts.remove(FIRST_RECEIVED + COUNT as usize - 1),
        expected: |verdict| verdict.lost,
    },
    Case {
        name: "one doubled",
        tamper: |facts| facts.insert(FIRST_RECEIVED + 50, facts[FIRST_RECEIVED + 40]),
        expected: |verdict| verdict.doubled,
    },
    Case {
        name: "two swapped",
        tamper: |facts| facts.swap(FIRST_RECEIVED + 40, FIRST_RECEIVED + 41),
        expected: |verdict| verdict.reordered,
    },
    Case {
        name: "one garbled",
        tamper: |facts| {
            if let Fact::Received { checksum, .. } = &mut facts[FIRST_RECEIVED + 40] {
                *checksum ^= 1;
            }
        },
        expected: |verdict| verdict.garbled,
    },
    Case {
        name: "an error that says too much",
        tamper: |facts| {
            break_off(facts, COUNT - 1);
        },
        expected: |verdict| verdict.lies,
    },
    Case {
        name: "an end that nobody hears of",
        tamper: |facts| _ = facts.pop(),
        expected: |verdict| verdict.unfinished,
    },
];

/// Returns all facts of a stream that ends in order without a fault.
fn story() -> Vec<Fact> {
    let (stream, checksum) = (STREAM, |sequence| sequence * 7);
    let mut facts = vec![
        Fact::Began {
            stream,
            side: Side::Sender,
            process: 1,
        },
        Fact::Began {
            stream,
            side: Side::Receiver,
            process: 2,
        },
    ];
    let numbers = 1..=COUNT;
    facts.extend(numbers.clone().map(|sequence| Fact::Sending {
        stream,
        sequence,
        checksum: checksum(sequence),
    }));
    facts.extend(numbers.map(|sequence| Fact::Received {
        stream,
        sequence,
        checksum: checksum(sequence),
    }));
    facts.push(Fact::Closed {
        stream,
        accepted: COUNT,
    });
    facts.push(Fact::Ended { stream });
    facts
}

/// Breaks the stream when `came` messages have arrived, with an error at the sender that claims one
/// more.
fn break_off(facts: &mut Vec<Fact>, came: u64) {
    let stream = STREAM;
    facts.truncate(FIRST_RECEIVED + came as usize);
    facts.push(Fact::SendBroke {
        stream,
        accepted: COUNT,
        sent: COUNT,
        received: came + 1,
        acknowledged: 0,
    });
    facts.push(Fact::ReceiveBroke {
        stream,
        received: came,
    });
}

/// Proves that checkers, each a process like the run's, find every planted fault. Returns their
/// names.
///
/// # Errors
/// A fault that was missed, or was reported for a clean stream.
pub(crate) fn prove() -> io::Result<Vec<&'static str>> {
    let clean = told(&story())?;
    if !clean.is_clean() || clean.messages != COUNT {
        return Err(io::Error::other(format!(
            "the checker finds what is not there: {clean:?}"
        )));
    }
    for Case {
        name,
        tamper,
        expected,
    } in CASES
    {
        let mut facts = story();
        tamper(&mut facts);
        let verdict = told(&facts)?;
        if expected(&verdict) != 1 {
            return Err(io::Error::other(format!(
                "the checker misses {name}: {verdict:?}"
            )));
        }
    }
    Ok(CASES.iter().map(|case| case.name).collect())
}

fn told(facts: &[Fact]) -> io::Result<Verdict> {
    let (checker, feed) = Checker::start()?;
    feed.tell_all(facts);
    drop(feed);
    checker.verdict()
}
