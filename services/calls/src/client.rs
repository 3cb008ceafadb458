//! A service's view of one of its callers: the way back to it, and its calls that handlers have.
//!
//! A call is found by its number, which is below the limit, and by its generation. A caller that
//! has cancelled a call may give its number to another one at once. The first call's handler then
//! does not find its call, which means that it was cancelled.

mod answering;
mod for_credit;

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    time::Instant,
};

use ibex_core::{
    OpenError, PeerAt, SendError,
    extend::{
        CallTimes, ChannelTemplate, MessageVersion, MessageVersions, OpenFailure, OpenUntyped,
        Serves, SessionShared, lock, peer_at, warn_limited,
    },
};

use self::for_credit::ForCredit;
use super::{
    deadline_alarm::DeadlineAlarm,
    error::answers as errors,
    header::{CallId, Header},
    outbox::Outbox,
};

/// The state that a service shares with its clients.
pub(super) struct ServiceState {
    pub(super) template: ChannelTemplate,
    /// The message version of the replies.
    version: Result<MessageVersion, OpenFailure>,
    /// Takes in arrived frames, for a handler that waits.
    attendant: Weak<dyn Attendant + Send + Sync>,
    /// The clients that have sent a frame.
    clients: Mutex<Vec<Weak<Client>>>,
    /// The number of handlers that wait for their callers.
    pub(super) waiting: AtomicUsize,
    /// The service was dropped: nothing comes in any more. Relaxed: the lock of a client's calls
    /// orders it for a handler that waits there.
    pub(super) is_closed: AtomicBool,

    // Counts.
    pub(super) in_progress: AtomicUsize,
    pub(super) refused: AtomicU64,
    pub(super) strays: AtomicU64,
    /// Takes the times of the handling of calls, if somebody wants to know them.
    pub(super) times: Option<Arc<CallTimes>>,
}

/// Takes in the frames that have come from all callers.
pub(super) trait Attendant {
    fn attend(&self);
}

impl ServiceState {
    pub(super) fn new(
        template: ChannelTemplate,
        version: Result<MessageVersion, OpenFailure>,
        attendant: Weak<dyn Attendant + Send + Sync>,
        times: Option<Arc<CallTimes>>,
    ) -> Self {
        Self {
            template,
            version,
            attendant,
            clients: Mutex::default(),
            waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            in_progress: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            strays: AtomicU64::new(0),
            times,
        }
    }

    /// The clients that are there.
    fn clients(&self) -> Vec<Arc<Client>> {
        let clients = lock(&self.clients);
        clients.iter().filter_map(Weak::upgrade).collect()
    }

    fn joined(&self, client: &Arc<Client>) {
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }

    /// Wakes the handlers that wait for their callers, because nothing comes in any more.
    pub(super) fn wake_waiting(&self) {
        self.clients()
            .iter()
            .for_each(|client| client.wake_waiting());
    }

    pub(super) fn attend(&self) {
        if let Some(attendant) = self.attendant.upgrade() {
            attendant.attend();
        }
    }
}

impl Serves for ServiceState {
    fn refuse_waiting(&self) {
        self.attend();
    }

    fn running(&self) -> usize {
        // COUNTED, pairs with `Request::new`. ENDED, pairs with the drop of
        // `request::Call`.
        self.in_progress.load(Ordering::SeqCst)
    }

    fn has_unsaid(&self) -> bool {
        self.clients().iter().any(|client| client.has_unsaid())
    }

    fn say_drained(&self) {
        for client in self.clients() {
            client.say(Header::DRAINED, Vec::new());
        }
    }
}

/// See the module.
pub(super) struct Client {
    pub(super) session: Arc<SessionShared>,
    pub(super) at: PeerAt,
    shared: OnceLock<Arc<ServiceState>>,
    outbox: OnceLock<Outbox>,
    calls: Mutex<Calls>,
    waker: Waker,
    /// Called when the caller takes its replies again.
    goes_on: Option<Waker>,
    /// This client while notices wait to be sent, also after its last handler: a refusal that is
    /// dropped would leave the caller in doubt.
    unsaid: Mutex<Option<Arc<Self>>>,
}

#[derive(Default)]
struct Calls {
    by_number: Vec<ReceivedCall>,
    /// The caller has left.
    is_gone: bool,
    alarm: DeadlineAlarm,
}

