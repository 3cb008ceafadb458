//! Names that belong to one holder of a node. A name belongs to one holder for all peers, or to
//! several holders for one peer each.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use ibex_base::{fork, sync::lock};

use super::NodeState;

/// The names that holders of one kind have taken.
#[derive(Debug, Default)]
pub(crate) struct TakenNames(Arc<Mutex<BTreeMap<String, Holders>>>);

/// The holders that have a name.
#[derive(Debug)]
enum Holders {
    /// The holder for all peers.
    AllPeers,
    /// This many holders, each for one peer. The session of a peer allows it only one.
    Peers(usize),
}

/// The name of a service or a publisher, which keeps the name until this is dropped.
pub struct TakenName {
    name: String,
    names: Arc<Mutex<BTreeMap<String, Holders>>>,
}

impl NodeState {
    /// Takes a name for a service for all peers. Returns `None` if another service has the name.
    #[must_use]
    pub fn take_service_name(&self, name: &str) -> Option<TakenName> {
        self.service_names.take_for_all_peers(name)
    }

    /// Takes a name for a service for one peer. Returns `None` if a service for all peers has the
    /// name.
    #[must_use]
    pub fn share_service_name(&self, name: &str) -> Option<TakenName> {
        self.service_names.take(name, |holder| match holder {
            None => Some(Holders::Peers(1)),
            Some(Holders::Peers(count)) => Some(Holders::Peers(count + 1)),
            Some(Holders::AllPeers) => None,
        })
    }

    /// Takes a name for a publisher. Returns `None` if another publisher has the name.
    #[must_use]
    pub fn take_publisher_name(&self, name: &str) -> Option<TakenName> {
        self.publisher_names.take_for_all_peers(name)
    }

    /// Returns whether a publisher has the name.
    #[must_use]
    pub fn has_publisher(&self, name: &str) -> bool {
        lock(&self.publisher_names.0).contains_key(name)
    }
}

impl TakenNames {
    fn take_for_all_peers(&self, name: &str) -> Option<TakenName> {
        self.take(name, |holder| match holder {
            None => Some(Holders::AllPeers),
            Some(_) => None,
        })
    }

    fn take(
        &self,
        name: &str,
        take: impl FnOnce(Option<&Holders>) -> Option<Holders>,
    ) -> Option<TakenName> {
        let names = self.0.clone();
        let name = name.to_owned();
        // In a forked child the lock may be held for ever. A child has no use for a name anyway.
        if !fork::is_child() {
            let mut held = lock(&names);
            let holders = take(held.get(&name))?;
            held.insert(name.clone(), holders);
        }
        Some(TakenName { name, names })
    }
}

impl Drop for TakenName {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let mut names = lock(&self.names);
        match names.get_mut(&self.name) {
            Some(Holders::Peers(count)) if *count > 1 => *count -= 1,
            _ => drop(names.remove(&self.name)),
        }
    }
}

impl fmt::Debug for TakenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TakenName").field(&self.name).finish()
    }
}
