//! A primary's replicas together: each is sent the records that it lacks, and a record counts once
//! a majority has it.
//!
//! A slow replica is sent less at a time and delays no other. A lost replica is left out until it
//! joins again. Both find the records that they lack in the log.

use std::time::Duration;

use ibex_harness::Error;

use crate::{
    log::Log,
    transport::{Endpoint, Joined, Lost, ReplicaLink},
};

/// The replicas that have joined, out of the expected number.
pub(crate) struct Quorum<E: Endpoint> {
    endpoint: E,
    replicas: usize,
    /// The joined replicas, and the end of the log at each.
    members: Vec<Joined<E::Link>>,
    /// The offset up to which a majority has the log.
    reached: u64,
    positions: Vec<u64>,
}

/// A change among the replicas.
#[derive(Debug)]
pub(crate) enum Change {
    /// A replica joined, and has the log up to an offset.
    Joined {
        /// Index of the replica.
        replica: u32,
        /// The end of its part of the log.
        has: u64,
    },
    /// A replica is lost.
    Lost {
        /// Index of the replica.
        replica: u32,
        /// The reason that its link gives.
        why: String,
    },
}

impl<E: Endpoint> Quorum<E> {
    /// Creates a quorum of `replicas` replicas, none of which has joined.
    pub(crate) fn new(endpoint: E, replicas: usize) -> Quorum<E> {
        Quorum {
            endpoint,
            replicas,
            members: Vec::new(),
            reached: 0,
            positions: Vec::new(),
        }
    }

    /// Returns the carrier of the bytes.
    pub(crate) fn carrier(&self) -> String {
        self.endpoint.carrier()
    }

    /// Admits a replica that has come, if there is one.
    pub(crate) fn admit(&mut self, log: &mut Log) -> Result<Option<Change>, Error> {
        let Some(joined) = self.endpoint.poll_join(log)? else {
            return Ok(None);
        };
        let (replica, has) = (joined.replica, joined.has);
        // A replica that comes again has left before, even if its old link has not noticed.
        self.members.retain(|member| member.replica != replica);
        self.members.push(joined);
        Ok(Some(Change::Joined { replica, has }))
    }

    /// Sends replicas the records that they lack, as far as each has room, and at most a few
    /// batches each. Without that bound, a replica that catches up would take all the time while
    /// those that are abreast wait. Adds lost replicas to `lost`.
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

    /// Returns the offset up to which a majority has the log. The primary counts with `own`, up to
    /// which its own log is durable.
    pub(crate) fn reached(&mut self, own: u64, lost: &mut Vec<Change>) -> u64 {
        for index in (0..self.members.len()).rev() {
            let member = &mut self.members[index];
            match member.link.acknowledged() {
                // A replica that has not acknowledged anything yet counts with its position at
                // joining.
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
            // A replica that had a record and is lost still has it, so the offset never falls.
            self.reached = self.reached.max(*nth);
        }
        self.reached
    }

    /// Waits until a majority has the log up to `offset`, as far as that depends on replicas, or
    /// for `limit`. May return early.
    pub(crate) fn wait(&mut self, offset: u64, limit: Duration) {
        let lacking = self.members.iter_mut().filter(|member| member.has < offset);
        let links = lacking.map(|member| &mut member.link);
        self.endpoint.wait(links, offset, limit);
    }

    /// Returns the number of joined replicas.
    pub(crate) fn present(&self) -> usize {
        self.members.len()
    }

    /// Returns whether all replicas have joined and have the log up to `offset`.
    pub(crate) fn all_have(&self, offset: u64) -> bool {
        self.members.len() == self.replicas
            && self.members.iter().all(|member| member.has >= offset)
    }

    /// Tells all replicas that the log has ended.
    pub(crate) fn end(self) -> E {
        self.members
            .into_iter()
            .for_each(|member| member.link.end());
        self.endpoint
    }

    /// Returns the majority of the primary and its replicas.
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
