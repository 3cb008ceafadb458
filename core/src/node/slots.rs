//! What crates above the core keep with a node.
#![forbid(unsafe_code)]

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use ibex_base::sync::lock;

/// Values of other crates that live as long as the node, one of each type.
#[derive(Default)]
pub(crate) struct NodeSlots(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl NodeSlots {
    /// Returns the value of this type, which the first call makes.
    pub(crate) fn get<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut slots = lock(&self.0);
        let slot = slots.entry(TypeId::of::<T>());
        let value = slot.or_insert_with(|| Arc::<T>::default()).clone();
        drop(slots);
        value.downcast().expect("the slot of a type has its value")
    }
}

impl fmt::Debug for NodeSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSlots")
            .field("count", &lock(&self.0).len())
            .finish()
    }
}
