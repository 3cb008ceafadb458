//! Names that the system's resolver looks up on threads of their own, since it blocks.
//!
//! A lookup cannot be interrupted, so a thread may outlive the dialer that has begun it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};
use ibex_base::sync::lock;
use ibex_base::{Address, Workers};

use super::event_fd::EventFd;

/// The resolver of a dialer.
pub(super) struct Resolver {
    threads: Workers,
    lookups: Arc<Lookups>,
    answers: Receiver<Resolved>,
}

struct Lookups {
    /// Who asked for the names that are being looked up, or are to be.
    asking: Mutex<HashMap<String, Vec<u64>>>,
    look_up: LookUp,
    done: Sender<Resolved>,
    /// Rung when something is in `done`.
    bell: Arc<EventFd>,
}

/// The addresses of a name, for the dial that has asked.
type Resolved = (u64, io::Result<Vec<Address>>);

/// Looks up the addresses of `host:port`.
pub(super) type LookUp = fn(&str) -> io::Result<Vec<Address>>;

impl Resolver {
    pub(super) fn new(look_up: LookUp, bell: Arc<EventFd>) -> Resolver {
        let (done, answers) = unbounded();
        Resolver {
            threads: Workers::new("ibex-resolve", MOST_THREADS),
            lookups: Arc::new(Lookups {
                asking: Mutex::default(),
                look_up,
                done,
                bell,
            }),
            answers,
        }
    }

    /// Begins to look up a name for the dial `key`. The names that are asked for at a time have
    /// each one thread; beyond [`MOST_THREADS`] they wait for one.
    ///
    /// # Errors
    /// There can be no thread.
    pub(super) fn begin(&self, key: u64, name: &str) -> io::Result<()> {
        // Held until the key is there, for which the thread waits.
        let mut asking = lock(&self.lookups.asking);
        if let Some(asking) = asking.get_mut(name) {
            asking.push(key);
            return Ok(());
        }
        let (lookups, wanted) = (self.lookups.clone(), name.to_owned());
        let look_up = move || lookups.answer(&wanted);
        self.threads
            .give(look_up)
            .map_err(|refused| refused.error)?;
        asking.insert(name.to_owned(), vec![key]);
        Ok(())
    }

    /// Takes the answers since the last call.
    pub(super) fn take_done(&self) -> Vec<Resolved> {
        self.answers.try_iter().collect()
    }
}

impl Lookups {
    /// Looks up a name, and answers all who have asked for it meanwhile.
    fn answer(&self, name: &str) {
        let found = (self.look_up)(name);
        for key in lock(&self.asking).remove(name).unwrap_or_default() {
            let _ = self.done.send((key, copy_of(&found)));
        }
        self.bell.ring();
    }
}

fn copy_of(found: &io::Result<Vec<Address>>) -> io::Result<Vec<Address>> {
    match found {
        Ok(addresses) => Ok(addresses.clone()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// Names that are looked up at a time. A name server that does not answer holds a thread up for
/// seconds.
const MOST_THREADS: usize = 256;
