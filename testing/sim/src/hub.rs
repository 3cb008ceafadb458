//! The node that several others dial. Brokers share its capacity between its sessions, one for
//! arrival bytes and one for receive buffers.
#![forbid(unsafe_code)]

use ibex_harness::draw::Draw;
use ibex_protocol::{
    credit::{
        broker::{BrokerSettings, CreditAction, CreditBroker},
        reserved_buffer::reserved_buffers,
        session::CONTROL_RESERVE_BYTES,
    },
    framing::Carriage,
};

use super::{Checked, ensure, node::Stage, options::SimOptions, pair::Pair};

/// The brokers of the dialed node.
#[derive(Debug)]
pub(super) struct Hub {
    /// The broker of bytes, and that of buffers.
    brokers: [CreditBroker; 2],
    /// The wires over which each peer's session has joined a broker.
    joined: Vec<Option<Wires>>,
    /// The wires over which each peer's last session has parted.
    parted: Vec<Option<Wires>>,
}

/// The session, the epoch, and the index of the broker.
type Wires = (u64, u64, usize);

impl Hub {
    pub(super) fn new(options: &SimOptions, random: &mut Draw) -> Self {
        let peers = options.peers as u64;
        let mut broker = |reserve, floor, spare, grain: u64| {
            // Now and then there is not even a grain for each session.
            let lendable = grain * random.pick(&[2, peers, 8 * peers]);
            CreditBroker::new(BrokerSettings {
                capacity: (reserve + floor + spare) * peers + lendable,
                reserve,
                floor,
                spare,
                max_sessions: peers,
                grain,
                most: grain * random.pick(&[2, 16]),
            })
        };
        let grain = Carriage::Stream.grain();
        let bytes = broker(CONTROL_RESERVE_BYTES, grain, 0, grain);
        let buffers = broker(reserved_buffers(false), 0, BUFFER_GRAIN, BUFFER_GRAIN);
        Self {
            brokers: [bytes, buffers],
            joined: vec![None; options.peers],
            parted: vec![None; options.peers],
        }
    }

    /// Reports events of the session with a peer to the brokers, and carries out their decisions.
    /// Returns whether there were any.
    pub(super) fn share(&mut self, peer: usize, pairs: &mut [Pair]) -> bool {
        self.follow(peer, &pairs[peer]);
        self.report(peer, pairs);
        let mut any = false;
        for of in 0..self.brokers.len() {
            loop {
                let used = |session| pairs[session as usize].hub().session.credit.used();
                let Some(action) = self.brokers[of].poll_action(used) else {
                    break;
                };
                any = true;
                let peer = action.session() as usize;
                let session = &mut pairs[peer].hub_mut().session;
                match action {
                    CreditAction::Give { credit, term, .. } => session.give(credit, term),
                    CreditAction::Recall { credit, .. } => session.recall(credit),
                }
                self.report(peer, pairs);
            }
        }
        any
    }

    /// Lets a session join a broker with its wires, and leave it when they are gone.
    fn follow(&mut self, peer: usize, pair: &Pair) {
        let node = pair.hub();
        let of = usize::from(node.carriage() != Carriage::Stream);
        let has_wires = !matches!(node.stage, Stage::Suspended | Stage::Before);
        let wires = has_wires.then_some((pair.sessions(), node.epoch, of));
        // An end that has parted may still have something to write. Its session does not come back.
        if pair.has_parted() {
            self.parted[peer] = wires;
        }
        let wires = wires.filter(|_| self.parted[peer] != wires);
        let before = std::mem::replace(&mut self.joined[peer], wires);
        if before == wires {
            return;
        }
        if let Some((.., of)) = before {
            self.brokers[of].leave(peer as u64);
        }
        if wires.is_some() {
            let joined = self.brokers[of].join(peer as u64);
            joined.expect("there are no more sessions than peers");
        }
    }

    fn report(&mut self, peer: usize, pairs: &mut [Pair]) {
        if let Some((.., of)) = self.joined[peer] {
            let report = pairs[peer].hub_mut().session.credit.take_report();
            self.brokers[of].report(peer as u64, report);
        }
    }

    /// Checks that everything on its way from a peer has room.
    pub(super) fn check(&self, peer: usize, pair: &Pair) -> Checked {
        let sound = self.brokers.iter().all(CreditBroker::is_sound);
        ensure!(sound, "more is lent than there is");
        if let (Some((.., of)), Some(in_flight)) = (self.joined[peer], pair.in_flight_to_hub()) {
            let held = self.brokers[of].held(peer as u64);
            ensure!(
                in_flight <= held,
                "{in_flight} on its way from peer {peer}, which holds {held}"
            );
        }
        Ok(())
    }
}

/// Receive buffers are lent one by one.
const BUFFER_GRAIN: u64 = 1;
