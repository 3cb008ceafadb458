//! What must not compile, and what the compiler says about it.
//!
//! The texts are those of the newest stable compiler. After a change on purpose:
//! `TRYBUILD=overwrite cargo test -p ibex-codec --test ui`.

#[test]
fn errors_point_at_their_cause() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
