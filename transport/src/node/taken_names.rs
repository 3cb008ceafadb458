//! Names that belong to one holder in a node, such as a publisher or a service. A name belongs to one
//! holder for all peers, or to several holders for one peer each.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use ibex_base::{fork, sync::lock};

use super::NodeState;

/// The names that holders have taken; each kind of holders has names of its own.
#[derive(Debug, Default)]
pub(crate) struct TakenNames(Arc<HoldersByName>);

/// The holders of names, by their kind and the name.
type HoldersByName = Mutex<BTreeMap<(&'static str, String), Holders>>;

/// The holders that have a name.
#[derive(Debug)]
enum Holders {
    /// The holder for all peers.
    AllPeers,
    /// This many holders, each for one peer. The session of a peer allows it only one.
    Peers(usize),
}

/// A name that its holder keeps until this is dropped.
pub struct TakenName {
    /// The kind of its holder, and the name.
    key: (&'static str, String),
    names: Arc<HoldersByName>,
}

impl NodeState {
    /// Takes a name for a holder for all peers. Returns `None` if another one of this kind has the
    /// name.
    #[must_use]
    pub fn take_name(&self, kind: &'static str, name: &str) -> Option<TakenName> {
        self.names.take(kind, name, |holder| match holder {
            None => Some(Holders::AllPeers),
            Some(_) => None,
        })
    }

    /// Takes a name for a holder for one peer. Returns `None` if one of this kind for all peers has
    /// the name.
    #[must_use]
    pub fn share_name(&self, kind: &'static str, name: &str) -> Option<TakenName> {
        self.names.take(kind, name, |holder| match holder {
            None => Some(Holders::Peers(1)),
            Some(Holders::Peers(count)) => Some(Holders::Peers(count + 1)),
            Some(Holders::AllPeers) => None,
        })
    }

    /// Returns whether a holder of this kind has the name.
    #[must_use]
    pub fn is_name_taken(&self, kind: &'static str, name: &str) -> bool {
        lock(&self.names.0).contains_key(&(kind, name.to_owned()))
    }
}

impl TakenName {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.1
    }
}

impl TakenNames {
    fn take(
        &self,
        kind: &'static str,
        name: &str,
        take: impl FnOnce(Option<&Holders>) -> Option<Holders>,
    ) -> Option<TakenName> {
        let (key, names) = ((kind, name.to_owned()), self.0.clone());
        // In a forked child the lock may be held for ever. A child has no use for a name anyway.
        if !fork::is_child() {
            let mut held = lock(&names);
            let holders = take(held.get(&key))?;
            held.insert(key.clone(), holders);
        }
        Some(TakenName { key, names })
    }
}

impl Drop for TakenName {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let mut names = lock(&self.names);
        match names.get_mut(&self.key) {
            Some(Holders::Peers(count)) if *count > 1 => *count -= 1,
            _ => drop(names.remove(&self.key)),
        }
    }
}

impl fmt::Debug for TakenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TakenName").field(&self.key).finish()
    }
}
