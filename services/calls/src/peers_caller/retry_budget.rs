//! The limit on retries and hedges, so that they do not multiply an overload.

use std::sync::atomic::{AtomicU32, Ordering};

/// A token bucket: each call puts a fifth of a retry in, and each retry or hedge takes a whole
/// one out.
///
/// The share is the default of Finagle's
/// [`RetryBudget`](https://twitter.github.io/finagle/docs/com/twitter/finagle/service/RetryBudget$.html)
/// and of tower's [`TpsBudget`](https://docs.rs/tower/latest/tower/retry/budget/struct.TpsBudget.html);
/// gRPC has a tenth as its example
/// ([A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md), *retryThrottling*). The
/// bucket is full at first and holds what those two let a caller without calls retry: 10 a second,
/// for the 10 seconds that they look back. As in gRPC it fills by calls alone and needs no clock.
///
/// One call takes at most a fifth of the retries that are there when it begins, and may take one, as
/// in Finagle
/// ([`RequeueFilter`](https://github.com/twitter/finagle/blob/develop/finagle-core/src/main/scala/com/twitter/finagle/service/RequeueFilter.scala),
/// *maxRetriesPerReq*). So no call leaves the others without retries.
pub(super) struct RetryBudget(AtomicU32);

impl RetryBudget {
    /// Creates a full budget.
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(FULL))
    }

    /// Notes a call. Returns its share: the most retries that it may take out.
    pub(super) fn deposit(&self) -> u32 {
        // Read first, so that calls share the line while the bucket is full, as it is most of the
        // time.
        let tokens = self.0.load(Ordering::Relaxed);
        if tokens < FULL {
            let more = |tokens: u32| Some((tokens + OF_A_CALL).min(FULL));
            let _ = self
                .0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
        (tokens + OF_A_CALL)
            .min(FULL)
            .div_ceil(OF_A_RETRY * CALLS_PER_BUDGET)
    }

    /// Returns whether there is a retry now.
    pub(super) fn has_retry(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= OF_A_RETRY
    }

    /// Takes a retry out, if there is one.
    pub(super) fn withdraw(&self) -> bool {
        let less = |tokens: u32| tokens.checked_sub(OF_A_RETRY);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

/// Tokens that a call puts in.
const OF_A_CALL: u32 = 1;
/// Tokens that a retry takes out.
const OF_A_RETRY: u32 = 5;
/// The calls among which the retries that are there are divided.
const CALLS_PER_BUDGET: u32 = 5;
/// The most tokens: 100 retries.
const FULL: u32 = 100 * OF_A_RETRY;

#[cfg(test)]
mod tests {
    use super::*;

    /// Withdraws all that is there.
    fn drain(budget: &RetryBudget) -> u32 {
        let mut retries = 0;
        while budget.withdraw() {
            retries += 1;
        }
        retries
    }

    #[test]
    fn five_calls_allow_one_retry_and_a_hundred_are_there_at_first() {
        let budget = RetryBudget::new();
        assert_eq!(drain(&budget), 100);
        for calls in 1..=12 {
            budget.deposit();
            assert_eq!(budget.withdraw(), calls % 5 == 0, "{calls}");
        }
    }

    #[test]
    fn a_call_has_a_fifth_of_the_retries_that_are_there_and_one_at_least() {
        let budget = RetryBudget::new();
        assert_eq!(budget.deposit(), 20);
        (0..50).for_each(|_| assert!(budget.withdraw()));
        // The call's own deposit counts, and makes more than 50 retries of them.
        assert_eq!(budget.deposit(), 11);
        drain(&budget);
        assert!(!budget.has_retry());
        assert_eq!(budget.deposit(), 1);
    }

    #[test]
    fn a_budget_that_is_full_takes_no_more() {
        let budget = RetryBudget::new();
        for _ in 0..1000 {
            budget.deposit();
        }
        assert_eq!(drain(&budget), 100);
        for _ in 0..1000 {
            budget.deposit();
        }
        assert_eq!(drain(&budget), 100);
    }
}
