//! The ends of channels, as handles and engine share them: what each has of the other's, the rings
//! that they write and read, and why they ended.

pub mod channel_end;
pub mod error;
mod interface;
pub mod receive_end;
pub mod send_end;
pub(crate) mod send_producer;
pub(crate) mod send_wait;
pub(crate) mod stall;
pub mod state;
pub mod stats;
