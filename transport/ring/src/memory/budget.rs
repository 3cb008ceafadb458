//! The budget for memory that peers make the nodes of a process hold: one account, and a limit for
//! each node.
//!
//! The account is charged for the memory of large messages from when pages come into it until the
//! application has released the message. A message that is announced, and of which no byte has
//! come, costs nothing.
//!
//! Rules:
//!
//! 1. A claim begins when the first bytes of its message are there. Claims are ordered by that
//!    moment. The first bytes were granted before, and are charged in any case; there was
//!    [room](MemoryBudget::has_room) for them when they were granted.
//! 2. A claim is charged more only while all charges of the process, and the bytes that pools keep,
//!    stay within the limit of the claim's node. For the oldest claim, first bytes of others do not
//!    count.
//! 3. In addition, the charges of younger claims leave room for all of the message of every older
//!    claim that is not whole, within the limit of that claim's node. So each message can become
//!    whole once the charges that were there before it began are released, and the oldest claim
//!    never waits for a younger one. The room that stays free is that of the longest such message,
//!    not of their sum, so a peer that begins many messages and continues none keeps little from
//!    others.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use ibex_base::sync::lock;

/// The account of a process.
#[derive(Debug, Default)]
pub struct MemoryAccount {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes charged to claims, without the first bytes of messages that are not whole.
    used: u64,
    /// The first bytes of messages that are not whole.
    first: u64,
    /// Bytes that pools keep for later messages.
    kept: u64,
    /// The number of the last claim.
    newest: u64,
    /// Claims whose message is not whole, by their number.
    begun: BTreeMap<u64, BegunClaim>,
}

#[derive(Debug)]
struct BegunClaim {
    total: u64,
    limit: u64,
    /// Bytes charged to younger claims.
    younger: u64,
}

impl MemoryAccount {
    /// An account with nothing on it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                used: 0,
                first: 0,
                kept: 0,
                newest: 0,
                begun: BTreeMap::new(),
            }),
        }
    }

    /// Bytes that are charged to claims.
    #[must_use]
    pub fn used(&self) -> u64 {
        let state = self.lock();
        state.used + state.first
    }

    /// Every statement leaves the state whole, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Charges `bytes` to a claim, if there is room (rules 2 and 3).
    fn charge(&mut self, number: u64, limit: u64, bytes: u64) -> bool {
        let is_oldest = self.begun.range(..number).next().is_none();
        let first = if is_oldest { 0 } else { self.first };
        let within_limit = self.used + first + self.kept + bytes <= limit;
        let leaves_room = |older: &BegunClaim| older.younger + bytes <= older.limit - older.total;
        let mut older = self.begun.range(..number);
        if !within_limit || !older.all(|(_, older)| leaves_room(older)) {
            return false;
        }
        self.used += bytes;
        for (_, older) in self.begun.range_mut(..number) {
            older.younger += bytes;
        }
        true
    }
}

/// A node's part in the account of its process.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBudget {
    account: &'static MemoryAccount,
    limit: u64,
}

impl MemoryBudget {
    /// A part in an account.
    #[must_use]
    pub const fn new(account: &'static MemoryAccount, limit: u64) -> Self {
        Self { account, limit }
    }

    /// A part in the account of this process.
    #[must_use]
    pub fn of_process(limit: u64) -> Self {
        static ACCOUNT: MemoryAccount = MemoryAccount::new();
        Self::new(&ACCOUNT, limit)
    }

