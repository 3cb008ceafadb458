//! The verbs objects of a connection.

use ibex_verbs::provider::{CompletionHandle, DomainHandle, PairHandle, Provider, RegionHandle};

use crate::verbs_context::Context;

/// The objects of a connection, destroyed in the reverse of the order in which they were made.
pub(crate) struct Objects {
    pub(crate) pair: Option<PairHandle>,
    pub(crate) queues: Vec<CompletionHandle>,
    pub(crate) region: Option<RegionHandle>,
    pub(crate) domain: Option<DomainHandle>,
    pub(crate) context: Context,
}

impl Drop for Objects {
    fn drop(&mut self) {
        let library = &self.context.library;
        // SAFETY: every object was made by us. Each is destroyed before the object that it was made
        // from, and the context, a field, after all of them. Destroying fails only for an object in
        // use, and none is.
        unsafe {
            let _ = self.pair.map(|pair| library.destroy(pair.into()));
            for queue in self.queues.drain(..) {
                let _ = library.destroy(queue.into());
            }
            let _ = self.region.map(|region| library.destroy(region.into()));
            let _ = self.domain.map(|domain| library.destroy(domain.into()));
        }
    }
}
