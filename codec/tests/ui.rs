//! Programs that must not compile, and the compiler's messages about them.
//!
//! The texts are those of the newest stable compiler. After a change on purpose:
//! `TRYBUILD=overwrite cargo test -p ibex-codec --test ui`.

#[test]
fn errors_point_at_their_cause() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
