//! ibex as it is measured: what the example and the benchmark have in common.
//!
//! Both are made of this directory and of `ibex-harness`, which does not know ibex.
//! Whatever only one of them does stands beside its `main`.

pub(crate) mod channels;
pub(crate) mod costs;
pub(crate) mod pairs;
pub(crate) mod protection;
pub(crate) mod session;
