#![forbid(unsafe_code)]
#![doc = include_str!("guide.md")]

mod client;
mod error;
mod factory;
mod link;
mod pipeline;
mod sending;
mod server;
mod snapshot;
mod wire;

pub use self::{client::Client, factory::NetworkFactory, server::Server, snapshot::SnapshotData};
