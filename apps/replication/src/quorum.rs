//! The replicas of a log, as their primary sees them together: each is sent what it lacks,
//! and a record counts once a majority has it.
//!
//! A replica that is slow is sent less at a time and holds nobody up, one that is gone is
//! left out until it joins again; both find what they lack in the log.

use std::time::Duration;

use ibex_harness::Error;

use crate::{
    log::Log,
    transport::{Endpoint, Joined, Lost, ReplicaLink},
};

/// The replicas that are there, out of those that there should be.
pub(crate) struct Quorum<E: Endpoint> {
    endpoint: E,
    replicas: usize,
    /// Those that are there, and where each has the log.
    members: Vec<Joined<E::Link>>,
    /// Up to where a majority has the log.
    reached: u64,
    positions: Vec<u64>,
}

/// What happened to a replica.
#[derive(Debug)]
pub(crate) enum Change {
    /// It joined, and has the log up to an offset.
    Joined {
        /// Which one.
        replica: u32,
        /// Where its part of the log ends.
        has: u64,
    },
    /// It is gone.
    Lost {
        /// Which one.
        replica: u32,
        /// What its link says.
        why: String,
    },
}

impl<E: Endpoint> Quorum<E> {
    /// None of `replicas` has joined.
    pub(crate) fn new(endpoint: E, replicas: usize) -> Quorum<E> {
        Quorum {
            endpoint,
            replicas,
            members: Vec::new(),
            reached: 0,
            positions: Vec::new(),
        }
    }

    /// What carries the bytes.
    pub(crate) fn carrier(&self) -> String {
        self.endpoint.carrier()
    }

    /// Takes in a replica that has come, if one has.
    pub(crate) fn admit(&mut self, log: &mut Log) -> Result<Option<Change>, Error> {
        let Some(joined) = self.endpoint.poll_join(log)? else {
            return Ok(None);
        };
        let (replica, has) = (joined.replica, joined.has);
        // Whoever comes again has left before, whether its old link knows or not.
        self.members.retain(|member| member.replica != replica);
        self.members.push(joined);
        Ok(Some(Change::Joined { replica, has }))
    }

    /// Sends each replica what it lacks, as far as there is room for it and no more than a
    /// few batches: one that catches up takes as much as it is sent, and those that are
    /// abreast would wait. `lost` hears of those that are gone.
    pub(crate) fn send(&mut self, log: &mut Log, lost: &mut Vec<Change>) {
        for index in (0..self.members.len()).rev() {
            for _ in 0..BATCHES_AT_ONCE {
                match self.members[index].link.try_send(log) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(why) => {
                        self.leave_out(index, why, lost);
                        break;
                    }
                }
            }
        }
    }

    /// Up to where a majority has the log, this primary included, whose own is durable up to
    /// `own`.
    pub(crate) fn reached(&mut self, own: u64, lost: &mut Vec<Change>) -> u64 {
        for index in (0..self.members.len()).rev() {
            let member = &mut self.members[index];
            match member.link.acknowledged() {
                // A replica that has not acknowledged anything yet has what it came with.
                Ok(acknowledged) => member.has = member.has.max(acknowledged),
                Err(why) => self.leave_out(index, why, lost),
            }
        }
        self.positions.clear();
        self.positions.push(own);
        let has = self.members.iter().map(|member| member.has);
        self.positions.extend(has);
        let majority = self.majority();
        if self.positions.len() >= majority {
            let (_, nth, _) = self
                .positions
                .select_nth_unstable_by(majority - 1, |a, b| b.cmp(a));
            // Who had it and is gone still has it.
            self.reached = self.reached.max(*nth);
        }
        self.reached
    }

    /// Waits until a majority has the log up to `offset`, as far as that depends on replicas,
    /// or for `limit`. May return early.
    pub(crate) fn wait(&mut self, offset: u64, limit: Duration) {
        let lacking = self.members.iter_mut().filter(|member| member.has < offset);
        let links = lacking.map(|member| &mut member.link);
        self.endpoint.wait(links, offset, limit);
    }

    /// Replicas that are there.
    pub(crate) fn present(&self) -> usize {
        self.members.len()
    }

    /// Whether all replicas are there and have the log up to `offset`.
    pub(crate) fn all_have(&self, offset: u64) -> bool {
        self.members.len() == self.replicas
            && self.members.iter().all(|member| member.has >= offset)
    }

    /// Tells all replicas that there will be nothing more.
    pub(crate) fn end(self) -> E {
        self.members
            .into_iter()
            .for_each(|member| member.link.end());
        self.endpoint
    }

    /// Of the primary and its replicas.
    fn majority(&self) -> usize {
        self.replicas.div_ceil(2) + 1
    }

    fn leave_out(&mut self, index: usize, Lost(why): Lost, lost: &mut Vec<Change>) {
        let Joined { replica, .. } = self.members.swap_remove(index);
        lost.push(Change::Lost { replica, why });
    }
}

/// Batches that a replica is sent before another one's turn.
const BATCHES_AT_ONCE: usize = 2;
