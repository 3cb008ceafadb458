//! Code that the types forbid does not compile, and the compiler's messages point at the cause.
//!
//! The texts are those of the newest stable compiler. After a change on purpose:
//! `TRYBUILD=overwrite cargo test -p ibex-refused`.
#![forbid(unsafe_code)]

#[test]
fn invalid_programs_do_not_compile() {
    trybuild::TestCases::new().compile_fail("channels/*.rs");
}

#[test]
fn invalid_messages_do_not_compile() {
    trybuild::TestCases::new().compile_fail("codec/*.rs");
}
