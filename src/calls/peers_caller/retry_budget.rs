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
pub(super) struct RetryBudget(AtomicU32);

impl RetryBudget {
    /// Creates a full budget.
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(FULL))
    }

    /// Notes a call.
    pub(super) fn deposit(&self) {
        // Read first, so that calls share the line while the bucket is full, as it is most of the
        // time.
        if self.0.load(Ordering::Relaxed) < FULL {
            let more = |tokens: u32| Some((tokens + OF_A_CALL).min(FULL));
            let _ = self
                .0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
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
    fn a_budget_that_is_full_takes_no_more() {
        let budget = RetryBudget::new();
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget), 100);
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget), 100);
    }
}