#[derive(Default)]
struct ReceivedCall {
    generation: u32,
    is_taken: bool,
    is_cancelled: bool,
    credit: u32,
    deadline: Option<Instant>,
    waker: Option<Waker>,
}

/// Result of receiving the request of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallAdmission {
    Yes,
    Overloaded,
    /// The call was there already.
    Again,
    /// The caller was given up.
    GivenUp,
}

struct ClientNews(Weak<Client>);

impl Wake for ClientNews {
    fn wake(self: Arc<Self>) {
        if let Some(client) = self.0.upgrade() {
            client.has_news();
        }
    }
}

impl Client {
    pub(super) fn new(session: &Arc<SessionShared>, goes_on: Option<Waker>) -> Arc<Self> {
        Arc::new_cyclic(|client| Self {
            session: session.clone(),
            at: peer_at(session),
            shared: OnceLock::new(),
            outbox: OnceLock::new(),
            calls: Mutex::default(),
            waker: Waker::from(Arc::new(ClientNews(client.clone()))),
            goes_on,
            unsaid: Mutex::default(),
        })
    }

    /// Belongs to a service from its first request on.
    pub(super) fn joins(self: &Arc<Self>, shared: &Arc<ServiceState>) {
        if self.shared.set(shared.clone()).is_err() {
            return;
        }
        shared.joined(self);
        let max_in_flight = shared.template.max_in_flight() as usize;
        let outbox = Outbox::new(
            None,
            self.session.clone(),
            self.waker.clone(),
            // Each call has one last frame. More notices wait only for a peer that takes none.
            2 * max_in_flight,
            shared.template.wait_for_open(),
        )
        .with_goes_on(self.goes_on.clone());
        if self.outbox.set(outbox).is_ok()
            && let Err(error) = self.open()
        {
            warn_limited!(error, peer = %self.at, %error, "calls cannot be answered");
            // No answer waits for an end that there will never be.
            self.outbox.get().into_iter().for_each(Outbox::close);
        }
    }

    /// Opens the way back.
    fn open(&self) -> Result<(), OpenError> {
        let (Some(outbox), Some(shared)) = (self.outbox.get(), self.shared.get()) else {
            return Ok(());
        };
        let offer = shared.version.clone().map(MessageVersions::of_one);
        let channel = shared
            .template
            .clone()
            .with_suffix(crate::error::label::REPLIES)
            .over(&self.session);
        outbox.open(|| channel.open_sender(offer))
    }

    pub(super) fn outbox(&self) -> Option<&Outbox> {
        self.outbox.get()
    }

