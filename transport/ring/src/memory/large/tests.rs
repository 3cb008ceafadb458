//! Tests of pools of large buffers.

use super::super::probe;
use super::*;
use proptest::prelude::*;

#[test]
fn a_new_buffer_is_resident_as_far_as_the_message_goes() {
    let mut buffer = LargeBuffer::allocate(1 << 20).unwrap();
    assert_eq!(buffer.capacity(), 1 << 20);
    assert_eq!(
        probe::resident_pages(buffer.base(), 1 << 20),
        (1 << 20) / rustix::param::page_size()
    );
    buffer.slot().fill(MaybeUninit::new(3));
}

#[test]
fn a_returned_buffer_serves_messages_of_its_size() {
    let pool = LargePool::default();
    let first = pool.take(1 << 20).unwrap();
    let address = first.base();
    drop(first);
    assert_eq!(pool.kept(), 1);

    let far_shorter = pool.take(100 << 10).unwrap();
    assert_ne!(far_shorter.base(), address);
    let longer = pool.take((1 << 20) + 1).unwrap();
    assert_ne!(longer.base(), address);
    let similar = pool.take(900 << 10).unwrap();
    assert_eq!(similar.base(), address);
    assert_eq!(pool.kept(), 0);
}

#[test]
fn the_last_returned_are_kept_within_both_bounds() {
    let pool = LargePool::new(2, 3 << 20);
    let leases: Vec<_> = [64 << 10, 1 << 20, 2 << 20]
        .map(|bytes| pool.take(bytes).unwrap())
        .into_iter()
        .collect();
    drop(leases);
    assert_eq!(pool.kept(), 2);
    drop(pool.take(4 << 20).unwrap());
    assert_eq!(pool.kept(), 0, "it alone is more than may be kept");
}

#[test]
fn what_a_pool_has_no_room_for_comes_out_when_a_lease_is_given_back() {
    let pool = LargePool::new(1, usize::MAX);
    let [first, second] = [1, 2].map(|_| pool.take(1 << 20).unwrap());
    let address = first.base();
    assert!(first.give_back().is_empty());
    let displaced = second.give_back();
    let addresses: Vec<_> = displaced.iter().map(LargeBuffer::base).collect();
    assert_eq!((addresses, pool.kept()), (vec![address], 1));
}

#[test]
fn pooled_memory_that_nobody_takes_again_goes_back() {
    let pool = LargePool::default();
    drop([pool.take(1 << 20).unwrap(), pool.take(4 << 20).unwrap()]);
    assert!(pool.take_surplus().is_empty(), "they have just come back");
    drop(pool.take(1 << 20).unwrap());
    let [surplus] = &pool.take_surplus()[..] else {
        panic!("one was not taken since");
    };
    assert_eq!(surplus.capacity(), 4 << 20);
    assert_eq!(pool.take_surplus().len(), 1);
    assert_eq!(pool.kept(), 0);
}

#[test]
fn a_buffer_to_receive_in_has_no_pages_before_something_comes() {
    let buffer = LargeBuffer::reserve(8 << 20).unwrap();
    assert_eq!(probe::resident_pages(buffer.base(), 8 << 20), 0);
}

#[test]
fn kept_memory_counts_in_its_budget_until_it_is_trimmed() {
    let account: &'static crate::memory::MemoryAccount = Box::leak(Box::default());
    let budget = MemoryBudget::new(account, 16 << 20);
    let pool = LargePool::within(budget, 8, usize::MAX);
    let mut lease = pool.take(2 << 20).unwrap();
    lease.charge_to(budget.claim(2 << 20).unwrap());
    assert_eq!(budget.used(), 2 << 20);
    drop(lease);
    assert_eq!((budget.used(), pool.kept()), (0, 1));
    assert!(budget.claim(15 << 20).is_none(), "2 MiB are kept");
    assert!(pool.trim());
    assert!(budget.claim(16 << 20).is_some());
    drop(pool.take(5 << 20).unwrap());
    assert_eq!(pool.kept(), 0, "it is more than a quarter");
}

#[test]
fn the_longest_message_of_a_limit_has_a_buffer_within_it() {
    assert_eq!(longest_of_class(1 << 30), 1 << 30);
    assert_eq!(longest_of_class(100 << 20), 96 << 20);
    assert_eq!(longest_of_class((64 << 10) - 1), 0);
    assert_eq!(longest_of_class(u64::MAX), 1 << 46);
}

#[test]
fn an_impossible_length_is_an_error() {
    assert!(LargeBuffer::allocate(usize::MAX).is_err());
    assert!(LargePool::default().take((1 << 46) + 1).is_err());
}

proptest! {
    #[test]
    fn a_class_holds_its_lengths_and_little_more(bytes in 1usize..1 << 40) {
        let class = class_bytes(bytes).unwrap();
        prop_assert!(class >= bytes);
        prop_assert_eq!(class % (64 << 10), 0);
        prop_assert!(class <= (64 << 10).max(bytes + bytes / 2 + (64 << 10)));
        prop_assert_eq!(class_bytes(class).unwrap(), class);
    }
}
