//! A map from ids that mostly grow: of sessions, ends and queue pairs, looked up several
//! times for each message.
//!
//! Entries stand in one list by their ids, so a new one mostly goes to the end. There are few
//! entries, mostly one or two, and then a look-up takes a third of the instructions that it takes
//! in a B-tree. Among many, if no id in between is missing, an entry is found by its distance from
//! the first. A session that is looked up among hundreds then costs the same as among three.
#![forbid(unsafe_code)]

/// Values by id. A new id that is not the greatest moves the entries behind it.
///
/// The type of the values is the first parameter, unlike in most maps: ids are numbers, mostly
/// `u32`, so that their type need not be given.
#[derive(Debug, Clone)]
pub struct IdMap<T, I = u32> {
    entries: Vec<(I, T)>,
}

impl<T, I: Copy + Ord + Into<u64>> Default for IdMap<T, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, I: Copy + Ord + Into<u64>> IdMap<T, I> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    fn find(&self, id: I) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// Returns the index of `id`, which is no further behind the first than its number is.
    fn place(&self, id: I) -> Option<usize> {
        let (first, _) = self.entries.first()?;
        let behind = id.into().checked_sub((*first).into())?;
        let last = self.entries.len() - 1;
        let furthest = usize::try_from(behind).map_or(last, |behind| behind.min(last));
        if self.entries[furthest].0 == id {
            return Some(furthest);
        }
        self.entries[..furthest]
            .binary_search_by_key(&id, |(id, _)| *id)
            .ok()
    }

    /// The value of `id`.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, id: I) -> Option<&T> {
        // The entry is nearly always one of the first two, which are compared directly, without a
        // search.
        match &self.entries[..] {
            [(first, value), ..] if *first == id => Some(value),
            [_, (second, value), ..] if *second == id => Some(value),
            _ => self.search(id),
        }
    }

    #[inline(never)]
    fn search(&self, id: I) -> Option<&T> {
        let at = self.place(id)?;
        Some(&self.entries[at].1)
    }

    /// The value of `id`, to be changed.
    #[inline(always)]
    #[must_use]
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        match &self.entries[..] {
            [(first, _), ..] if *first == id => Some(&mut self.entries[0].1),
            [_, (second, _), ..] if *second == id => Some(&mut self.entries[1].1),
            _ => self.search_mut(id),
        }
    }

    #[inline(never)]
    fn search_mut(&mut self, id: I) -> Option<&mut T> {
        let at = self.place(id)?;
        Some(&mut self.entries[at].1)
    }

    /// Returns whether `id` has a value.
    #[must_use]
    pub fn contains(&self, id: I) -> bool {
        self.get(id).is_some()
    }

    /// Puts a value in, in the place of the one that was there.
    pub fn insert(&mut self, id: I, value: T) -> Option<T> {
        match self.find(id) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                if self.entries.len() == self.entries.capacity() {
                    // Many sessions never have a second end, and few a third.
                    self.entries.reserve_exact(self.entries.len().max(1));
                }
                self.entries.insert(at, (id, value));
                None
            }
        }
    }

    /// Takes the value of `id` out.
    pub fn remove(&mut self, id: I) -> Option<T> {
        let at = self.find(id).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// Keeps the entries for which `wanted` returns true.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.entries.retain(|(_, value)| wanted(value));
    }

    /// Frees the memory that the present entries do not need.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all entries, by growing id.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    /// Returns all entries, by growing id, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }

    /// Returns all values, by growing id.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// Returns all ids, growing.
    pub fn ids(&self) -> impl Iterator<Item = I> {
        self.entries.iter().map(|(id, _)| *id)
    }

    /// Returns the values themselves, by growing id.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// Returns all values, to be changed.
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
            let (mut map, mut model) = (IdMap::<usize>::new(), BTreeMap::new());
            for (step, (is_put, id)) in steps.into_iter().enumerate() {
                if is_put {
                    prop_assert_eq!(map.insert(id, step), model.insert(id, step));
                } else {
                    prop_assert_eq!(map.remove(id), model.remove(&id));
                }
                for id in 0..13 {
                    prop_assert_eq!(map.get(id), model.get(&id));
                    prop_assert_eq!(map.get_mut(id), model.get_mut(&id));
                }
                prop_assert!(map.iter().eq(model.iter().map(|(&id, value)| (id, value))));
            }
        }
    }
}
