//! Unreliable connections and datagrams, which lose what does not find its place.

use rustix::io::Errno;

use super::{
    FakeProvider, PostedSend,
    delivery::{Attempt, LOCAL_PROTECTION},
    handle::{id_of, take_back},
    world::State,
};
use crate::{
    abi::{
        Wc,
        gid::{Gid, GidScope},
        global_header::{GlobalHeader, NEXT_INFINIBAND, NEXT_UDP},
        port::LinkLayer,
        queue_pair_attributes::AddressVector,
        queue_pair_kind::QueuePairKind,
        queue_pair_state::QueuePairState,
        send_flags, wc_flags, wc_opcode, wr_opcode,
    },
    provider::AddressObject,
};

/// An address handle.
#[derive(Debug)]
pub(super) struct FakeAddress {
    pub(super) domain: u64,
    pub(super) vector: AddressVector,
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedDatagram {
    /// The way to it.
    pub address: AddressVector,
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// The Q_Key that the datagram carries.
    pub q_key: u32,
}

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn destroy_address(&self, address: AddressObject) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(super::Call::DestroyAddress)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(address.as_ptr()) };
        state.addresses.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(address.as_ptr()) };
        Ok(())
    }
}

impl State {
    /// Returns the GID that packets by an address come from; `None` without a global route.
    pub(super) fn source_of(
        &self,
        context: u64,
        vector: &AddressVector,
    ) -> Result<Option<Gid>, Errno> {
        let ports = &self.device_of(context).ports;
        let port = ports.get(usize::from(vector.port).wrapping_sub(1));
        let port = port.ok_or(Errno::INVAL)?;
        let Some(route) = vector.route else {
            // RoCE has no LIDs.
            return match port.attributes.needs_global_route {
                true => Err(Errno::INVAL),
                false => Ok(None),
            };
        };
        let index = u32::from(route.source_index);
        let source = port.gids.iter().find(|gid| gid.index == index);
        source.map(|entry| Some(entry.gid)).ok_or(Errno::INVAL)
    }

    /// Returns the receiver that a request names, if its queue pair has datagrams.
    pub(super) fn posted_datagram(
        &self,
        pair: u64,
        (address, queue_pair, q_key): (u64, u32, u32),
    ) -> Result<PostedDatagram, Errno> {
        let pair = &self.pairs[&pair];
        let address = self.addresses.get(&address).ok_or(Errno::INVAL)?;
        if address.domain != pair.domain {
            return Err(Errno::INVAL);
        }
        Ok(PostedDatagram {
            address: address.vector,
            queue_pair,
            // The device puts its own key in the place of one that a program may not use.
            q_key: match q_key >> 31 {
                0 => q_key,
                _ => pair.q_key,
            },
        })
    }

