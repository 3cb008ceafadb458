//! A caller of a service of all peers that a node keeps connected.
//!
//! It stands on a [`Caller`] in each session. `retry_budget.rs` limits the retries of all clones,
//! `attempts.rs` decides for one call what follows an error, `hedging.rs` makes a second attempt
//! beside a slow one, and [`Endpoints`] chooses the peer.
#![forbid(unsafe_code)]

mod attempts;
mod hedging;
mod opening;
mod recent_times;
mod retry_budget;
#[cfg(feature = "tower")]
mod tower;

use std::sync::{Arc, atomic::AtomicU64};

use ibex_core::{
    OpenError, SendError, TraceContext,
    codec::Codec,
    extend::{DefaultCodec, parking::Patience},
};
use ibex_peers::extend::{ChosenEndpoint, Endpoints, NoEndpoint};

use self::{
    attempts::{Attempts, FailedAttempt},
    recent_times::RecentTimes,
    retry_budget::RetryBudget,
};
use crate::{
    CallError, CallOptions, Caller, Metadata, Reply, call_extension::CallExtension,
    error::CallFailure,
};

/// Calls a service of the peers that a node [keeps connected](ibex_peers::KeepConnected::keep_connected),
/// whichever of them can serve the call. [`Peers::caller`](crate::OpenCaller::caller) opens
/// one, or [`Peers::channel`](ibex_peers::Peers::channel) with settings.
///
/// Clones share everything, and any number of threads and tasks may call at a time. A caller is
/// opened in each session with these peers: at once where they are connected, else with the next
/// call.
///
/// *Choice.* Of two connected peers, drawn at random, a call goes to the one with fewer calls under
/// way from here. A peer whose session is suspended or that has not opened the service is chosen if
/// there is no other one, and a peer that has just refused a call is avoided for a moment. While no
/// peer is connected, calls wait for one until their deadline, and are woken when it connects.
///
/// *Retries.* Calls fail less often than those of a [`Caller`], and are executed no more often:
///
/// | outcome of an attempt | what follows, within the call's [`timeout`](CallOptions::timeout) |
/// |---|---|
/// | the peer drains, is gone or suspended, or its service has ended; [not executed](crate::Execution::NotExecuted) | the call goes to another peer at once, or to the next session or service of this one |
/// | the service is overloaded or handed the request back; not executed | the call goes to another peer at once; when all have refused it, after a pause that grows from 10 ms to 1 s, of which chance takes up to a half |
/// | the peer has another message type or has not opened the service in time, or the caller cannot be opened there; not executed | the call goes to another peer at once, and fails if there is none. So peers of two versions may be mixed while they are updated |
/// | [`Lost`](crate::CallErrorKind::Lost), [`Unanswered`](crate::CallErrorKind::Unanswered): a handler may have executed it | the call is sent again only if it is [`idempotent`](CallOptions::idempotent), as often as that says |
/// | any other error | the call fails with it at once |
///
/// *Retry budget.* Retries do not multiply an overload: all clones together may make one retry for
/// each five calls, and 100 more when nothing has failed for long. One call may make a fifth of the
/// retries that are left when it begins, and one at least. Beyond that a call fails with the error of
/// its last attempt, whose text says so. Leaving a peer that drains or is gone for
/// another costs nothing, so the drain of a peer with many calls under way fails none of those.
///
/// A call of several attempts fails with the error of the last one; if a handler may have executed
/// an earlier one, with the error of that. [`CallError::peer`] names the peer.
///
/// *Hedging.* Off unless [`hedge_after_percentile`](Self::hedge_after_percentile) asks for it: an
/// idempotent call that is slower than most is sent to a second peer too.
///
/// Dropping the [`Peers`](ibex_peers::discovery::Peers) or closing the node ends it: calls fail with
/// [`NoSession`](crate::CallErrorKind::NoSession). Dropping the last clone closes its callers.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use std::{error::Error, time::Duration};
/// use ibex::{Node, calls::CallOptions};
/// use ibex::prelude::*;
///
/// fn total(node: &Node, symbols: &[String]) -> Result<u64, Box<dyn Error>> {
///     let peers = node.keep_connected(["10.0.0.1:7000", "10.0.0.2:7000"])?;
///     let soon = CallOptions::new().timeout(Duration::from_secs(2)).idempotent(2);
///     let quotes = peers.caller::<String, u64>("quotes")?.with(soon);
///     let mut total = 0;
///     for symbol in symbols {
///         total += quotes.call(symbol)?.to_native();
///     }
///     Ok(total)
/// }
/// # }
/// ```
pub struct PeersCaller<Q: ?Sized, R: ?Sized, C = DefaultCodec> {
    shared: Arc<SharedCaller<Q, R, C>>,
    options: CallOptions,
    carried: CallExtension,
    /// The times after which calls are hedged, if they are.
    hedging: Option<Arc<RecentTimes>>,
}

