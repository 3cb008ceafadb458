//! Tests of engines together.

mod simulated;
