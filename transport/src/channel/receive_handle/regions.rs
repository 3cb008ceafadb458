//! Regions of the program for the large messages of a receiver's handle.

use ibex_base::fork;
use ibex_ring::memory::{ProvidedRegion, Region, RegionUnfit};

use super::ReceiveHandle;
use crate::session::{ChannelError, FailureReason};

impl ReceiveHandle {
    /// Provides a region for a large message to arrive in. A refused one comes back with the error.
    pub fn provide(&mut self, region: Region) -> Result<(), (Region, ChannelError)> {
        if fork::is_child() {
            return Err((region, self.used_after_fork()));
        }
        let refused = |(region, unfit)| {
            let reason = FailureReason::RegionUnfit(unfit);
            (region, self.end.failed(reason))
        };
        let added = ProvidedRegion::new(region).and_then(|region| {
            let added = self.end.provided.add(region);
            added.map_err(|(region, unfit): (_, RegionUnfit)| (region.into_region(), unfit))
        });
        added.map_err(refused)
    }

    /// Takes back the regions in which no message arrives, the first one first. Those of messages that
    /// the end of the session has cut off are free a moment after the receiver is notified of that end. Not
    /// in a fork of the process, where there are none.
    pub fn take_regions(&mut self) -> Vec<Region> {
        if fork::is_child() {
            return Vec::new();
        }
        let waiting = self.end.provided.take_all();
        waiting.map(ProvidedRegion::into_region).collect()
    }
}
