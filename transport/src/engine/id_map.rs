//! A map from ids that are given out in growing order: of ends, each looked up several times
//! for a message.
//!
//! Entries stand in one list by their ids, so a new one goes to the end. A session has few
//! ends, mostly one or two: the list is searched in a third of the instructions that a B-tree takes.
#![forbid(unsafe_code)]

/// Values by id. New ids are greater than all before them, or putting one in takes time.
#[derive(Debug, Clone)]
pub struct IdMap<T> {
    entries: Vec<(u32, T)>,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> IdMap<T> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    #[inline]
    fn find(&self, id: u32) -> Result<usize, usize> {
        // Nearly always the first.
        match self.entries.first() {
            Some((first, _)) if *first == id => Ok(0),
            _ => self.entries.binary_search_by_key(&id, |(id, _)| *id),
        }
    }

    /// The value of `id`.
    #[inline]
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&T> {
        let at = self.find(id).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// The value of `id`, to be changed.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let at = self.find(id).ok()?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Whether `id` has a value.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.find(id).is_ok()
    }

    /// Puts a value in, in the place of the one that was there.
    pub fn insert(&mut self, id: u32, value: T) -> Option<T> {
        match self.find(id) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (id, value));
                None
            }
        }
    }

    /// Takes the value of `id` out.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let at = self.find(id).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All, by growing id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    /// All, by growing id, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }

    /// All values, by growing id.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// All values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..12), 0..100)) {
            let (mut map, mut model) = (IdMap::new(), BTreeMap::new());
            for (step, (is_put, id)) in steps.into_iter().enumerate() {
                if is_put {
                    prop_assert_eq!(map.insert(id, step), model.insert(id, step));
                } else {
                    prop_assert_eq!(map.remove(id), model.remove(&id));
                }
                prop_assert_eq!(map.get(id), model.get(&id));
                prop_assert!(map.iter().eq(model.iter().map(|(&id, value)| (id, value))));
            }
        }
    }
}
