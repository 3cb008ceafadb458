//! *Endpoint*: the address of the acceptor on the chosen fabric, and over verbs also that of the
//! dialer.

use std::fmt;
use std::ops::RangeInclusive;

use hmac_sha256::Hash;

use super::MessageError;
use super::field::{FieldReader, WireField};
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

/// The socket where an acceptor waits for one dialer.
///
/// The acceptor does not name the socket: its [name](ShmEndpoint::name) follows from the token. So
/// no acceptor can send a dialer to a socket of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmEndpoint {
    /// The token to present there, once. The name is visible to every process of the host, in
    /// `/proc/net/unix`; the token is not.
    pub token: Secret,
}

/// A queue pair as its peer needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsEndpoint {
    /// The address to connect to.
    pub address: QueuePairAddress,
    /// Longest inline send.
    pub max_inline_bytes: u32,
    /// Most scatter-gather entries of one send.
    pub max_send_sge: u16,
    /// Most scatter-gather entries of one receive.
    pub max_receive_sge: u16,
    /// Length of this end's receive buffers; a longer message is an error of the connection.
    pub receive_buffer_bytes: u32,
    /// Messages that the peer may have under way to this end at first.
    pub credit: u32,
    /// Set if the node takes immediate data, and makes writes with some.
    pub immediate: bool,
    /// Reads of the peer's large messages that the node makes at a time: at most 7, and 0 if it makes
    /// none.
    pub read_depth: u8,
    /// The peer's reads that the node serves at a time, in the same way.
    pub read_resources: u8,
    /// Its queue pairs on other ports, at most [`MAX_RAILS`](Self::MAX_RAILS).
    pub rails: Vec<VerbsRail>,
}

/// A further queue pair of a session, on another port, over which large messages are read as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsRail {
    /// The address to connect to.
    pub address: QueuePairAddress,
    /// Reads that the node makes over it at a time, at most 7.
    pub read_depth: u8,
    /// The peer's reads that the node serves over it at a time, at most 7.
    pub read_resources: u8,
    /// The address of eight bytes that the peer may read, to test the queue pair.
    pub probe_address: u64,
    /// The key that permits it to read them.
    pub probe_key: u32,
}

/// What a peer connects its queue pair to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAddress {
    /// Queue pair number, 24 bits.
    pub queue_pair: u32,
    /// First packet sequence number, 24 bits.
    pub packet_sequence: u32,
    /// Local identifier of the port; 0 on RoCE.
    pub lid: u16,
    /// Global identifier of the port.
    pub gid: [u8; 16],
    /// The kind of that identifier, which decides how packets are routed.
    pub gid_type: GidKind,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u16,
    /// The key of its partition, with the bit of full members; 0 where it is not known.
    pub partition_key: u16,
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
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, MessageError> {
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

impl WireField for VerbsEndpoint {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, MessageError> {
        let mut endpoint = VerbsEndpoint {
            address: WireField::read(from, "address")?,
            max_inline_bytes: from.within("inline limit", 0..=Self::MAX_INLINE_BYTES)?,
            max_send_sge: from.within("send sge limit", 1..=u16::MAX)?,
            max_receive_sge: from.within("receive sge limit", 1..=u16::MAX)?,
            receive_buffer_bytes: from.within("receive buffer size", Self::RECEIVE_BUFFER_BYTES)?,
            credit: from.within("credit", Self::CREDIT)?,
            immediate: false,
            read_depth: 0,
            read_resources: 0,
            rails: Vec::new(),
        };
        let abilities = u8::read(from, "abilities")?;
        endpoint.immediate = abilities & IMMEDIATE != 0;
        (endpoint.read_depth, endpoint.read_resources) = reads(abilities);
        endpoint.address.partition_key = WireField::read(from, "partition key")?;
        for _ in 0..from.count("rail count", Self::MAX_RAILS)? {
            endpoint.rails.push(WireField::read(from, "rail")?);
        }
        Ok(endpoint)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.address.write(out);
        self.max_inline_bytes.write(out);
        self.max_send_sge.write(out);
        self.max_receive_sge.write(out);
        self.receive_buffer_bytes.write(out);
        self.credit.write(out);
        out.push(u8::from(self.immediate) | read_bits(self.read_depth, self.read_resources));
        self.address.partition_key.write(out);
        debug_assert!(self.rails.len() <= Self::MAX_RAILS);
        out.push(self.rails.len() as u8);
        self.rails.iter().for_each(|rail| rail.write(out));
    }
}

impl WireField for VerbsRail {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, MessageError> {
        let mut address = QueuePairAddress::read(from, "address")?;
        let (read_depth, read_resources) = reads(u8::read(from, "abilities")?);
        address.partition_key = WireField::read(from, "partition key")?;
        Ok(Self {
            address,
            read_depth,
            read_resources,
            probe_address: WireField::read(from, "probe address")?,
            probe_key: WireField::read(from, "probe key")?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.address.write(out);
        out.push(read_bits(self.read_depth, self.read_resources));
        self.address.partition_key.write(out);
        self.probe_address.write(out);
        self.probe_key.write(out);
    }
}

/// The address but for the partition's key, which stands further behind.
impl WireField for QueuePairAddress {
    fn read(from: &mut FieldReader<'_>, _: &'static str) -> Result<Self, MessageError> {
        let address = Self {
            // 0 and 1 are for management: IB_QPT_SMI and IB_QPT_GSI, include/rdma/ib_verbs.h.
            queue_pair: from.within("queue pair number", 2..=MOST_OF_24_BITS)?,
            packet_sequence: from.within("packet sequence", 0..=MOST_OF_24_BITS)?,
            lid: WireField::read(from, "lid")?,
            gid: WireField::read(from, "gid")?,
            gid_type: WireField::read(from, "gid type")?,
            mtu_bytes: from.within("mtu", 256..=4096)?,
            partition_key: 0,
        };
        match address.mtu_bytes.is_power_of_two() {
            true => Ok(address),
            false => Err(MessageError::UnknownValue {
                field: "mtu",
                value: address.mtu_bytes.into(),
            }),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.queue_pair.write(out);
        self.packet_sequence.write(out);
        self.lid.write(out);
        self.gid.write(out);
        self.gid_type.write(out);
        self.mtu_bytes.write(out);
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

/// The bit of the abilities for immediate data.
const IMMEDIATE: u8 = 1;
/// The first of the three bits for the reads that the node makes.
const READ_DEPTH_BIT: u8 = 1;
/// The first of the three bits for the reads that the node serves.
const READ_RESOURCES_BIT: u8 = 4;
/// The most reads that three bits tell.
const MOST_READS: u8 = 7;

const NAME_LABEL: &[u8] = b"ibex unix socket 1";

/// Returns the reads that a node makes and serves, of its abilities.
fn reads(abilities: u8) -> (u8, u8) {
    let reads = |bit: u8| abilities >> bit & MOST_READS;
    (reads(READ_DEPTH_BIT), reads(READ_RESOURCES_BIT))
}

/// Returns the bits of the abilities for these reads.
fn read_bits(depth: u8, resources: u8) -> u8 {
    let bits = |reads: u8, bit: u8| reads.min(MOST_READS) << bit;
    bits(depth, READ_DEPTH_BIT) | bits(resources, READ_RESOURCES_BIT)
}

/// The greatest number of a queue pair, and of a packet.
const MOST_OF_24_BITS: u32 = (1 << 24) - 1;
