//! A queue pair on its way from a handshake to a session, and its endpoint as messages carry it.
#![forbid(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Mutex};

use ibex_base::sync::lock;
use ibex_bootstrap::{
    VerbsPair,
    message::{GidKind, PairAbilities, QueuePairAddress, VerbsEndpoint, VerbsRail},
};
use ibex_transport::rdma::{MOST_RAILS, PairEndpoint, PreparedPair, RailEndpoint};
use ibex_verbs::{
    FirstSequence, Gid, GidType, Mtu, PartitionKey, ReadLimits, RemoteAddress, RemoteEndpoint,
    VerbsError,
};

/// A queue pair, and its endpoint as messages name it.
#[derive(Debug)]
pub(super) struct NodePair {
    pair: PreparedPair,
    endpoint: VerbsEndpoint,
    /// `None` if the session is on its engine already.
    _coming: Option<ComingPair>,
}

impl NodePair {
    /// A queue pair for a session that is `coming`, unless it goes on.
    pub(super) fn new(pair: PreparedPair, coming: Option<ComingPair>) -> Result<Self, String> {
        let endpoint = to_wire(&pair.endpoint())?;
        Ok(Self {
            pair,
            endpoint,
            _coming: coming,
        })
    }
}

impl VerbsPair for NodePair {
    fn endpoint(&self) -> VerbsEndpoint {
        self.endpoint.clone()
    }

    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String> {
        self.pair.connect(&from_wire(theirs)?).map_err(text)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.pair)
    }
}

/// Queue pairs by engine that are no sessions yet.
#[derive(Debug, Default)]
pub(super) struct Coming(Mutex<Vec<usize>>);

/// A queue pair among them, as long as this lives.
#[derive(Debug)]
pub(super) struct ComingPair {
    all: Arc<Coming>,
    pub(super) engine: usize,
}

impl Coming {
    /// Returns the engine with the fewest sessions, those that are coming included, or the one
    /// that is `wanted`; and counts another there.
    pub(super) fn place(self: &Arc<Self>, loads: &[usize], wanted: Option<usize>) -> ComingPair {
        let mut coming = lock(&self.0);
        coming.resize(loads.len().max(1), 0);
        let least = || (0..loads.len()).min_by_key(|&engine| loads[engine] + coming[engine]);
        let wanted = wanted.filter(|&engine| engine < coming.len());
        let engine = wanted.or_else(least).unwrap_or(0);
        coming[engine] += 1;
        let all = self.clone();
        ComingPair { all, engine }
    }
}

impl Drop for ComingPair {
    fn drop(&mut self) {
        lock(&self.all.0)[self.engine] -= 1;
    }
}

fn to_wire(ours: &PairEndpoint) -> Result<VerbsEndpoint, String> {
    Ok(VerbsEndpoint {
        address: address_to_wire(&ours.pair)?,
        max_inline_bytes: ours.max_inline_bytes,
        max_send_sge: ours.max_send_entries,
        max_receive_sge: ours.max_receive_entries,
        abilities: abilities(ours.immediate, ours.reads),
        partition_key: key(&ours.pair),
        receive_buffer_bytes: ours.buffer_bytes,
        credit: ours.credit,
        rails: ours
            .rails
            .iter()
            .flatten()
            .map(rail_to_wire)
            .collect::<Result<_, _>>()?,
    })
}

fn rail_to_wire(ours: &RailEndpoint) -> Result<VerbsRail, String> {
    Ok(VerbsRail {
        address: address_to_wire(&ours.pair)?,
        abilities: abilities(false, ours.reads),
        partition_key: key(&ours.pair),
        probe_address: ours.probe.address,
        probe_key: ours.probe.rkey,
    })
}

fn address_to_wire(pair: &RemoteEndpoint) -> Result<QueuePairAddress, String> {
    let gid_type = match pair.gid_type {
        // Older kernels number InfiniBand's like RoCE v1's; only InfiniBand has LIDs.
        _ if pair.lid != 0 => GidKind::Infiniband,
        GidType::InfiniBand => GidKind::Infiniband,
        GidType::RoceV1 => GidKind::RoceV1,
        GidType::RoceV2 => GidKind::RoceV2,
        unknown @ GidType::Unknown(_) => return Err(format!("its port has an {unknown}")),
    };
    Ok(QueuePairAddress {
        queue_pair: pair.queue_pair,
        packet_sequence: pair.first_sequence.get(),
        lid: pair.lid,
        gid: pair.gid.0,
        gid_type,
        mtu_bytes: pair.mtu.bytes() as u16,
    })
}

fn abilities(immediate: bool, reads: ReadLimits) -> PairAbilities {
    PairAbilities {
        immediate,
        read_depth: reads.depth,
        read_resources: reads.resources,
    }
}

