//! Batches of messages.

use ibex::SendErrorKind;

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{Stage, receiver, sender},
    stream::{assert_ended, receive_all},
};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::new("batches", batches)];

fn length(sequence: u64) -> usize {
    match sequence % 97 {
        0 => 200_000,
        1 => 0,
        other => other as usize * 3,
    }
}

/// Batches of many lengths, with empty messages and some that are longer than the ring; then one with
/// a message that is too long, and one as far as there is room.
fn batches(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let in_batches = stage.count(3_000);
    let last = in_batches + 301;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "batches");
            let values = |from: u64, until: u64| {
                let values = from..until;
                let values = values.map(|sequence| payload::numbered(sequence, length(sequence)));
                values.collect::<Vec<_>>()
            };
            assert_eq!(sender.send_all::<Vec<u8>>(&[]).expect("nothing to send"), 0);
            let (mut next, mut size) = (1, 0);
            while next <= in_batches {
                size = (size + 7) % 100;
                let until = (next + size).min(in_batches + 1);
                let sent = sender.send_all(&values(next, until)).expect("sent");
                assert_eq!(sent, until - 1);
                next = until;
            }
            let too_long = vec![0; 17 << 20];
            let one = payload::numbered(next, length(next));
            let refused = [&one[..], &too_long, &one];
            let error = sender.send_all(&refused).expect_err("too long");
            assert_eq!(error.kind(), SendErrorKind::TooLong, "{error}");
            assert_eq!(sender.counts().sent, next);
            let values = values(next + 1, last + 1);
            let mut rest = &values[..];
            while !rest.is_empty() {
                match sender.try_send_all(rest) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "batches");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}
