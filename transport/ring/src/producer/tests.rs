//! Tests of the producer against a ring of words.

use super::*;
use crate::consumer::Consumer;
use crate::model_memory::Words;

fn producer(capacity: usize, alignment: usize, window: u64) -> Producer<Words> {
    Producer::new(Words::new(capacity), Layout::packed(alignment), window)
}

#[test]
fn the_largest_payload_fits_an_empty_ring_wherever_it_begins() {
    for alignment in [8, 16, 32, 64] {
        let mut producer = producer(4 * alignment, alignment, u64::MAX);
        for _ in 0..8 {
            assert!(producer.is_drained());
            assert!(producer.fits(producer.largest()));
            assert!(!producer.fits(producer.room() + 1));
            producer.publish(RecordKind::Data, 0);
            let all = Released {
                messages: producer.sequence(),
                position: producer.position(),
            };
            producer.refresh(all).unwrap();
        }
    }
}

#[test]
fn room_runs_out_one_header_before_the_end() {
    let mut producer = producer(64, 8, u64::MAX);
    for left in (1..8).rev() {
        assert_eq!(producer.room(), 8 * left - 8);
        assert!(producer.fits(0));
        producer.publish(RecordKind::Data, 0);
    }
    assert_eq!(producer.room(), 0);
    assert!(!producer.fits(0));
}

#[test]
fn the_window_counts_messages() {
    let mut producer = producer(1024, 8, 2);
    assert_eq!(producer.publish(RecordKind::Data, 8), 1);
    assert!(producer.fits(8));
    assert_eq!(producer.publish(RecordKind::Data, 8), 2);
    assert!(!producer.fits(0));
    assert_eq!(producer.room(), 0);
    let one = Released {
        messages: 1,
        position: 16,
    };
    producer.refresh(one).unwrap();
    assert!(producer.fits(8));
    assert!(!producer.is_drained());
}

#[test]
fn no_word_is_written_beyond_what_is_backed() {
    for layout in [Layout::packed(8), Layout::in_lines(8)] {
        let memory = Words::new(4096);
        // Every word but the first was used before.
        memory.write(8, &[7; 511]);
        let mut producer = Producer::new(memory.clone(), layout, u64::MAX);
        let backed = 1024;
        producer.back_until(producer.position() + backed);
        let end = producer.position() + backed;
        while producer.fits(8) {
            producer.publish(RecordKind::Data, 8);
        }
        assert!(producer.position() < end && producer.end_of(8) > end);
        assert!(memory.read(end as usize, 256).iter().all(|word| *word == 7));

        let all = Released {
            messages: producer.sequence(),
            position: producer.position(),
        };
        producer.refresh(all).unwrap();
        assert!(!producer.fits(8), "what is released is not more memory");
        producer.back_until(u64::MAX);
        assert!(producer.fits(producer.largest()));
    }
}

#[test]
fn a_consumer_that_lies_is_refused_and_changes_nothing() {
    let mut producer = producer(1024, 8, 10);
    producer.publish(RecordKind::Data, 8);
    producer.publish(RecordKind::Data, 8);
    let notified = |messages, position| Released { messages, position };
    producer.refresh(notified(1, 16)).unwrap();
    for lie in [
        notified(3, 32),
        notified(2, 40),
        notified(0, 16),
        notified(1, 8),
    ] {
        let error = producer.refresh(lie).unwrap_err();
        assert_eq!(error.claimed, lie);
        assert_eq!(producer.released(), notified(1, 16));
    }
    producer.refresh(notified(2, 32)).unwrap();
}

#[test]
fn a_frame_takes_many_short_records_or_one_long_one() {
    let memory = Words::new(1024);
    let mut producer = Producer::new(memory.clone(), Layout::packed(8), 100);
    let mut consumer = Consumer::new(memory, Layout::packed(8));
    for length in [8, 8, 100, 100, 8] {
        producer.publish(RecordKind::Data, length);
    }
    let mut frames = Vec::new();
    while let Ok(run) = consumer.walk_frame(64, 300)
        && run.records > 0
    {
        frames.push((run.records, run.bytes));
        consumer.advance_by(run.bytes, run.records);
    }
    assert_eq!(frames, [(2, 32), (1, 112), (1, 112), (1, 16)]);
    producer.publish(RecordKind::Data, 100);
    assert_eq!(consumer.walk_frame(64, 111).unwrap().records, 0);
}

/// Publishing may stop between any two stores: the reader then has the
/// record whole or has nothing.
#[test]
fn a_writer_that_crashes_leaves_whole_records() {
    // Stores: the first header's 0; then, for each record, its payload, the next header's 0 and
    // its header.
    const FIRST: usize = 1 + 3 + 2;
    const STORES: usize = FIRST + 2 + 2;
    for crash in 0..=STORES {
        let memory = Words::crashing_after(64, crash);
        let mut producer = Producer::new(memory.clone(), Layout::packed(8), 10);
        memory.write(8, &[11, 12, 13]);
        producer.publish(RecordKind::Data, 24);
        memory.write(40, &[21, 22]);
        producer.publish(RecordKind::Data, 16);

        let mut consumer = Consumer::new(memory.clone(), Layout::packed(8));
        let mut whole = Vec::new();
        while let Some(record) = consumer.peek().unwrap() {
            whole.push(memory.read(record.offset + 8, record.length / 8));
            consumer.advance(&record);
        }
        let expected: &[&[u64]] = match crash {
            0..FIRST => &[],
            FIRST..STORES => &[&[11, 12, 13]],
            _ => &[&[11, 12, 13], &[21, 22]],
        };
        assert_eq!(whole, expected, "crashed after {crash} stores");
    }
}
