//! Clusters of processes on this machine.

mod cluster;
mod proxy;

pub use self::{
    cluster::{Cluster, Launch},
    proxy::{Cut, Proxies},
};
