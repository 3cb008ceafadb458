//! Models of the slot.

use super::tests::Count;
use super::*;
use ibex_base::sync::{Arc, thread};

/// Mutants: light_missing, heavy_missing.
#[test]
fn loom_registered_or_seen() {
    register_beside_publisher(WaitSlot::new);
}

/// Somebody has waited before, so that both sides fence without a barrier of the system.
///
/// Mutants: slot_unfenced, waiter_unfenced.
#[test]
fn loom_registered_again_or_seen() {
    register_beside_publisher(|| {
        let slot = WaitSlot::of(Asymmetry::Membarrier);
        let mut entries = slot.entries();
        entries.fenced_by = Some(KNOWN);
        slot.state_waiting(&entries);
        drop(entries);
        // The publisher may take the bit back at this check, beside the waiter.
        slot.in_vain.store(MOST_IN_VAIN - 1, Ordering::Relaxed);
        slot
    });
}

fn register_beside_publisher(slot: fn() -> WaitSlot) {
    loom::model(move || {
        let published = Arc::new(AtomicU32::new(0));
        let slot = Arc::new(slot());
        let publisher = {
            let (published, slot) = (published.clone(), slot.clone());
            thread::spawn(move || {
                published.store(1, Ordering::Release);
                slot.wake_all();
            })
        };
        let woken = std::sync::Arc::new(Count::default());
        let _ticket = slot.register(&woken.clone().into());
        let seen = published.load(Ordering::Acquire) == 1;
        publisher.join().unwrap();
        assert!(seen || woken.get() == 1, "asleep for ever");
    });
}
