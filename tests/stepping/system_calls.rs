//! Counts the system calls that all threads of another process make between marks.

use std::{process::Command, ptr};

use ibex_harness::process::Process;

use super::{MARK, has_succeeded};

/// Runs `program`, which begins with [`be_counted`](super::be_counted) and an empty section. Returns
/// the numbers of the system calls in each of its sections, without those that marks make. Threads
/// that start before the end of the empty section are not counted.
///
/// # Panics
/// If it does not succeed.
pub(crate) fn count_system_calls(program: &mut Command) -> Vec<Vec<i64>> {
    let process = Process::start("the counted program", program).expect("it starts");
    let (mut sections, mut open) = (Vec::new(), None::<Vec<i64>>);
    loop {
        let mut status = 0;
        // Only what this thread traces: other threads await children of their own.
        let which = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` is ours to be written.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, which) };
        assert!(thread > 0, "the program has not ended");
        if !libc::WIFSTOPPED(status) {
            if thread as u32 == process.id() {
                assert!(has_succeeded(status), "the program has failed: {status}");
                return sections;
            }
            continue;
        }
        let signal = match (libc::WSTOPSIG(status), &mut open) {
            (SYSTEM_CALL, Some(calls)) => {
                calls.extend(system_call(thread).filter(|call| !OF_MARKS.contains(call)));
                0
            }
            (MARK, None) => {
                let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
                request(libc::PTRACE_SETOPTIONS, thread, options.into());
                open = Some(Vec::new());
                0
            }
            (MARK, Some(_)) => {
                sections.extend(open.take());
                0
            }
            // A system call, a thread that has started another, and the first stop of that one.
            (SYSTEM_CALL | libc::SIGTRAP | libc::SIGSTOP, _) => 0,
            (other, _) => other,
        };
        request(libc::PTRACE_SYSCALL, thread, signal.into());
    }
}

/// Returns the number of the system call that a stopped thread begins; `None` at its end.
fn system_call(thread: libc::pid_t) -> Option<i64> {
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: all zeros are a value of this type, which consists of numbers.
    let mut info = unsafe { std::mem::zeroed::<libc::ptrace_syscall_info>() };
    // SAFETY: the thread has stopped for us, its tracer, and `info` has room for `size` bytes.
    let written =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) };
    assert!(written > 0, "it is stopped at a system call");
    match info.op {
        // SAFETY: `op` says that this is the member which was written.
        libc::PTRACE_SYSCALL_INFO_ENTRY => Some(unsafe { info.u.entry.nr } as i64),
        _ => None,
    }
}

/// Makes a request of ptrace(2) that uses no address, for a stopped thread.
fn request(request: libc::c_uint, thread: libc::pid_t, data: libc::c_long) {
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: the thread has stopped for us, its tracer; `data` is options or a signal's number.
    let done = unsafe { libc::ptrace(request, thread, nothing, data) };
    // A thread that another one has killed meanwhile is gone.
    assert!(done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH));
}

/// The stop at the beginning or the end of a system call.
const SYSTEM_CALL: libc::c_int = libc::SIGTRAP | 0x80;
/// The system calls of raise(3).
const OF_MARKS: [i64; 4] = [
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_tgkill,
];
