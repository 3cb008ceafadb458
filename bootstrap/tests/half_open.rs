//! Ten thousand strangers that begin to authenticate and go no further: their cost to a listener,
//! counted. The test has a process of its own, so that nothing else uses its memory and
//! descriptors.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use common::secured::{first_flights, secured};
use common::{is_readable, node};
use ibex_bootstrap::{Acceptor, Problem};

/// Counts the bytes that are allocated.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STRANGERS: usize = 10_000;
const MAX_PENDING: usize = 256;
/// The bound that `Local::max_pending` states for each handshake that is authenticated.
const BYTES_OF_EACH: usize = 96 << 10;

#[test]
fn ten_thousand_half_open_handshakes_cost_what_a_few_hundred_do() {
    let flights = first_flights(&secured(node(1)));
    let mut local = secured(node(2));
    local.max_pending = MAX_PENDING;
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), local).unwrap();
    let address = acceptor.local_addr();
    let (descriptors, bytes) = (descriptors(), LIVE.load(Ordering::Relaxed));
    let mut strangers = VecDeque::with_capacity(KEPT);
    let (mut displaced, mut most_bytes, mut most_descriptors) = (0, 0, 0);
    for number in 0..STRANGERS {
        let mut stranger = TcpStream::connect(address).unwrap();
        // One stranger in four makes the listener compute; the others send a part, or nothing.
        let said = [flights.len(), 60, 8, 0][number % 4];
        stranger.write_all(&flights[..said]).unwrap();
        if strangers.len() == KEPT {
            strangers.pop_front();
        }
        strangers.push_back(stranger);
        while is_readable(&acceptor) {
            acceptor.turn(Instant::now());
            while let Some(failure) = acceptor.poll_failure() {
                displaced += usize::from(matches!(failure.problem, Problem::Crowded { .. }));
            }
            assert!(acceptor.poll_established().is_none());
        }
        let live = LIVE.load(Ordering::Relaxed).saturating_sub(bytes);
        most_bytes = most_bytes.max(live);
        if number % 100 == 99 {
            let held = self::descriptors() - descriptors - strangers.len();
            most_descriptors = most_descriptors.max(held);
        }
    }
    assert!(most_descriptors <= MAX_PENDING, "{most_descriptors}");
    assert!(most_bytes <= MAX_PENDING * BYTES_OF_EACH, "{most_bytes}");
    // The connections were half open, and not turned away at once.
    assert!(displaced > STRANGERS / 2, "{displaced}");
    assert!(most_descriptors > MAX_PENDING / 4, "{most_descriptors}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Strangers whose connections stay open at their end: far below any limit of descriptors.
const KEPT: usize = 300;
