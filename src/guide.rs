//! Pages that lead from a question to a program.
//!
//! Pages about the software of others are the documentation of crates of their own, in the folder
//! `integrations` of the repository: `ibex-tonic` (gRPC over shared memory and RDMA), `ibex-hyper`
//! (HTTP by hyper and axum), `ibex-openraft` (openraft in ten minutes) and `ibex-iceoryx2`
//! (iceoryx2 between hosts).

#[doc = include_str!("guide/from_tcp_stream.md")]
pub mod from_tcp_stream {}

#[doc = include_str!("guide/which_driver.md")]
pub mod which_driver {}

#[doc = include_str!("guide/restarting.md")]
pub mod restarting {}

#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = include_str!("guide/request_and_reply.md")]
pub mod request_and_reply {}
