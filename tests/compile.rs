//! Code that the types forbid does not compile, and the compiler's messages help.
//!
//! After an intended change of the messages: `TRYBUILD=overwrite cargo test --test compile`.
#![forbid(unsafe_code)]

#[test]
fn invalid_programs_do_not_compile() {
    trybuild::TestCases::new().compile_fail("compile_fail/*.rs");
}
