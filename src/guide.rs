//! Pages that lead from a question to a program.

#[doc = include_str!("guide/from_tcp_stream.md")]
pub mod from_tcp_stream {}

#[doc = include_str!("guide/which_driver.md")]
pub mod which_driver {}

#[doc = include_str!("guide/request_and_reply.md")]
pub mod request_and_reply {}
