//! Where a replica is in the log, and what it gets next.
//!
//! The log is the queue: a replica that lacks the last records and one that lacks all of
//! them are served from the same place, in the same way, from wherever they are. So
//! between catching up and following live there is no seam at which a record could be
//! missed or sent twice; the pieces only become smaller.

use crate::{
    log::{Log, LogError},
    transport::{Batch, Join},
};

/// How far the log was sent to a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    next: u64,
}

impl Cursor {
    /// Behind what the replica has, if that is a beginning of `log`. Where it is not, its log
    /// has another past (it was written under another primary, say), and it gets all anew.
    pub(crate) fn behind(join: &Join, log: &mut Log) -> Result<Cursor, LogError> {
        let is_ours = log.tip_at(join.end)? == Some(join.tip());
        Ok(Cursor {
            next: if is_ours { join.end } else { 0 },
        })
    }

    /// Up to where the log was sent.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// What the replica gets next: a large piece where it is far behind, whatever is new
    /// where it is not; none if it has all.
    pub(crate) fn next<'a>(&self, log: &'a mut Log) -> Result<Option<Batch<'a>>, LogError> {
        let limit = match log.tip().end - self.next {
            0 => return Ok(None),
            behind if behind > FAR_BEHIND => CATCH_UP_BYTES,
            _ => LIVE_BYTES,
        };
        Ok(Some(Batch {
            at: self.next,
            records: log.records(self.next, limit)?,
        }))
    }

    /// The batch up to there was sent.
    pub(crate) fn advance(&mut self, end: u64) {
        self.next = end;
    }
}

/// What a replica that follows gets at a time, at most.
const LIVE_BYTES: usize = 96 << 10;
/// Who lacks more than this is catching up,
const FAR_BEHIND: u64 = 4 << 20;
/// and gets so much at a time: a large message, which does not pass through a ring.
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

    /// Takes a replica from where its log ends to the end; how large the pieces were.
    fn catch_up(primary: &mut Log, replica: &mut Log) -> Vec<usize> {
        let join = Join::new(0, replica.tip());
        let mut cursor = Cursor::behind(&join, primary).unwrap();
        let mut pieces = Vec::new();
        while let Some(batch) = cursor.next(primary).unwrap() {
            replica.append_records(batch.at, batch.records).unwrap();
            pieces.push(batch.records.len());
            let end = batch.end();
            cursor.advance(end);
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
        let cursor = Cursor::behind(&lies_about_its_end, &mut primary).unwrap();
        assert_eq!(cursor.position(), 0);
    }
}
