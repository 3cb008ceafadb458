//! The names of a node's services. A name belongs to one service for all peers, or to several
//! services for one peer each.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use ibex_base::{fork, sync::lock};

use super::NodeState;

/// The names that services have taken.
#[derive(Debug, Default)]
pub(crate) struct ServiceNames(Arc<Mutex<BTreeMap<String, Holders>>>);

/// The services that have a name.
#[derive(Debug)]
enum Holders {
    /// The service for all peers.
    AllPeers,
    /// This many services, each for one peer. The session of a peer allows it only one.
    Peers(usize),
}

/// The name of a service, which keeps the name until this is dropped.
pub struct ServiceName {
    name: String,
    names: Arc<Mutex<BTreeMap<String, Holders>>>,
}

impl NodeState {
    /// Takes a name for a service for all peers. Returns `None` if another service has the name.
    #[must_use]
    pub fn take_service_name(&self, name: &str) -> Option<ServiceName> {
        self.take_name(name, |holder| match holder {
            None => Some(Holders::AllPeers),
            Some(_) => None,
        })
    }

    /// Takes a name for a service for one peer. Returns `None` if a service for all peers has the
    /// name.
    #[must_use]
    pub fn share_service_name(&self, name: &str) -> Option<ServiceName> {
        self.take_name(name, |holder| match holder {
            None => Some(Holders::Peers(1)),
            Some(Holders::Peers(count)) => Some(Holders::Peers(count + 1)),
            Some(Holders::AllPeers) => None,
        })
    }

    fn take_name(
        &self,
        name: &str,
        take: impl FnOnce(Option<&Holders>) -> Option<Holders>,
    ) -> Option<ServiceName> {
        let names = self.service_names.0.clone();
        let name = name.to_owned();
        // In a forked child the lock may be held for ever. A child cannot serve anyway.
        if !fork::is_child() {
            let mut held = lock(&names);
            let holders = take(held.get(&name))?;
            held.insert(name.clone(), holders);
        }
        Some(ServiceName { name, names })
    }
}

impl Drop for ServiceName {
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

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServiceName").field(&self.name).finish()
    }
}
