//! The measurement of ibex, which the example and the benchmark share.
//!
//! Both consist of this directory and of `ibex-harness`, which does not know ibex. Code that only
//! one of them needs stands beside its `main`.

pub(crate) mod channels;
pub(crate) mod costs;
pub(crate) mod pairs;
pub(crate) mod protection;
pub(crate) mod session;
