//! Appends, many of which are under way at a time.
//!
//! Each append is a call for a stream of answers, with exactly one answer, because that kind of
//! call reports when its request is sent. Plain calls may overtake each other while they wait for
//! room, and a follower refuses an append that has come before its predecessor.

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{self, BoxFuture},
    stream::{FuturesOrdered, unfold},
};
use ibex::{
    Raw,
    calls::{CallOptions, Replies},
};
use openraft::{
    RaftTypeConfig,
    alias::LogIdOf,
    entry::RaftEntry,
    error::RPCError,
    raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    client::Encoded,
    error::{Asked, unreachable},
    link::{Calls, Lane, Session},
    wire::decode,
};

type Answer<C> = Result<StreamAppendResult<C>, RPCError<C>>;

/// An answer, and whether the pipeline continues behind it.
type Answered<C> = (Answer<C>, bool);

/// The outcome of sending: a future of the answer, or an error.
type Sent<C> = Result<BoxFuture<'static, Answered<C>>, RPCError<C>>;

/// Appends of a stream, in order.
struct Pipeline<C: RaftTypeConfig, S, E> {
    input: Option<S>,
    encode: E,
    session: Arc<Session>,
    caller: Calls,
    /// The append that waits for room, and stops those behind it.
    sending: Option<BoxFuture<'static, Sent<C>>>,
    under_way: FuturesOrdered<BoxFuture<'static, Answered<C>>>,
    /// The longest wait for the next answer.
    within: Duration,
    due: Instant,
    asked: Option<Asked<C>>,
    is_over: bool,
}

/// Returns the answers to the requests of `input`, in its order. The first answer that is no full
/// success is the last, since the requests sent behind it are useless.
pub(crate) fn answers<C, S, E>(
    session: Arc<Session>,
    lane: Lane,
    within: Duration,
    input: S,
    encode: E,
) -> impl Stream<Item = Answer<C>> + Send
where
    C: RaftTypeConfig,
    S: Stream<Item = AppendEntriesRequest<C>> + Send + Unpin,
    E: Fn(AppendEntriesRequest<C>) -> Result<Encoded<C>, RPCError<C>> + Send,
{
    let pipeline = Pipeline {
        input: Some(input),
        encode,
        caller: session.caller(lane, CallOptions::new()),
        session,
        sending: None,
        under_way: FuturesOrdered::new(),
        within,
        due: Instant::now(),
        asked: None,
        is_over: false,
    };
    unfold(pipeline, async |mut pipeline| {
        let answer = pipeline.next().await?;
        Some((answer, pipeline))
    })
}

impl<C, S, E> Pipeline<C, S, E>
where
    C: RaftTypeConfig,
    S: Stream<Item = AppendEntriesRequest<C>> + Send + Unpin,
    E: Fn(AppendEntriesRequest<C>) -> Result<Encoded<C>, RPCError<C>> + Send,
{
    async fn next(&mut self) -> Option<Answer<C>> {
        while !self.is_over {
            let is_sending = self.sending.is_some();
            let has_room = self.input.is_some() && self.under_way.len() < UNDER_WAY;
            let is_waiting = is_sending || !self.under_way.is_empty();
            tokio::select! {
                biased;
                Some((answer, goes_on)) = self.under_way.next() => {
                    self.is_over = !goes_on;
                    self.due = Instant::now() + self.within;
                    return Some(answer);
                }
                sent = poll_some(&mut self.sending), if is_sending => {
                    self.sending = None;
                    match sent {
                        Ok(answer) => self.under_way.push_back(answer),
                        Err(error) => return self.end(error),
                    }
                }
                request = poll_next(&mut self.input), if has_room && !is_sending => match request {
                    Some(request) => {
                        if let Err(error) = self.start(request) {
                            return self.end(error);
                        }
                    }
                    None => self.input = None,
                },
                () = sleep_until(self.due), if is_waiting => {
                    let timeout = self.asked.as_ref()?.timeout();
                    return self.end(timeout.into());
                }
                else => self.is_over = true,
            }
        }
        None
    }

    fn end(&mut self, error: RPCError<C>) -> Option<Answer<C>> {
        self.is_over = true;
        Some(Err(error))
    }

    fn start(&mut self, request: AppendEntriesRequest<C>) -> Result<(), RPCError<C>> {
        let first = request.prev_log_id.clone();
        let last = request.entries.last().map(RaftEntry::log_id);
        let last = last.or_else(|| first.clone());
        let Encoded { bytes, asked } = (self.encode)(request)?;
        if self.under_way.is_empty() {
            self.due = Instant::now() + self.within;
        }
        if self.asked.is_none() {
            self.asked = Some(asked.clone());
        }
        let (session, caller) = (self.session.clone(), self.caller.clone());
        let sending = async move {
            let sent = caller.stream_async(&bytes).await;
            let replies = sent.map_err(|error| asked.failed(&session, &error))?;
            let answer = answer(session, replies, asked, first, last);
            Ok(answer.boxed())
        };
        self.sending = Some(sending.boxed());
        Ok(())
    }
}

async fn answer<C: RaftTypeConfig>(
    session: Arc<Session>,
    mut replies: Replies<[u8], Raw>,
    asked: Asked<C>,
    first: Option<LogIdOf<C>>,
    last: Option<LogIdOf<C>>,
) -> Answered<C> {
    let response = match replies.next_async().await {
        Ok(Some(reply)) => decode::<AppendEntriesResponse<C>>(&reply).map_err(unreachable),
        Ok(None) => Err(unreachable("the node ended the call without an answer")),
        Err(error) => Err(asked.failed(&session, &error)),
    };
    let response = match response {
        Ok(response) => response,
        Err(error) => return (Err(error), false),
    };
    if response.is_conflict() && first.is_none() {
        let why = "the node reports a conflict before the first entry of the log";
        return (Err(unreachable(why)), false);
    }
    let result = response.into_stream_result(first, last.clone());
    let is_whole = result.as_ref().is_ok_and(|matching| *matching == last);
    (Ok(result), is_whole)
}

async fn poll_some<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

async fn poll_next<S: Stream + Unpin>(input: &mut Option<S>) -> Option<S::Item> {
    input.as_mut()?.next().await
}

/// The most appends that are under way. openraft's own queue of a follower takes as many.
const UNDER_WAY: usize = 64;
