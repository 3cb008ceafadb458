//! The memory that messages live in: its mapping, its owners, and when it is freed.
//!
//! Everything here hands out *addresses*, never `&T` into shared bytes: one thread or process
//! writes a ring while another reads it. Only the ring algorithms know which thread owns which
//! bytes when, and only they may turn an address into a reference. Three rules hold for all of it but
//! a [`Region`], which is the program's, and which nobody writes to:
//!
//! 1. Memory that the data path will touch is populated when it is made, a ring in steps before its
//!    writer gets there. So a lack of memory shows where a call can fail, and not as SIGBUS or a
//!    page fault in the middle of a send. A refusal of the kernel is a [`MemoryError`]; where a container has run into its limit,
//!    the kernel prefers its OOM killer to an error, and the killer strikes there. The exceptions
//!    are the arrival [`Block`] and the entries that ends have for each message of a window, whose
//!    untouched pages must cost nothing.
//! 2. Mapping and faulting stay out of the engine's turns: large memory is allocated on the thread
//!    of the caller, and pools keep a bounded number of free pieces, so that a steady state maps
//!    nothing. Blocks fault in as bytes first arrive in them, and are then used again.
//! 3. No memory has a name in any file system. The kernel takes back the memory that a process
//!    drops, or loses by `kill -9`.

mod arena;
mod attachments;
mod backing;
mod block;
mod budget;
mod buffer_slab;
mod error;
pub mod huge_pages;
mod large;
mod mapping;
mod memfd;
mod mirrored;
mod process_limit;
mod region;

pub use arena::{LARGEST_RING_BYTES, Ring, RingArena, RingLease, SMALLEST_RING_BYTES};
pub use attachments::Attachments;
pub use backing::Backing;
pub use block::{Block, BlockLease, BlockPool, DEFAULT_BLOCK_BYTES, DEFAULT_KEPT_BLOCKS};
pub use budget::{MemoryAccount, MemoryBudget, MemoryClaim};
pub use buffer_slab::{BufferLease, BufferSlab, FreeBuffers, OwnedBuffer};
pub use error::{MemoryError, MemoryUse};
pub use huge_pages::HugePages;
pub use large::{
    DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES, LargeBuffer, LargeLease, LargePool, class_bytes,
    longest_of_class,
};
pub use mapping::{Access, Mapping};
pub use memfd::{create_memfd, create_ring_memfd};
pub use mirrored::MirroredMapping;
pub use process_limit::process_memory_limit;
pub use region::{
    MappedBytes, PagesHeld, ProvidedRegion, Region, RegionFile, RegionSlice, RegionUnfit, blamed,
    copy_slice, is_of_file, leave_to_peers, mapped_bytes, mapped_file, read_by_kernel,
    readable_bytes, share_region,
};

#[cfg(any(test, feature = "probe"))]
pub mod probe;
