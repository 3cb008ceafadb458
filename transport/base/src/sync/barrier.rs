//! The asymmetric barrier: free for a thread that is awake, one system call for a thread that goes
//! to sleep.
//!
//! Two threads that each write one word and then read the other's must not both miss the other's
//! write. This requires a full barrier between write and read on both sides. Here the frequent side
//! (a publish, a guard's drop) has the *light* half, which only keeps the compiler from swapping
//! the two. The rare side (arming, asking) has the *heavy* half:
//! [`membarrier`](https://man7.org/linux/man-pages/man2/membarrier.2.html) makes every running
//! thread of every registered process execute a full barrier before it returns. If such a thread
//! wrote before that barrier, the heavy side's read sees the write. If it reads after the barrier,
//! it sees the heavy side's write.
//!
//! Both sides have to use the same kind of barrier. Two processes agree on the kind at set-up with
//! [`Asymmetry::agree`].
//!
//! Between processes, the heavy half interrupts every running thread of any of them, which takes 9
//! µs on a virtual machine if a peer is awake. If both sides belong to one process, as most do, it
//! asks for that process alone ([`Asymmetry::heavy_here`]), which interrupts no thread if the
//! process has only one.

use std::sync::OnceLock;
use std::sync::atomic::compiler_fence;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::{Ordering, fence};

/// The way in which the light and the heavy half of a barrier are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asymmetry {
    /// An expedited `membarrier` on the heavy side, and only a compiler fence on the light one.
    /// Correct only if both processes are registered, that is, if both got this value from
    /// [`Asymmetry::of_process`].
    Membarrier,
    /// A full fence on both sides, where the kernel or a sandbox refuses
    /// membarrier: about 40 ns for each message.
    Fence,
}

impl Asymmetry {
    /// Returns the strongest barrier of this process. The first call registers it with the kernel.
    #[must_use]
    pub fn of_process() -> Self {
        static KIND: OnceLock<Asymmetry> = OnceLock::new();
        if cfg!(loom) {
            // loom knows fences and no membarrier: the models have a full
            // fence in both places.
            return Self::Fence;
        }
        *KIND.get_or_init(|| {
            use MembarrierCommand::{
                GlobalExpedited, PrivateExpedited, RegisterGlobalExpedited,
                RegisterPrivateExpedited,
            };
            let registered = membarrier(RegisterGlobalExpedited)
                .and_then(|()| membarrier(RegisterPrivateExpedited))
                .and_then(|()| membarrier(GlobalExpedited))
                .and_then(|()| membarrier(PrivateExpedited));
            match registered {
                Ok(()) => Self::Membarrier,
                Err(error) => {
                    tracing::info!(
                        %error,
                        "membarrier is refused here: every message costs a full fence instead"
                    );
                    Self::Fence
                }
            }
        })
    }

    /// Returns the strongest barrier that two processes can use together.
    #[must_use]
    pub fn agree(self, peer: Self) -> Self {
        match (self, peer) {
            (Self::Membarrier, Self::Membarrier) => Self::Membarrier,
            _ => Self::Fence,
        }
    }

    /// The frequent side's half, between its write and its read.
    #[inline]
    pub fn light(self) {
        match self {
            // BARRIER, pairs with the system call in `heavy_for`.
            Self::Membarrier => compiler_fence(Ordering::SeqCst),
            // BARRIER, pairs with the fence in `heavy_for`.
            Self::Fence => fence(Ordering::SeqCst),
        }
    }

    /// The rare side's half, between its write and its read.
    ///
    /// # Panics
    ///
    /// If the kernel refuses what it granted at registration (a sandbox that was closed later):
    /// without the barrier, a thread could sleep for ever.
    pub fn heavy(self) {
        self.heavy_for(MembarrierCommand::GlobalExpedited);
    }

    /// Like [`heavy`](Self::heavy), where all threads with the light half belong to this process.
    ///
    /// # Panics
    ///
    /// The panics of [`heavy`](Self::heavy).
    pub fn heavy_here(self) {
        self.heavy_for(MembarrierCommand::PrivateExpedited);
    }

    fn heavy_for(self, threads: MembarrierCommand) {
        match self {
            Self::Membarrier => membarrier(threads)
                // The kernel may lack memory for its list of processors; the slow form needs none.
                .or_else(|_| membarrier(MembarrierCommand::Global))
                .unwrap_or_else(|error| {
                    panic!(
                        "membarrier worked when this process registered and is refused now \
                         ({error}): allow the system call for the life of the process"
                    )
                }),
            // BARRIER, pairs with the fence in `light`.
            Self::Fence => fence(Ordering::SeqCst),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Asymmetry::{self, Fence, Membarrier};

    #[test]
    fn both_halves_work_in_either_kind() {
        for kind in [Asymmetry::of_process(), Fence] {
            kind.light();
            kind.heavy();
            kind.heavy_here();
        }
        assert_eq!(Asymmetry::of_process(), Asymmetry::of_process());
    }

    #[test]
    fn membarrier_takes_two() {
        assert_eq!(Membarrier.agree(Membarrier), Membarrier);
        assert_eq!(Membarrier.agree(Fence), Fence);
        assert_eq!(Fence.agree(Membarrier), Fence);
    }
}
