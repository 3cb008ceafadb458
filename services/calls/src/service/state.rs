//! The state of a service, of any types: its callers, and the requests that wait for a handler.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    task::{Context, Poll, Waker},
    time::Instant,
};

use ibex_core::{
    OpenError, RecvError, Role,
    extend::{
        self, CallTimes, ChannelTemplate, DrainParticipant, MessageVersion, MessageVersions,
        NodeState, OpenFailure, SendHandle, SessionShared, lock,
        parking::{self, Claimed},
    },
};

use crate::{
    error::Refused,
    header::{Header, Kind},
    service::{
        client::{CallAdmission, Client},
        pace::HandlingTime,
        request::{ArrivedRequest, Call},
        request_frame::RequestFrame,
        source::{From, RequestSource},
    },
    waiter::Waiter,
};

/// The next request, or the end.
type NextArrived = Result<Option<ArrivedRequest>, RecvError>;

/// A version of messages, or why there is none.
type VersionResult = Result<MessageVersion, OpenFailure>;

/// See the module.
pub(crate) struct ServiceState {
    pub(crate) template: ChannelTemplate,
    requests: VersionResult,
    replies: VersionResult,
    node: Arc<NodeState>,

    // Arriving requests.
    source: Claimed<RequestSource>,
    waker: Waker,
    /// The waker is left at the source and was not called since. The source's holder writes it, and
    /// a call of the waker does.
    is_registered: AtomicBool,
    /// The waker of the task that waits for a request.
    waiting_task: Mutex<Option<Waker>>,

    // Callers and handlers.
    /// The clients that have sent a frame.
    clients: Mutex<Vec<Weak<Client>>>,
    /// The number of handlers that wait for their callers.
    pub(crate) waiting: AtomicUsize,
    /// The service was dropped: nothing comes in any more. Relaxed: the lock of a client's calls
    /// orders it for a handler that waits there.
    pub(crate) is_closed: AtomicBool,

    // Counts.
    pub(crate) in_progress: AtomicUsize,
    pub(crate) refused: AtomicU64,
    pub(crate) strays: Arc<AtomicU64>,
    /// Takes the times of the handling of calls, if somebody wants to know them.
    pub(crate) times: Option<Arc<CallTimes>>,
    pub(super) handling: HandlingTime,
}

impl ServiceState {
    pub(super) fn new(
        template: ChannelTemplate,
        (requests, replies): (VersionResult, VersionResult),
        node: &Arc<NodeState>,
    ) -> Arc<Self> {
        let times = node.call_times(Role::Receiver, template.name());
        let source = RequestSource::default();
        Arc::new_cyclic(|service: &Weak<Self>| Self {
            template,
            requests,
            replies,
            node: node.clone(),
            strays: source.strays.clone(),
            source: Claimed::new(source),
            waker: parking::waker_of(service.clone(), |service| service.woken()),
            is_registered: AtomicBool::new(false),
            waiting_task: Mutex::new(None),
            clients: Mutex::default(),
            waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            in_progress: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            times,
            handling: HandlingTime::default(),
        })
    }

    /// Returns the message versions of the requests.
    pub(crate) fn offer(&self) -> Result<MessageVersions, OpenFailure> {
        self.requests.clone().map(MessageVersions::of_one)
    }

    /// Opens the channel of replies with a caller.
    pub(crate) fn open_replies(
        &self,
        session: &Arc<SessionShared>,
    ) -> Result<SendHandle, OpenError> {
        let channel = self
            .template
            .clone()
            .with_suffix(crate::error::label::REPLIES)
            .over(session);
        extend::open_sender(&channel, self.replies.clone().map(MessageVersions::of_one))
    }

    // ---- Beginning and end ---------------------------------------------------------------

    /// Takes in the requests of all peers of a node. The state holds itself by it until
    /// [`close`](Self::close).
    pub(super) fn begin(&self, from: From) {
        self.source.hold().begin(from);
    }

    /// Takes part when the node drains.
    pub(super) fn joins_drain(self: &Arc<Self>) {
        self.node.join_drain(self.clone());
    }

