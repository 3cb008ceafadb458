//! Detects that this process is a fork of the one that made the nodes.
//!
//! A child has a copy of every handle, but owns none of the objects behind them. It has no other
//! thread, so a lock may be held for ever. Sockets and devices belong to the parent, and peers read
//! the shared memory. So a child may drop a handle, or leave it, and do nothing else with it.
//!
//! Rules:
//!
//! 1. Each call that can return an error returns [`UsedAfterFork`], before it takes a lock, makes a
//!    system call or touches memory that a peer or a device may see.
//! 2. A drop forgets: it tells, unmaps, gives back and destroys nothing. A root (a node, a handle,
//!    a session) leaks its fields. Values that are dropped nevertheless check for themselves.
//! 3. A child does not have the memory that messages lie in ([`keep_from_children`]).
//!
//! `posix_spawn`, `vfork` and `exec` are no concern of this module: the new program has none of
//! these objects, since `exec` closes all descriptors.

use std::{
    error::Error,
    fmt,
    ops::Range,
    process, ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::{
    mm::{Advice, madvise},
    param::page_size,
};

/// An error: an object of a process was used in a fork of it, and nothing was done.
///
/// A process that has made a node shares no object of ibex with its children. In a fork of the
/// process every call returns this error, also the making of a new node, and dropping an object
/// tells no peer and gives nothing back. The documentation of the facade's `Node` lists the effects
/// that no error can report.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsedAfterFork {
    /// The object or operation that was used.
    pub what: String,
    /// The process that it belongs to.
    pub owner: u32,
    /// The fork of it: this process.
    pub child: u32,
}

impl fmt::Display for UsedAfterFork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, owner, child } = self;
        write!(
            f,
            "{what} belongs to process {owner}, of which process {child} is a fork: nothing was \
             done; use it there, and fork before the first node is made or let the child exec"
        )
    }
}

impl Error for UsedAfterFork {}

impl UsedAfterFork {
    /// Makes the error for `what`, which was used here, in a child.
    #[cold]
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            owner: OWNER.load(Ordering::Relaxed),
            child: process::id(),
        }
    }
}

/// Returns whether this process is a fork of one that has made a node: one load.
#[inline(always)]
#[must_use]
pub fn is_child() -> bool {
    PAGE.word.load(Ordering::Relaxed) == 0 && is_child_at_a_closer_look()
}

/// Checks that this process is not such a fork; `what` names the object for the error.
///
/// # Errors
///
/// [`UsedAfterFork`] in a child.
#[inline]
pub fn check(what: impl FnOnce() -> String) -> Result<(), UsedAfterFork> {
    match is_child() {
        true => Err(UsedAfterFork::new(what())),
        false => Ok(()),
    }
}

/// Gives a fork of this process a hole in the place of the pages that a range touches
/// (`MADV_DONTFORK`, [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html)).
///
/// # Safety
/// The range is mapped, and a child touches none of its pages.
pub unsafe fn keep_from_children(range: Range<usize>) {
    let page = page_size();
    let start = range.start & !(page - 1);
    let bytes = range.end.next_multiple_of(page) - start;
    // SAFETY: the caller's contract: whole pages of what is mapped. The advice changes no byte
    // in this process.
    let advised = unsafe {
        let start = ptr::without_provenance_mut(start);
        madvise(start, bytes, Advice::LinuxDontFork)
    };
    debug_assert!(advised.is_ok(), "madvise of our own range: {advised:?}");
}

/// Declares that this process makes a node, so that its children are told apart from now on.
///
/// # Errors
///
/// [`UsedAfterFork`] in a child of one that has.
pub fn claim() -> Result<(), UsedAfterFork> {
    check(|| "ibex, as it runs here,".to_owned())?;
    // Relaxed: only whether it was set matters here.
    if NOTIFIED_BY.load(Ordering::Relaxed) == NOBODY {
        OWNER.store(process::id(), Ordering::Relaxed);
        // Two threads may get here at a time, and then do the same.
        let told_by = match PAGE.is_wiped_on_fork() {
            true => {
                PAGE.word.store(1, Ordering::Relaxed);
                THE_WORD
            }
            false => THE_NUMBER,
        };
        // TOLD, pairs with `is_child_at_a_closer_look`: a thread that sees how a child is told sees
        // the word as well.
        NOTIFIED_BY.store(told_by, Ordering::Release);
    }
    Ok(())
}

/// Decides when the word is 0: in a child, in a process that has made no node yet, and where the
/// kernel wipes no page.
#[cold]
#[inline(never)]
fn is_child_at_a_closer_look() -> bool {
    // TOLD, pairs with `claim`.
    match NOTIFIED_BY.load(Ordering::Acquire) {
        // The word is loaded once more, because it may have been set since.
        THE_WORD => PAGE.word.load(Ordering::Relaxed) == 0,
        THE_NUMBER => OWNER.load(Ordering::Relaxed) != process::id(),
        _ => false,
    }
}

/// The process that made the first node; a child has its parent's here.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The way in which a child is recognized: one of the constants below.
static NOTIFIED_BY: AtomicU32 = AtomicU32::new(NOBODY);

/// The process has made no node yet, so a child could use nothing.
const NOBODY: u32 = 0;
/// A child is told by [`Page::word`].
const THE_WORD: u32 = 1;
/// A child is told by the process number, at a system call for each check: before Linux 4.14, and
/// in sandboxes that do not know the advice.
const THE_NUMBER: u32 = 2;

/// A page of its own for the word, as large as the largest pages of the architecture: 4 KiB on
/// x86-64, up to 64 KiB on 64-bit Arm. It takes the memory of one page only.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
struct Page {
    /// 1 once the page is wiped on fork, and so 0 in a child.
    word: AtomicU32,
}

static PAGE: Page = Page {
    word: AtomicU32::new(0),
};

impl Page {
    /// Has the kernel zero the page in each child (`MADV_WIPEONFORK`,
    /// [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html)). Returns whether it does.
    fn is_wiped_on_fork(&'static self) -> bool {
        if page_size() > align_of::<Self>() {
            return false;
        }
        let start = (&raw const *self).cast_mut().cast();
        // SAFETY: the advice changes no byte in this process, and in a child this page alone,
        // which is one atomic that may be 0 at any time.
        let advised = unsafe { madvise(start, size_of::<Self>(), Advice::LinuxWipeOnFork) };
        if let Err(error) = &advised {
            tracing::info!(%error, "the kernel wipes no page on fork: a child is told by its number");
        }
        advised.is_ok()
    }
}

crate::debug_as_display!(UsedAfterFork);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_made_a_node_is_recognized_by_the_word() {
        assert!(!is_child());
        claim().unwrap();
        claim().unwrap();
        assert_eq!(NOTIFIED_BY.load(Ordering::Relaxed), THE_WORD);
        assert_eq!(PAGE.word.load(Ordering::Relaxed), 1);
        assert_eq!(OWNER.load(Ordering::Relaxed), process::id());
        assert_eq!(check(|| unreachable!("it is no child")), Ok(()));
    }

    #[test]
    fn the_error_says_whose_it_is_and_what_to_do() {
        let error = UsedAfterFork {
            what: "channel \"wal\" with 10.0.0.2:7000".to_owned(),
            owner: 7,
            child: 8,
        };
        assert_eq!(
            error.to_string(),
            "channel \"wal\" with 10.0.0.2:7000 belongs to process 7, of which process 8 is a \
             fork: nothing was done; use it there, and fork before the first node is made or let \
             the child exec"
        );
    }
}
