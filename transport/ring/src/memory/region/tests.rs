//! Tests of regions and their slices, without a node.

use std::{
    env,
    mem::MaybeUninit,
    pin::pin,
    process,
    sync::atomic::{AtomicU32, Ordering},
    task::{Wake, Waker},
    thread,
};

use super::*;
use crate::memory::MemoryError;
use crate::memory::{huge_pages::HUGE_PAGE_BYTES, probe};

const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_region_gives_its_bytes_back_when_no_slice_is_left() {
    let region = Region::from(b"0123456789".to_vec());
    let slice = region.slice(2..8);
    assert_eq!(&slice[..], b"234567");
    let inner = slice.slice(1..=2);
    assert_eq!(&inner[..], b"34");
    let clone = inner.clone();
    drop((slice, inner));
    let region = region.into_vec().expect_err("a clone is left");
    assert!(!region.is_free());
    assert_eq!(&clone[..], b"34");
    drop(clone);
    assert_eq!(region.into_vec().unwrap(), b"0123456789");
}

#[test]
fn a_slice_keeps_the_bytes_of_a_dropped_region() {
    let slice = Region::from(vec![7; 1000]).slice(..);
    assert_eq!(&slice[..], [7; 1000]);
}

#[test]
fn ranges_outside_the_slice_are_refused() {
    let slice = Region::from(vec![0; 10]).slice(2..6);
    assert!(slice.slice(4..).is_empty());
    for range in [(0, 5), (5, 5), (3, 2), (0, usize::MAX)] {
        let slice = slice.clone();
        let cut = thread::spawn(move || slice.slice(range.0..range.1)).join();
        assert!(cut.is_err(), "{range:?}");
    }
    let all = thread::spawn(move || slice.slice(0..=usize::MAX)).join();
    assert!(all.is_err());
}

#[test]
fn a_waiting_thread_hears_of_the_last_slice() {
    let region = Region::from(vec![1; 100]);
    assert!(region.wait_free(LONG), "there is no slice yet");
    let slices = [region.slice(..), region.slice(1..2)];
    assert!(!region.wait_free(Duration::ZERO));
    let dropping = thread::spawn(move || slices.map(drop));
    assert!(region.wait_free(LONG));
    dropping.join().unwrap();
    assert_eq!(region.into_vec().unwrap(), [1; 100]);
}

/// Counts its wake-ups, and panics at the first.
#[derive(Default)]
struct PanicsOnce(AtomicU32);

impl Wake for PanicsOnce {
    fn wake(self: Arc<Self>) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "planted: a waker panics");
    }
}

#[test]
fn waiting_tasks_hear_of_the_last_slice_although_one_panics() {
    let region = Region::from(vec![1; 100]);
    let slices = [region.slice(..), region.slice(1..2)];
    let woken = [(); 3].map(|()| Arc::<PanicsOnce>::default());
    let mut waits = [(); 3].map(|()| Box::pin(region.wait_free_async()));
    let mut poll = |at: usize| {
        let waker = Waker::from(woken[at].clone());
        let wait: &mut Pin<Box<_>> = &mut waits[at];
        Future::poll(wait.as_mut(), &mut Context::from_waker(&waker))
    };
    assert!((0..3).all(|at| poll(at).is_pending()));
    let [first, last] = slices;
    drop(first);
    let mut woken_by_first = woken.iter().map(|one| one.0.load(Ordering::Relaxed));
    assert!(woken_by_first.all(|count| count == 1));
    assert!((0..3).all(|at| poll(at).is_pending()), "a slice is left");
    drop(last);
    assert!((0..3).all(|at| poll(at).is_ready()));
    drop(waits);
    assert!(!region.waiters.is_waiting());
    assert_eq!(region.into_vec().unwrap(), [1; 100]);
}

