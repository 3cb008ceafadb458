//! The link to one node: a session, which is connected anew when it is over.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use ibex::prelude::*;
use ibex::{
    Node, Peer, Raw,
    calls::{CallOptions, Caller},
};
use openraft::{RaftTypeConfig, error::Unreachable};

use crate::wire::{CONTROL, LOG, MAX_MESSAGE_BYTES};

pub(crate) type Calls = Caller<[u8], [u8], Raw>;

/// The link to the node at an address, which all clients for it share.
pub(crate) struct Link {
    node: Node,
    pub(crate) address: String,
    /// The attempt under way, or the last one.
    dial: Mutex<Option<Dial>>,
}

type Dial = Shared<BoxFuture<'static, Result<Arc<Session>, String>>>;

/// A session, with the callers of its services.
pub(crate) struct Session {
    pub(crate) peer: Peer,
    log: Calls,
    control: Calls,
    is_over: AtomicBool,
}

/// The service for a request. Each has channels of its own, so that none waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Log,
    Control,
}

impl Link {
    pub(crate) fn new(node: Node, address: String) -> Link {
        Link {
            node,
            address,
            dial: Mutex::new(None),
        }
    }

    /// Returns the session, once it is there.
    ///
    /// Connecting continues when the time is up: a handshake that takes longer than a heartbeat's
    /// deadline serves the next heartbeat.
    pub(crate) async fn session<C: RaftTypeConfig>(
        &self,
        within: Duration,
    ) -> Result<Arc<Session>, Unreachable<C>> {
        match tokio::time::timeout(within, self.dial()).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err(error)) => Err(Unreachable::from_string(error)),
            Err(_) => Err(Unreachable::from_string(format!(
                "no session with {} within {within:?}; connecting goes on",
                self.address
            ))),
        }
    }

    fn dial(&self) -> Dial {
        let mut dial = self.dial.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = dial.as_ref().filter(|dial| match dial.peek() {
            None => true,
            Some(Ok(session)) => !session.is_over(),
            Some(Err(_)) => false,
        });
        match usable {
            Some(dial) => dial.clone(),
            None => dial.insert(self.start()).clone(),
        }
    }

    fn start(&self) -> Dial {
        let connecting = tokio::spawn(connect(self.node.clone(), self.address.clone()));
        let outcome = connecting.map(|outcome| match outcome {
            Ok(outcome) => outcome,
            Err(error) => Err(format!("connecting was broken off: {error}")),
        });
        outcome.boxed().shared()
    }
}

async fn connect(node: Node, address: String) -> Result<Arc<Session>, String> {
    let peer = node.connect_async(address.as_str()).await;
    let peer = peer.map_err(|error| error.to_string())?;
    let caller = |name| {
        let calls = peer.channel(name).codec::<Raw>();
        let caller = calls.max_message_bytes(MAX_MESSAGE_BYTES).caller();
        caller.map_err(|error| error.to_string())
    };
    Ok(Arc::new(Session {
        log: caller(LOG)?,
        control: caller(CONTROL)?,
        peer,
        is_over: AtomicBool::new(false),
    }))
}

impl Session {
    pub(crate) fn caller(&self, lane: Lane, options: CallOptions) -> Calls {
        match lane {
            Lane::Log => self.log.with(options),
            Lane::Control => self.control.with(options),
        }
    }

    /// Makes the next request connect anew.
    pub(crate) fn give_up(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.peer.is_gone()
    }
}
