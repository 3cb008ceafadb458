//! A replica's position in the log, and the next records to send to it.
//!
//! The log is the queue: whether a replica lacks the last records or all of them, the log serves
//! it, by the same code. Catching up and following live therefore have no boundary at which a
//! record could be missed or sent twice; the pieces only become smaller.

use crate::{
    log::{self, Log, LogError, Piece},
    transport::Join,
};

/// Returns the offset from which a replica is served: the end of its log if that log is a prefix of
/// `log`, and 0 otherwise. A log with another history, such as one written under another primary,
/// is replaced from the beginning.
pub(crate) fn position(join: &Join, log: &mut Log) -> Result<u64, LogError> {
    let is_ours = log.tip_at(join.end)? == Some(join.tip());
    Ok(if is_ours { join.end } else { 0 })
}

/// Returns the offset at which a replica appends `records` of its primary: 0 if they begin with the
/// first record, and the end of its log otherwise.
pub(crate) fn place(log: &Log, records: &[u8]) -> u64 {
    if log::begin_the_log(records) {
        0
    } else {
        log.tip().end
    }
}

/// Returns the next records for a replica at `position`: a large piece if it is far behind, all new
/// records if it is not, and none if it has all.
pub(crate) fn next(log: &mut Log, position: u64) -> Result<Piece<'_>, LogError> {
    let is_far_behind = log.tip().end - position > FAR_BEHIND;
    let limit = if is_far_behind {
        CATCH_UP_BYTES
    } else {
        LIVE_BYTES
    };
    log.records(position, limit)
}

/// The most bytes that a replica gets at a time while it follows.
const LIVE_BYTES: usize = 96 << 10;
/// The distance from the end beyond which a replica is catching up.
const FAR_BEHIND: u64 = 4 << 20;
/// The most bytes that a replica gets at a time while it catches up: a large message, which does
/// not pass through a ring.
const CATCH_UP_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Fsync, LogSettings, Tip};

    fn log(records: u64, payload: &[u8]) -> Log {
        let mut log = Log::open(LogSettings {
            directory: None,
            fsync: Fsync::Group,
            segment_bytes: 3 << 20,
            expected_bytes: 0,
        })
        .unwrap();
        for _ in 0..records {
            log.append(payload).unwrap();
        }
        log
    }

    /// Brings `replica` up to the end of `primary`. Returns the sizes of the pieces.
    fn catch_up(primary: &mut Log, replica: &mut Log) -> Vec<usize> {
        let join = Join::new(0, replica.tip());
        let mut position = position(&join, primary).unwrap();
        let mut pieces = Vec::new();
        while position < primary.tip().end {
            let records = next(primary, position).unwrap();
            assert_eq!(place(replica, &records), position);
            replica.append_records(position, &records).unwrap();
            pieces.push(records.len());
            position += records.len() as u64;
        }
        assert_eq!(replica.tip(), primary.tip());
        assert_eq!(replica.read_back().unwrap(), primary.tip());
        pieces
    }

    #[test]
    fn from_any_record_to_the_end() {
        let mut primary = log(100, &[7; 100]);
        for records in 0..=100 {
            let pieces = catch_up(&mut primary, &mut log(records, &[7; 100]));
            assert_eq!(pieces.iter().sum::<usize>(), (100 - records as usize) * 116);
        }
    }

    #[test]
    fn from_far_behind_in_large_pieces_and_then_in_small_ones() {
        let mut primary = log(2000, &[7; 4080]);
        let pieces = catch_up(&mut primary, &mut log(0, &[]));
        assert_eq!(pieces[..2], [3 << 20, 3 << 20], "a segment at a time");
        assert!(pieces[2..].iter().all(|&piece| piece <= LIVE_BYTES));
    }

    #[test]
    fn another_past_is_replaced() {
        let mut primary = log(50, &[7; 100]);
        catch_up(&mut primary, &mut log(20, &[8; 100]));
        catch_up(&mut primary, &mut log(80, &[7; 100]));
        let lies_about_its_end = Join::new(
            0,
            Tip {
                end: 7,
                ..primary.tip()
            },
        );
        assert_eq!(position(&lies_about_its_end, &mut primary).unwrap(), 0);
    }
}
