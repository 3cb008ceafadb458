//! Advice on memory that is registered for on-demand paging
//! ([`ibv_advise_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html)).

use std::ops::Range;

use super::region::{DeviceMemory, MemoryRegion, RegionAccess};
use crate::error::VerbsError;

/// The pages that a device makes present beforehand (`enum ibv_advise_mr_advice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Make the pages present, to be read.
    Read,
    /// Make the pages present, to be read and written.
    Write,
    /// Take the pages that are present in memory, and fetch no others.
    Present,
}

impl Prefetch {
    fn to_raw(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Present => 2,
        }
    }
}

impl<M: DeviceMemory> MemoryRegion<M> {
    /// Makes pages of the region present at the device before a request needs them, as far as the
    /// kernel and the device see fit. With `and_wait`, the pages are there when it returns, else
    /// the device may go on in the background. Blocks for as long as pages are fetched.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] if the region is not for on-demand paging
    /// ([`RegionAccess::ON_DEMAND`]) or has no right to be written, and [`VerbsError::Unsupported`]
    /// if the device or the library takes no such advice.
    ///
    /// # Panics
    /// If the range leaves the region, or is longer than 4 GiB.
    pub fn prefetch(
        &self,
        range: Range<usize>,
        advice: Prefetch,
        and_wait: bool,
    ) -> Result<(), VerbsError> {
        let needed = match advice {
            Prefetch::Write => RegionAccess::ON_DEMAND.and(RegionAccess::RECEIVE),
            _ => RegionAccess::ON_DEMAND,
        };
        if !self.access.contains(needed) {
            return Err(VerbsError::Setting {
                setting: "the access of a memory region that is prefetched",
                given: format!("{:#x}", self.access.bits()),
                allowed: "with ON_DEMAND, and for `Prefetch::Write` with RECEIVE".to_owned(),
            });
        }
        let piece = self.entry(range).sge;
        let flags = u32::from(and_wait);
        let advised = self.registration.while_held(|held| {
            let context = &held.domain.context;
            // SAFETY: the domain is alive, and the piece is of a region of it.
            let advised = unsafe {
                let provider = context.provider();
                provider.advise(held.domain.handle, advice.to_raw(), flags, piece)
            };
            advised.map_err(|errno| {
                let instead = "the device asks for the pages when it needs them";
                context.lacks("ibv_advise_mr", errno, "advice on memory", instead)
            })
        });
        // Without a registration there is nothing to advise.
        advised.unwrap_or(Ok(()))
    }
}
