//! Segments between a sender's pool and a receiver's slots.

use super::super::{
    aside::tests::open_descriptors_of,
    message_segment_pool::{DISPLACED_EVERY, ROUND_SLOTS},
};
use super::*;
use crate::shared_memory::MessageSegmentPool;
use ibex_ring::memory::{MemoryBudget, Region, probe};
use rustix::fs::ftruncate;
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{Ordering::SeqCst, fence};

impl MessageSlots {
    /// Handles an announcement as a receiver does.
    fn accept(
        &mut self,
        slot: u32,
        length: u64,
        capacity: u64,
        fd: Option<OwnedFd>,
    ) -> Result<Arc<MessageSegment>, SegmentRefused> {
        if let Some(fd) = fd {
            let passed = PassedSegment::Fd(PassedFd::new(fd));
            self.map(slot, capacity, &passed)?;
        }
        self.of_message(slot, 0, length)
    }
}

fn first_byte(segment: &MessageSegment) -> u8 {
    // The compiler takes the sender's mapping for different memory.
    fence(SeqCst);
    // SAFETY: the mapping is alive and readable, and no thread writes it now.
    unsafe { segment.memory().0.as_ptr().read_volatile() }
}

#[test]
fn a_descriptor_travels_once_and_the_slots_serve_again_in_rotation() {
    let mut pool = MessageSegmentPool::new();
    let mut slots = MessageSlots::new();
    for round in 0..3 * ROUND_SLOTS as u8 {
        let mut slot = pool.take(100_000).unwrap().unwrap();
        slot.bytes()[0].write(round);
        let (index, capacity) = (slot.index(), slot.capacity() as u64);
        let fd = slot.announce();
        assert_eq!(index as usize, round as usize % ROUND_SLOTS);
        assert_eq!(fd.is_some(), (round as usize) < ROUND_SLOTS);

        let segment = slots.accept(index, 100_000, capacity, fd).unwrap();
        assert_eq!(first_byte(&segment), round);
        assert!(pool.release(index));
    }
}

#[test]
fn a_stream_has_as_many_slots_that_rest_as_are_busy_up_to_a_limit() {
    let longest = |bytes: usize, busy: usize| {
        let mut pool = MessageSegmentPool::new();
        let mut under_way = VecDeque::new();
        let mut used = HashSet::new();
        for _ in 0..200 {
            if under_way.len() == busy {
                assert!(pool.release(under_way.pop_front().unwrap()));
            }
            let slot = pool.take(bytes).unwrap().unwrap();
            used.insert(slot.index());
            under_way.push_back(slot.index());
            let _ = slot.announce();
        }
        used.len()
    };
    assert_eq!(longest(1 << 20, 1), ROUND_SLOTS);
    assert_eq!(longest(1 << 20, 4), 8);
    assert_eq!(longest(1 << 20, 20), 20, "8 MiB rest at most");
    assert_eq!(longest(256 << 10, 16), 32);
    assert_eq!(longest(4 << 20, 3), ROUND_SLOTS);
}

#[test]
fn a_busy_slot_is_never_given_out() {
    let mut pool = MessageSegmentPool::new();
    let mut given: Vec<u32> = Vec::new();
    while let Some(slot) = pool.take(64 << 10).unwrap() {
        given.push(slot.index());
        let _fd = slot.announce();
    }
    given.sort_unstable();
    assert_eq!(given, Vec::from_iter(0..MESSAGE_SLOTS as u32));
    assert_eq!(pool.busy(), MESSAGE_SLOTS);

    assert!(pool.release(2));
    assert!(!pool.release(2), "it was released already");
    assert!(!pool.release(99));
    assert_eq!(pool.take(64 << 10).unwrap().unwrap().index(), 2);
}

#[test]
fn a_longer_message_replaces_the_shortest_free_segment() {
    let mut pool = MessageSegmentPool::new();
    let mut slots = MessageSlots::new();
    for bytes in [64 << 10, 128 << 10, 256 << 10, 512 << 10] {
        let slot = pool.take(bytes).unwrap().unwrap();
        let (index, capacity) = (slot.index(), slot.capacity() as u64);
        slots.accept(index, 1, capacity, slot.announce()).unwrap();
    }
    for index in 0..4 {
        pool.release(index);
    }
    let held = slots.accept(0, 1, 64 << 10, None).unwrap();

    let slot = pool.take(1 << 20).unwrap().unwrap();
    assert_eq!(slot.index(), 0);
    let segment = slots.accept(0, 1 << 20, 1 << 20, slot.announce()).unwrap();
    assert_eq!(segment.memory().1, 1 << 20);
    assert_eq!(
        first_byte(&held),
        0,
        "the old mapping lives while it is held"
    );
    assert_eq!(
        pool.take(200 << 10).unwrap().unwrap().index(),
        2,
        "the closest fit"
    );
}

