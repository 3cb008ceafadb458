//! Tests of several engines together.

mod reactor;
mod simulated;
mod tasks;
mod unopened;
mod watched;