/// What clones share.
struct SharedCaller<Q: ?Sized, R: ?Sized, C> {
    service: String,
    endpoints: Endpoints<OpenedCaller<Q, R, C>>,
    budget: RetryBudget,
    /// Of all clones, as the next one.
    hedges_sent: AtomicU64,
    hedges_won: AtomicU64,
}

/// The caller in one session.
type OpenedCaller<Q, R, C> = Result<Caller<Q, R, C>, OpenError>;
/// The endpoint of an attempt.
type ChosenCaller<Q, R, C> = ChosenEndpoint<OpenedCaller<Q, R, C>>;
/// The outcome of a call.
type CallResult<R, C> = Result<Reply<R, C>, CallError>;
/// The outcome of an attempt. An error of `None`: it was not sent, and another peer has opened the
/// service.
type Attempted<T> = Result<T, Option<FailedAttempt>>;

impl<Q, R, C> PeersCaller<Q, R, C>
where
    Q: ?Sized + 'static,
    R: ?Sized + 'static,
    C: Codec<Q> + Codec<R>,
{
    fn new(service: String, endpoints: Endpoints<OpenedCaller<Q, R, C>>) -> Self {
        Self {
            shared: Arc::new(SharedCaller {
                service,
                endpoints,
                budget: RetryBudget::new(),
                hedges_sent: AtomicU64::new(0),
                hedges_won: AtomicU64::new(0),
            }),
            options: CallOptions::new(),
            carried: CallExtension::default(),
            hedging: None,
        }
    }

    /// Returns the same caller with other options. The [`timeout`](CallOptions::timeout) is that of
    /// all attempts together, and of the wait for a peer.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self {
            options,
            ..self.clone()
        }
    }

    /// Returns the same caller, whose calls carry this metadata and no other, as
    /// [`Caller::with_metadata`] does.
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        let mut caller = self.clone();
        caller.carried.metadata = metadata;
        caller
    }

    /// Returns the same caller, whose calls belong to this trace, as
    /// [`Caller::with_trace_context`] does.
    #[must_use]
    pub fn with_trace_context(&self, context: TraceContext) -> Self {
        let mut caller = self.clone();
        caller.carried.trace = Some(context);
        caller
    }

    /// Calls one of the peers, and waits for the reply. Waits for a peer too, as long as none is
    /// connected, and, if the call may be [hedged](Self::hedge_after_percentile), until a peer has
    /// opened the service.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A deadline that passes while there is no peer is
    /// [`DeadlineExceeded`](crate::CallErrorKind::DeadlineExceeded), and its text says which
    /// addresses are not reached. A panic of the request's serializer comes through, and sends
    /// nothing.
    pub fn call(&self, request: &Q) -> Result<Reply<R, C>, CallError> {
        let shared = &*self.shared;
        let mut attempts = Attempts::new(&self.options);
        if self.hedging(&attempts).is_some() {
            // The thread may have to wait for two peers at a time, as a task can.
            attempts.is_blocking = true;
            let call = self.clone().run(attempts, request);
            return shared.endpoints.block_on(call);
        }
        attempts.begin(&shared.budget);
        loop {
            let (tried, deadline) = (&mut attempts.tried, attempts.deadline);
            let endpoint = match shared.endpoints.choose(tried, deadline) {
                Ok(endpoint) => endpoint,
                Err(none) => return Err(self.without_endpoint(none, attempts)),
            };
            let caller = self.caller_at(&endpoint, &attempts);
            let outcome = caller.and_then(|caller| caller.call(request));
            match self.ended(outcome, &endpoint) {
                Ok(reply) => return Ok(reply),
                Err(failed) => attempts.failed(failed, &shared.budget)?,
            }
        }
    }

    /// Calls one of the peers, for a task. Nothing is sent before the first poll.
    ///
    /// Dropping the future cancels the call, as with [`Caller::call_async`]. The deadline counts
    /// from this call on.
    ///
    /// # Errors
    ///
    /// Errors are those of [`call`](Self::call), except that it waits without limit until a peer
    /// has opened the service.
    pub fn call_async<'a>(
        &self,
        request: &'a Q,
    ) -> impl Future<Output = Result<Reply<R, C>, CallError>> + use<'a, Q, R, C> {
        self.clone().run(Attempts::new(&self.options), request)
    }

    /// Makes attempts at a call until one has an answer or there is to be no other.
    async fn run(self, mut attempts: Attempts, request: &Q) -> CallResult<R, C> {
        let shared = &*self.shared;
        attempts.begin(&shared.budget);
        loop {
            let (tried, deadline) = (&mut attempts.tried, attempts.deadline);
            let endpoint = match shared.endpoints.choose_async(tried, deadline).await {
                Ok(endpoint) => endpoint,
                Err(none) => return Err(self.without_endpoint(none, attempts)),
            };
            let attempted = match self.hedging(&attempts) {
                // Calls that are not hedged do not keep the room.
                Some(times) => {
                    let call = self.attempt_hedged(&endpoint, &mut attempts, request, times);
                    Box::pin(call).await
                }
                None => {
                    let patience = attempts.patience(None);
                    self.attempt(&endpoint, &attempts, request, patience).await
                }
            };
            match attempted {
                Ok(reply) => return Ok(reply),
                Err(Some(failed)) => attempts.failed(failed, &shared.budget)?,
                // It goes to a peer that has opened the service, or ends with the keeping.
                Err(None) => {}
            }
        }
    }

    /// Makes one attempt. Once it is sent, a poll waits in its thread for so long.
    async fn attempt(
        &self,
        endpoint: &ChosenCaller<Q, R, C>,
        attempts: &Attempts,
        request: &Q,
        patience: Patience,
    ) -> Attempted<Reply<R, C>> {
        let shared = &*self.shared;
        let outcome = match self.caller_at(endpoint, attempts) {
            Ok(caller) => {
                let call = caller.future_of(request).waiting(patience);
                let (endpoints, tried) = (&shared.endpoints, &attempts.tried);
                endpoints.unless_in_vain(endpoint, tried, call).await
            }
            Err(error) => Some(Err(error)),
        };
        let outcome = outcome.ok_or(None)?;
        self.ended(outcome, endpoint).map_err(Some)
    }

    /// Returns the caller of the next attempt, with what the call carries.
    fn caller_at(
        &self,
        endpoint: &ChosenCaller<Q, R, C>,
        attempts: &Attempts,
    ) -> Result<Caller<Q, R, C>, CallError> {
        let caller = match &endpoint.opened {
            Ok(caller) => caller,
            Err(error) => {
                let failure = CallFailure::CannotOpen(error.clone());
                let peer = endpoint.peer.to_string();
                return Err(CallError::new(self.shared.service.clone(), peer, failure));
            }
        };
        let has_another = self.shared.endpoints.has_another(endpoint, &attempts.tried);
        let caller = caller.with(attempts.options(has_another));
        Ok(match self.carried.is_empty() {
            true => caller,
            false => caller.carrying(|carried| carried.clone_from(&self.carried)),
        })
    }

    /// Notes at the endpoint how an attempt has ended.
    fn ended(
        &self,
        outcome: CallResult<R, C>,
        endpoint: &ChosenCaller<Q, R, C>,
    ) -> Result<Reply<R, C>, FailedAttempt> {
        let failed = match outcome {
            Ok(reply) => {
                endpoint.answered();
                return Ok(reply);
            }
            Err(error) => FailedAttempt::new(error, &endpoint.peer),
        };
        if failed.is_refusal() {
            endpoint.refused();
        }
        if failed.is_answer() {
            endpoint.answered();
        }
        self.shared.renew_if_ended(&failed.error, endpoint);
        Err(failed)
    }

    fn without_endpoint(&self, why: NoEndpoint, attempts: Attempts) -> CallError {
        let failure = match why {
            NoEndpoint::Ended => CallFailure::NoSession,
            NoEndpoint::Late | NoEndpoint::Excluded => CallFailure::NoPeer(match attempts.last() {
                Some(last) => format!("none took it; the last attempt: {last}"),
                None => self.shared.endpoints.missing(),
            }),
        };
        let (service, peers) = (self.shared.service.clone(), ALL_PEERS.to_owned());
        let error = CallError::new(service, peers, failure);
        attempts.without_endpoint(error, why == NoEndpoint::Excluded)
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.service
    }
}

