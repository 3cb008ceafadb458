//! The place of `raft` in a build without it, which has no row of it either.

use crate::{end::Link, order::Order, session::Failure};

pub(crate) async fn measure(_: Vec<Link>, _: Order) -> Result<f64, Failure> {
    Err(ABSENT.into())
}

pub(crate) async fn answer(_: Link, _: u64) -> Result<(), Failure> {
    Err(ABSENT.into())
}

const ABSENT: &str = "this benchmark was built without the feature `raft`";
