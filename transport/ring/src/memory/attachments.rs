//! Attachments: objects that fabrics have made of a piece of memory, kept with the memory.
//!
//! Registering memory with a device takes long and pins it, so it is done once: the
//! registration is attached to the memory, stays while the memory waits in its pool, and
//! serves the next lease. Memory knows nothing of fabrics; each asks for its own kind.
#![forbid(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

/// The objects that are attached to one piece of memory.
#[derive(Debug, Default)]
pub struct Attachments {
    all: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Attachments {
    /// The first of one kind that `is_wanted`.
    pub fn find<T: Any + Send + Sync>(&self, is_wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let of_kind = |one: &Arc<dyn Any + Send + Sync>| one.clone().downcast::<T>().ok();
        let mut all = self.all.iter().filter_map(of_kind);
        all.find(|one| is_wanted(one))
    }

    /// Attaches one more, and gives it back.
    pub fn attach<T: Any + Send + Sync>(&mut self, one: T) -> Arc<T> {
        let one = Arc::new(one);
        self.all.push(one.clone());
        one
    }

    /// Drops the attachments of one kind that are `stale`.
    pub fn detach<T: Any + Send + Sync>(&mut self, stale: impl Fn(&T) -> bool) {
        self.all
            .retain(|one| !one.downcast_ref::<T>().is_some_and(&stale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_are_found_by_type_and_predicate() {
        let mut attachments = Attachments::default();
        attachments.attach(1_u8);
        attachments.attach(2_u8);
        attachments.attach("text");
        let found = attachments.find(|number: &u8| *number == 2);
        assert_eq!(found.as_deref(), Some(&2));
        attachments.detach(|number: &u8| *number == 2);
        assert!(attachments.find(|number: &u8| *number == 2).is_none());
        assert!(attachments.find(|_: &&str| true).is_some());
    }
}
