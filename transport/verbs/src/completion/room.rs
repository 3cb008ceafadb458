//! The room of a completion queue whose device does not watch for an overrun.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::queue::CompletionQueueObject;
use crate::error::VerbsError;

/// The count of a queue's entries, and of those that its queue pairs may fill.
#[derive(Debug)]
pub(crate) struct CompletionRoom {
    count: Mutex<Count>,
}

#[derive(Debug)]
struct Count {
    entries: u32,
    taken: u32,
}

impl CompletionRoom {
    pub(super) fn new(entries: u32) -> Self {
        let count = Mutex::new(Count { entries, taken: 0 });
        Self { count }
    }

    /// Gives out no more room than a queue of this size has, while the device changes it. The error
    /// is what its queue pairs may fill, if that is more.
    pub(super) fn shrink(&self, entries: u32) -> Result<(), u32> {
        let mut count = self.count();
        if entries < count.taken {
            return Err(count.taken);
        }
        count.entries = count.entries.min(entries);
        Ok(())
    }

    /// Notes the size that the queue has.
    pub(super) fn set_entries(&self, entries: u32) {
        self.count().entries = entries;
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a queue's room that a queue pair has taken; dropped, it is free again.
#[derive(Debug)]
pub(crate) struct TakenRoom {
    queue: Arc<CompletionQueueObject>,
    completions: u32,
}

impl TakenRoom {
    /// Takes room for so many completions; `None` in a queue whose device watches for an overrun.
    pub(crate) fn take(
        queue: &Arc<CompletionQueueObject>,
        completions: u32,
    ) -> Result<Option<Self>, VerbsError> {
        let Some(room) = &queue.room else {
            return Ok(None);
        };
        let mut count = room.count();
        let left = count.entries.saturating_sub(count.taken);
        if completions > left {
            return Err(VerbsError::NoCompletionRoom {
                device: queue.context.name().to_owned(),
                needed: completions,
                left,
            });
        }
        count.taken += completions;
        Ok(Some(Self {
            queue: Arc::clone(queue),
            completions,
        }))
    }

    /// Refuses what a queue without a count of its own may complete into.
    pub(crate) fn refuse_shared(queue: &CompletionQueueObject) -> Result<(), VerbsError> {
        match queue.room {
            None => Ok(()),
            Some(_) => Err(VerbsError::UncountedCompletions {
                device: queue.context.name().to_owned(),
            }),
        }
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        if let Some(room) = &self.queue.room {
            room.count().taken -= self.completions;
        }
    }
}
