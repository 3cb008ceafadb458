//! The ends of channels, as handles and the engine share them: the counters of both sides, the
//! rings that they write and read, and the reasons why they ended.

pub mod channel_end;
pub(crate) mod large_waits;
pub mod receive_end;
pub(crate) mod receive_path;
pub(crate) mod receive_times;
pub mod send_end;
pub(crate) mod send_path;
pub(crate) mod send_producer;
pub(crate) mod send_times;
pub(crate) mod send_wait;
pub(crate) mod stall;
pub mod state;
pub mod stats;
