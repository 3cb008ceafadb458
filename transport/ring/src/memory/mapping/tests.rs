//! Tests of mapped memory.

use std::os::fd::AsFd;

use super::{
    super::{create_memfd, probe},
    *,
};

#[test]
fn anonymous_memory_costs_nothing_until_it_is_touched() {
    let mapping = Mapping::anonymous(MemoryUse::ArrivalBlock, 1 << 20).unwrap();
    mapping.prefer_huge_pages(false);
    assert_eq!(probe::resident_pages(mapping.base(), mapping.bytes()), 0);
    // SAFETY: the byte is inside the mapping and no other code knows it.
    unsafe { mapping.base().as_ptr().add(5000).write(1) };
    assert_eq!(probe::resident_pages(mapping.base(), mapping.bytes()), 1);
}

#[test]
fn memory_for_huge_pages_begins_where_one_may_and_is_as_long_as_asked() {
    for bytes in [HUGE_PAGE_BYTES, 5 << 20] {
        let mapping = Mapping::anonymous_huge(MemoryUse::LargeMessage, bytes).unwrap();
        let base = mapping.base().addr().get();
        assert_eq!((base % HUGE_PAGE_BYTES, mapping.bytes()), (0, bytes));
        mapping
            .populate(MemoryUse::LargeMessage, bytes, Access::ReadWrite)
            .unwrap();
        assert_eq!(
            probe::resident_pages(mapping.base(), bytes),
            bytes / page_size()
        );
    }
    let short = Mapping::anonymous_huge(MemoryUse::LargeMessage, 64 << 10).unwrap();
    assert_eq!(short.bytes(), 64 << 10);
}

#[test]
fn a_hole_in_a_range_is_noticed() {
    let page = page_size();
    let mapping = Mapping::anonymous(MemoryUse::LargeMessage, 3 * page).unwrap();
    assert!(is_mapped(mapping.base(), mapping.bytes()));
    // The kernel maps nothing so low.
    let hole = NonNull::new(ptr::without_provenance_mut(page)).unwrap();
    assert!(!is_mapped(hole, page));
}

#[test]
fn memory_that_the_kernel_refuses_to_replace_stays() {
    let page = page_size();
    let three = Mapping::anonymous(MemoryUse::LargeMessage, 3 * page).unwrap();
    let base = three.base();
    mem::forget(three);
    let part = |from: usize| Mapping {
        // SAFETY: inside the mapping.
        base: unsafe { base.add(from) },
        bytes: 2 * page,
    };
    // The kernel refuses to move memory over itself.
    let (mapping, other) = (part(0), part(page));
    // SAFETY: inside the mapping, which no other code knows.
    unsafe { base.as_ptr().write(7) };
    // SAFETY: nobody reads or writes either.
    assert!(unsafe { mapping.replace(0, other) }.is_err());
    // SAFETY: as above; the other range, which is gone now, begins behind this page.
    assert_eq!(unsafe { base.as_ptr().read() }, 7);
    mem::forget(mapping);
    let bytes = page;
    drop(Mapping { base, bytes });
}

#[test]
fn discarded_memory_reads_as_zero_and_has_no_resident_pages() {
    let mapping = Mapping::anonymous(MemoryUse::ArrivalBlock, 1 << 20).unwrap();
    mapping.prefer_huge_pages(false);
    // SAFETY: the byte is inside the mapping and no other code knows it.
    unsafe { mapping.base().as_ptr().add(5000).write(1) };
    // SAFETY: as above.
    unsafe { mapping.discard() };
    assert_eq!(probe::resident_pages(mapping.base(), mapping.bytes()), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { mapping.base().as_ptr().add(5000).read() }, 0);
}

#[test]
fn a_file_is_resident_when_it_is_mapped_and_gone_when_dropped() {
    let fd = create_memfd(MemoryUse::LargeMessage, 256 << 10).unwrap();
    let mapping = Mapping::of_file(
        MemoryUse::LargeMessage,
        fd.as_fd(),
        256 << 10,
        Access::ReadOnly,
    )
    .unwrap();
    let (base, bytes) = (mapping.base(), mapping.bytes());
    assert_eq!(
        probe::resident_pages(base, bytes),
        bytes / rustix::param::page_size()
    );
    let file = probe::inode(&fd);
    assert_eq!(probe::mappings_of(file), 1);
    drop(mapping);
    assert_eq!(probe::mappings_of(file), 0);
}
