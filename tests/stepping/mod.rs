//! Counts what another process does between marks: the instructions of a thread, or the system calls
//! of all threads ([`system_calls`]).
//!
//! For instructions, the kernel single-steps the thread (ptrace(2)). The count therefore includes
//! every instruction outside the kernel, and depends neither on the machine's counters nor on its
//! other users. A step takes some microseconds, during which the thread's clock stands still.
//!
//! For x86-64 only: on other processors a loop of load-linked and store-conditional never ends when
//! it is stepped.
#![allow(
    dead_code,
    reason = "each test that includes this counts one of the two"
)]

pub(crate) mod system_calls;

use std::{
    ops::ControlFlow,
    process::{Command, ExitStatus},
    ptr,
    sync::atomic::{AtomicI64, Ordering},
};

use ibex_harness::process::{Process, stay_with_parent};
use rustix::time::{self, ClockId};

/// Lets the parent count what this thread does; it must be the process's main thread.
pub(crate) fn be_counted() {
    stay_with_parent().expect("it is awaited");
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: the request takes no arguments, and changes only who is notified of this thread's
    // signals.
    let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) };
    assert_eq!(traced, 0, "nobody counts this process yet");
}

/// Begins a counted section, or ends it. The clock stands still in the section.
pub(crate) fn mark() {
    let ends = STOPPED_AT.load(Ordering::Relaxed) != RUNS;
    if !ends {
        STOPPED_AT.store(monotonic(), Ordering::Relaxed);
    }
    mark_in_time();
    if ends {
        let stopped_at = STOPPED_AT.swap(RUNS, Ordering::Relaxed);
        LEFT_OUT.fetch_add(monotonic() - stopped_at, Ordering::Relaxed);
    }
}

/// Does the same, but the clock goes on.
pub(crate) fn mark_in_time() {
    // SAFETY: raising a signal in this thread has no requirements; its parent swallows it.
    let raised = unsafe { libc::raise(MARK) };
    assert_eq!(raised, 0);
}

// ---- The clock of the counted process ----------------------------------------------------

/// The beginning of the open section, in nanoseconds of the monotonic clock.
static STOPPED_AT: AtomicI64 = AtomicI64::new(RUNS);
const RUNS: i64 = -1;
/// Nanoseconds that sections took.
static LEFT_OUT: AtomicI64 = AtomicI64::new(0);

fn monotonic() -> i64 {
    let now = time::clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Replaces clock_gettime, which the standard library calls. Monotonic time stands still in a
/// section: a step takes microseconds, and a task that is due once a second would otherwise come
/// with every few messages or with all of them, depending on the machine.
///
/// # Safety
/// The contract of clock_gettime(2), whose place in the C library it takes in this program.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    into: *mut libc::timespec,
) -> libc::c_int {
    if clock != libc::CLOCK_MONOTONIC {
        // SAFETY: the caller's `into` may be written.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, into) } as libc::c_int;
    }
    let now = match STOPPED_AT.load(Ordering::Relaxed) {
        RUNS => monotonic(),
        stopped_at => stopped_at,
    } - LEFT_OUT.load(Ordering::Relaxed);
    let now = libc::timespec {
        tv_sec: now / 1_000_000_000,
        tv_nsec: now % 1_000_000_000,
    };
    // SAFETY: the caller's `into` may be written.
    unsafe { into.write(now) };
    0
}

/// Runs `program`, whose main thread lets itself [be counted](be_counted). Returns the instructions
/// in each of its sections.
///
/// # Panics
/// If it does not succeed.
pub(crate) fn count(program: &mut Command) -> Vec<u64> {
    let process = Process::start("the counted program", program).expect("it starts");
    let thread = process.id() as libc::pid_t;
    let mut sections = Sections::default();
    while let ControlFlow::Continue(signal) = next_stop(thread) {
        let signal = sections.take(signal);
        let request = match sections.open {
            Some(_) => libc::PTRACE_SINGLESTEP,
            None => libc::PTRACE_CONT,
        };
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: the thread is our child's, stopped for us, its tracer; neither request uses an
        // address, and the data is a signal's number.
        let continued =
            unsafe { libc::ptrace(request, thread, nothing, libc::c_long::from(signal)) };
        assert_eq!(continued, 0, "it was stopped");
    }
    assert_eq!(sections.open, None, "a section has no end");
    sections.closed
}

#[derive(Default)]
struct Sections {
    closed: Vec<u64>,
    /// Instructions counted so far in the open section.
    open: Option<u64>,
}

impl Sections {
    /// Handles a stop of the thread by a signal. Returns the signal to deliver.
    fn take(&mut self, signal: libc::c_int) -> libc::c_int {
        match (signal, &mut self.open) {
            (libc::SIGTRAP, Some(instructions)) => *instructions += 1,
            (MARK, None) => self.open = Some(0),
            (MARK, Some(_)) => self.closed.extend(self.open.take()),
            _ => return signal,
        }
        0
    }
}

/// Returns the signal at which the thread stops next; breaks when its process has ended.
fn next_stop(thread: libc::pid_t) -> ControlFlow<(), libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` is ours to be written.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    assert_eq!(waited, thread, "it is our child");
    if libc::WIFSTOPPED(status) {
        return ControlFlow::Continue(libc::WSTOPSIG(status));
    }
    assert!(has_succeeded(status), "the program has failed: {status}");
    ControlFlow::Break(())
}

/// Returns whether a process that has ended with this status did what it should.
fn has_succeeded(status: libc::c_int) -> bool {
    <ExitStatus as std::os::unix::process::ExitStatusExt>::from_raw(status).success()
}

/// The signal of a mark, which nothing else here uses.
const MARK: libc::c_int = libc::SIGUSR1;
