//! Tests of several engines together.

mod simulated;
mod tasks;
