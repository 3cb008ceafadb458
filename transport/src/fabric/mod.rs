//! Fabrics: how a session's bytes get to the other side.
//!
//! Every session has a tcp connection for life, which carries control and liveness on
//! every fabric (`link`), and data too where the fabric is [`tcp`]. With [`shm`] data
//! goes through memory that both processes map and never through a link. Where the fabric is
//! RDMA a link moves frames over the queue pairs of [`rdma`](crate::rdma).

mod kind;
pub(crate) mod link;
pub mod shm;
pub mod tcp;

pub use kind::Fabric;