    /// Sends without a promise that the message arrives; `None` if the queue pair is a reliable one.
    pub(super) fn attempt_unreliable(&mut self, number: u32, send: &PostedSend) -> Option<Attempt> {
        let pair = &self.pairs[&u64::from(number)];
        let (kind, peer) = (pair.kind, pair.destination);
        if !matches!(kind, QueuePairKind::Unreliable | QueuePairKind::Datagram) {
            return None;
        }
        let Some(bytes) = self.gather(send) else {
            return Some(Attempt::Failed(LOCAL_PROTECTION));
        };
        let write = matches!(
            send.opcode,
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        match send.datagram {
            Some(datagram) => self.send_datagram(number, send, &datagram, &bytes),
            None if self.takes_from(peer, number) => self.transmit(peer, send, &bytes, write),
            None => {}
        }
        Some(Attempt::Done {
            opcode: match write {
                true => wc_opcode::RDMA_WRITE,
                false => wc_opcode::SEND,
            },
            bytes: 0,
        })
    }

    /// Brings a queue pair whose send has failed to SQE and flushes its sends; false if it is a
    /// reliable one, which dies.
    pub(super) fn keeps_receiving(&mut self, number: u32) -> bool {
        let id = u64::from(number);
        let pair = self.pairs.get_mut(&id).expect("a queue pair");
        if !matches!(
            pair.kind,
            QueuePairKind::Unreliable | QueuePairKind::Datagram
        ) {
            return false;
        }
        pair.state = QueuePairState::SendQueueError;
        self.flush_dead(id);
        true
    }

    /// Flushes the queues of a queue pair that do nothing more: in ERR both, in SQE that of sends.
    pub(super) fn flush_dead(&mut self, id: u64) {
        let pair = self.pairs.get_mut(&id).expect("a queue pair");
        match pair.state {
            QueuePairState::Error => self.flush(id),
            QueuePairState::SendQueueError => {
                let receives = std::mem::take(&mut pair.receives);
                self.flush(id);
                self.pairs.get_mut(&id).expect("a queue pair").receives = receives;
            }
            _ => {}
        }
    }

    fn is_receiving(&self, pair: u64) -> bool {
        let pair = self.pairs.get(&pair);
        pair.is_some_and(|pair| {
            matches!(
                pair.state,
                QueuePairState::ReadyToReceive
                    | QueuePairState::ReadyToSend
                    | QueuePairState::SendQueueError
            )
        })
    }

    fn takes_from(&self, peer: u64, number: u32) -> bool {
        self.is_receiving(peer) && self.pairs[&peer].destination == u64::from(number)
    }

    /// Hands a message of an unreliable connection over, if it finds its place.
    fn transmit(&mut self, peer: u64, send: &PostedSend, bytes: &[u8], write: bool) {
        let takes_receive = send.opcode != wr_opcode::RDMA_WRITE;
        let payload = if write { 0 } else { bytes.len() };
        if takes_receive && !self.next_receive_holds(peer, payload) {
            return;
        }
        if write && !self.write_remote(peer, send, bytes) {
            return;
        }
        if takes_receive {
            // A receive that may not be written to breaks the receiving end alone.
            let _ = self.receive(peer, send, bytes, write);
        }
    }

    fn next_receive_holds(&mut self, pair: u64, bytes: usize) -> bool {
        let next = self.receives_of(pair).front();
        let room = |next: &super::PostedReceive| -> usize {
            next.entries.iter().map(|entry| entry.length as usize).sum()
        };
        next.is_some_and(|next| bytes <= room(next))
    }

    /// Sends a datagram to a queue pair, or to all of a group.
    fn send_datagram(&mut self, number: u32, send: &PostedSend, to: &PostedDatagram, bytes: &[u8]) {
        let context = self.pairs[&u64::from(number)].context;
        let port = &self.device_of(context).ports[usize::from(to.address.port) - 1];
        // Devices say that they have sent a longer one, and send nothing.
        if bytes.len() > port.attributes.active_mtu.bytes() as usize {
            return;
        }
        let lid = port.attributes.lid;
        let Ok(source) = self.source_of(context, &to.address) else {
            return;
        };
        let next = match port.attributes.link_layer {
            LinkLayer::InfiniBand => NEXT_INFINIBAND,
            _ => NEXT_UDP,
        };
        let mut header = GlobalHeader([0; GlobalHeader::BYTES]);
        if let (Some(source), Some(route)) = (source, to.address.route) {
            header = match source.scope() {
                GidScope::Ipv4(_) => GlobalHeader::of_ipv4(source, &route, bytes.len()),
                _ => GlobalHeader::of_ipv6(source, &route, next, bytes.len()),
            };
        }
        let mut message = header.0.to_vec();
        message.extend_from_slice(bytes);
        let with_immediate = send.opcode == wr_opcode::SEND_WITH_IMM;
        let arrived = Wc {
            opcode: wc_opcode::RECV,
            byte_len: message.len() as u32,
            imm_data: send.immediate,
            src_qp: number,
            wc_flags: if with_immediate {
                wc_flags::WITH_IMM
            } else {
                0
            } | if source.is_some() { wc_flags::GRH } else { 0 },
            slid: lid,
            sl: to.address.service_level,
            ..Wc::default()
        };
        let solicited = send.flags & send_flags::SOLICITED != 0;
        for receiver in self.receivers(to) {
            self.arrive(receiver, to.q_key, &message, arrived, solicited);
        }
    }

    fn receivers(&self, to: &PostedDatagram) -> Vec<u64> {
        let destination = to.address.route.map(|route| route.destination);
        if let Some(group) = destination.filter(|gid| gid.is_multicast()) {
            let attached = self.groups.iter().filter(|(one, _)| *one == group);
            return attached.map(|(_, pair)| *pair).collect();
        }
        let id = u64::from(to.queue_pair);
        let is_there = self.pairs.get(&id).is_some_and(|pair| {
            let mut ports = self.device_of(pair.context).ports.iter();
            ports.any(|port| match destination {
                Some(gid) => port.gids.iter().any(|entry| entry.gid == gid),
                None => port.attributes.lid == to.address.lid,
            })
        });
        is_there.then_some(id).into_iter().collect()
    }

    /// Puts a datagram into the next receive of a queue pair; it is lost if there is none, if it does
    /// not fit, or if its Q_Key is another one.
    fn arrive(&mut self, id: u64, q_key: u32, message: &[u8], arrived: Wc, solicited: bool) {
        let pair = &self.pairs[&id];
        let is_meant = pair.kind == QueuePairKind::Datagram && pair.q_key == q_key;
        if !is_meant || !self.is_receiving(id) || !self.next_receive_holds(id, message.len()) {
            return;
        }
        let receive = self.receives_of(id).pop_front().expect("a receive");
        self.announce_limit(id);
        if !self.scatter(&receive.entries, message) {
            return;
        }
        let completion = Wc {
            wr_id: receive.wr_id,
            qp_num: id as u32,
            ..arrived
        };
        let completions = self.pairs[&id].receive_completions;
        self.complete(completions, completion, solicited);
    }
}