    pub(super) fn shared(&self) -> Option<&Arc<ServiceState>> {
        self.shared.get()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    // ---- Frames of the caller ----------------------------------------------------------

    /// Takes in the header of a request that has come.
    pub(super) fn begin(&self, header: &Header, deadline: Option<Instant>) -> CallAdmission {
        let max_in_flight = self
            .shared
            .get()
            .map_or(0, |shared| shared.template.max_in_flight());
        let CallId { number, generation } = header.id;
        if u64::from(number) >= max_in_flight {
            return CallAdmission::Overloaded;
        }
        let mut calls = self.calls();
        if calls.is_gone {
            return CallAdmission::GivenUp;
        }
        let number = number as usize;
        if number >= calls.by_number.len() {
            calls
                .by_number
                .resize_with(number + 1, ReceivedCall::default);
        }
        let entry = &mut calls.by_number[number];
        if entry.is_taken && entry.generation == generation {
            return CallAdmission::Again;
        }
        let before = mem::replace(
            entry,
            ReceivedCall {
                generation,
                is_taken: true,
                is_cancelled: false,
                credit: header.count.into(),
                deadline,
                waker: None,
            },
        );
        drop(calls);
        // The handler of the call that had this number before finds that its call is cancelled.
        if let Some(waker) = before.waker {
            waker.wake();
        }
        CallAdmission::Yes
    }

    /// Notes that the caller does not wait any more.
    pub(super) fn cancel(&self, id: CallId) {
        self.change(id, |entry| entry.is_cancelled = true);
    }

    /// Notes that the caller takes this many more items.
    pub(super) fn add_credit(&self, id: CallId, count: u16) {
        self.change(id, |entry| {
            entry.credit = entry.credit.saturating_add(count.into());
        });
    }

    fn change(&self, id: CallId, change: impl FnOnce(&mut ReceivedCall)) {
        let waker = self.calls().entry(id).and_then(|entry| {
            change(entry);
            entry.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that the caller has left, and ends its calls.
    pub(super) fn is_gone(&self) {
        self.calls().is_gone = true;
        self.wake_waiting();
        if let Some(outbox) = self.outbox.get() {
            outbox.close();
        }
        let _unsaid = lock(&self.unsaid).take();
        self.session.node().wake_drain();
        self.free_name();
    }

    fn wake_waiting(&self) {
        let wakers: Vec<Waker> = {
            let mut calls = self.calls();
            let entries = calls.by_number.iter_mut();
            entries.filter_map(|entry| entry.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lets another caller of the name be answered, although handlers of this one have yet to end.
    pub(super) fn free_name(&self) {
        if let Some(outbox) = self.outbox.get() {
            outbox.free_name();
        }
    }

    // ---- Questions of handlers -----------------------------------------------------------

    /// Takes in the frames that have come from all callers.
    pub(super) fn attend(&self) {
        if let Some(shared) = self.shared.get() {
            shared.attend();
        }
    }

    /// Returns whether the call's answer is no longer waited for.
    pub(super) fn is_cancelled(&self, id: CallId) -> bool {
        let mut calls = self.calls();
        calls.is_gone
            || calls.entry(id).is_none_or(|entry| {
                let is_late = |deadline| Instant::now() >= deadline;
                entry.is_cancelled || entry.deadline.is_some_and(is_late)
            })
    }

    /// Returns whether the caller has forgotten the call.
    pub(super) fn is_dropped(&self, id: CallId) -> bool {
        let mut calls = self.calls();
        calls.is_gone || calls.entry(id).is_none_or(|entry| entry.is_cancelled)
    }

    /// Looks for the right to send an item. `None` while the caller has as many items as it takes.
    pub(super) fn look_for_credit(&self, id: CallId) -> Option<Result<(), SendError>> {
        if self.is_cancelled(id) {
            return Some(Err(errors::cancelled()));
        }
        let is_closed = self
            .shared
            .get()
            .is_none_or(|shared| shared.is_closed.load(Ordering::Relaxed));
        let mut calls = self.calls();
        match calls.entry(id) {
            Some(entry) if entry.credit > 0 => Some(Ok(())),
            Some(_) if !is_closed => None,
            _ => Some(Err(errors::cancelled())),
        }
    }

    /// Notes that an item was sent.
    pub(super) fn use_credit(&self, id: CallId) {
        if let Some(entry) = self.calls().entry(id) {
            // A caller that uses the name of a call anew may have taken the credit back.
            entry.credit = entry.credit.saturating_sub(1);
        }
    }

    /// Has a handler woken by its caller's next frame, and at its call's deadline.
    pub(super) fn set_waker(&self, id: CallId, waker: Option<&Waker>) {
        let (_before, alarm) = {
            let mut calls = self.calls();
            let Some(entry) = calls.entry(id) else {
                return;
            };
            let before = mem::replace(&mut entry.waker, waker.cloned());
            let deadline = entry.deadline.filter(|_| waker.is_some());
            (before, deadline.filter(|at| calls.alarm.wants(*at)))
        };
        if let Some(at) = alarm {
            self.session.wake_at(at, &self.waker);
        }
    }

    /// Ends a call that is answered, or never will be.
    pub(super) fn finish(&self, id: CallId) {
        let _waker = self.calls().entry(id).and_then(|entry| {
            entry.is_taken = false;
            entry.waker.take()
        });
    }

    /// Returns the condition that an item may be sent, or the caller no longer waits for it.
    pub(super) fn for_credit(&self, id: CallId) -> ForCredit<'_> {
        ForCredit { client: self, id }
    }
}

impl Calls {
    fn entry(&mut self, id: CallId) -> Option<&mut ReceivedCall> {
        let entry = self.by_number.get_mut(id.number as usize)?;
        (entry.is_taken && entry.generation == id.generation).then_some(entry)
    }

    /// Takes the wakers of calls whose time is over, and returns when to look again.
    fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let entries = self.by_number.iter_mut();
        let calls = entries.map(|entry| (&mut entry.waker, entry.deadline));
        self.alarm.expire(now, calls)
    }
}
