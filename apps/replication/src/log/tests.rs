//! Tests of the log after crashes and damage on disk.

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;

/// A directory that is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ibex-replication-log-{}-{count}", process::id());
        Directory(std::env::temp_dir().join(name))
    }

    fn log(&self) -> Log {
        open(Some(&self.0))
    }

    fn files(&self) -> Vec<PathBuf> {
        segment::files_in(&self.0).unwrap()
    }

    /// Counts the files of the directory that this process has open.
    fn open_files(&self) -> usize {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        // Other tests may close files between the two reads.
        let paths = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        paths.filter(|path| path.starts_with(&self.0)).count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens a log with segments of 1000 bytes: ten records of 100 bytes.
fn open(directory: Option<&Path>) -> Log {
    Log::open(LogSettings {
        directory: directory.map(Path::to_owned),
        fsync: Fsync::Group,
        segment_bytes: 1000,
        expected_bytes: 2000,
    })
    .unwrap()
}

fn fill(log: &mut Log, records: u64) {
    for _ in 0..records {
        let number = log.tip().number + 1;
        log.append(&[number as u8; 84]).unwrap();
    }
    log.commit().unwrap();
}

/// Returns the whole log, read in pieces of at most `limit` bytes.
fn contents(log: &mut Log, limit: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let records = log.records(all.len() as u64, limit).unwrap();
        if records.is_empty() {
            return all;
        }
        all.extend_from_slice(&records);
    }
}

fn damage(path: &Path, at: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_log_comes_back_as_it_was() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 25);
    let (tip, all) = (log.tip(), contents(&mut log, 350));
    drop(log);
    let mut log = directory.log();
    assert_eq!((log.tip(), log.cut()), (tip, 0));
    assert_eq!(log.read_back().unwrap(), tip);
    assert!(contents(&mut log, 10_000) == all);
    fill(&mut log, 1);
    assert_eq!(log.read_back().unwrap(), log.tip());
}

#[test]
fn memory_and_files_hold_the_same() {
    let directory = Directory::new();
    let (mut files, mut memory) = (directory.log(), open(None));
    fill(&mut files, 33);
    fill(&mut memory, 33);
    assert_eq!(files.tip(), memory.tip());
    assert!(contents(&mut files, 500) == contents(&mut memory, 70));
    assert_eq!(memory.read_back().unwrap(), memory.tip());
}

#[test]
fn no_record_straddles_two_segments() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 11);
    let bases: Vec<_> = log.segments.iter().map(Segment::base).collect();
    assert_eq!(bases, [0, 1000]);
    log.append(&[0; 884]).unwrap();
    assert_eq!(log.segments.len(), 2, "it fits to the last byte");
    log.append(&[]).unwrap();
    assert_eq!(log.segments.last().unwrap().base(), 2000);
    let refused = log.append(&[0; 985]).unwrap_err().to_string();
    assert!(refused.contains("--segment-bytes"), "{refused}");
    log.commit().unwrap();
    assert_eq!(log.read_back().unwrap(), log.tip());
    // A piece ends with its segment.
    assert_eq!(log.records(0, 10_000).unwrap().len(), 1000);
    assert_eq!(log.records(900, 10_000).unwrap().len(), 100);
}

#[test]
fn a_log_of_many_segments_has_one_file_open() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 95);
    assert_eq!((directory.files().len(), directory.open_files()), (10, 1));
    let all = contents(&mut log, 350);
    drop(log);
    let mut log = directory.log();
    assert!(contents(&mut log, 350) == all);
    // The records cut back into a segment that was sealed, which is active again.
    let mut other = open(None);
    fill(&mut other, 43);
    log.append_records(4300, &[]).unwrap();
    assert_eq!(log.tip(), other.tip());
    fill(&mut log, 3);
    fill(&mut other, 3);
    assert_eq!((directory.files().len(), directory.open_files()), (5, 1));
    assert_eq!(log.read_back().unwrap(), other.tip());
}

/// Nothing changes a piece that a replica may still be sent from, neither a cut of the log nor what
/// follows it.
#[test]
fn a_piece_of_a_sealed_segment_stays_as_it_is() {
    for directory in [None, Some(Directory::new())] {
        let mut log = open(directory.as_ref().map(|directory| &*directory.0));
        fill(&mut log, 25);
        let Piece::Sealed(piece) = log.records(300, 500).unwrap() else {
            panic!("the first segment is full");
        };
        let before = piece.to_vec();
        assert_eq!(before.len(), 500);
        assert!(matches!(log.records(2000, 500).unwrap(), Piece::Active(_)));
        log.append_records(400, &[]).unwrap();
        for _ in 0..12 {
            log.append(&[0xee; 84]).unwrap();
        }
        log.commit().unwrap();
        assert_eq!(log.read_back().unwrap(), log.tip());
        assert!(piece[..] == before, "with files: {}", directory.is_some());
        let now = contents(&mut log, 350);
        assert_eq!(now.len(), 1600);
        assert!(now[300..400] == before[..100] && now[400..500] != before[100..200]);
    }
}