#[test]
fn free_segments_make_room_for_a_longer_one() {
    let mut pool = MessageSegmentPool::new();
    let held: Vec<u32> = (0..8)
        .map(|_| {
            let slot = pool.take(1 << 20).unwrap().unwrap();
            let index = slot.index();
            let _fd = slot.announce();
            index
        })
        .collect();
    assert_eq!(pool.make_room(4 << 20, 4 << 20, 12 << 20), 0);
    let crowded = pool.make_room(4 << 20, 4 << 20, 8 << 20);
    assert_eq!(crowded, 0, "none is free");
    for &index in &held[1..] {
        pool.release(index);
    }
    assert_eq!(pool.make_room(1 << 20, 1 << 20, 8 << 20), 0, "one fits");
    let emptied = pool.make_room(4 << 20, 4 << 20, 8 << 20);
    assert_eq!(emptied, 0b1_1110);
    assert_eq!(pool.take(4 << 20).unwrap().unwrap().index(), 1);

    let mut slots = MessageSlots::new();
    let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
    let passed = PassedSegment::Fd(PassedFd::new(fd));
    slots.map(63, 64 << 10, &passed).unwrap();
    assert!(slots.map(64, 64 << 10, &passed).is_err());
    assert_eq!(slots.bytes(), 64 << 10);
    slots.forget(63);
    slots.forget(64);
    assert_eq!(slots.bytes(), 0);
    assert!(slots.of_message(63, 0, 1).is_err());
}

#[test]
fn a_descriptor_is_kept_until_a_message_is_announced_with_it() {
    let mut pool = MessageSegmentPool::new();
    let abandoned = pool.take(64 << 10).unwrap().unwrap();
    assert_eq!(abandoned.index(), 0);
    let slot = pool.take(64 << 10).unwrap().unwrap();
    assert_eq!(slot.index(), 0);
    assert!(slot.announce().is_some());
}

#[test]
fn a_wrong_announcement_of_a_segment_is_refused() {
    let mut slots = MessageSlots::new();
    let never_filled = slots.accept(1, 10, 64 << 10, None).unwrap_err();
    assert!(matches!(
        never_filled,
        SegmentRefused::NoSuchSlot {
            slot: 1,
            capacity: 0,
            ..
        }
    ));
    let beyond = slots.accept(u32::MAX, 10, 64 << 10, None).unwrap_err();
    assert!(matches!(
        beyond,
        SegmentRefused::NoSuchSlot { slot: u32::MAX, .. }
    ));

    let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
    let too_long = slots
        .accept(0, (64 << 10) + 1, 64 << 10, Some(fd))
        .unwrap_err();
    assert!(matches!(
        too_long,
        SegmentRefused::NoSuchSlot {
            capacity: 65_536,
            ..
        }
    ));

    for capacity in [0, 1, (64 << 10) + 1, u64::MAX] {
        let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
        let refused = slots.accept(0, 1, capacity, Some(fd)).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::Impossible { .. }),
            "{refused}"
        );
    }
}

#[test]
fn segments_are_sealed_and_leave_nothing_behind() {
    let (sender, fd) = MessageSegment::create(100_000).unwrap();
    assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    let file = probe::inode(&fd);
    let receiver = MessageSegment::accept(fd.as_fd(), sender.memory().1 as u64).unwrap();
    assert_eq!(probe::mappings_of(file), 2);
    drop((sender, receiver));
    assert_eq!(probe::mappings_of(file), 0);
}

#[test]
fn a_segment_that_is_mapped_before_its_turn_takes_no_descriptor() {
    let (_sender, fd) = MessageSegment::create(64 << 10).unwrap();
    let file = probe::inode(&fd);
    let passed = PassedSegment::mapped(PassedFd::new(fd), 64 << 10).unwrap();
    assert_eq!(open_descriptors_of(file), 0);
    let mut slots = MessageSlots::new();
    slots.map(0, 64 << 10, &passed).unwrap();
    drop(passed);
    assert_eq!(
        slots.of_message(0, 0, 64 << 10).unwrap().memory().1,
        64 << 10
    );
}

