//! The gatherings that learn of an engine's sessions.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use ibex_base::sync::{Mutex, lock};
use ibex_ring::parking::{ReadySet, Wakers};

use super::{SessionShared, push_live};

/// The gatherings of a node that want to be told of sessions.
#[derive(Debug, Default)]
pub(crate) struct Gatherings(Mutex<Vec<ListedGathering>>);

#[derive(Debug)]
struct ListedGathering {
    notified: Weak<ReadySet<Notified>>,
    /// The channel's name, if only peers that subscribe to it are of interest.
    subscribed: Option<String>,
}

impl Gatherings {
    /// Adds a gathering, with the `sessions` that exist and are of interest. The caller keeps new
    /// sessions from coming meanwhile.
    pub(crate) fn add(
        &self,
        gathering: &Arc<ReadySet<Notified>>,
        subscribed: Option<&str>,
        sessions: Vec<Arc<SessionShared>>,
        wakers: &mut Wakers,
    ) {
        let notified = sessions.into_iter().map(Notified::Session);
        gathering.change(|changes| changes.extend(notified), wakers);
        lock(&self.0).push(ListedGathering {
            notified: Arc::downgrade(gathering),
            subscribed: subscribed.map(str::to_owned),
        });
    }

    /// Leaves the news that a session has come.
    pub(crate) fn session_came(&self, session: &Arc<SessionShared>, wakers: &mut Wakers) {
        self.tell(None, session, wakers);
    }

    /// Leaves the news that a peer has opened a receiving end without a counterpart here.
    pub(crate) fn peer_subscribes(
        &self,
        session: &Arc<SessionShared>,
        name: &str,
        wakers: &mut Wakers,
    ) {
        self.tell(Some(name), session, wakers);
    }

    fn tell(&self, name: Option<&str>, session: &Arc<SessionShared>, wakers: &mut Wakers) {
        self.for_each(|subscribed, gathering| {
            if subscribed == name {
                let notified = Notified::Session(session.clone());
                gathering.change(
                    |changes| push_live(changes, notified, Notified::is_past),
                    wakers,
                );
            }
        });
    }

    /// Wakes the waiters, because the node is being closed.
    pub(crate) fn node_closes(&self, wakers: &mut Wakers) {
        self.for_each(|_, gathering| gathering.waiters().take(wakers));
    }

    fn for_each(&self, mut act: impl FnMut(Option<&str>, &ReadySet<Notified>)) {
        lock(&self.0).retain(|listed| match listed.notified.upgrade() {
            Some(notified) => {
                act(listed.subscribed.as_deref(), &notified);
                true
            }
            None => false,
        });
    }
}

/// What an item of a [`Gathering`](crate::runtime::Gathering) tells.
#[derive(Debug)]
pub enum Notified {
    /// The member with this number has news.
    Member(usize),
    /// This session has come. For a publisher: its peer has opened a receiving end of the
    /// publisher's name, and this node no sending end for it.
    Session(Arc<SessionShared>),
}

impl Notified {
    fn is_past(&self) -> bool {
        matches!(self, Self::Session(session) if session.is_over())
    }
}