#[test]
fn a_torn_tail_is_cut_wherever_it_is_torn() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 25);
    let whole = log.tip_at(2400).unwrap().unwrap();
    drop(log);
    for torn in (1..100).rev() {
        let last = directory.files().pop().unwrap();
        let file = OpenOptions::new().write(true).open(&last).unwrap();
        file.set_len(400 + torn).unwrap();
        let mut log = directory.log();
        assert_eq!((log.tip(), log.cut()), (whole, torn));
        assert_eq!(log.read_back().unwrap(), whole);
        // The cut bytes are gone, so the next opening finds nothing to cut.
        drop(log);
        assert_eq!(directory.log().cut(), 0);
        file.set_len(400).unwrap();
        fill(&mut directory.log(), 1);
    }
}

#[test]
fn a_tail_of_zeroes_is_cut() {
    // Some file systems leave this after a crash: the size was durable, the bytes were not.
    let directory = Directory::new();
    fill(&mut directory.log(), 5);
    let file = OpenOptions::new()
        .write(true)
        .open(&directory.files()[0])
        .unwrap();
    file.set_len(900).unwrap();
    let log = directory.log();
    assert_eq!((log.tip().number, log.cut()), (5, 400));
}

#[test]
fn behind_a_flipped_bit_nothing_is_trusted() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 25);
    let sound = log.tip_at(1300).unwrap().unwrap();
    let all = contents(&mut log, 10_000);
    drop(log);
    damage(&directory.files()[1], 350);
    let mut log = directory.log();
    assert_eq!((log.tip(), log.cut()), (sound, 1200));
    assert_eq!(directory.files().len(), 2);
    // A replica that has the rest supplies it.
    log.append_records(1300, &all[1300..]).unwrap();
    log.commit().unwrap();
    assert_eq!(log.read_back().unwrap().end, 2500);
}

#[test]
fn damage_behind_the_back_of_an_open_log_is_found() {
    let directory = Directory::new();
    let mut log = directory.log();
    fill(&mut log, 25);
    damage(&directory.files()[0], 5);
    let error = log.read_back().unwrap_err().to_string();
    assert!(error.contains("record 1"), "{error}");
}

#[test]
fn records_of_another_past_are_refused_whole() {
    let (mut log, mut other) = (open(None), open(None));
    fill(&mut log, 3);
    other.append(b"another").unwrap();
    fill(&mut other, 3);
    let before = log.tip();
    let from = other.tip_at(123).unwrap().unwrap().end;
    let foreign = other.records(from, 10_000).unwrap().to_vec();
    let refused = log.append_records(before.end, &foreign).unwrap_err();
    assert!(matches!(refused, LogError::Invalid(_)), "{refused}");
    assert_eq!(log.tip(), before);
}

#[test]
fn a_log_that_went_astray_is_cut_and_goes_on() {
    for directory in [None, Some(Directory::new())] {
        let mut primary = open(None);
        let mut log = open(directory.as_ref().map(|directory| &*directory.0));
        fill(&mut primary, 30);
        let all = contents(&mut primary, 10_000);
        log.append_records(0, &all[..1500]).unwrap();
        for _ in 0..12 {
            log.append(b"never acknowledged").unwrap();
        }
        log.commit().unwrap();
        // The records begin in the middle of a sealed segment, at a segment's boundary, and at the
        // beginning.
        for from in [700, 1000, 0] {
            log.append_records(from as u64, &all[from..]).unwrap();
            log.commit().unwrap();
            assert_eq!(
                log.records(0, 10_000).unwrap().len(),
                1000,
                "the same segments"
            );
            assert_eq!(log.tip(), primary.tip(), "from {from}");
            assert_eq!(log.read_back().unwrap(), primary.tip());
        }
        let refused = log.append_records(750, &all[750..800]).unwrap_err();
        assert!(matches!(refused, LogError::NoRecordEnds { end: 750 }));
    }
}

#[test]
fn tips_are_found_where_records_end_and_nowhere_else() {
    let directory = Directory::new();
    let (mut log, mut tips) = (directory.log(), vec![Tip::default()]);
    for _ in 0..25 {
        fill(&mut log, 1);
        tips.push(log.tip());
    }
    for at in 0..2600 {
        let expected = (at % 100 == 0 && at <= 2500).then(|| tips[at as usize / 100]);
        assert_eq!(log.tip_at(at).unwrap(), expected, "at {at}");
    }
}
