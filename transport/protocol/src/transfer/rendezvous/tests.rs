//! Transfers, sending and receiving.

use super::*;
use crate::format::frame::MAX_CHUNK_BYTES;

fn next_chunk(sender: &mut Transfers) -> Option<Chunk> {
    match sender.next_piece(MAX_CHUNK_BYTES, true)? {
        Piece::Chunk(chunk) => Some(chunk),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_travels_in_chunks_once_granted() {
    let length = 2 * MAX_CHUNK_BYTES as u64 + 5;
    let (mut sender, mut receiver) = (Transfers::default(), Transfers::default());
    sender.announce(9, length, false);
    receiver.announce(9, length, false);
    assert_eq!(next_chunk(&mut sender), None);
    assert!(
        receiver.place(9, 1).is_none(),
        "nothing may arrive before the grant"
    );
    assert_eq!(sender.grant(9, Way::Chunks, length), Some(length));
    assert_eq!(receiver.grant(9, Way::Chunks, length), Some(length));
    assert!(
        sender.grant(9, Way::Chunks, length).is_none(),
        "a grant counts once"
    );
    let mut arrived = 0;
    while let Some(chunk) = next_chunk(&mut sender) {
        let (placed, complete) = receiver.place(9, chunk.bytes).unwrap();
        assert_eq!(placed, chunk);
        arrived += chunk.bytes as u64;
        assert_eq!(complete, arrived == length);
        assert_eq!(receiver.oldest(), Some(9), "its bytes are not there yet");
        receiver.finish();
    }
    assert_eq!(arrived, length);
    assert!(sender.is_empty() && receiver.is_empty());
}

#[test]
fn a_message_comes_as_far_as_it_is_granted() {
    let (mut sender, mut receiver) = (Transfers::default(), Transfers::default());
    for end in [&mut sender, &mut receiver] {
        end.announce(9, 100, false);
        assert!(end.grant(9, Way::Chunks, 0).is_none(), "it grants nothing");
        assert!(end.grant(9, Way::Chunks, 101).is_none(), "it has no more");
        assert_eq!(end.grant(9, Way::Chunks, 30), Some(100));
        assert!(end.grant(9, Way::Chunks, 30).is_none());
    }
    assert_eq!(next_chunk(&mut sender).map(|chunk| chunk.bytes), Some(30));
    assert_eq!(next_chunk(&mut sender), None);
    assert!(!sender.has_piece(true) && !sender.is_empty());
    assert!(receiver.place(9, 31).is_none());
    assert_eq!(
        receiver.place(9, 30).map(|(_, complete)| complete),
        Some(false)
    );
    for end in [&mut sender, &mut receiver] {
        assert_eq!(end.grant(9, Way::Chunks, 100), Some(100));
    }
    assert_eq!(next_chunk(&mut sender).map(|chunk| chunk.bytes), Some(70));
    assert_eq!(
        receiver.place(9, 70).map(|(_, complete)| complete),
        Some(true)
    );

    // Over new wires the message begins anew, as far as it was granted.
    let mut receiver = Transfers::default();
    receiver.announce(9, 100, false);
    receiver.grant(9, Way::Chunks, 30).unwrap();
    receiver.place(9, 20).unwrap();
    receiver.begin_anew(true, false);
    assert_eq!(
        receiver.grants().collect::<Vec<_>>(),
        [(9, Way::Chunks, 30)]
    );
    assert!(receiver.place(9, 31).is_none());
    assert!(receiver.place(9, 30).is_some());
}

#[test]
fn a_chunk_too_many_is_refused() {
    let mut receiver = Transfers::default();
    receiver.announce(1, 10, false);
    assert!(receiver.grant(1, Way::Chunks, 10).is_some());
    assert!(receiver.place(2, 5).is_none());
    assert!(receiver.place(1, 11).is_none());
    assert!(receiver.place(1, 10).is_some());
    assert!(receiver.place(1, 1).is_none());
    receiver.finish();
    assert!(receiver.place(1, 1).is_none());
}

#[test]
fn a_message_is_written_in_pieces_and_then_reported_whole() {
    let length = WRITE_BYTES as u64 + 5;
    let memory = RemoteMemory::new(0x1000, 7, length).unwrap();
    let (mut sender, mut receiver) = (Transfers::default(), Transfers::default());
    for end in [&mut sender, &mut receiver] {
        end.announce(9, length, false);
        assert_eq!(end.grant(9, Way::Memory(memory), length), Some(length));
    }
    assert!(!sender.has_piece(false) && sender.has_piece(true));
    assert_eq!(sender.next_piece(100, false), None);
    let write = |offset, bytes| {
        let chunk = Chunk {
            sequence: 9,
            offset,
            bytes,
        };
        Some(Piece::Write(chunk, memory))
    };
    assert_eq!(sender.next_piece(100, true), write(0, WRITE_BYTES));
    assert_eq!(sender.next_piece(100, true), write(WRITE_BYTES as u64, 5));
    assert!(!sender.is_empty(), "nobody has said that it is whole");
    let written = Some(Piece::Written { sequence: 9 });
    assert_eq!(sender.next_piece(100, false), written);
    assert!(sender.is_empty());

    assert!(receiver.place(9, 5).is_none(), "no chunk was granted");
    assert!(receiver.written(8).is_none());
    assert_eq!(receiver.written(9), Some(9));
    assert!(receiver.written(9).is_none(), "once is enough");
    receiver.finish();
    assert!(receiver.is_empty());
}

#[test]
fn memory_that_cannot_be_is_none() {
    assert!(RemoteMemory::new(0, 7, 10).is_none());
    assert!(RemoteMemory::new(0x1000, 7, 0).is_none());
    assert!(RemoteMemory::new(u64::MAX - 9, 7, 10).is_none());
    assert!(RemoteMemory::new(u64::MAX - 10, 0, 10).is_some());
}
