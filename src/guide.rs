//! Pages that lead from a question to a program.
//!
//! | page | about |
//! |---|---|
//! | [`getting_started`] | a first program |
//! | [`semantics`] | what a channel promises, in one table |
//! | [`which_fabric`] | choosing and forcing a fabric |
//! | [`from_tcp_stream`] | replacing TCP sockets, step by step |
//! | [`acknowledgement`] | acknowledgements, retries and the unknown range |
//! | [`groups`] | groups and quorums |
//! | [`which_driver`] | threads, tokio and event loops |
//! | [`memory`] | memory, large payloads and tuning |
//! | [`rdma_setup`] | RDMA on InfiniBand, RoCE and soft-RoCE |
//! | [`updating`] | updating a cluster |
//! | [`restarting`] | restarting a service without a failed call |
//! | [`security`] | authenticating peers, and encrypting TCP |
//! | [`request_and_reply`] | requests and replies |
//! | [`coming_from`] | coming from crossbeam-channel, ZeroMQ, tonic, UCX or raw verbs |
//! | [`troubleshooting`] | errors by their text |
//!
//! Four crates in the folder `integrations` of the repository carry other people's software, and have
//! pages of their own: `ibex-tonic` (gRPC over shared memory and RDMA), `ibex-hyper` (HTTP by hyper
//! and axum), `ibex-openraft` (openraft in ten minutes) and `ibex-iceoryx2` (iceoryx2 between hosts).

#[doc = include_str!("guide/getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("guide/semantics.md")]
pub mod semantics {}

#[doc = include_str!("guide/which_fabric.md")]
pub mod which_fabric {}

#[doc = include_str!("guide/from_tcp_stream.md")]
pub mod from_tcp_stream {}

#[doc = include_str!("guide/acknowledgement.md")]
pub mod acknowledgement {}

#[doc = include_str!("guide/groups.md")]
pub mod groups {}

#[doc = include_str!("guide/which_driver.md")]
pub mod which_driver {}

#[doc = include_str!("guide/memory.md")]
pub mod memory {}

#[doc = include_str!("guide/rdma_setup.md")]
pub mod rdma_setup {}

#[doc = include_str!("guide/updating.md")]
pub mod updating {}

#[doc = include_str!("guide/restarting.md")]
pub mod restarting {}

#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = include_str!("guide/request_and_reply.md")]
pub mod request_and_reply {}

#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("guide/troubleshooting.md")]
pub mod troubleshooting {}
