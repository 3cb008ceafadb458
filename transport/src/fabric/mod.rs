//! Fabrics: how a session's bytes get to the other side.
//!
//! Every session has a tcp connection for life, which carries control and liveness on
//! every fabric (`link`), and data too where the fabric is [`tcp`]. With [`shm`] data
//! goes through memory that both processes map and never through a link. [`verbs`] is the
//! layer over RDMA devices; the feature of that name adds the system's library to it, and
//! tests a device made of memory.

mod kind;
pub(crate) mod link;
pub mod shm;
pub mod tcp;
pub mod verbs;

pub use kind::Fabric;
