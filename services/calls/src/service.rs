//! The serving end: requests of all peers of a node, or of one.

mod client;
pub(crate) mod handler;
mod pace;
pub(crate) mod request;
mod request_frame;
#[cfg(feature = "tokio")]
pub(crate) mod serving;
mod source;
mod state;

use std::{
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use ibex_core::{
    Node, OpenError, RecvError, Role,
    codec::Codec,
    extend::{
        self, ChannelTemplate, DefaultCodec, Gathered, NodeState, OpenFailure, SessionShared,
        TakenName,
    },
};

use self::{
    request::Request,
    request_frame::{RequestFrames, Seat},
    source::From,
};
use crate::{
    error::{answers as errors, label::SERVICE},
    versions::{reply_version, request_version},
};

pub(super) use self::state::ServiceState;

/// The next request, or the end.
type NextRequest<Q, R, C> = Result<Option<Request<Q, R, C>>, RecvError>;

/// Serves calls. [`Node::service`](crate::OpenService::service) opens one for all peers, and
/// [`Peer::service`](crate::OpenService::service) one for a single peer.
///
/// A service returns requests one after the other. Each may be answered at once, or moved to
/// another thread or task and answered whenever it is ready, in any order. Nothing runs by itself:
/// a request waits until it is asked for, and its caller waits with it. A program that only wants to
/// say what the reply is gives the service a handler: by [`serve_blocking`](Self::serve_blocking) for
/// threads, or by `serve` (feature `tokio`) for tasks.
///
/// Dropping the service refuses the requests that no handler has taken, so that their callers know
/// them as [not executed](crate::Execution::NotExecuted). Handlers may still answer the
/// requests that they have, but no longer wait until a caller takes more items of a stream: that is
/// [cancelled](ibex_core::SendErrorKind::Cancelled).
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::{Node, rkyv::string::ArchivedString};
/// use ibex::prelude::*;
///
/// fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
///     let mut lengths = node.service::<String, u64>("length")?;
///     while let Some(request) = lengths.next()? {
///         let text: &ArchivedString = &request; // read in place
///         match text.len() {
///             0 => request.fail(1, "it is empty"),
///             length => request.reply(&(length as u64))?,
///         }
///     }
///     Ok(())
/// }
/// # }
/// ```
pub struct Service<Q: ?Sized + 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R> = DefaultCodec>
{
    state: Arc<ServiceState>,
    /// The name, which is given back after the ends of the channels.
    _name: TakenName,
    _types: crate::Types<Q, R, C>,
}

/// The kind of names that services of a node take.
const NAMES: &str = "service";

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Service<Q, R, C> {
    pub(super) fn of_node(template: ChannelTemplate, node: &Node) -> Result<Self, OpenError> {
        extend::check_fork(node)?;
        let template = template.labeled(&SERVICE).untraced().checked()?;
        let state = extend::runtime(node).state();
        let name = state.take_name(NAMES, template.name());
        let name = name.ok_or_else(|| errors::name_taken(template.name()))?;
        let state = Self::state(template.clone(), state);
        let frames = RequestFrames(state.clone());
        state.begin(From::Node(Gathered::open(node, template, frames)?));
        Ok(Self::new(state, name))
    }

    pub(super) fn of_peer(
        template: ChannelTemplate,
        session: &Arc<SessionShared>,
    ) -> Result<Self, OpenError> {
        let template = template.labeled(&SERVICE).untraced();
        let channel = template.over(session);
        let name = session.node().share_name(NAMES, template.name());
        let taken = || extend::refused(&channel, Role::Receiver, OpenFailure::AlreadyOpen);
        let name = name.ok_or_else(taken)?;
        let state = Self::state(template, session.node());
        let requests = extend::open_receiver(&channel, state.offer())?;
        let seat = Seat::new(&state, session, None);
        state.begin(From::Peer(requests, seat, None));
        Ok(Self::new(state, name))
    }

    /// The state of a service to which nothing comes yet.
    fn state(template: ChannelTemplate, node: &Arc<NodeState>) -> Arc<ServiceState> {
        // An unusable reply type is reported when its channel is opened.
        let versions = (request_version::<Q, R, C>(), reply_version::<Q, R, C>());
        ServiceState::new(template, versions, node)
    }

    fn new(state: Arc<ServiceState>, name: TakenName) -> Self {
        state.joins_drain();
        Self {
            state,
            _name: name,
            _types: PhantomData,
        }
    }

    /// Returns the next request of any caller. `None` when the node was closed or, for a service of
    /// one peer, when that peer closed its caller. Waits while there is none.
    ///
    /// # Errors
    ///
    /// [`RecvError`], once, of a service for one peer alone: as
    /// [`Receiver::next`](ibex_core::Receiver::next). Callers that are lost end nothing but their calls.
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail, as that of `Receiver`"
    )]
    pub fn next(&mut self) -> Result<Option<Request<Q, R, C>>, RecvError> {
        loop {
            let Some(arrived) = self.state.next()? else {
                return Ok(None);
            };
            if let Some(request) = Request::open(arrived) {
                return Ok(Some(request));
            }
        }
    }

    /// Like [`next`](Self::next), for a task. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Option<Request<Q, R, C>>, RecvError> {
        poll_fn(|context| self.poll_request(context)).await
    }

    fn poll_request(&self, context: &mut Context<'_>) -> Poll<NextRequest<Q, R, C>> {
        loop {
            let Some(arrived) = ready!(self.state.poll_next(context))? else {
                return Poll::Ready(Ok(None));
            };
            if let Some(request) = Request::open(arrived) {
                return Poll::Ready(Ok(Some(request)));
            }
        }
    }

    /// Returns the number of requests that handlers have, and that wait here for one. Never waits.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.state.in_progress.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that were refused: late, too many, not valid, or handed back.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that no caller of ibex sends. Such frames are dropped.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.state.strays.load(Ordering::Relaxed)
    }
}

/// The requests up to the end.
impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Stream for Service<Q, R, C> {
    type Item = Result<Request<Q, R, C>, RecvError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_request(context).map(Result::transpose)
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Drop for Service<Q, R, C> {
    fn drop(&mut self) {
        self.state.close();
    }
}

ibex_core::extend::debug_fields! {
    [Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>] Service<Q, R, C>: |service|
        name = service.state.template.name()
}
