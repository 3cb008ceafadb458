//! Memory windows: keys to a part of a region, which come and go without a new registration.
//!
//! A window is bound to a part of a region by a request of a queue pair, gets a key with rights of
//! its own, and loses it when it is invalidated. Both are far cheaper than to register memory, so a
//! peer can be let in for one exchange alone.
//!
//! | | type 1 ([`WindowKind::One`]) | type 2 ([`WindowKind::Two`]) |
//! |---|---|---|
//! | bound by | [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html) | a work request, [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html) |
//! | reached through | every queue pair of the domain | the queue pair that bound it |
//! | bound again | at any time | when it is free |
//! | invalidated by | a binding of no bytes | this end, or the peer's [`send_with_invalidate`](crate::SendRequest::send_with_invalidate) |
//!
//! # States
//!
//! The state is held here, since a device may not check it: soft-RoCE's kernel panics
//! when a window is invalidated that is not bound
//! ([`rxe_do_invalidate_mw`](https://github.com/torvalds/linux/blob/master/drivers/infiniband/sw/rxe/rxe_mw.c)).
//! What the table does not have is refused before the device sees it.
//!
//! | state | bind | invalidate | own completion | the peer invalidates |
//! |---|---|---|---|---|
//! | free | binding | refused | | |
//! | binding | refused | type 1: refused; type 2: invalidating | bound | free |
//! | bound | type 1: binding; type 2: refused | invalidating | | free |
//! | invalidating | refused | refused | free | free |
//! | lost | refused | refused | | |
//!
//! A window is lost when its request fails, since the device may then have done it or not. A lost
//! window can only be dropped.
//!
//! Either end may be the one that invalidates, and not both: what the peer has invalidated is known
//! here only when its message is [noted](MemoryWindow::note_invalidated). So a window says at its
//! binding whether the peer [is to do it](BindRequest::peer_invalidates), and then this end does not.
//! A peer that breaks the agreement can make soft-RoCE's kernel panic: there, tell keys of windows to
//! peers that you trust.
//!
//! A bound window keeps its region, and its queue pair, alive. Dropping it takes the key from the peer
//! at once.
//!
//! ```
//! # use std::sync::Arc;
//! # use ibex_verbs::*;
//! /// Lets the peer write 4 KiB once. It invalidates the window when it is done.
//! fn lend(
//!     pair: &mut QueuePair,
//!     window: &mut MemoryWindow,
//!     region: &Arc<MemoryRegion<AnonymousMemory>>,
//! ) -> Result<RemoteAddress, WindowError> {
//!     let id = WorkId::new(Operation::Window, 0, 0);
//!     let request = BindRequest::new(id, 0..4096, RegionAccess::REMOTE_WRITE);
//!     // The place is told to the peer by a send of the same queue pair.
//!     pair.bind_window(window, region, &request.peer_invalidates())
//! }
//! ```

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{QueuePairObject, work_request::flag_methods};
use crate::{
    CompletionFailure, PostError, ProtectionDomain, RegionAccess, RemoteAddress, RemoteKey,
    VerbsError, WindowKind, WorkCompletion, WorkId, memory::protection_domain::Domain,
    memory::region::RegionRegistration, provider::WindowHandle,
};

/// A key to a part of a region, which comes and goes.
#[derive(Debug)]
pub struct MemoryWindow {
    pub(crate) handle: WindowHandle,
    kind: WindowKind,
    state: WindowState,
    /// The key that is valid or was valid last.
    key: RemoteKey,
    /// The request whose completion is awaited, and its queue pair.
    waits_for: Option<(WorkId, u32)>,
    binding: Option<WindowBinding>,
    /// The binding that a new one replaces, until that is done.
    replaced: Option<WindowBinding>,
    // Last, since the window goes first.
    pub(crate) domain: Arc<Domain>,
}

/// The objects that a window is bound to, and keeps alive.
pub(crate) struct WindowBinding {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) peer_invalidates: bool,
    pub(crate) pair: Arc<QueuePairObject>,
    pub(crate) number: u32,
    pub(crate) registration: Arc<RegionRegistration>,
    /// The region of the registration.
    pub(crate) _region: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for WindowBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

/// The state of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// No peer gets in.
    Free,
    /// The binding is posted.
    Binding,
    /// A peer that has the key gets in.
    Bound,
    /// The end of the binding is posted.
    Invalidating,
    /// A request failed, so nobody knows whether a peer gets in.
    Lost,
}

impl fmt::Display for WindowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Binding => "binding",
            Self::Bound => "bound",
            Self::Invalidating => "invalidating",
            Self::Lost => "lost",
        })
    }
}

