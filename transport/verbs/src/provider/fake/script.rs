//! Scripts of faults: which request or call goes wrong, and how.

use rustix::io::Errno;

use super::{
    Call, FakeProvider, PostedSend,
    delivery::{Attempt, RETRY_EXCEEDED},
    world::State,
};
use crate::{
    abi::{
        completion_status::CompletionStatus, queue_pair_kind::QueuePairKind, wc_opcode, wr_opcode,
    },
    provider::RawEvent,
};

/// A list of faults, each at a request or a call that is counted, from 1, since the script was
/// [played](FakeProvider::play). Nothing depends on time or chance, so a test that posts and polls
/// the same sees the same.
///
/// Sends are counted when they are posted, in lists one by one, over all queue pairs, or over those
/// of one from [`of_queue_pair`](Self::of_queue_pair) on. A fault happens once. Where two are planned
/// for one request, the second happens at the next one.
///
/// Here the second of three datagrams is lost, and nobody tells its sender:
///
/// ```
/// use ibex_verbs::provider::fake::{FakeDevice, FakeProvider, FaultScript};
/// use ibex_verbs::*;
///
/// let fake = FakeProvider::new(vec![FakeDevice::soft_roce("rxe0", 1, [192, 0, 2, 1])]);
/// let device = Device::open(&fake.provider(), "rxe0")?;
/// let domain = ProtectionDomain::new(&device)?;
/// let mut completions = CompletionQueue::polled(&device, 64)?;
/// let key = QKey(1);
/// let mut pair = QueuePairBuilder::new(&domain, &completions).build_datagram(1, key)?;
/// let local = LocalPort::with_gid(&device, 1, |_| true)?;
/// let first = FirstSequence::from_random(1);
/// pair.start(first, local)?;
///
/// let memory = AnonymousMemory::new(4096).map_err(|error| VerbsError::Other(error.into()))?;
/// let memory = MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE)?;
/// for slot in 0..3 {
///     let mut batch = pair.receive_batch().expect("receives of its own");
///     let buffer = DatagramBuffer::new(1000 * slot as usize, 100);
///     batch.push(WorkId::new(Operation::Receive, slot, 0), buffer.entry(&memory)).unwrap();
///     batch.post().unwrap();
/// }
///
/// fake.play(&FaultScript::new().drop_send(2));
/// let to_itself = pair.endpoint(first, &local);
/// let address = AddressHandle::to(&domain, &local, &to_itself, ConnectionSettings::default())?;
/// for slot in 0..3 {
///     let to = DatagramDestination { address: &address, queue_pair: pair.number(), key };
///     let send = SendRequest::send(WorkId::new(Operation::Send, slot, 0), &[]).signaled();
///     let mut batch = pair.send_batch();
///     batch.push(&send, &to).unwrap();
///     batch.post().unwrap();
/// }
/// let mut room = [WorkCompletion::EMPTY; 8];
/// let done = completions.poll(&mut room)?;
/// assert!(done.iter().all(|one| one.outcome().is_ok()));
/// let count = |of| done.iter().filter(|one| one.id().operation() == of).count();
/// assert_eq!((count(Operation::Send), count(Operation::Receive)), (3, 2));
/// # Ok::<(), VerbsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultScript {
    steps: Vec<Step>,
    queue_pair: Option<u32>,
}

/// A fault, and the requests or calls that are still to come before it, itself included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    counted: Counted,
    left: u64,
    fault: Fault,
}

/// The requests or calls that are counted, of one queue pair or of all.
#[derive(Clone, Copy, Debug)]
enum Counted {
    Calls(Call),
    Sends(Option<u32>),
    Receives(Option<u32>),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Refuse(Errno),
    Send(SendFault),
    FailReceive { status: u32, vendor_error: u32 },
    RemoveDevice,
}

/// The fault of a send, which happens when it would go out.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendFault {
    Drop,
    Delay { polls: u32 },
    Fail { status: u32, vendor_error: u32 },
}

/// A send that has not gone out.
#[derive(Clone, Debug)]
pub(super) struct WaitingSend {
    pub(super) send: PostedSend,
    pub(super) fault: Option<SendFault>,
    /// The polls that were made before it was posted.
    polls_before: u64,
}

impl FaultScript {
    /// A script without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts the requests of this queue pair alone, for the faults that are added from here on.
    #[must_use]
    pub fn of_queue_pair(mut self, number: u32) -> Self {
        self.queue_pair = Some(number);
        self
    }

