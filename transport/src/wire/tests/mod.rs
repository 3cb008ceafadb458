//! What tests of sessions over streams share.

pub(crate) mod by_hand;