fn reads(theirs: PairAbilities) -> ReadLimits {
    ReadLimits {
        depth: theirs.read_depth,
        resources: theirs.read_resources,
    }
}

fn key(pair: &RemoteEndpoint) -> u16 {
    pair.partition_key.map_or(0, PartitionKey::get)
}

const _: () = assert!(VerbsEndpoint::MAX_RAILS == MOST_RAILS);

fn from_wire(theirs: &VerbsEndpoint) -> Result<PairEndpoint, String> {
    let mut rails = [None; MOST_RAILS];
    for (rail, theirs) in rails.iter_mut().zip(&theirs.rails) {
        *rail = Some(rail_from_wire(theirs)?);
    }
    Ok(PairEndpoint {
        pair: address_from_wire(&theirs.address, theirs.partition_key)?,
        buffer_bytes: theirs.receive_buffer_bytes,
        credit: theirs.credit,
        max_inline_bytes: theirs.max_inline_bytes,
        max_send_entries: theirs.max_send_sge,
        max_receive_entries: theirs.max_receive_sge,
        immediate: theirs.abilities.immediate,
        reads: reads(theirs.abilities),
        rails,
    })
}

fn rail_from_wire(theirs: &VerbsRail) -> Result<RailEndpoint, String> {
    Ok(RailEndpoint {
        pair: address_from_wire(&theirs.address, theirs.partition_key)?,
        reads: reads(theirs.abilities),
        probe: RemoteAddress {
            address: theirs.probe_address,
            rkey: theirs.probe_key,
        },
    })
}

fn address_from_wire(theirs: &QueuePairAddress, key: u16) -> Result<RemoteEndpoint, String> {
    let mtu = Mtu::from_bytes(theirs.mtu_bytes.into());
    Ok(RemoteEndpoint {
        queue_pair: theirs.queue_pair,
        first_sequence: FirstSequence::from_random(theirs.packet_sequence),
        lid: theirs.lid,
        gid: Gid(theirs.gid),
        gid_type: match theirs.gid_type {
            GidKind::Infiniband => GidType::InfiniBand,
            GidKind::RoceV1 => GidType::RoceV1,
            GidKind::RoceV2 => GidType::RoceV2,
        },
        partition_key: PartitionKey::new(key),
        mtu: mtu.ok_or_else(|| format!("the peer's MTU is {}", theirs.mtu_bytes))?,
    })
}

pub(super) fn text(error: VerbsError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(gid_type: GidType, lid: u16) -> PairEndpoint {
        PairEndpoint {
            pair: RemoteEndpoint {
                queue_pair: 0xab_cdef,
                first_sequence: FirstSequence::from_random(0x12_3456),
                lid,
                gid: Gid([7; 16]),
                gid_type,
                partition_key: PartitionKey::new(lid),
                mtu: Mtu::Bytes1024,
            },
            buffer_bytes: 4096,
            credit: 64,
            max_inline_bytes: 220,
            max_send_entries: 3,
            max_receive_entries: 1,
            immediate: true,
            reads: ReadLimits {
                depth: 3,
                resources: 7,
            },
            rails: [None; MOST_RAILS],
        }
    }

    fn rail(queue_pair: u32) -> RailEndpoint {
        RailEndpoint {
            pair: RemoteEndpoint {
                queue_pair,
                gid: Gid([queue_pair as u8; 16]),
                ..endpoint(GidType::RoceV2, 0).pair
            },
            reads: ReadLimits {
                depth: 2,
                resources: 3,
            },
            probe: RemoteAddress {
                address: u64::MAX,
                rkey: 0x8765_4321,
            },
        }
    }

    #[test]
    fn an_endpoint_comes_back_from_the_wire_as_it_was() {
        for (gid_type, lid) in [
            (GidType::RoceV1, 0),
            (GidType::RoceV2, 0),
            (GidType::InfiniBand, 9),
        ] {
            let mut ours = endpoint(gid_type, lid);
            ours.rails[..2].copy_from_slice(&[Some(rail(2)), Some(rail(3))]);
            let wire = to_wire(&ours).expect("a known type");
            assert_eq!(from_wire(&wire), Ok(ours));
        }
    }

    #[test]
    fn a_port_with_a_lid_is_on_infiniband_whatever_the_kernel_calls_its_gids() {
        let wire = to_wire(&endpoint(GidType::RoceV1, 9)).expect("InfiniBand");
        assert_eq!(wire.address.gid_type, GidKind::Infiniband);
        assert!(to_wire(&endpoint(GidType::Unknown(9), 0)).is_err());
    }
}