    /// Returns the most bytes that all nodes together may hold while this one takes in more.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are charged in the process.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.account.used()
    }

    /// Returns this part of the account with half of its limit.
    #[must_use]
    pub fn half(&self) -> Self {
        Self::new(self.account, self.limit / 2)
    }

    /// Returns whether another message may begin.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let state = self.account.lock();
        state.used + state.first + state.kept < self.limit
    }

    /// Begins a claim for up to `total` bytes behind the first. A claim that is longer than the
    /// limit is never charged that much.
    #[must_use]
    pub fn begin(&self, total: u64) -> MemoryClaim {
        let mut state = self.account.lock();
        state.newest += 1;
        let number = state.newest;
        let begun = BegunClaim {
            total: total.min(self.limit),
            limit: self.limit,
            younger: 0,
        };
        state.begun.insert(number, begun);
        MemoryClaim {
            budget: *self,
            number,
            total,
            charged: 0,
            first: 0,
            is_whole: false,
        }
    }

    /// A claim for a message that has all of its `bytes` at once, if there is room.
    #[must_use]
    pub fn claim(&self, bytes: u64) -> Option<MemoryClaim> {
        let mut state = self.account.lock();
        state.newest += 1;
        let number = state.newest;
        let has_room = state.charge(number, self.limit, bytes);
        // The claim is made lazily, because dropping a claim takes the lock.
        has_room.then(|| MemoryClaim {
            budget: *self,
            number,
            total: bytes,
            charged: bytes,
            first: 0,
            is_whole: true,
        })
    }

    /// Takes note of `bytes` that a pool keeps; false if it must not.
    pub(super) fn keep(&self, bytes: u64) -> bool {
        let mut state = self.account.lock();
        let fits = state.used + state.first + state.kept + bytes <= self.limit;
        if fits {
            state.kept += bytes;
        }
        fits
    }

    /// Takes note that a pool no longer keeps `bytes`.
    pub(super) fn keep_no_more(&self, bytes: u64) {
        self.account.lock().kept -= bytes;
    }
}

/// The memory that one message is charged. Dropping it returns that memory.
#[derive(Debug)]
pub struct MemoryClaim {
    budget: MemoryBudget,
    number: u64,
    total: u64,
    charged: u64,
    first: u64,
    is_whole: bool,
}

impl MemoryClaim {
    /// Returns the most that the message may be charged.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Charges `bytes` more, if there is room (rules 2 and 3). A caller that gets `false`
    /// tries again later.
    #[must_use]
    pub fn charge(&mut self, bytes: u64) -> bool {
        let mut state = self.budget.account.lock();
        if !state.charge(self.number, self.budget.limit, bytes) {
            return false;
        }
        self.charged += bytes;
        true
    }

    /// Returns whether all of the message has arrived.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Notes that this many of the first bytes have arrived.
    pub fn begun_with(&mut self, bytes: u64) {
        if bytes > self.first && !self.is_whole {
            self.budget.account.lock().first += bytes - self.first;
            self.first = bytes;
        }
    }

