//! A primary's replicas over sockets.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ibex_harness::Error;

use crate::{
    log::Log,
    transport::{
        BATCHES_AT_ONCE, Change, Lost, Replicas, Waiting, majority,
        sockets::{SocketEndpoint, SocketReplica},
    },
};

/// The joined replicas, out of the expected number.
pub(crate) struct Quorum {
    endpoint: SocketEndpoint,
    replicas: usize,
    /// The replicas that have joined.
    members: Vec<SocketReplica>,
    /// Losses that are not reported yet.
    lost: Vec<Change>,
    /// The offset up to which a majority has the log.
    reached: u64,
    positions: Vec<u64>,
}

impl Quorum {
    /// Listens at any port of `address` for `replicas` replicas.
    pub(crate) fn listen(
        waiting: Waiting,
        address: IpAddr,
        replicas: usize,
    ) -> Result<Quorum, Error> {
        Ok(Quorum {
            endpoint: SocketEndpoint::listen(waiting, address)?,
            replicas,
            members: Vec::new(),
            lost: Vec::new(),
            reached: 0,
            positions: Vec::new(),
        })
    }

    fn leave_out(&mut self, index: usize, Lost(why): Lost) {
        let replica = self.members.swap_remove(index).replica;
        self.lost.push(Change::Lost { replica, why });
    }
}

impl Replicas for Quorum {
    fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    fn carrier(&self) -> String {
        "sockets".to_owned()
    }

    fn next_change(&mut self, log: &mut Log) -> Result<Option<Change>, Error> {
        if let Some(lost) = self.lost.pop() {
            return Ok(Some(lost));
        }
        let Some(joined) = self.endpoint.poll_join(log)? else {
            return Ok(None);
        };
        let (replica, has) = (joined.replica, joined.has);
        // A replica that comes again has left before, even if its old link has not noticed.
        self.members.retain(|member| member.replica != replica);
        self.members.push(joined);
        Ok(Some(Change::Joined { replica, has }))
    }

    fn send(&mut self, log: &mut Log) -> Result<(), Error> {
        for index in (0..self.members.len()).rev() {
            for _ in 0..BATCHES_AT_ONCE {
                match self.members[index].try_send(log) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(why) => {
                        self.leave_out(index, why);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn reached(&mut self, own: u64) -> u64 {
        for index in (0..self.members.len()).rev() {
            if let Err(why) = self.members[index].take_acknowledged() {
                self.leave_out(index, why);
            }
        }
        self.positions.clear();
        self.positions.push(own);
        let has = self.members.iter().map(|member| member.has);
        self.positions.extend(has);
        let majority = majority(self.replicas);
        if self.positions.len() >= majority {
            let (_, nth, _) = self
                .positions
                .select_nth_unstable_by(majority - 1, |a, b| b.cmp(a));
            self.reached = self.reached.max(*nth);
        }
        self.reached
    }

    fn wait(&mut self, offset: u64, limit: Duration) -> bool {
        let lacking = self.members.iter().filter(|member| member.has < offset);
        self.endpoint.wait(lacking, limit);
        false
    }

    fn present(&self) -> usize {
        self.members.len()
    }

    fn all_have(&self, offset: u64) -> bool {
        self.members.len() == self.replicas
            && self.members.iter().all(|member| member.has >= offset)
    }

    fn end(self) {
        self.members.into_iter().for_each(SocketReplica::end);
    }
}