#[test]
fn a_task_that_gives_up_leaves_nothing() {
    let region = Region::from(vec![1; 100]);
    let slice = region.slice(..);
    let woken = Arc::<PanicsOnce>::default();
    {
        let mut wait = pin!(region.wait_free_async());
        let waker = Waker::from(woken.clone());
        let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    assert_eq!(Arc::strong_count(&woken), 1, "its waker is kept");
    drop(slice);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    assert!(region.is_free());
}

#[test]
fn a_region_tells_how_many_slices_keep_it() {
    let region = Region::from(vec![1; 100]);
    let slice = region.slice(..);
    let _message = slice.slice(1..);
    assert_eq!(format!("{region:?}"), "Region { bytes: 100, slices: 2 }");
    drop(slice);
    assert_eq!(format!("{region:?}"), "Region { bytes: 100, slices: 1 }");
}

#[test]
fn a_mapped_file_is_read_in_place() {
    let path = env::temp_dir().join(format!("ibex-region-{}", process::id()));
    let content: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: the file has no name any more, and only this test has it open.
    let region = unsafe { Region::map(&file, ..) }.unwrap();
    drop(file);
    assert_eq!(&region[..], content);
    assert_eq!(&region.slice(4096..4100)[..], &content[4096..4100]);
    let mut region = region.into_vec().expect_err("it is no vector");
    assert!(region.is_free());
    assert!(region.get_mut().is_none(), "the file is read-only");
}

#[test]
fn bytes_that_a_mapped_file_lacks_are_an_error() {
    let path = env::temp_dir().join(format!("ibex-short-{}", process::id()));
    let content: Vec<u8> = (0..20_000).map(|at| (at / 3) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: nothing here reads what the file is about to lack.
    let region = unsafe { Region::map(&file, 100..) }.unwrap();
    file.set_len(5000).unwrap();
    let mut copy = vec![MaybeUninit::new(0); 20_000];
    // The page of the last byte is whole, and zero behind it.
    copy_slice(&region.slice(..8092), &mut copy).unwrap();
    // SAFETY: all were written.
    let read: Vec<u8> = copy
        .iter()
        .map(|byte| unsafe { byte.assume_init() })
        .collect();
    assert_eq!(read[..4900], content[100..5000]);
    let missing = copy_slice(&region.slice(10..), &mut copy).expect_err("they are gone");
    let read = format!(
        "behind {} of its {} bytes (EFAULT)",
        8192 - 110,
        20_000 - 110
    );
    assert!(missing.contains(&read), "{missing}");
    assert!(missing.contains(path.to_str().unwrap()), "{missing}");
    std::fs::remove_file(&path).unwrap();
    let own = Region::from(content.clone());
    copy_slice(&own.slice(..), &mut copy).unwrap();
    assert!(!is_of_file(&own.slice(..)) && is_of_file(&region.slice(..)));
}

#[test]
fn the_bytes_may_be_changed_while_there_is_no_slice() {
    let zeroed = Region::zeroed(3 * HUGE_PAGE_BYTES + 11).unwrap();
    assert_eq!(zeroed.len(), 3 * HUGE_PAGE_BYTES + 11);
    assert!(zeroed.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
    assert!(zeroed.iter().all(|&byte| byte == 0));
    let heap = Region::from(vec![0; 100]);
    for mut region in [zeroed, heap, Region::zeroed(1).unwrap()] {
        for byte in [5, 6] {
            let last = region.get_mut().unwrap().last_mut().unwrap();
            *last = byte;
            let slice = region.slice(region.len() - 1..);
            assert!(region.get_mut().is_none(), "there is a slice");
            assert_eq!(slice[..], [byte]);
        }
    }
}

#[test]
fn bytes_that_cannot_be_had_are_an_error() {
    assert!(Region::zeroed(0).unwrap().is_empty());
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 50] {
        let refused = Region::zeroed(bytes).expect_err("too long");
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory, "{bytes}");
    }
}

#[test]
fn a_range_of_a_file_is_mapped_from_any_byte() {
    let path = env::temp_dir().join(format!("ibex-range-{}", process::id()));
    let content: Vec<u8> = (0..10_000).map(|at| (at / 7) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for (from, to) in [
        (0, 10_000),
        (0, 1),
        (4095, 4097),
        (4096, 8192),
        (9_999, 10_000),
    ] {
        // SAFETY: the file has no name any more, and only this test has it open.
        let region = unsafe { Region::map(&file, from..to) }.unwrap();
        assert_eq!(region[..], content[from as usize..to as usize]);
        let (_, start) = mapped_bytes(&region.slice(..))
            .map(|(_, at)| ((), at))
            .unwrap();
        assert_eq!(start as u64, from % 4096, "where a device finds it");
    }
    for (from, to) in [(0, 10_001), (3, 2), (10_001, 10_001)] {
        // SAFETY: as above.
        let refused = unsafe { Region::map(&file, from..to) }.expect_err("outside");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    // SAFETY: as above.
    assert!(unsafe { Region::map(&file, 10_000..) }.unwrap().is_empty());
}

/// Bytes whose drop is counted, and panics.
struct Owner([u8; 100], Arc<AtomicU32>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        panic!("planted: an owner panics");
    }
}

#[test]
fn an_owner_is_dropped_with_the_last_slice() {
    let dropped = Arc::<AtomicU32>::default();
    let region = Region::from_owner(Owner([7; 100], dropped.clone()));
    let mut region = region.into_vec().expect_err("it is no vector");
    assert!(region.get_mut().is_none(), "it is the owner's");
    let (region, unfit) = ProvidedRegion::new(region).unwrap_err();
    assert!(matches!(unfit, RegionUnfit::IsReadOnly), "{unfit}");
    let slice = region.slice(1..);
    assert!(mapped_bytes(&slice).is_none());
    drop(region);
    assert_eq!(
        (dropped.load(Ordering::Relaxed), &slice[..]),
        (0, &[7; 99][..])
    );
    drop(slice);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn only_a_regular_file_is_mapped() {
    // SAFETY: nobody writes to these, which are not mapped.
    let map = |path| unsafe { Region::map(&File::open(path).unwrap(), ..) };
    for path in ["/dev/null", "/"] {
        let refused = map(path).expect_err(path);
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_region_is_provided_as_it_is_and_comes_back() {
    for region in [
        Region::from(vec![7; 1000]),
        Region::zeroed(70_001).unwrap(),
        Region::zeroed(0).unwrap(),
    ] {
        let (place, length) = (region.as_ptr(), region.len());
        let is_mapped = length > 1000;
        let provided = ProvidedRegion::new(region).unwrap();
        assert_eq!(provided.base().as_ptr().cast_const(), place);
        assert_eq!(provided.length(), length);
        assert_eq!(provided.mapped().is_some(), is_mapped);
        if length > 0 {
            // SAFETY: the byte is inside the region, to which there is no reference.
            unsafe { provided.base().as_ptr().add(length - 1).write(9) };
        }
        let mut region = provided.into_region();
        assert_eq!(region.len(), length);
        assert!(region.last().is_none_or(|&last| last == 9));
        assert!(region.get_mut().is_some());
    }
}

#[test]
fn a_region_with_slices_is_not_provided() {
    let region = Region::from(vec![7; 10]);
    let slice = region.slice(1..2);
    let (region, unfit) = ProvidedRegion::new(region).unwrap_err();
    assert!(matches!(unfit, RegionUnfit::HasSlices), "{unfit}");
    drop(slice);
    assert!(ProvidedRegion::new(region).is_ok());
}

/// Moves a slice's region to a memory file. Returns the file, where the slice begins in it, and a peer's
/// mapping.
fn shared(slice: &RegionSlice) -> (Arc<RegionFile>, usize, Mapping) {
    let (file, start) = share_region(slice, |_, _| Ok(()))
        .unwrap()
        .expect("its own pages");
    let (what, access) = (MemoryUse::LargeMessage, Access::ReadOnly);
    let passed = file.for_peer().expect("a description of its own");
    let peer = Mapping::of_file(what, passed.as_fd(), file.bytes(), access).unwrap();
    (file, start, peer)
}

/// Returns a byte as a peer reads it.
fn peer_reads(peer: &Mapping, at: usize) -> u8 {
    assert!(at < peer.bytes());
    // SAFETY: inside the mapping; nobody writes there now.
    unsafe { peer.base().as_ptr().add(at).read_volatile() }
}

#[test]
fn a_shared_region_is_where_it_was_and_the_peer_reads_it() {
    for length in [70_001, HUGE_PAGE_BYTES + 5, 5 * HUGE_PAGE_BYTES + 70_001] {
        let mut region = Region::zeroed(length).unwrap();
        for (at, byte) in region.get_mut().unwrap().iter_mut().enumerate() {
            *byte = (at / 4096) as u8;
        }
        region.get_mut().unwrap()[..3].copy_from_slice(b"abc");
        let (place, slice) = (region.as_ptr(), region.slice(1..));
        let (file, start, peer) = shared(&slice);
        assert_eq!(start, 1);
        assert_eq!(
            file.bytes(),
            length.next_multiple_of(rustix::param::page_size())
        );
        assert_eq!(region.as_ptr(), place);
        assert_eq!(region[..3], *b"abc");
        assert_eq!(peer_reads(&peer, start), b'b');
        let mut each = (3..length).step_by(1009);
        assert!(each.all(|at| {
            let byte = (at / 4096) as u8;
            (region[at], peer_reads(&peer, at)) == (byte, byte)
        }));

        // The next payload needs no other file.
        drop(slice);
        region.get_mut().unwrap()[2] = b'z';
        let again = share_region(&region.slice(2..3), |_, _| unreachable!("it has a file"));
        let (again, start) = again.unwrap().unwrap();
        assert!(Arc::ptr_eq(&again, &file));
        assert_eq!((start, peer_reads(&peer, 2)), (2, b'z'));
    }
}

#[test]
fn a_region_moves_away_from_a_peer_before_it_is_changed() {
    for length in [70_001, 3 * HUGE_PAGE_BYTES + 70_001] {
        let mut region = Region::zeroed(length).unwrap();
        region.get_mut().unwrap().fill(7);
        let (place, slice) = (region.as_ptr(), region.slice(..));
        let (file, _, peer) = shared(&slice);
        let inode = probe::inode(&file);
        leave_to_peers(&slice, &file);
        leave_to_peers(&slice, &file);
        let file_pages = probe::mappings_of(inode);
        assert!(file_pages >= 2, "nothing is copied yet");
        // Others may read it too, as long as it is not changed.
        let again = share_region(&slice, |_, _| unreachable!("it has a file"));
        assert!(Arc::ptr_eq(&again.unwrap().unwrap().0, &file));
        drop((slice, file));
        region.get_mut().unwrap().fill(8);
        assert_eq!(region.as_ptr(), place);
        assert!(region.iter().all(|&byte| byte == 8));
        assert_eq!(peer_reads(&peer, length - 1), 7);
        assert_eq!(probe::mappings_of(inode), 1, "the peer's");

        let slice = region.slice(..);
        let (file, _, other) = shared(&slice);
        assert_ne!(probe::inode(&file), inode);
        assert_eq!(peer_reads(&other, length - 1), 8);
        drop((slice, file));
        region.get_mut().unwrap().fill(9);
        assert_eq!(peer_reads(&other, 0), 9, "no peer was left with it");
    }
}

#[test]
fn a_region_that_no_peer_has_any_more_stays_where_it_is() {
    let mut region = Region::zeroed(70_001).unwrap();
    region.get_mut().unwrap().fill(7);
    let slice = region.slice(..);
    let (file, _, peer) = shared(&slice);
    let inode = probe::inode(&file);
    // A descriptor that is on its way to a peer, or in its hands.
    let passed = file.for_peer().expect("a description of its own");
    leave_to_peers(&slice, &file);
    drop((slice, file, peer));
    let mapped = Mapping::of_file(
        MemoryUse::LargeMessage,
        passed.as_fd(),
        70_001,
        Access::ReadOnly,
    );
    drop(passed);
    drop(mapped.unwrap());
    region.get_mut().unwrap().fill(8);
    assert_eq!(probe::mappings_of(inode), 1, "it has not moved");
    // The next peer gets it, and has it before the next change.
    let slice = region.slice(..);
    let (file, _, peer) = shared(&slice);
    assert_eq!((probe::inode(&file), peer_reads(&peer, 0)), (inode, 8));
    leave_to_peers(&slice, &file);
    drop((slice, file));
    region.get_mut().unwrap().fill(9);
    assert_eq!(peer_reads(&peer, 0), 8);
}

#[test]
fn a_dropped_region_leaves_only_what_the_peer_maps() {
    let slice = Region::zeroed(70_001).unwrap().slice(..);
    let (file, _, peer) = shared(&slice);
    let inode = probe::inode(&file);
    assert_eq!(probe::mappings_of(inode), 2);
    leave_to_peers(&slice, &file);
    drop((slice, file));
    assert_eq!(probe::mappings_of(inode), 1);
    drop(peer);
    assert_eq!(probe::mappings_of(inode), 0);
}

#[test]
fn a_region_that_cannot_be_moved_stays_as_it_is() {
    let region = Region::zeroed(70_001).unwrap();
    let refused = share_region(&region.slice(..), |_, bytes| {
        let errno = rustix::io::Errno::MFILE;
        Err(MemoryError::new(
            MemoryUse::LargeMessage,
            bytes,
            "F_ADD_SEALS",
            errno,
        ))
    });
    assert!(refused.is_err());
    assert!(region.is_free() && region.iter().all(|&byte| byte == 0));
    let again = share_region(&region.slice(..), |_, _| unreachable!("it is known"));
    assert!(again.unwrap().is_none());
    let heap = Region::from(vec![1; 100]);
    let none = share_region(&heap.slice(..), |_, _| unreachable!("it has no pages"));
    assert!(none.unwrap().is_none());
}

#[test]
fn what_was_attached_to_pages_goes_with_them() {
    let mut region = Region::zeroed(70_001).unwrap();
    let attached = |slice: &RegionSlice| {
        let (mapped, _) = mapped_bytes(slice).unwrap();
        mapped.attachments().find(|_: &&str| true).is_some()
    };
    let attach = |slice: &RegionSlice| {
        let (mapped, _) = mapped_bytes(slice).unwrap();
        mapped.attachments().attach("registered");
    };
    let slice = region.slice(..);
    attach(&slice);
    let (file, _, _peer) = shared(&slice);
    assert!(!attached(&slice));
    attach(&slice);
    leave_to_peers(&slice, &file);
    drop(slice);
    assert!(region.get_mut().is_some());
    assert!(!attached(&region.slice(..)));
}
