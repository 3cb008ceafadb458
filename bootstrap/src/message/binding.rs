//! *Binding*: the first message behind an authenticated handshake of TLS.

ibex_base::wire_structs! {
    /// The end's view of what was sent in clear. If the two views differ, a Hello was changed on its
    /// way.
    pub struct Binding {
        /// The SHA-256 of both Hellos as they were on the wire, the dialer's first.
        pub hellos: [u8; 32] = "hash of the Hellos",
    }
}
