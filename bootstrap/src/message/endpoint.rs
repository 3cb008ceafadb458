//! *Endpoint*: the address of the acceptor on the chosen fabric, and over verbs also that of the
//! dialer.

use std::fmt;
use std::ops::RangeInclusive;

use hmac_sha256::Hash;
use ibex_base::field::{AsItself, FieldCodec, FieldError, FieldReader, ListOf, WireField};

use crate::fabric::Fabric;
use crate::identity::Secret;

/// An address on one fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket to connect to.
    Shm(ShmEndpoint),
    /// The connection that this message came on, which needs no further words.
    Tcp,
    /// A queue pair to connect to.
    Verbs(VerbsEndpoint),
}

ibex_base::wire_structs! {
    /// The socket where an acceptor waits for one dialer.
    ///
    /// The acceptor does not name the socket: its [name](ShmEndpoint::name) follows from the token. So
    /// no acceptor can send a dialer to a socket of another program.
    pub struct ShmEndpoint {
        /// The token to present there, once. The name is visible to every process of the host, in
        /// `/proc/net/unix`; the token is not.
        pub token: Secret = "token",
    }
}

ibex_base::wire_structs! {
    /// A queue pair as its peer needs to know it.
    pub struct VerbsEndpoint {
        /// The address to connect to.
        pub address: QueuePairAddress = "address",
        /// Longest inline send.
        pub max_inline_bytes: u32 = "inline limit" [0..=VerbsEndpoint::MAX_INLINE_BYTES],
        /// Most scatter-gather entries of one send.
        pub max_send_sge: u16 = "send sge limit" [1..=u16::MAX],
        /// Most scatter-gather entries of one receive.
        pub max_receive_sge: u16 = "receive sge limit" [1..=u16::MAX],
        /// Length of this end's receive buffers; a longer message is an error of the connection.
        pub receive_buffer_bytes: u32 = "receive buffer size" [VerbsEndpoint::RECEIVE_BUFFER_BYTES],
        /// Messages that the peer may have under way to this end at first.
        pub credit: u32 = "credit" [VerbsEndpoint::CREDIT],
        /// What the queue pair can do.
        pub abilities: PairAbilities = "abilities",
        /// The key of its partition, with the bit of full members; 0 where it is not known.
        pub partition_key: u16 = "partition key",
        /// Its queue pairs on other ports, at most [`MAX_RAILS`](Self::MAX_RAILS).
        pub rails: Vec<VerbsRail> = "rail count" [ListOf(VerbsEndpoint::MAX_RAILS, AsItself)],
    }

    /// A further queue pair of a session, on another port, over which large messages are read as well.
    #[derive(Copy)]
    pub struct VerbsRail {
        /// The address to connect to.
        pub address: QueuePairAddress = "address",
        /// What the queue pair can do.
        pub abilities: PairAbilities = "abilities",
        /// The key of its partition, in the same way as an endpoint's.
        pub partition_key: u16 = "partition key",
        /// The address of eight bytes that the peer may read, to test the queue pair.
        pub probe_address: u64 = "probe address",
        /// The key that permits it to read them.
        pub probe_key: u32 = "probe key",
    }

    /// What a peer connects its queue pair to.
    #[derive(Copy)]
    pub struct QueuePairAddress {
        /// Queue pair number, 24 bits. 0 and 1 are for management: `IB_QPT_SMI` and `IB_QPT_GSI` of
        /// include/rdma/ib_verbs.h.
        pub queue_pair: u32 = "queue pair number" [2..=MOST_OF_24_BITS],
        /// First packet sequence number, 24 bits.
        pub packet_sequence: u32 = "packet sequence" [0..=MOST_OF_24_BITS],
        /// Local identifier of the port; 0 on RoCE.
        pub lid: u16 = "lid",
        /// Global identifier of the port.
        pub gid: [u8; 16] = "gid",
        /// The kind of that identifier, which decides how packets are routed.
        pub gid_type: GidKind = "gid type",
        /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
        pub mtu_bytes: u16 = "mtu" [MtuBytes],
    }
}