    /// Refuses the `nth` call of a kind, whatever queue pair it is for. Each request of a list that is
    /// posted is a call.
    ///
    /// # Panics
    /// If `nth` is 0, as each of these methods does.
    #[must_use]
    pub fn refuse(self, call: Call, nth: u64, errno: Errno) -> Self {
        self.with(Counted::Calls(call), nth, Fault::Refuse(errno))
    }

    /// Loses the `nth` send on its way. A datagram or a message of an unreliable connection completes
    /// all the same. A reliable connection sends again in vain, so that the request fails with
    /// [`RetryExceeded`](CompletionStatus::RetryExceeded) and its queue pair dies. Requests that stay
    /// in the device, which bind and invalidate, are not lost.
    #[must_use]
    pub fn drop_send(self, nth: u64) -> Self {
        self.with_send(nth, SendFault::Drop)
    }

    /// Has the `nth` send go out `polls` polls of completion queues later, of any queue of the
    /// provider's devices; those behind it in its send queue wait with it. The wait also ends when a
    /// completion queue is armed, because its owner may sleep then until something comes.
    #[must_use]
    pub fn delay_send(self, nth: u64, polls: u32) -> Self {
        self.with_send(nth, SendFault::Delay { polls })
    }

    /// Fails the `nth` send with a status. Its queue pair dies of it, or, where it is an unreliable
    /// one, sends nothing more.
    #[must_use]
    pub fn fail_send(
        self,
        nth: u64,
        status: impl Into<CompletionStatus>,
        vendor_error: u32,
    ) -> Self {
        let status = status.into().to_raw();
        self.with_send(
            nth,
            SendFault::Fail {
                status,
                vendor_error,
            },
        )
    }

    /// Fails the `nth` receive that a message of a connection takes, with a status. The receiving
    /// queue pair dies of it, and the send fails with
    /// [`RemoteOperation`](CompletionStatus::RemoteOperation).
    #[must_use]
    pub fn fail_receive(
        self,
        nth: u64,
        status: impl Into<CompletionStatus>,
        vendor_error: u32,
    ) -> Self {
        let counted = Counted::Receives(self.queue_pair);
        let status = status.into().to_raw();
        let fault = Fault::FailReceive {
            status,
            vendor_error,
        };
        self.with(counted, nth, fault)
    }

    /// Removes the device to which the `nth` send is posted. It leaves the list of devices, raises
    /// [`AsyncEvent::DeviceFatal`](crate::AsyncEvent::DeviceFatal) at each open context, and all of its queue pairs
    /// die: that send is flushed, and so are those of its list, which have not gone out yet. What was opened before answers with `EIO` to calls that
    /// make, change or query an object; objects can be destroyed.
    #[must_use]
    pub fn remove_device(self, nth: u64) -> Self {
        let counted = Counted::Sends(self.queue_pair);
        self.with(counted, nth, Fault::RemoveDevice)
    }

    fn with_send(self, nth: u64, fault: SendFault) -> Self {
        let counted = Counted::Sends(self.queue_pair);
        self.with(counted, nth, Fault::Send(fault))
    }

    fn with(mut self, counted: Counted, nth: u64, fault: Fault) -> Self {
        assert!(nth > 0, "requests and calls are counted from 1");
        self.steps.push(Step {
            counted,
            left: nth,
            fault,
        });
        self
    }
}

impl FakeProvider {
    /// Plays a script, beside those that are played already; each counts from here on.
    pub fn play(&self, script: &FaultScript) {
        self.world.lock().faults.extend_from_slice(&script.steps);
    }

    /// Refuses the next such call: `play(&FaultScript::new().refuse(call, 1, errno))`.
    pub fn refuse(&self, call: Call, errno: Errno) {
        self.play(&FaultScript::new().refuse(call, 1, errno));
    }
}

impl State {
    /// Counts what `is_meant` means, and takes the first fault whose turn it is.
    fn next_fault(&mut self, is_meant: impl Fn(Counted) -> bool) -> Option<Fault> {
        let mut due = None;
        for (place, step) in self.faults.iter_mut().enumerate() {
            if !is_meant(step.counted) {
                continue;
            }
            match step.left {
                1 if due.is_none() => due = Some(place),
                1 => {}
                _ => step.left -= 1,
            }
        }
        due.map(|place| self.faults.remove(place).fault)
    }