    /// Notes that the message is whole and has `bytes` in all, which are its charge from now on,
    /// even if they are more.
    pub fn finish(&mut self, bytes: u64) {
        self.is_whole = true;
        let mut state = self.budget.account.lock();
        state.begun.remove(&self.number);
        state.first -= std::mem::take(&mut self.first);
        state.used = state.used - self.charged + bytes;
        for (_, older) in state.begun.range_mut(..self.number) {
            older.younger = older.younger - self.charged + bytes;
        }
        self.charged = bytes;
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        if ibex_base::fork::is_child() {
            // In a forked child, the account may be locked for ever.
            return;
        }
        self.finish(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An account of the test's own.
    fn account() -> &'static MemoryAccount {
        Box::leak(Box::default())
    }

    #[test]
    fn a_begun_message_that_has_no_memory_yet_costs_nothing() {
        let budget = MemoryBudget::new(account(), 1000);
        let idle: Vec<_> = (0..100).map(|_| budget.begin(400)).collect();
        assert_eq!(budget.used(), 0);
        let mut late = budget.begin(600);
        assert!(
            late.charge(600),
            "the longest that has begun keeps its room"
        );
        assert!(!late.charge(1), "it would not have it");
        drop(idle);
        assert!(late.charge(1));
        drop(late);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_oldest_goes_on_where_younger_ones_wait() {
        let budget = MemoryBudget::new(account(), 1000);
        let mut claims = [budget.begin(600), budget.begin(600), budget.begin(600)];
        assert!(claims[2].charge(400));
        assert!(!claims[1].charge(1), "the oldest keeps 600");
        assert!(claims[0].charge(600));
        claims[0].finish(600);
        assert!(!claims[1].charge(1), "all is used");
        let [first, mut second, mut third] = claims;
        drop(first);
        assert!(!third.charge(1), "the second keeps 600");
        assert!(second.charge(600));
        second.finish(600);
        drop(second);
        assert!(third.charge(200));
    }

    #[test]
    fn nodes_share_the_account_each_within_its_limit() {
        let account = account();
        let (wide, narrow) = (
            MemoryBudget::new(account, 1000),
            MemoryBudget::new(account, 100),
        );
        let held = wide.claim(90).expect("room");
        assert!(narrow.claim(20).is_none());
        assert!(narrow.claim(10).is_some());
        assert!(wide.claim(910).is_some());
        drop(held);
        assert!(narrow.claim(100).is_some());
    }

    #[test]
    fn memory_that_pools_keep_counts_in_the_budget() {
        let budget = MemoryBudget::new(account(), 100);
        assert!(budget.keep(60));
        assert!(!budget.keep(41));
        assert!(budget.claim(41).is_none());
        budget.keep_no_more(60);
        assert!(budget.claim(100).is_some());
    }

    /// An event in the life of the model's messages.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin { total: u64, limit: usize },
        First { which: usize, bytes: u64 },
        Charge { which: usize, bytes: u64 },
        Release { which: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..=60, 0usize..3).prop_map(|(total, limit)| Step::Begin { total, limit }),
            (any::<usize>(), 1u64..=20).prop_map(|(which, bytes)| Step::Charge { which, bytes }),
            (any::<usize>(), 1u64..=20).prop_map(|(which, bytes)| Step::Charge { which, bytes }),
            (any::<usize>(), 1u64..=20).prop_map(|(which, bytes)| Step::First { which, bytes }),
            any::<usize>().prop_map(|which| Step::Release { which }),
        ]
    }

    proptest! {
        /// Charges messages in any order: once whole ones are released, the oldest message can
        /// become whole, then the next, until all are; and no node takes in anything beyond its
        /// limit.
        #[test]
        fn no_half_arrived_messages_wait_for_each_other(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            const LIMITS: [u64; 3] = [60, 100, 150];
            let account = account();
            let mut begun: Vec<MemoryClaim> = Vec::new();
            let mut whole: Vec<MemoryClaim> = Vec::new();
            for step in steps {
                match step {
                    Step::Begin { total, limit } => {
                        begun.push(MemoryBudget::new(account, LIMITS[limit]).begin(total));
                    }
                    Step::First { which, bytes } if !begun.is_empty() => {
                        let which = which % begun.len();
                        begun[which].begun_with(bytes);
                    }
                    Step::Charge { which, bytes } if !begun.is_empty() => {
                        let which = which % begun.len();
                        let claim = &mut begun[which];
                        let bytes = bytes.min(claim.total - claim.charged);
                        let firsts: u64 = account.lock().first;
                        if claim.charge(bytes) {
                            let most = claim.budget.limit + firsts;
                            prop_assert!(bytes == 0 || account.used() <= most);
                        }
                        if claim.charged == claim.total {
                            let mut claim = begun.remove(which);
                            claim.finish(claim.total + claim.first);
                            whole.push(claim);
                        }
                    }
                    Step::Release { which } if !whole.is_empty() => {
                        whole.swap_remove(which % whole.len());
                    }
                    Step::First { .. } | Step::Charge { .. } | Step::Release { .. } => {}
                }
            }
            whole.clear();
            for mut claim in begun {
                let left = claim.total - claim.charged;
                prop_assert!(claim.charge(left), "the oldest waits: {claim:?}");
                claim.finish(claim.total);
            }
            prop_assert_eq!(account.used(), 0);
        }
    }
}