impl<Q: ?Sized, R: ?Sized, C> SharedCaller<Q, R, C> {
    /// Has the caller of a session opened anew if it serves no other call: the service has ended or
    /// has other types, and the session goes on, in which there may be another service.
    fn renew_if_ended(&self, error: &CallError, endpoint: &ChosenCaller<Q, R, C>) {
        use crate::CallErrorKind::{Lost, ServiceEnded};
        use ibex_core::SendErrorKind::{Disconnected, Mismatch};
        let send = error.send_error().map(SendError::kind);
        let has_ended = matches!(error.kind(), Lost | ServiceEnded)
            || matches!(send, Some(Disconnected | Mismatch))
            || error.open_error().is_some();
        if !has_ended {
            return;
        }
        if let Ok(caller) = &endpoint.opened {
            // Other calls may still hold the caller that has ended.
            caller.free_names();
        }
        self.endpoints.renew(endpoint);
    }
}

impl<Q: ?Sized, R: ?Sized, C> Clone for PeersCaller<Q, R, C> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            options: self.options,
            carried: self.carried.clone(),
            hedging: self.hedging.clone(),
        }
    }
}

ibex_core::extend::debug_fields! {
    [Q: ?Sized, R: ?Sized, C] PeersCaller<Q, R, C>: |caller|
        service = caller.shared.service
}

/// What an error names in place of a peer.
const ALL_PEERS: &str = "the peers that are kept connected";
