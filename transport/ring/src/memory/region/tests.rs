//! Tests of regions and their slices, without a node.

use std::{
    env,
    pin::pin,
    process,
    sync::atomic::{AtomicU32, Ordering},
    task::{Wake, Waker},
    thread,
};

use super::*;
use crate::memory::huge_pages::HUGE_PAGE_BYTES;

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
fn a_mapped_file_is_read_in_place() {
    let path = env::temp_dir().join(format!("ibex-region-{}", process::id()));
    let content: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: the file has no name any more, and only this test has it open.
    let region = unsafe { Region::map(&file) }.unwrap();
    drop(file);
    assert_eq!(&region[..], content);
    assert_eq!(&region.slice(4096..4100)[..], &content[4096..4100]);
    let mut region = region.into_vec().expect_err("it is no vector");
    assert!(region.is_free());
    assert!(region.get_mut().is_none(), "the file is read-only");
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
fn only_a_regular_file_is_mapped() {
    // SAFETY: nobody writes to these, which are not mapped.
    let map = |path| unsafe { Region::map(&File::open(path).unwrap()) };
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