    /// Refuses the requests that no handler has, and takes in no more.
    pub(super) fn close(&self) {
        let mut source = self.source.hold();
        while let Some(frame) = source.find() {
            self.take_in(&mut source, frame);
        }
        self.is_closed.store(true, Ordering::Relaxed);
        self.refuse_backlog(&mut source, Refused::CLOSED);
        source.close();
        drop(source);
        let clients = self.clients();
        clients.iter().for_each(|client| client.wake_waiting());
    }

    // ---- Clients -------------------------------------------------------------------------

    /// The clients that are there.
    fn clients(&self) -> Vec<Arc<Client>> {
        let clients = lock(&self.clients);
        clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes a client that sends its first frame.
    pub(crate) fn joined(&self, client: &Arc<Client>) {
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }

    // ---- The next request ----------------------------------------------------------------

    /// Waits for the next request, in a thread.
    pub(super) fn next(&self) -> NextArrived {
        let mut source = self.source.hold();
        let next = loop {
            if let Some(next) = self.find_next(&mut source) {
                break next;
            }
            if let Poll::Ready(Some(frame)) = source.wait(Waiter::Thread(None), true) {
                self.take_in(&mut source, frame);
            }
        };
        self.source.leave(source, |source| self.take_all(source));
        if self.is_claimed() {
            self.run_claimed();
        }
        next
    }

    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<NextArrived> {
        let _before = self.waiting_task().replace(context.waker().clone());
        let mut found = None;
        self.source.run_claimed(|source| {
            while found.is_none() {
                found = self.find_next(source);
                if found.is_none() && !self.register(source, true) {
                    break;
                }
            }
        });
        let Some(found) = found else {
            return Poll::Pending;
        };
        let _waker = self.waiting_task().take();
        if self.is_claimed() {
            self.run_claimed();
        }
        Poll::Ready(found)
    }

    /// Takes in arrived frames, as far as the next request needs it, and returns that request.
    /// `Some(Ok(None))` and an error are the end.
    fn find_next(&self, source: &mut RequestSource) -> Option<NextArrived> {
        // Callers that are refused may call again at once, and so faster than they can be refused.
        for _ in 0..LOOK_AHEAD {
            if source.backlog.len() >= MOST_AHEAD || source.backlog.copied_bytes() >= MOST_COPIED {
                break;
            }
            match source.find() {
                Some(frame) => self.take_in(source, frame),
                None => break,
            }
        }
        if self.node.is_draining() {
            self.refuse_backlog(source, Refused::DRAINING);
        }
        while let Some(request) = source.backlog.pop() {
            let call = &request.call;
            // Without taking in what has arrived.
            if call.client.is_cancelled(call.id) {
                request.call.give_back(Refused::EXPIRED);
                continue;
            }
            let (now, others_wait) = (Instant::now(), source.backlog.len() > 0);
            let left = call.deadline.map(|at| at.saturating_duration_since(now));
            if others_wait && left.is_some_and(|left| left < self.handling.get()) {
                request.call.give_back(Refused::TOO_LATE);
                continue;
            }
            source.pace.taken(now, others_wait);
            return Some(Ok(Some(request)));
        }
        source.over()
    }

    fn take_in(&self, source: &mut RequestSource, frame: RequestFrame) {
        // The registered waker may be about to be called for this frame alone, and not for a later
        // one.
        self.is_registered.store(false, Ordering::Relaxed);
        let RequestFrame {
            client,
            header,
            body,
        } = frame;
        match header.kind {
            Kind::Cancel => return client.cancel(header.id),
            Kind::Credit => return client.add_credit(header.id, header.count),
            _ => {}
        }
        let (waiting, left) = (source.backlog.len(), header.time_left());
        if let Some(left) = left
            && waiting > 0
            && source
                .pace
                .comes_too_late(left.saturating_sub(self.handling.get()), waiting)
        {
            return client.refuse(header.id, Refused::TOO_LATE);
        }
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        match client.begin(&header, deadline) {
            CallAdmission::Yes => {}
            CallAdmission::Overloaded => return client.refuse(header.id, Refused::OVERLOADED),
            CallAdmission::Again => return source.count_stray(),
            CallAdmission::GivenUp => return,
        }
        let request = ArrivedRequest {
            call: Call::new(client, &header, deadline),
            body,
            copied_bytes: 0,
        };
        // COUNTED: this read follows the count, see `Runtime::begin_drain`.
        if self.node.is_draining() {
            return request.call.give_back(Refused::DRAINING);
        }
        if let Err(request) = source.backlog.push(request) {
            request.call.give_back(Refused::OVERLOADED);
        }
    }

    fn refuse_backlog(&self, source: &mut RequestSource, reason: Refused) {
        while let Some(request) = source.backlog.pop_any() {
            request.call.give_back(reason);
        }
    }

    /// Returns whether arriving frames must be taken in although no one asks for the next request.
    fn is_claimed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.node.is_draining()
    }

