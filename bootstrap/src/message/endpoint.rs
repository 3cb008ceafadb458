//! *Endpoint*: the address of the acceptor on the chosen fabric, and over verbs also that of the
//! dialer.

use std::fmt;
use std::ops::RangeInclusive;

use hmac_sha256::Hash;

use super::MessageError;
use super::choice::parse_fabric_kind;
use super::field::{FieldReader, FieldWriter};
use crate::fabric::FabricKind;
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
    pub fn fabric(&self) -> FabricKind {
        match self {
            Endpoint::Shm(_) => FabricKind::Shm,
            Endpoint::Tcp => FabricKind::Tcp,
            Endpoint::Verbs(_) => FabricKind::Verbs,
        }
    }

    pub(super) fn parse(mut fields: FieldReader<'_>) -> Result<Endpoint, MessageError> {
        Ok(match parse_fabric_kind(&mut fields)? {
            FabricKind::Shm => Endpoint::Shm(ShmEndpoint::parse(fields)?),
            FabricKind::Tcp => Endpoint::Tcp,
            FabricKind::Verbs => Endpoint::Verbs(VerbsEndpoint::parse(fields)?),
        })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u8(self.fabric().to_wire());
        match self {
            Endpoint::Shm(endpoint) => endpoint.write(fields),
            Endpoint::Tcp => {}
            Endpoint::Verbs(endpoint) => endpoint.write(fields),
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

    fn parse(mut fields: FieldReader<'_>) -> Result<ShmEndpoint, MessageError> {
        Ok(ShmEndpoint {
            token: Secret::new(fields.array("token")?),
        })
    }

    fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.bytes(self.token.expose());
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

    fn parse(mut fields: FieldReader<'_>) -> Result<VerbsEndpoint, MessageError> {
        let mut endpoint = VerbsEndpoint {
            address: QueuePairAddress::parse(&mut fields)?,
            max_inline_bytes: fields.u32("inline limit")?,
            max_send_sge: fields.u16("send sge limit")?,
            max_receive_sge: fields.u16("receive sge limit")?,
            receive_buffer_bytes: fields.u32("receive buffer size")?,
            credit: fields.u32("credit")?,
            immediate: false,
            read_depth: 0,
            read_resources: 0,
            rails: Vec::new(),
        };
        let abilities = fields.u8("abilities")?;
        endpoint.immediate = abilities & IMMEDIATE != 0;
        (endpoint.read_depth, endpoint.read_resources) = reads(abilities);
        endpoint.address.partition_key = fields.u16("partition key")?;
        endpoint.check()?;
        endpoint.rails = VerbsRail::parse_all(&mut fields)?;
        Ok(endpoint)
    }

    /// Refuses values that no queue pair can have, or that this end would rely on in its own sums.
    fn check(&self) -> Result<(), MessageError> {
        self.address.check()?;
        let fields = [
            (
                "inline limit",
                self.max_inline_bytes,
                self.max_inline_bytes <= Self::MAX_INLINE_BYTES,
            ),
            (
                "send sge limit",
                self.max_send_sge.into(),
                self.max_send_sge > 0,
            ),
            (
                "receive sge limit",
                self.max_receive_sge.into(),
                self.max_receive_sge > 0,
            ),
            (
                "receive buffer size",
                self.receive_buffer_bytes,
                Self::RECEIVE_BUFFER_BYTES.contains(&self.receive_buffer_bytes),
            ),
            ("credit", self.credit, Self::CREDIT.contains(&self.credit)),
        ];
        all_possible(fields)
    }

    fn write(&self, fields: &mut FieldWriter<'_>) {
        self.address.write(fields);
        fields.u32(self.max_inline_bytes);
        fields.u16(self.max_send_sge);
        fields.u16(self.max_receive_sge);
        fields.u32(self.receive_buffer_bytes);
        fields.u32(self.credit);
        fields.u8(u8::from(self.immediate) | read_bits(self.read_depth, self.read_resources));
        fields.u16(self.address.partition_key);
        VerbsRail::write_all(&self.rails, fields);
    }
}

impl VerbsRail {
    fn parse_all(fields: &mut FieldReader<'_>) -> Result<Vec<Self>, MessageError> {
        let count = usize::from(fields.u8("rail count")?);
        if count > VerbsEndpoint::MAX_RAILS {
            return Err(MessageError::TooLong {
                field: "rail count",
                length: count,
                max: VerbsEndpoint::MAX_RAILS,
            });
        }
        (0..count).map(|_| Self::parse(fields)).collect()
    }

    fn parse(fields: &mut FieldReader<'_>) -> Result<Self, MessageError> {
        let mut address = QueuePairAddress::parse(fields)?;
        let (read_depth, read_resources) = reads(fields.u8("abilities")?);
        address.partition_key = fields.u16("partition key")?;
        address.check()?;
        Ok(Self {
            address,
            read_depth,
            read_resources,
            probe_address: fields.u64("probe address")?,
            probe_key: fields.u32("probe key")?,
        })
    }

    fn write_all(rails: &[Self], fields: &mut FieldWriter<'_>) {
        debug_assert!(rails.len() <= VerbsEndpoint::MAX_RAILS);
        fields.u8(rails.len() as u8);
        for rail in rails {
            rail.address.write(fields);
            fields.u8(read_bits(rail.read_depth, rail.read_resources));
            fields.u16(rail.address.partition_key);
            fields.u64(rail.probe_address);
            fields.u32(rail.probe_key);
        }
    }
}

impl QueuePairAddress {
    /// Reads the address but for the partition's key, which stands further behind.
    fn parse(fields: &mut FieldReader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            queue_pair: bounded("queue pair number", fields.u32("queue pair number")?)?,
            packet_sequence: bounded("packet sequence", fields.u32("packet sequence")?)?,
            lid: fields.u16("lid")?,
            gid: fields.array("gid")?,
            gid_type: GidKind::from_wire(fields.u8("gid type")?)?,
            mtu_bytes: fields.u16("mtu")?,
            partition_key: 0,
        })
    }

    /// Refuses values that no queue pair can have.
    fn check(&self) -> Result<(), MessageError> {
        let is_mtu = matches!(self.mtu_bytes, 256 | 512 | 1024 | 2048 | 4096);
        all_possible([
            // 0 and 1 are for management: IB_QPT_SMI and IB_QPT_GSI, include/rdma/ib_verbs.h.
            ("queue pair number", self.queue_pair, self.queue_pair > 1),
            ("mtu", self.mtu_bytes.into(), is_mtu),
        ])
    }

    /// Writes what [`parse`](Self::parse) reads.
    fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.u32(self.queue_pair);
        fields.u32(self.packet_sequence);
        fields.u16(self.lid);
        fields.bytes(&self.gid);
        fields.u8(self.gid_type.to_wire());
        fields.u16(self.mtu_bytes);
    }
}

impl GidKind {
    pub(crate) fn to_wire(self) -> u8 {
        match self {
            GidKind::Infiniband => 0,
            GidKind::RoceV1 => 1,
            GidKind::RoceV2 => 2,
        }
    }

    fn from_wire(byte: u8) -> Result<GidKind, MessageError> {
        match byte {
            0 => Ok(GidKind::Infiniband),
            1 => Ok(GidKind::RoceV1),
            2 => Ok(GidKind::RoceV2),
            _ => Err(MessageError::UnknownValue {
                field: "gid type",
                value: u32::from(byte),
            }),
        }
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

/// Refuses the first of these fields whose value is not possible.
fn all_possible<const N: usize>(
    fields: [(&'static str, u32, bool); N],
) -> Result<(), MessageError> {
    match fields.into_iter().find(|(_, _, is_possible)| !is_possible) {
        Some((field, value, _)) => Err(MessageError::UnknownValue { field, value }),
        None => Ok(()),
    }
}

/// Numbers of queue pairs and packets have 24 bits in every packet header.
fn bounded(field: &'static str, value: u32) -> Result<u32, MessageError> {
    if value >> 24 == 0 {
        Ok(value)
    } else {
        Err(MessageError::UnknownValue { field, value })
    }
}