/// The request to bind a window; ends in [`QueuePair::bind_window`](crate::QueuePair::bind_window).
#[derive(Clone, Debug)]
pub struct BindRequest {
    pub(crate) id: WorkId,
    pub(crate) range: Range<usize>,
    pub(crate) access: RegionAccess,
    pub(crate) flags: u32,
    pub(crate) peer_invalidates: bool,
}

impl BindRequest {
    /// Lets the peer reach a part of a region with these rights, of which those of this end do not
    /// count.
    #[must_use]
    pub fn new(id: WorkId, range: Range<usize>, access: RegionAccess) -> Self {
        Self {
            id,
            range,
            access,
            flags: 0,
            peer_invalidates: false,
        }
    }

    /// Leaves it to the peer to invalidate the window.
    #[must_use]
    pub fn peer_invalidates(mut self) -> Self {
        self.peer_invalidates = true;
        self
    }

    flag_methods! {
        /// Waits for earlier RDMA reads and atomics of the queue pair.
        pub fn fenced(self) |= FENCE;
    }
}

impl MemoryWindow {
    /// Makes a window that is free.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no windows of this type, and
    /// [`VerbsError::Call`] if it has no more of them.
    pub fn new(domain: &ProtectionDomain, kind: WindowKind) -> Result<Self, VerbsError> {
        let domain = Arc::clone(&domain.inner);
        let context = &domain.context;
        // SAFETY: the domain is alive.
        let made = unsafe { context.provider().create_window(domain.handle, kind) };
        let (handle, key) = made.map_err(|errno| {
            context.lacks(
                "ibv_alloc_mw",
                errno,
                "memory windows of this type",
                "grant the peer a memory region in place of the window",
            )
        })?;
        Ok(Self {
            handle,
            kind,
            state: WindowState::Free,
            key: RemoteKey(key),
            waits_for: None,
            binding: None,
            replaced: None,
            domain,
        })
    }

    /// Returns the window's type.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Returns the state, as far as completions have been told to it.
    #[must_use]
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// Returns the key that is valid, or was valid last.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// Notes a completion. Returns whether it was that of the window's own request.
    ///
    /// # Errors
    /// [`CompletionFailure`] if the request failed; the window is lost then.
    pub fn take(&mut self, completion: &WorkCompletion) -> Result<bool, CompletionFailure> {
        if self.waits_for != Some((completion.id(), completion.queue_pair())) {
            return Ok(false);
        }
        self.waits_for = None;
        if let Err(failure) = completion.outcome() {
            self.state = WindowState::Lost;
            return Err(failure);
        }
        self.settle_key();
        match self.state {
            WindowState::Binding => {
                self.replaced = None;
                self.state = WindowState::Bound;
            }
            _ => self.set_free(),
        }
        Ok(true)
    }

    /// Notes the completion of a receive. Returns whether its message has invalidated the window.
    pub fn note_invalidated(&mut self, completion: &WorkCompletion) -> bool {
        let (Some(key), Some(binding)) = (completion.invalidated(), &self.binding) else {
            return false;
        };
        let is_meant = key == self.key
            && completion.queue_pair() == binding.number
            && self.kind == WindowKind::Two;
        if is_meant {
            self.settle_key();
            self.waits_for = None;
            self.set_free();
        }
        is_meant
    }

    /// Returns the place of the byte at `offset` of the window, to be sent to the peer; `None` if the
    /// window is neither bound nor binding, or has no such byte.
    ///
    /// While it is binding, the place may be told by a message of the same queue pair only, which
    /// then arrives after the binding.
    #[must_use]
    pub fn remote(&self, offset: usize) -> Option<RemoteAddress> {
        let binding = self.binding.as_ref()?;
        let is_valid = matches!(self.state, WindowState::Binding | WindowState::Bound);
        (is_valid && offset < binding.bytes).then(|| RemoteAddress {
            address: binding.address.wrapping_add(offset as u64),
            rkey: binding.key,
        })
    }

    /// Checks that a window can be bound now.
    pub(crate) fn check_bind(&self) -> Result<(), WindowError> {
        let rebinds = self.kind == WindowKind::One && self.state == WindowState::Bound;
        match rebinds || self.state == WindowState::Free {
            true => Ok(()),
            false => Err(self.refused("bound")),
        }
    }

