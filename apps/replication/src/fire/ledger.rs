//! The check of a log after the fire: it holds every acknowledged record once, in order and
//! unchanged, and no other record twice.

use std::ops::Range;

use ibex_harness::draw::Draw;

use crate::log::{Log, LogError};

/// The least bytes of a record, whose first bytes hold its number.
pub(crate) const SMALLEST_RECORD: usize = 8;

/// Returns the payload of record `number`: the number, then bytes that are generated from it.
pub(super) fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    let mut draw = Draw::new(number);
    while payload.len() < bytes {
        payload.extend_from_slice(&draw.word().to_le_bytes());
    }
    payload.truncate(bytes);
    payload
}

/// Results of checking a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Findings {
    /// Records in the log.
    pub(super) records: u64,
    /// Acknowledged records that are missing.
    pub(super) lost: u64,
    /// Records that occur twice or out of order.
    pub(super) misplaced: u64,
    /// Records that differ from what the writer gave.
    pub(super) garbled: u64,
}

impl Findings {
    /// Checks a log in which these records, ranges in ascending order, were acknowledged.
    pub(super) fn of(log: &mut Log, acknowledged: &[Range<u64>]) -> Result<Findings, LogError> {
        let mut findings = Findings::default();
        let mut next = 0;
        let mut present = 0;
        log.payloads(|bytes| {
            findings.records += 1;
            let number = bytes
                .first_chunk()
                .map_or(u64::MAX, |&first| u64::from_le_bytes(first));
            if number == u64::MAX || bytes != payload(number, bytes.len()) {
                findings.garbled += 1;
            } else if number < next {
                findings.misplaced += 1;
            } else {
                next = number + 1;
                let is_wanted = acknowledged.iter().any(|range| range.contains(&number));
                present += u64::from(is_wanted);
            }
        })?;
        let wanted: u64 = acknowledged.iter().map(|one| one.end - one.start).sum();
        findings.lost = wanted - present;
        Ok(findings)
    }

    /// Returns whether the log has no fault.
    pub(super) fn are_good(&self) -> bool {
        (self.lost, self.misplaced, self.garbled) == (0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Fsync, LogSettings};

    fn findings(payloads: &[Vec<u8>], acknowledged: &[Range<u64>]) -> Findings {
        let mut log = Log::open(LogSettings {
            directory: None,
            fsync: Fsync::Group,
            segment_bytes: 4096,
            expected_bytes: 0,
        })
        .unwrap();
        for payload in payloads {
            log.append(payload).unwrap();
        }
        Findings::of(&mut log, acknowledged).unwrap()
    }

    fn payloads(numbers: impl IntoIterator<Item = u64>) -> Vec<Vec<u8>> {
        let numbers = numbers.into_iter();
        numbers.map(|number| payload(number, 100)).collect()
    }

    #[test]
    fn acknowledged_records_must_be_there_and_others_may_be() {
        let good = |numbers: &[u64]| {
            let log = payloads(numbers.iter().copied());
            findings(&log, &[0..3, 5..6]).are_good()
        };
        assert!(good(&[0, 1, 2, 5]));
        assert!(good(&[0, 1, 2, 3, 5, 6, 7]));
    }

    #[test]
    fn each_thing_that_is_wrong_is_found() {
        let acknowledged = [0..50, 60..100];
        let lost = payloads((0..100).filter(|&number| number != 17));
        assert_eq!(findings(&lost, &acknowledged).lost, 1);
        let cut = payloads(0..90);
        assert_eq!(findings(&cut, &acknowledged).lost, 10);
        let mut doubled = payloads(0..100);
        doubled.insert(20, payload(19, 100));
        assert_eq!(findings(&doubled, &acknowledged).misplaced, 1);
        let mut swapped = payloads(0..100);
        swapped.swap(30, 31);
        assert_eq!(findings(&swapped, &acknowledged).misplaced, 1);
        let mut garbled = payloads(0..100);
        garbled[40][50] ^= 1;
        assert_eq!(findings(&garbled, &acknowledged).garbled, 1);
    }
}
