//! Hedged calls: a second attempt beside one that is slower than most calls.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Instant,
};

use ibex_core::{codec::Codec, extend::parking::Patience};

use super::{
    Attempted, ChosenCaller, PeersCaller,
    attempts::{Attempts, FailedAttempt},
    recent_times::RecentTimes,
};
use crate::Reply;

impl<Q, R, C> PeersCaller<Q, R, C>
where
    Q: ?Sized + 'static,
    R: ?Sized + 'static,
    C: Codec<Q> + Codec<R>,
{
    /// Returns the same caller, whose idempotent calls are *hedged*: a call that has not been
    /// answered after the time in which `percentile` of 100 recent calls were answered is sent to a
    /// second peer too. The first answer counts, and the other call is cancelled, as if its future were
    /// dropped. So a peer that is slow for a moment delays few calls.
    ///
    /// A usual value is 95 or 99. About one call of 20, or of 100, is then sent twice.
    ///
    /// - Only calls are hedged that are [`idempotent`](crate::CallOptions::idempotent),
    ///   because both handlers may execute them. A hedge counts as one of the times that such a call
    ///   may be sent again.
    /// - Times are those of the last 1000 to 2000 calls that may be hedged, of this caller and its
    ///   clones, and that were answered or waited until their deadline, or whose future was dropped
    ///   after the time of the percentile. Until there were 100 of them, none is hedged, so call this
    ///   once and clone what it returns. The least time is 100 µs.
    /// - A hedge goes to another peer, which is connected, has opened the service, does not drain
    ///   and has not just refused a call. A peer that hangs counts as one that refuses: one of whose
    ///   calls three in a row were answered by the other peer. If there is none, there is no hedge, and likewise if the
    ///   retry budget is empty: hedges take from it what retries take.
    /// - An error of the first handler that answers, such as
    ///   [`Failed`](crate::CallErrorKind::Failed), is an answer. If one of the two calls fails
    ///   otherwise, the other one is its retry; when both have, retries go on as the type's
    ///   description says. The deadline is that of all attempts.
    ///
    /// Hedges are sent by threads and tasks alike. A [`call`](Self::call) that may be hedged waits as
    /// a task does, so without limit until a peer has opened the service.
    ///
    /// # Panics
    ///
    /// If `percentile` is not from 1 to 99.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use std::time::Duration;
    /// use ibex::{OpenError, calls::{CallOptions, PeersCaller}, discovery::Peers};
    /// use ibex::prelude::*;
    ///
    /// /// Makes a caller of a service that only reads.
    /// fn quotes(peers: &Peers) -> Result<PeersCaller<String, u64>, OpenError> {
    ///     let options = CallOptions::new().timeout(Duration::from_secs(2)).idempotent(2);
    ///     let quotes = peers.caller("quotes")?;
    ///     Ok(quotes.with(options).hedge_after_percentile(95))
    /// }
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn hedge_after_percentile(&self, percentile: u8) -> Self {
        assert!(
            (1..=99).contains(&percentile),
            "calls cannot be hedged after percentile {percentile}: give one from 1 to 99, for \
             example 95"
        );
        Self {
            hedging: Some(Arc::new(RecentTimes::new(percentile))),
            ..self.clone()
        }
    }

    /// Returns the number of hedges that were sent, of all clones. See
    /// [`hedge_after_percentile`](Self::hedge_after_percentile). Never waits.
    #[must_use]
    pub fn hedges_sent(&self) -> u64 {
        self.shared.hedges_sent.load(Ordering::Relaxed)
    }

    /// Returns the number of hedges whose answer was the call's, of all clones. If it stays far
    /// behind [`hedges_sent`](Self::hedges_sent), hedges load the peers and help little; a higher
    /// percentile sends fewer. Never waits.
    #[must_use]
    pub fn hedges_won(&self) -> u64 {
        self.shared.hedges_won.load(Ordering::Relaxed)
    }

    /// Returns the times of recent calls if the next attempt may be hedged.
    pub(super) fn hedging(&self, attempts: &Attempts) -> Option<&RecentTimes> {
        self.hedging.as_deref().filter(|_| attempts.may_repeat())
    }

    /// Makes an attempt, and a second one beside it if it takes long.
    pub(super) async fn attempt_hedged(
        &self,
        first: &ChosenCaller<Q, R, C>,
        attempts: &mut Attempts,
        request: &Q,
        times: &RecentTimes,
    ) -> Attempted<Reply<R, C>> {
        let began = Instant::now();
        let timed = times.begin(began);
        let (failed, last) = self.race(first, attempts, request, (began, times)).await;
        match &last {
            _ if is_answer(&last) => timed.ended(false),
            Err(Some(failed)) if failed.is_late() => timed.ended(true),
            _ => timed.failed(),
        }
        if let Some(failed) = failed {
            attempts.hedged(failed);
        }
        last
    }

    /// Makes an attempt, and a second one once it has taken longer than recent calls. Ends with the
    /// first answer, or when both have failed. The other one is dropped, and so cancelled. Returns the
    /// attempt that failed while the other was under way, and the one that answered or failed last.
    async fn race(
        &self,
        first: &ChosenCaller<Q, R, C>,
        attempts: &Attempts,
        request: &Q,
        (began, times): (Instant, &RecentTimes),
    ) -> (Option<FailedAttempt>, Attempted<Reply<R, C>>) {
        let shared = &*self.shared;
        let (endpoints, budget) = (&shared.endpoints, &shared.budget);
        // A thread waits in another way from then on, so the time counts if there may be a hedge.
        let limit = times.limit();
        let limit = limit
            .filter(|_| attempts.has_retry(budget) && endpoints.has_second(first, &attempts.tried));
        let hedge_at = limit.and_then(|limit| began.checked_add(limit));
        let patience = attempts.patience(hedge_at);
        let mut call = pin!(self.attempt(first, attempts, request, patience));
        let Some(hedge_at) = hedge_at else {
            return (None, call.await);
        };
        if let Some(attempted) = endpoints.until(hedge_at, call.as_mut()).await {
            return (None, attempted);
        }
        let second = endpoints.choose_second(first, &attempts.tried);
        let Some(second) = second.filter(|_| budget.withdraw()) else {
            return (None, call.await);
        };
        shared.hedges_sent.fetch_add(1, Ordering::Relaxed);
        // Few calls are hedged, so the others do not keep the room.
        let mut hedge = Box::pin(self.attempt(&second, attempts, request, Patience::None));
        let (earlier, mut is_of_hedge) = first_of(call.as_mut(), hedge.as_mut()).await;
        let (mut failed, mut last) = (None, earlier);
        if !is_answer(&last) {
            is_of_hedge = !is_of_hedge;
            failed = last.err().flatten();
            last = match is_of_hedge {
                true => hedge.await,
                false => call.await,
            };
        }
        if is_of_hedge && is_answer(&last) {
            shared.hedges_won.fetch_add(1, Ordering::Relaxed);
            if failed.is_none() {
                first.beaten();
            }
        }
        (failed, last)
    }
}

/// Returns whether a handler has answered, by a reply or an error.
fn is_answer<T>(attempted: &Attempted<T>) -> bool {
    match attempted {
        Ok(_) => true,
        Err(failed) => failed.as_ref().is_some_and(FailedAttempt::is_answer),
    }
}

/// Returns the output of the one that is ready first, and whether that is the second.
async fn first_of<T>(
    mut first: Pin<&mut impl Future<Output = T>>,
    mut second: Pin<&mut impl Future<Output = T>>,
) -> (T, bool) {
    poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready((output, false));
        }
        second.as_mut().poll(context).map(|output| (output, true))
    })
    .await
}
