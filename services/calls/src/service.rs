//! The serving end: requests of all peers of a node, or of one.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use futures_core::Stream;
use ibex_core::{
    Node, OpenError, RecvError, Role,
    codec::Codec,
    extend::{
        ChannelTemplate, DefaultCodec, ExtendNode, Gathered, MessageVersions, NodeState,
        OpenFailure, OpenUntyped, SessionShared, TakenName, lock, parking::Attended,
    },
};

use super::{
    client::{Attendant, CallAdmission, ServiceState},
    error::{Refused, answers as errors, label::SERVICE},
    frame::DecodedPayload,
    header::Kind,
    opening::{reply_version, request_version},
    request::Request,
    request_frame::RequestFrame,
    source::RequestSource,
};

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
    hub: Arc<Hub<Q, R, C>>,
    /// The name, which is given back after the ends of the channels.
    _name: TakenName,
}

/// The state that a service shares with its wakers.
struct Hub<Q: ?Sized + 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R>> {
    source: Attended<RequestSource<Q, R, C>>,
    shared: Arc<ServiceState>,
    waker: Waker,
    /// The waker is left at the source and was not called since. The source's holder writes it, and
    /// a call of the waker does.
    is_registered: AtomicBool,
    /// The waker of the task that waits for a request.
    next: Mutex<Option<Waker>>,
    node: Arc<NodeState>,
}

struct HubWaker<Q: ?Sized + 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R>>(
    Weak<Hub<Q, R, C>>,
);

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Wake for HubWaker<Q, R, C> {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.0.upgrade() {
            hub.has_news();
        }
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Service<Q, R, C> {
    pub(super) fn of_node(template: ChannelTemplate, node: &Node) -> Result<Self, OpenError> {
        node.check_fork()?;
        let template = template.labeled(&SERVICE).untraced().checked()?;
        let name = node.runtime().take_service_name(template.name());
        let name = name.ok_or_else(|| errors::name_taken(template.name()))?;
        let source = RequestSource::of_node(Gathered::open(node, template.clone())?);
        Ok(Self::on(
            source,
            template,
            node.runtime().state().clone(),
            name,
        ))
    }

    pub(super) fn of_peer(
        template: ChannelTemplate,
        session: &Arc<SessionShared>,
    ) -> Result<Self, OpenError> {
        let template = template.labeled(&SERVICE).untraced();
        let channel = template.over(session);
        let name = session.node().share_service_name(template.name());
        let name = name.ok_or_else(|| channel.refused(Role::Receiver, OpenFailure::AlreadyOpen))?;
        let requests =
            channel.open_receiver(request_version::<Q, R, C>().map(MessageVersions::of_one))?;
        let source = RequestSource::of_peer(requests, channel);
        Ok(Self::on(source, template, session.node().clone(), name))
    }

    fn on(
        source: RequestSource<Q, R, C>,
        template: ChannelTemplate,
        node: Arc<NodeState>,
        name: TakenName,
    ) -> Self {
        let times = node.call_times(Role::Receiver, template.name());
        let hub = Arc::new_cyclic(|hub: &Weak<Hub<Q, R, C>>| {
            // An unusable reply type is reported when its channel is opened.
            let version = reply_version::<Q, R, C>();
            Hub {
                source: Attended::new(source),
                shared: Arc::new(ServiceState::new(template, version, hub.clone(), times)),
                waker: Waker::from(Arc::new(HubWaker(hub.clone()))),
                is_registered: AtomicBool::new(false),
                next: Mutex::new(None),
                node: node.clone(),
            }
        });
        node.serves(hub.shared.clone());
        Self { hub, _name: name }
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
        let hub = &*self.hub;
        let mut source = hub.source.hold();
        let next = loop {
            if let Some(next) = hub.look_for(&mut source) {
                break next;
            }
            if let Some(asked) = source.wait() {
                hub.take_in(&mut source, asked);
            }
        };
        hub.leave(source);
        next
    }

    /// Like [`next`](Self::next), for a task. Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Option<Request<Q, R, C>>, RecvError> {
        poll_fn(|context| self.hub.poll_next(context)).await
    }

    /// Returns the number of requests that handlers have, and that wait here for one. Never waits.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.hub.shared.in_progress.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that were refused: late, too many, not valid, or handed back.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.hub.shared.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that no caller of ibex sends. Such frames are dropped.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.hub.shared.strays.load(Ordering::Relaxed)
    }
}

