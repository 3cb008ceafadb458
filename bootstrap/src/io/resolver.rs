//! Names that the system's resolver looks up on threads of their own, since it blocks.
//!
//! A lookup cannot be interrupted, so a thread may outlive the dialer that has begun it.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, mem};

use ibex_base::{Address, threads};

use super::event_fd::EventFd;

/// The resolver of a dialer.
pub(super) struct Resolver(Arc<Lookups>);

struct Lookups {
    state: Mutex<State>,
    look_up: LookUp,
    /// Rung when something is in `done`.
    bell: Arc<EventFd>,
}

#[derive(Default)]
struct State {
    /// Who asked for the names that are being looked up, or are to be.
    asking: HashMap<String, Vec<u64>>,
    /// Names for which there is no thread yet.
    waiting: VecDeque<String>,
    threads: usize,
    done: Vec<(u64, io::Result<Vec<Address>>)>,
}

/// Looks up the addresses of `host:port`.
pub(super) type LookUp = fn(&str) -> io::Result<Vec<Address>>;

impl Resolver {
    pub(super) fn new(look_up: LookUp, bell: Arc<EventFd>) -> Resolver {
        Resolver(Arc::new(Lookups {
            state: Mutex::default(),
            look_up,
            bell,
        }))
    }

    /// Begins to look up a name for the dial `key`. The names that are asked for at a time have
    /// each one thread; beyond [`MOST_THREADS`] they wait for one.
    ///
    /// # Errors
    /// There can be no thread.
    pub(super) fn begin(&self, key: u64, name: &str) -> io::Result<()> {
        let mut state = self.0.state();
        if let Some(asking) = state.asking.get_mut(name) {
            asking.push(key);
            return Ok(());
        }
        if state.threads < MOST_THREADS {
            let (shared, first) = (self.0.clone(), name.to_owned());
            match threads::spawn("ibex-resolve", move || shared.work(first)) {
                Ok(_) => state.threads += 1,
                // One of the present threads looks the name up.
                Err(_) if state.threads > 0 => state.waiting.push_back(name.to_owned()),
                Err(error) => return Err(error),
            }
        } else {
            state.waiting.push_back(name.to_owned());
        }
        state.asking.insert(name.to_owned(), vec![key]);
        Ok(())
    }

    /// Takes the answers since the last call.
    pub(super) fn take_done(&self) -> Vec<(u64, io::Result<Vec<Address>>)> {
        mem::take(&mut self.0.state().done)
    }
}

impl Lookups {
    fn work(&self, first: String) {
        let mut next = Some(first);
        while let Some(name) = next {
            let found = (self.look_up)(&name);
            let mut state = self.state();
            for key in state.asking.remove(&name).unwrap_or_default() {
                state.done.push((key, copy_of(&found)));
            }
            next = state.waiting.pop_front();
            if next.is_none() {
                state.threads -= 1;
            }
            drop(state);
            self.bell.ring();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
