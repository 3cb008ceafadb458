//! tcp: frames on one connection.
//!
//! Ring memory goes to the socket as scatter entries and nothing is staged; arrivals are
//! read into blocks where the receiver reads them in place. What stands between frames
//! and socket is the [`RecordLayer`], plain or inside TLS.

pub(crate) mod inbound;
mod layer;
pub(crate) mod outbound;
mod record_layer;
mod sealed;
mod unanswered;

pub use layer::Layer;
pub use record_layer::{Plain, RecordLayer};
pub use sealed::Sealed;
pub(crate) use unanswered::unanswered_for;