#[test]
fn nothing_but_a_sealed_memory_file_is_mapped() {
    let path = std::env::temp_dir().join(format!("ibex-segment-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).unwrap();
    let file = OwnedFd::from(std::fs::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let pipe = OwnedFd::from(std::io::pipe().unwrap().0);
    for fd in [file, pipe] {
        let inode = probe::inode(&fd);
        let refused = PassedSegment::mapped(PassedFd::new(fd), 4096).unwrap_err();
        assert!(
            matches!(
                refused,
                SegmentRefused::NotAMemoryFile { .. } | SegmentRefused::NotSealed { .. }
            ),
            "{refused}"
        );
        assert_eq!(probe::mappings_of(inode), 0);
    }
}

/// Returns a region of 128 KiB, and the file that its pages are those of.
fn region() -> (Region, Arc<RegionFile>) {
    let region = Region::zeroed(128 << 10).unwrap();
    let shared = MessageSegment::of_region(&region.slice(..)).unwrap();
    let (file, _) = shared.expect("it has pages of its own");
    (region, file)
}

#[test]
fn a_region_serves_several_messages_in_one_slot() {
    let (mut pool, mut slots) = (MessageSegmentPool::new(), MessageSlots::new());
    let (_region, file) = region();
    let first = pool.take_region(&file, 1 << 20).unwrap();
    assert!(first.is_new && first.emptied == 0);
    let segment = slots.accept(first.index, 1, 128 << 10, Some(file.for_peer().unwrap()));
    assert_eq!(segment.unwrap().memory().1, 128 << 10);
    let second = pool.take_region(&file, 1 << 20).unwrap();
    assert_eq!((second.index, second.is_new), (first.index, false));
    // Neither a longer region nor a message takes its place while a message lies there.
    assert!(pool.release(first.index));
    let (_other, longer) = region();
    assert!(pool.take_region(&longer, 128 << 10).is_none());
    assert!(
        !pool.take_region(&file, 1 << 20).unwrap().is_new,
        "it stays"
    );
    assert!(pool.release(first.index));
    assert_ne!(pool.take(1000).unwrap().unwrap().index(), first.index);
    assert!(pool.release(first.index));
    assert!(!pool.release(first.index));
    let third = pool.take_region(&longer, 128 << 10).unwrap();
    assert!(third.is_new);
    assert_eq!(third.emptied, 1 << first.index & !(1 << third.index));
}

#[test]
fn a_region_for_which_there_is_no_room_empties_no_slot() {
    let mut pool = MessageSegmentPool::new();
    let regions: Vec<_> = (0..3).map(|_| region()).collect();
    let idle = pool.take_region(&regions[0].1, 256 << 10).unwrap();
    pool.take_region(&regions[1].1, 256 << 10).unwrap();
    pool.release(idle.index);
    let long = Region::zeroed(256 << 10).unwrap();
    let long = MessageSegment::of_region(&long.slice(..)).unwrap();
    let (long, _) = long.expect("it has pages of its own");
    assert_eq!(pool.take_region(&long, 256 << 10), None);
    let again = pool.take_region(&regions[0].1, 256 << 10).unwrap();
    assert_eq!((again.index, again.is_new), (idle.index, false));
    pool.release(again.index);
    let third = pool.take_region(&regions[2].1, 256 << 10).unwrap();
    assert!(third.is_new, "the idle one makes room");
}

/// Returns a pool with as many regions as it takes, and the regions.
fn full_of_regions() -> (MessageSegmentPool, Vec<(Region, Arc<RegionFile>)>) {
    let mut pool = MessageSegmentPool::new();
    let regions: Vec<_> = (ROUND_SLOTS..MESSAGE_SLOTS).map(|_| region()).collect();
    for (_, file) in &regions {
        let slot = pool.take_region(file, usize::MAX).unwrap();
        assert!(slot.is_new);
        pool.release(slot.index);
    }
    (pool, regions)
}

#[test]
fn regions_in_turn_displace_each_other_rarely() {
    let (mut pool, mut regions) = full_of_regions();
    let (_region, late) = region();
    let place = pool
        .take_region(&late, usize::MAX)
        .expect("it is the first");
    assert!(place.is_new, "in place of the region that was used first");
    pool.release(place.index);
    for _ in 1..DISPLACED_EVERY {
        assert_eq!(pool.take_region(&regions[0].1, usize::MAX), None);
        let again = pool.take_region(&late, usize::MAX).unwrap();
        assert_eq!((again.index, again.is_new), (place.index, false));
        pool.release(again.index);
    }
    let next = pool.take_region(&regions[0].1, usize::MAX).unwrap();
    assert_eq!((next.index, next.is_new), (place.index + 1, true));
    pool.release(next.index);

    // The region of which the program has nothing any more gives way at once.
    assert_eq!(pool.take_region(&regions[1].1, usize::MAX), None);
    drop(regions.remove(7));
    let next = pool.take_region(&regions[1].1, usize::MAX).unwrap();
    assert_eq!((next.index, next.is_new), (place.index + 7, true));
}

#[test]
fn regions_leave_slots_to_other_messages() {
    let (mut pool, regions) = full_of_regions();
    let (mut given, mut forgotten) = (Vec::new(), 0);
    for _ in 0..MESSAGE_SLOTS {
        let emptied = pool.make_room(64 << 10, 64 << 10, usize::MAX);
        let slot = pool.take(64 << 10).unwrap().unwrap();
        let place = 1 << slot.index();
        assert!(emptied == 0 || emptied == place, "one at a time");
        forgotten |= emptied;
        given.push(slot.index());
        let _fd = slot.announce();
    }
    assert_eq!(forgotten, u64::MAX << ROUND_SLOTS, "the peer hears of each");
    assert!(pool.take(64 << 10).unwrap().is_none());
    given.sort_unstable();
    assert_eq!(given, Vec::from_iter(0..MESSAGE_SLOTS as u32));
    assert!(pool.take_region(&regions[0].1, usize::MAX).is_none());
}

#[test]
fn a_message_beyond_its_segment_is_refused() {
    let mut slots = MessageSlots::new();
    let (_region, file) = region();
    let passed = file.for_peer().unwrap();
    let passed = PassedSegment::Fd(PassedFd::new(passed));
    slots.map(5, 128 << 10, &passed).unwrap();
    let whole = 128 << 10;
    for (offset, length) in [(0, whole), (1, whole - 1), (whole, 0), (7, 9)] {
        assert!(slots.of_message(5, offset, length).is_ok());
    }
    let beyond = [
        (1, whole),
        (whole, 1),
        (u64::MAX, 2),
        (2, u64::MAX),
        (u64::MAX, 0),
    ];
    for (offset, length) in beyond {
        let refused = slots.of_message(5, offset, length).unwrap_err();
        let SegmentRefused::NoSuchSlot { slot: 5, .. } = refused else {
            panic!("{refused}");
        };
    }
    assert!(slots.of_message(6, 0, 1).is_err(), "nothing was passed");
}

#[test]
fn messages_in_one_segment_share_its_claim() {
    let budget = MemoryBudget::new(Box::leak(Box::default()), 1 << 20);
    let mut slots = MessageSlots::new();
    let (_region, file) = region();
    let passed = file.for_peer().unwrap();
    let passed = PassedSegment::Fd(PassedFd::new(passed));
    slots.map(5, 128 << 10, &passed).unwrap();
    assert!(slots.claim_of(5).is_none() && slots.claim_of(6).is_none());
    let first = Arc::new(budget.claim(128 << 10).unwrap());
    slots.share_claim(5, &first);
    let second = slots.claim_of(5).unwrap();
    drop(first);
    assert_eq!(budget.used(), 128 << 10, "the second message holds it");
    // Another segment in the slot counts for itself.
    slots.map(5, 128 << 10, &passed).unwrap();
    assert!(slots.claim_of(5).is_none());
    slots.share_claim(5, &second);
    drop(second);
    assert_eq!(budget.used(), 0);
    assert!(slots.claim_of(5).is_none(), "no message lies there");
}

#[test]
fn a_region_is_sealed_as_segments_are() {
    let (_region, file) = region();
    assert_eq!(ftruncate(file.as_fd(), 0), Err(Errno::PERM));
    let what = MemoryUse::LargeMessage;
    let written = Mapping::of_file(what, file.as_fd(), 128 << 10, Access::ReadWrite);
    assert!(written.is_err(), "a peer may not write there");
    MessageSegment::accept(file.for_peer().unwrap().as_fd(), 128 << 10).unwrap();
}
