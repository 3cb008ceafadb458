//! A node's limits on what its peers may ask of it.
#![forbid(unsafe_code)]

ibex_base::wire_structs! {
    /// The limits on what a peer may ask of a node.
    ///
    /// A peer's limits are its word, unchecked beyond their encoding: take the
    /// smaller of the two ends' before sizing anything by them.
    #[derive(Copy)]
    pub struct Limits {
        /// Channels open at a time, both directions together. Default: 1024.
        pub channels: u32 = "channel limit",
        /// Bytes that may be under way to this node, not yet taken by its engine.
        /// Default: 1 MiB.
        pub session_credit_bytes: u64 = "session credit",
        /// Longest frame that this node takes. Default: 64 KiB.
        pub max_frame_bytes: u32 = "frame limit",
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            channels: 1024,
            session_credit_bytes: 1 << 20,
            max_frame_bytes: 64 << 10,
        }
    }
}