/// The requests up to the end.
impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Stream for Service<Q, R, C> {
    type Item = Result<Request<Q, R, C>, RecvError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.hub.poll_next(context).map(Result::transpose)
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Hub<Q, R, C> {
    /// Takes in arrived frames, as far as the next request needs it, and returns that request.
    /// `Some(Ok(None))` and an error are the end.
    fn look_for(&self, source: &mut RequestSource<Q, R, C>) -> Option<super::NextRequest<Q, R, C>> {
        while source.backlog.len() < LOOK_AHEAD {
            match source.find() {
                Some(asked) => self.take_in(source, asked),
                None => break,
            }
        }
        self.count_strays(source);
        if self.node.is_draining() {
            self.refuse_backlog(source, Refused::DRAINING);
        }
        while let Some(mut request) = source.backlog.pop() {
            if !request.is_past() {
                request.begins();
                return Some(Ok(Some(request)));
            }
            request.give_back(Refused::EXPIRED);
        }
        source.over()
    }

    fn take_in(&self, source: &mut RequestSource<Q, R, C>, asked: RequestFrame) {
        // The registered waker may be about to be called for this frame alone, and not for a later
        // one.
        self.is_registered.store(false, Ordering::Relaxed);
        let RequestFrame {
            client,
            header,
            body,
            ..
        } = asked;
        client.joins(&self.shared);
        match header.kind {
            Kind::Cancel => return client.cancel(header.id),
            Kind::Credit => return client.add_credit(header.id, header.count),
            _ => {}
        }
        let deadline = header
            .time_left()
            .and_then(|left| Instant::now().checked_add(left));
        match client.begin(&header, deadline) {
            CallAdmission::Yes => {}
            CallAdmission::Overloaded => return client.refuse(header.id, Refused::OVERLOADED),
            CallAdmission::Again => return source.count_stray(),
            CallAdmission::GivenUp => return,
        }
        match DecodedPayload::of(body) {
            Ok(opened) => {
                let request = Request::<Q, R, C>::new(client, &header, deadline, opened);
                // COUNTED: this read follows the count, see `Runtime::begin_drain`.
                if self.node.is_draining() {
                    return request.give_back(Refused::DRAINING);
                }
                if let Err(request) = source.backlog.push(request) {
                    request.give_back(Refused::OVERLOADED);
                }
            }
            Err(invalid) => {
                tracing::debug!(peer = %client.at, %invalid, "a request is not valid");
                client.finish(header.id);
                client.refuse(header.id, Refused::INVALID);
            }
        }
    }

    fn count_strays(&self, source: &mut RequestSource<Q, R, C>) {
        let strays = source.take_strays();
        if strays > 0 {
            self.shared.strays.fetch_add(strays, Ordering::Relaxed);
        }
    }

    fn leave(&self, source: MutexGuard<'_, RequestSource<Q, R, C>>) {
        self.source.leave(source, |source| self.take_all(source));
        if self.is_attended() {
            self.attend();
        }
    }

    fn refuse_backlog(&self, source: &mut RequestSource<Q, R, C>, reason: Refused) {
        while let Some(request) = source.backlog.pop_any() {
            request.give_back(reason);
        }
    }

    /// Returns whether arriving frames must be taken in although no one asks for the next request.
    fn is_attended(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > 0 || self.node.is_draining()
    }

    /// Takes in all frames that have come, for handlers that wait, and has later arrivals reported.
    fn take_all(&self, source: &mut RequestSource<Q, R, C>) {
        loop {
            while let Some(asked) = source.find() {
                self.take_in(source, asked);
            }
            if self.node.is_draining() {
                self.refuse_backlog(source, Refused::DRAINING);
            }
            let is_wanted = self.is_attended() || self.next().is_some();
            if !is_wanted || !self.register(source, false) {
                break;
            }
        }
        self.count_strays(source);
        if source.has_next() {
            self.wake_next();
        }
    }

    /// Leaves the waker, unless it is registered already. Returns whether a frame came in between.
    fn register(&self, source: &mut RequestSource<Q, R, C>, may_look: bool) -> bool {
        if source.is_over() || self.is_registered.swap(true, Ordering::Relaxed) {
            return false;
        }
        let Poll::Ready(asked) = source.poll(&self.waker, may_look) else {
            return false;
        };
        self.is_registered.store(false, Ordering::Relaxed);
        if let Some(asked) = asked {
            self.take_in(source, asked);
        }
        true
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<super::NextRequest<Q, R, C>> {
        let _before = self.next().replace(context.waker().clone());
        let mut found = None;
        self.source.attend(|source| {
            while found.is_none() {
                found = self.look_for(source);
                if found.is_none() && !self.register(source, true) {
                    break;
                }
            }
        });
        match found {
            Some(found) => {
                let _waker = self.next().take();
                if self.is_attended() {
                    self.attend();
                }
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Wakes the task that waits for a request, or handlers, because frames have come.
    fn has_news(&self) {
        self.is_registered.store(false, Ordering::Relaxed);
        // WAITS, pairs with the fence in `Attended::attend`, which a handler reaches after it is
        // counted in `waiting` (or the drain after it is announced), and before `register`. So
        // either this thread sees that frames must be taken in, or that one sees that the waker was
        // called and leaves it again. A task that waits is ordered by the lock of `next`.
        fence(Ordering::SeqCst);
        if self.is_attended() {
            self.attend();
        }
        self.wake_next();
    }

    fn wake_next(&self) {
        let next = self.next().take();
        if let Some(next) = next {
            next.wake();
        }
    }

    fn next(&self) -> MutexGuard<'_, Option<Waker>> {
        lock(&self.next)
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Attendant for Hub<Q, R, C> {
    fn attend(&self) {
        self.source.attend(|source| self.take_all(source));
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Drop for Service<Q, R, C> {
    fn drop(&mut self) {
        let hub = &*self.hub;
        let mut source = hub.source.hold();
        while let Some(asked) = source.find() {
            hub.take_in(&mut source, asked);
        }
        hub.shared.is_closed.store(true, Ordering::Relaxed);
        hub.refuse_backlog(&mut source, Refused::CLOSED);
        source.close();
        drop(source);
        hub.shared.wake_waiting();
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> fmt::Debug for Service<Q, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.hub.shared.template.name())
            .finish_non_exhaustive()
    }
}

/// Number of requests that are taken in before the first is returned. A caller that has left, or a
/// deadline that has passed, is then noticed before a handler gets the request.
const LOOK_AHEAD: usize = 32;