    /// Checks that this end may invalidate the window now, by that queue pair. Returns what it is bound
    /// to.
    pub(crate) fn check_invalidate(
        &self,
        pair: &Arc<QueuePairObject>,
    ) -> Result<&WindowBinding, WindowError> {
        let binding = match (&self.binding, self.state, self.kind) {
            (Some(binding), WindowState::Bound, _) => binding,
            // A queue pair does its requests in order.
            (Some(binding), WindowState::Binding, WindowKind::Two) => binding,
            _ => return Err(self.refused("invalidated")),
        };
        if binding.peer_invalidates {
            return Err(WindowError::LeftToPeer);
        }
        if self.kind == WindowKind::Two && !Arc::ptr_eq(&binding.pair, pair) {
            return Err(WindowError::OtherQueuePair {
                queue_pair: binding.number,
            });
        }
        Ok(binding)
    }

    fn refused(&self, what: &'static str) -> WindowError {
        WindowError::State {
            what,
            state: self.state,
        }
    }

    /// Notes that the request to bind it was posted.
    pub(crate) fn begin_binding(&mut self, id: WorkId, binding: WindowBinding) {
        self.state = WindowState::Binding;
        self.waits_for = Some((id, binding.number));
        self.key = RemoteKey(binding.key);
        self.replaced = self.binding.replace(binding);
    }

    /// Notes that the request to invalidate it was posted by a queue pair. A window of type 1 gets a
    /// key in doing so.
    pub(crate) fn begin_invalidating(&mut self, id: WorkId, queue_pair: u32, key: Option<u32>) {
        self.state = WindowState::Invalidating;
        self.waits_for = Some((id, queue_pair));
        if let Some(key) = key {
            self.key = RemoteKey(key);
        }
    }

    fn set_free(&mut self) {
        self.state = WindowState::Free;
        self.binding = None;
    }

    /// Tells the driver the key that a window of type 2 has got. Libraries leave that to their caller.
    fn settle_key(&self) {
        if self.kind == WindowKind::Two {
            let provider = self.domain.context.provider();
            // SAFETY: the window exists.
            unsafe { provider.set_window_key(self.handle, self.key.0) };
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: nothing is made from a window. The region and the queue pair of its binding go after
        // it, as fields. The handle is not used again.
        unsafe { self.domain.context.destroy(self.handle) };
    }
}

/// The reason why a memory window was not bound or invalidated. It is as it was.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The state forbids it.
    #[error(
        "a memory window that is {state} cannot be {what}: {}",
        state_step(*state)
    )]
    State {
        /// The change that was to be made.
        what: &'static str,
        /// The state of the window.
        state: WindowState,
    },
    /// The peer is to invalidate it.
    #[error(
        "the peer is to invalidate the memory window (`BindRequest::peer_invalidates`): wait for its \
         message, or drop the window"
    )]
    LeftToPeer,
    /// The window was bound by another queue pair.
    #[error(
        "the memory window was bound by queue pair {queue_pair:#x}, and only it can invalidate it"
    )]
    OtherQueuePair {
        /// The queue pair that bound it.
        queue_pair: u32,
    },
    /// Window, region and queue pair are of several protection domains.
    #[error("the {object} belongs to another protection domain than the memory window")]
    OtherDomain {
        /// The region or the queue pair.
        object: &'static str,
    },
    /// The region does not let windows in.
    #[error(
        "the memory region cannot have windows: register it with `RegionAccess::WINDOWS`, and with \
         `RegionAccess::RECEIVE` if peers are to write"
    )]
    Rights,
    /// The range is empty or leaves the region.
    #[error("a window of bytes {start} to {end} of a memory region of {bytes} bytes")]
    Range {
        /// The first byte.
        start: usize,
        /// The byte behind the last one.
        end: usize,
        /// The length of the region.
        bytes: usize,
    },
    /// The registration of the region has ended, as its device was closed. A window that is bound to it
    /// can only be dropped.
    #[error("the memory region is no longer registered")]
    Unregistered,
    /// The send queue has no room.
    #[error(
        "the queue is full: all of its {capacity} requests are outstanding; poll their completions and \
         retire them"
    )]
    QueueFull {
        /// The queue's capacity.
        capacity: u32,
    },
    /// The device refused the request.
    #[error(transparent)]
    Post(#[from] PostError),
}

ibex_base::debug_as_display!(WindowError);

fn state_step(state: WindowState) -> &'static str {
    match state {
        WindowState::Free => "it is bound to nothing",
        WindowState::Binding | WindowState::Invalidating => {
            "give it the completion of its request first (`MemoryWindow::take`)"
        }
        WindowState::Bound => "invalidate it first",
        WindowState::Lost => "drop it and make another one",
    }
}
