//! Checksums of payloads: the wishes of two nodes, and what follows from them.
#![forbid(unsafe_code)]

/// A node's wish for checksums over what its sessions carry.
///
/// Fabrics differ in what they cover by themselves:
///
/// | fabric | covered always | covered by this setting |
/// |---|---|---|
/// | tcp | the handshake, frame headers, extensions, control bodies and record headers, each by a CRC32C | payload, by a CRC32C of each frame |
/// | verbs | the handshake by a CRC32C, all else by the ICRC of the fabric, which its hardware computes at one end and checks at the other | nothing is added |
/// | shared memory | the handshake by a CRC32C, all else by what the machine's memory has against errors | nothing is added |
///
/// The checksums of TCP itself have 16 bits ([RFC 9293, section
/// 3.1](https://www.rfc-editor.org/rfc/rfc9293#section-3.1)). Network cards, switches and proxies
/// that rewrite packets compute them again over whatever they hold. CRC32C is that of [RFC 3720,
/// section 12.1](https://www.rfc-editor.org/rfc/rfc3720#section-12.1). The ICRC is that of the
/// [InfiniBand Architecture Specification](https://www.infinibandta.org/ibta-specification/),
/// volume 1, section 7.8.
///
/// A session has payload checksums if either node says [`On`](Self::On). Otherwise it has none if
/// either says [`Off`](Self::Off). Two nodes that say [`Auto`](Self::Auto) have them exactly if
/// they are on different hosts. The setting also applies to a session over verbs, in case it moves
/// to TCP.
///
/// For this purpose, two nodes are on one host if they use one network stack: the same boot of the
/// same kernel, the same network namespace, and a connection whose two addresses both belong to it.
/// Two containers with network namespaces of their own are different hosts, even on one machine,
/// because their packets pass through virtual devices and whatever is configured there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Integrity {
    /// Payload checksums between different hosts, none on one host.
    #[default]
    Auto,
    /// Payload checksums in every session over tcp.
    On,
    /// No payload checksums, unless the peer says [`On`](Self::On).
    Off,
}
