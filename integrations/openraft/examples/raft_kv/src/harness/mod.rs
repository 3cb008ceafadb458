//! Clusters of processes on this machine.

mod cluster;
mod dice;
mod proxy;

pub use self::{
    cluster::{Cluster, Launch},
    dice::Dice,
    proxy::{Cut, Proxies},
};