    /// Takes in all frames that have come, for handlers that wait, and has later arrivals reported.
    fn take_all(&self, source: &mut RequestSource) {
        loop {
            while let Some(frame) = source.find() {
                self.take_in(source, frame);
            }
            if self.node.is_draining() {
                self.refuse_backlog(source, Refused::DRAINING);
            }
            let is_wanted = self.is_claimed() || self.waiting_task().is_some();
            if !is_wanted || !self.register(source, false) {
                break;
            }
        }
        if source.has_next() {
            self.wake_next();
        }
    }

    /// Leaves the waker, unless it is registered already. Returns whether a frame came in between.
    fn register(&self, source: &mut RequestSource, may_spin: bool) -> bool {
        if source.is_over() || self.is_registered.swap(true, Ordering::Relaxed) {
            return false;
        }
        let Poll::Ready(frame) = source.wait(Waiter::Task(&self.waker), may_spin) else {
            return false;
        };
        self.is_registered.store(false, Ordering::Relaxed);
        if let Some(frame) = frame {
            self.take_in(source, frame);
        }
        true
    }

    /// Takes in the frames that have come from all callers.
    pub(crate) fn run_claimed(&self) {
        self.source.run_claimed(|source| self.take_all(source));
    }

    /// Wakes the task that waits for a request, or handlers, because frames have come.
    fn woken(&self) {
        self.is_registered.store(false, Ordering::Relaxed);
        // WAITS, pairs with the fence in `Claimed::run_claimed`, which a handler reaches after it is
        // counted in `waiting` (or the drain after it is announced), and before `register`. So
        // either this thread sees that frames must be taken in, or that one sees that the waker was
        // called and leaves it again. A task that waits is ordered by the lock of `waiting_task`.
        fence(Ordering::SeqCst);
        if self.is_claimed() {
            self.run_claimed();
        }
        self.wake_next();
    }

    fn wake_next(&self) {
        let next = self.waiting_task().take();
        if let Some(next) = next {
            next.wake();
        }
    }

    fn waiting_task(&self) -> MutexGuard<'_, Option<Waker>> {
        lock(&self.waiting_task)
    }
}

impl DrainParticipant for ServiceState {
    fn begin_drain(&self) {
        self.run_claimed();
    }

    fn running(&self) -> usize {
        // COUNTED, pairs with `Call::new`. ENDED, pairs with the drop of `Call`.
        self.in_progress.load(Ordering::SeqCst)
    }

    fn has_pending_notices(&self) -> bool {
        self.clients()
            .iter()
            .any(|client| client.has_pending_notices())
    }

    fn announce_drained(&self) {
        for client in self.clients() {
            client.notify(Header::DRAINED, Vec::new());
        }
    }
}

/// Frames that are taken in before a request is returned. A caller that has left, or a
/// deadline that has passed or will pass, is then noticed before a handler gets the request.
const LOOK_AHEAD: usize = 64;
/// Requests that wait, and bytes of those that were copied out, from which on none are taken in ahead.
const MOST_AHEAD: usize = 1024;
const MOST_COPIED: usize = 1 << 20;
