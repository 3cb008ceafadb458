//! The measurement of ibex between two processes, which the command `ibex perf` and the benchmark
//! `pingpong` share. What it is compared to is in `ibex-harness`, which does not know ibex.
#![forbid(unsafe_code)]

pub mod by_size;
pub mod channels;
pub mod chart;
pub mod costs;
pub mod figures;
pub mod pairs;
pub mod protection;
pub mod ratios;
pub mod session;