    /// Checks whether a call goes through.
    pub(super) fn grant(&mut self, call: Call) -> Result<(), Errno> {
        let is_meant = |counted| matches!(counted, Counted::Calls(meant) if meant == call);
        match self.next_fault(is_meant) {
            Some(Fault::Refuse(errno)) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Checks whether a call for an open device goes through, which is refused where the device was
    /// removed.
    pub(super) fn grant_at(&mut self, call: Call, context: u64) -> Result<(), Errno> {
        self.grant(call)?;
        match self.contexts.get(&context) {
            Some(context) if context.is_removed => Err(Errno::IO),
            _ => Ok(()),
        }
    }

    /// Adds a request to a send queue.
    pub(super) fn append(&mut self, pair: u64, send: PostedSend) {
        let of = pair as u32;
        let is_meant = |counted| matches!(counted, Counted::Sends(meant) if meant.is_none_or(|meant| meant == of));
        let fault = self.next_fault(is_meant);
        self.posted.push(send.clone());
        let pair = self.pairs.get_mut(&pair).expect("a queue pair");
        let context = pair.context;
        pair.sends.push_back(WaitingSend {
            send,
            fault: match fault {
                Some(Fault::Send(fault)) => Some(fault),
                _ => None,
            },
            polls_before: self.polls,
        });
        if let Some(Fault::RemoveDevice) = fault {
            self.remove_device_of(context);
        }
    }

    /// Returns whether the oldest send of a queue pair has to wait for polls.
    pub(super) fn is_delayed(&self, oldest: &WaitingSend) -> bool {
        match oldest.fault {
            Some(SendFault::Delay { polls }) => self.polls < oldest.polls_before + u64::from(polls),
            _ => false,
        }
    }

    /// Returns what becomes of a send that is lost on its way.
    pub(super) fn lose(&self, number: u32, send: &PostedSend) -> Attempt {
        match self.pairs[&u64::from(number)].kind {
            QueuePairKind::Unreliable | QueuePairKind::Datagram => Attempt::Done {
                opcode: match send.opcode {
                    wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
                    _ => wc_opcode::SEND,
                },
                bytes: 0,
            },
            _ => Attempt::Failed(RETRY_EXCEEDED),
        }
    }

    /// Returns the status and the vendor's error of a receive that is to fail.
    pub(super) fn fault_of_receive(&mut self, pair: u64) -> Option<(u32, u32)> {
        let of = pair as u32;
        let is_meant = |counted| matches!(counted, Counted::Receives(meant) if meant.is_none_or(|meant| meant == of));
        match self.next_fault(is_meant)? {
            Fault::FailReceive {
                status,
                vendor_error,
            } => Some((status, vendor_error)),
            _ => None,
        }
    }

    /// Counts a poll, which may end the wait of sends.
    pub(super) fn note_poll(&mut self) {
        self.polls += 1;
        let mut oldest = self.pairs.values().filter_map(|pair| pair.sends.front());
        if oldest.any(|send| matches!(send.fault, Some(SendFault::Delay { .. }))) {
            self.progress();
        }
    }

    /// Ends the wait of all sends, before their owners sleep.
    pub(super) fn end_delays(&mut self) {
        let mut waited = false;
        for send in self.pairs.values_mut().flat_map(|pair| &mut pair.sends) {
            if let Some(SendFault::Delay { .. }) = send.fault {
                (send.fault, waited) = (None, true);
            }
        }
        if waited {
            self.progress();
        }
    }

    /// Removes the device of a context.
    fn remove_device_of(&mut self, context: u64) {
        let name = self.contexts[&context].device.clone();
        let fatal = RawEvent {
            event_type: 8,
            element: 0,
        };
        for device in self.devices.iter_mut().filter(|one| one.name == name) {
            device.is_listed = false;
        }
        let mut open = Vec::new();
        for (id, context) in &mut self.contexts {
            if context.device == name && !context.is_removed {
                context.is_removed = true;
                context.raise(fatal);
                open.push(*id);
            }
        }
        let pairs = self.pairs.iter();
        let mut died: Vec<_> = pairs
            .filter(|(_, pair)| open.contains(&pair.context))
            .map(|(id, _)| *id)
            .collect();
        died.sort_unstable();
        died.into_iter().for_each(|pair| self.die(pair));
    }
}
