//! Appends, many of which are under way at a time.

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{FuturesOrdered, unfold},
};
use openraft::{
    RaftTypeConfig,
    entry::RaftEntry,
    error::RPCError,
    raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    client::{Encoded, ask},
    error::{Asked, unreachable},
    link::{Lane, Session},
};

type Answer<C> = Result<StreamAppendResult<C>, RPCError<C>>;

/// An answer, and whether the pipeline goes on behind it.
type Answered<C> = (Answer<C>, bool);

/// Appends of a stream, in order.
struct Pipeline<C: RaftTypeConfig, S, E> {
    input: Option<S>,
    encode: E,
    session: Arc<Session>,
    lane: Lane,
    under_way: FuturesOrdered<BoxFuture<'static, Answered<C>>>,
    /// How long the next answer may take.
    within: Duration,
    due: Instant,
    asked: Option<Asked<C>>,
    is_over: bool,
}

/// The answers to the requests of `input`, in its order. The first that is no full success is the
/// last: what was sent behind it is of no use.
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
        session,
        lane,
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
            let input = self.input.as_mut();
            let has_room = input.is_some() && self.under_way.len() < UNDER_WAY;
            tokio::select! {
                biased;
                Some((answer, goes_on)) = self.under_way.next() => {
                    self.is_over = !goes_on;
                    self.due = Instant::now() + self.within;
                    return Some(answer);
                }
                request = next_of(input), if has_room => match request {
                    Some(request) => {
                        if let Err(error) = self.start(request) {
                            self.is_over = true;
                            return Some(Err(error));
                        }
                    }
                    None => self.input = None,
                },
                () = sleep_until(self.due), if !self.under_way.is_empty() => {
                    self.is_over = true;
                    return self.asked.as_ref().map(|asked| Err(asked.timeout().into()));
                }
                else => self.is_over = true,
            }
        }
        None
    }

    fn start(&mut self, request: AppendEntriesRequest<C>) -> Result<(), RPCError<C>> {
        let first = request.prev_log_id.clone();
        let last = request.entries.last().map(RaftEntry::log_id);
        let last = last.or_else(|| first.clone());
        let request = (self.encode)(request)?;
        if self.under_way.is_empty() {
            self.due = Instant::now() + self.within;
        }
        if self.asked.is_none() {
            self.asked = Some(request.asked().clone());
        }
        let (session, lane) = (self.session.clone(), self.lane);
        let call = async move {
            let response: AppendEntriesResponse<C> = match ask(&session, lane, None, &request).await
            {
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
        };
        self.under_way.push_back(call.boxed());
        Ok(())
    }
}

async fn next_of<S: Stream + Unpin>(input: Option<&mut S>) -> Option<S::Item> {
    match input {
        Some(input) => input.next().await,
        None => None,
    }
}

/// The most appends that are under way. openraft's own queue of a follower takes as many.
const UNDER_WAY: usize = 64;
