//! tcp: frames on one connection.
//!
//! Ring memory goes to the socket as scatter entries and nothing is staged; arrivals are
//! read into blocks where the receiver reads them in place. What stands between frames
//! and socket is the [`RecordLayer`], so that an encrypting one can take its place.

pub(crate) mod inbound;
pub(crate) mod outbound;
mod record_layer;
mod unanswered;

pub use record_layer::{Plain, RecordLayer};
pub(crate) use unanswered::unanswered_for;