/// What a queue pair can do: three numbers in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairAbilities {
    /// Set if the node takes immediate data, and makes writes with some.
    pub immediate: bool,
    /// Reads of the peer's large messages that the node makes at a time: at most 7, and 0 if it makes
    /// none.
    pub read_depth: u8,
    /// The peer's reads that the node serves at a time, in the same way.
    pub read_resources: u8,
}

/// The kind of a global identifier; peers with different kinds cannot talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE version 1, on Ethernet frames.
    RoceV1,
    /// RoCE version 2, on UDP.
    RoceV2,
}

impl Endpoint {
    /// Returns the fabric that this is an address on.
    pub fn fabric(&self) -> Fabric {
        match self {
            Endpoint::Shm(_) => Fabric::Shm,
            Endpoint::Tcp => Fabric::Tcp,
            Endpoint::Verbs(_) => Fabric::Verbs,
        }
    }
}

impl WireField for Endpoint {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, FieldError> {
        Ok(match Fabric::read(from, "fabric kind")? {
            Fabric::Shm => Endpoint::Shm(WireField::read(from, "shm")?),
            Fabric::Tcp => Endpoint::Tcp,
            Fabric::Verbs => Endpoint::Verbs(WireField::read(from, "verbs")?),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.fabric().write(out);
        match self {
            Endpoint::Shm(endpoint) => endpoint.write(out),
            Endpoint::Tcp => {}
            Endpoint::Verbs(endpoint) => endpoint.write(out),
        }
    }
}

impl ShmEndpoint {
    /// Returns the name of the `SOCK_SEQPACKET` socket, in the abstract namespace without the
    /// leading zero byte: in hex, since names of sockets appear in listings that people read, the
    /// first half of a hash of the token.
    #[must_use]
    pub fn name(token: &Secret) -> Vec<u8> {
        let mut hash = Hash::new();
        hash.update(NAME_LABEL);
        hash.update(token.expose());
        let hash = hash.finalize();
        let hex: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("ibex-{hex}").into_bytes()
    }
}

impl VerbsEndpoint {
    /// The longest inline send that a peer may claim; devices of today have 1 to 2 KiB.
    pub const MAX_INLINE_BYTES: u32 = 64 << 10;
    /// The range of a receive buffer's length. A shorter buffer holds no control message.
    pub const RECEIVE_BUFFER_BYTES: RangeInclusive<u32> = 256..=1 << 20;
    /// The range of the first credit; 0 where credit is lent as sessions need it.
    pub const CREDIT: RangeInclusive<u32> = 0..=1 << 20;
    /// Most rails of a session.
    pub const MAX_RAILS: usize = 3;
}

impl WireField for PairAbilities {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        let byte = u8::read(from, name)?;
        Ok(Self {
            immediate: byte & 1 != 0,
            read_depth: byte >> READ_DEPTH_BIT & MOST_READS,
            read_resources: byte >> READ_RESOURCES_BIT & MOST_READS,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let bits = |reads: u8, bit: u8| reads.min(MOST_READS) << bit;
        let depth = bits(self.read_depth, READ_DEPTH_BIT);
        out.push(u8::from(self.immediate) | depth | bits(self.read_resources, READ_RESOURCES_BIT));
    }
}

/// The powers of two that devices have as path MTU.
struct MtuBytes;

impl FieldCodec<u16> for MtuBytes {
    fn read(&self, from: &mut FieldReader<'_>, field: &'static str) -> Result<u16, FieldError> {
        match u16::read(from, field)? {
            mtu @ (256 | 512 | 1024 | 2048 | 4096) => Ok(mtu),
            other => Err(FieldError::UnknownValue {
                field,
                value: other.into(),
            }),
        }
    }

    fn write(&self, value: &u16, out: &mut Vec<u8>) {
        value.write(out);
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::Infiniband => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// The first of the three bits for the reads that the node makes.
const READ_DEPTH_BIT: u8 = 1;
/// The first of the three bits for the reads that the node serves.
const READ_RESOURCES_BIT: u8 = 4;
/// The most reads that three bits tell.
const MOST_READS: u8 = 7;

const NAME_LABEL: &[u8] = b"ibex unix socket 1";

/// The greatest number of a queue pair, and of a packet.
const MOST_OF_24_BITS: u32 = (1 << 24) - 1;
