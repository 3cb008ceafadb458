//! The program's choice of the engines for sessions that peers dial.

use std::{fmt, sync::Arc};

use ibex_base::{Address, call_foreign};
use ibex_bootstrap::{Incarnation, NodeIdentity};

use crate::PeerId;

/// The program's choice of an engine for a peer that dials.
#[derive(Clone)]
pub(crate) struct AcceptPlacement(Arc<ChooseEngine>);

type ChooseEngine = dyn Fn(PeerId, Address) -> Option<usize> + Send + Sync;

impl AcceptPlacement {
    pub(crate) fn new(
        place: impl Fn(PeerId, Address) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(place))
    }

    /// Returns the engine for a peer of this identity at that address, if one is wanted.
    ///
    /// # Errors
    ///
    /// The program's code panicked, with this text.
    pub(crate) fn place(
        &self,
        (identity, incarnation): (NodeIdentity, Incarnation),
        address: Address,
    ) -> Result<Option<usize>, String> {
        call_foreign(|| (self.0)(PeerId::new(identity.0, incarnation), address))
    }
}

impl fmt::Debug for AcceptPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AcceptPlacement")
    }
}
