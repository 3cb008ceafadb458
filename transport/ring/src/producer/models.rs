//! Models of the writing end, with loom.

use super::*;
use crate::consumer::Consumer;
use crate::model_memory::Words;
use ibex_base::sync::thread;

/// Mutant: publish_relaxed.
#[test]
fn loom_publish_then_read() {
    loom::model(|| {
        let memory = Words::new(64);
        let mut producer = Producer::new(memory.clone(), Layout::packed(8), 10);
        let mut consumer = Consumer::new(memory.clone(), Layout::packed(8));
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                for message in 1..=2 {
                    memory.write(producer.offset() + 8, &[message, message + 10]);
                    producer.publish(RecordKind::Data, 16);
                }
            })
        };
        for message in 1..=2 {
            let record = loop {
                match consumer.peek().unwrap() {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            let payload = memory.read(record.offset + 8, 2);
            assert_eq!(payload, [message, message + 10]);
            consumer.advance(&record);
        }
        assert_eq!(consumer.peek(), Ok(None));
        writer.join().unwrap();
    });
}

/// Mutant: reveal_relaxed.
#[test]
fn loom_run_is_seen_whole() {
    loom::model(|| {
        let memory = Words::new(64);
        let mut producer = Producer::new(memory.clone(), Layout::packed(8), 10);
        let mut consumer = Consumer::new(memory.clone(), Layout::packed(8));
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                for message in 1..=2 {
                    memory.write(producer.offset() + 8, &[message]);
                    producer.append(RecordKind::Data, 8);
                }
                producer.reveal();
            })
        };
        let mut record = loop {
            match consumer.peek().unwrap() {
                Some(record) => break record,
                None => thread::yield_now(),
            }
        };
        for message in 1..=2 {
            assert_eq!(memory.read(record.offset + 8, 1), [message]);
            consumer.advance(&record);
            if message == 1 {
                // It came with the first.
                record = consumer.peek().unwrap().unwrap();
            }
        }
        assert_eq!(consumer.peek(), Ok(None));
        writer.join().unwrap();
    });
}

/// Mutant: zero_missing.
#[test]
fn loom_old_payload_is_no_header() {
    for layout in [Layout::packed(8), Layout::in_lines(8)] {
        loom::model(move || old_payload_is_no_header(layout));
    }
}

fn old_payload_is_no_header(layout: Layout) {
    let capacity = 8 * layout.step();
    let memory = Words::new(capacity);
    let mut producer = Producer::new(memory.clone(), layout, 10);
    let mut consumer = Consumer::new(memory.clone(), layout);
    let forged = RecordHeader {
        kind: RecordKind::Data,
        length: 0,
        sequence_low: 5,
    };
    // The first message is full of words that look like the header of the fifth message, which
    // will begin where one of those words lies.
    let length = capacity - 3 * layout.step();
    memory.write(8, &vec![forged.to_word(); length / 8]);
    producer.publish(RecordKind::Data, length);
    producer.publish(RecordKind::Data, 0);
    for _ in 0..2 {
        let record = consumer.peek().unwrap().unwrap();
        consumer.advance(&record);
    }
    let first = Released {
        messages: 1,
        position: layout.size(length) as u64,
    };
    producer.refresh(first).unwrap();
    assert!(producer.fits(8));

    let writer = thread::spawn(move || {
        producer.publish(RecordKind::Data, 0);
        producer.publish(RecordKind::Data, 0);
    });
    for _ in 3..=4 {
        let record = loop {
            match consumer.peek().unwrap() {
                Some(record) => break record,
                None => thread::yield_now(),
            }
        };
        consumer.advance(&record);
    }
    assert_eq!(consumer.peek(), Ok(None), "payload was taken for a header");
    writer.join().unwrap();
}
