//! A queue pair of unreliable datagrams (UD): messages to any other such queue pair, each of them in
//! one packet.
//!
//! A datagram names its receiver: an [address handle](AddressHandle), a queue pair and that one's
//! [`QKey`]. It is at most as long as the [path MTU](DatagramQueuePair::max_bytes). Nobody
//! acknowledges it: one that is lost on the way, finds no receive, does not fit into it, or carries
//! another Q_Key than the receiver's is dropped, and neither end is notified.
//!
//! A receive takes 40 bytes more than the payload, for the route that the datagram came by:
//! [`DatagramBuffer`] has both. Its completion tells the sender ([`WorkCompletion::datagram`]), from
//! which, with the 40 bytes, the way back is made
//! ([`AddressHandle::from_completion`]).
//!
//! The states are RESET → INIT ([`build_datagram`](QueuePairBuilder::build_datagram)) → RTR → RTS
//! ([`start`](DatagramQueuePair::start)); there is no peer to connect with. A send that fails at this
//! end leads to SQE, and [`recover_sends`](DatagramQueuePair::recover_sends) back to RTS.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ibex_base::fork;

use super::{AnyPair, QueuePairObject, address::OwnedAddressHandle, kind::Datagram};
use crate::{
    AddressHandle, ConnectionSettings, DatagramEntry, FirstSequence, Gid, LocalPort, PostError,
    PushError, QueuePair, QueuePairBuilder, QueuePairKind, QueuePairState, ReceiveBatch,
    ReceiveQueue, ReceiveRequest, SendRequest, VerbsError, WorkId,
    abi::queue_pair_attributes::QueuePairAttributes,
};

/// A queue pair of unreliable datagrams
/// ([`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html), `IBV_QPT_UD`).
pub type DatagramQueuePair = QueuePair<Datagram>;

/// The key that datagrams for a queue pair have to carry.
///
/// A key whose highest bit is set is controlled: only a privileged program may give it to a queue
/// pair, and a datagram that is sent with one carries the key of the sending queue pair in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// Returns whether the key is controlled.
    #[must_use]
    pub fn is_controlled(self) -> bool {
        self.0 >> 31 == 1
    }
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct DatagramDestination<'address> {
    /// The way to it, or a multicast group.
    pub address: &'address AddressHandle,
    /// Its queue pair; [`MulticastGroup::QUEUE_PAIR`] for a group.
    pub queue_pair: u32,
    /// The key of its queue pair.
    pub key: QKey,
}

/// What only a queue pair of datagrams has.
#[derive(Debug)]
pub(super) struct Datagrams {
    groups: Vec<MulticastGroup>,
    pair: Arc<QueuePairObject>,
    /// The longest datagram, in bytes; 0 until the queue pair is started.
    max_bytes: u32,
    /// The address handles of the batch that is being filled.
    pending: Vec<Arc<OwnedAddressHandle>>,
    /// The address handle of each datagram that is outstanding.
    outstanding: VecDeque<Arc<OwnedAddressHandle>>,
    /// The address handle of the last datagram, by which the queue is drained.
    pub(super) last: Option<Arc<OwnedAddressHandle>>,
}

impl QueuePairBuilder {
    /// Makes a queue pair for datagrams that carry `key`, and brings it to INIT, where it takes
    /// receives.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build). [`VerbsError::Setting`] if receives complete into an
    /// extended queue, whose completions do not name the sender.
    pub fn build_datagram(self, port: u8, key: QKey) -> Result<DatagramQueuePair, VerbsError> {
        if self.receive_completions.is_extended() {
            let given = "an extended one, which does not name the sender";
            let allowed = "a plain one (`CompletionPolling::Plain`)";
            let setting = "the completion queue of receives";
            return Err(VerbsError::setting(setting, given, allowed));
        }
        let settings = ConnectionSettings::default();
        let mut pair: DatagramQueuePair =
            self.build_kind(QueuePairKind::Datagram, port, key.0, settings)?;
        pair.any.datagrams = Some(Box::new(Datagrams {
            groups: Vec::new(),
            pair: Arc::clone(&pair.any.inner),
            max_bytes: 0,
            pending: Vec::new(),
            outstanding: VecDeque::new(),
            last: None,
        }));
        Ok(pair)
    }
}

impl DatagramQueuePair {
    /// Lets the queue pair receive and send: INIT → RTR → RTS. Returns the longest datagram, in bytes.
    ///
    /// # Errors
    /// [`StateChangeError`](crate::StateChangeError) with all attributes. The queue pair has to be dropped
    /// then.
    pub fn start(&mut self, first: FirstSequence, local: LocalPort) -> Result<u32, VerbsError> {
        self.any.state.local = Some(local);
        let receive = QueuePairAttributes::to(QueuePairState::ReadyToReceive);
        self.any.modify(&receive)?;
        let send = ConnectionSettings::default().to_send(first, 0);
        self.any.modify(&send)?;
        let max_bytes = local.attributes.active_mtu.bytes();
        self.datagrams().max_bytes = max_bytes;
        Ok(max_bytes)
    }

    /// Returns the longest datagram, in bytes: what a packet of the port carried when the queue pair
    /// was [started](Self::start). 0 before that.
    #[must_use]
    pub fn max_bytes(&self) -> u32 {
        self.any.datagrams.as_ref().map_or(0, |it| it.max_bytes)
    }

    /// Begins a batch of receives; `None` if the queue pair takes from a shared receive queue, to
    /// which a [`DatagramBuffer`](crate::DatagramBuffer)'s whole range is posted.
    pub fn receive_batch<'memory>(&mut self) -> Option<DatagramReceives<'_, 'memory>> {
        let queue = self.any.receives.as_mut()?;
        Some(DatagramReceives(queue.batch()))
    }

    /// Notes that this many receives of its own queue have completed.
    ///
    /// # Panics
    /// If fewer receives were outstanding, or the queue pair takes from a shared queue.
    pub fn retire_receives(&mut self, receives: u32) {
        self.own_receives().retire(receives);
    }

    /// Returns the number of receives that may still be posted.
    ///
    /// # Panics
    /// If the queue pair takes from a shared queue.
    #[must_use]
    pub fn receive_room(&mut self) -> u32 {
        let queue = self.own_receives();
        queue.capacity() - queue.outstanding()
    }

    fn own_receives(&mut self) -> &mut ReceiveQueue {
        let queue = self.any.receives.as_mut();
        queue.expect("a queue pair with a receive queue of its own")
    }

    /// Takes notice that this many datagrams, the oldest ones, have gone out.
    ///
    /// # Panics
    /// If fewer were outstanding.
    pub fn retire_sends(&mut self, sends: u32) {
        self.any.retire_sends(sends);
        self.datagrams().outstanding.drain(..sends as usize);
    }

    /// Begins a batch of datagrams.
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn send_batch<'memory>(&mut self) -> DatagramBatch<'_, 'memory> {
        self.datagrams().pending.clear();
        self.any.table.clear();
        DatagramBatch {
            pair: &mut self.any,
            memory: PhantomData,
        }
    }

    /// Receives what is sent to a multicast group, beside what is sent to this queue pair
    /// ([`ibv_attach_mcast(3)`](https://man7.org/linux/man-pages/man3/ibv_attach_mcast.3.html)).
    /// Datagrams to the group have to carry the queue pair's own [`QKey`]. A group that the queue pair
    /// is attached to already changes nothing.
    ///
    /// The port itself has to be a member of the group: on InfiniBand the subnet manager makes it one,
    /// on Ethernet switches that watch memberships want an IP socket that has joined.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    pub fn attach_multicast(&mut self, group: MulticastGroup) -> Result<(), VerbsError> {
        let datagrams = self.datagrams();
        if datagrams.groups.contains(&group) {
            return Ok(());
        }
        let context = &datagrams.pair.domain.context;
        // SAFETY: the queue pair is alive.
        let attached = unsafe {
            let provider = context.provider();
            provider.attach_multicast(datagrams.pair.handle, group.gid, group.lid)
        };
        let consequence = "datagrams to that group do not arrive";
        attached.map_err(context.failed("ibv_attach_mcast", consequence))?;
        datagrams.groups.push(group);
        Ok(())
    }

    /// Ends [`attach_multicast`](Self::attach_multicast).
    ///
    /// # Errors
    /// [`VerbsError::Setting`] if the queue pair is not attached to the group, otherwise the device's
    /// refusal.
    pub fn detach_multicast(&mut self, group: MulticastGroup) -> Result<(), VerbsError> {
        let datagrams = self.datagrams();
        let Some(place) = datagrams.groups.iter().position(|one| *one == group) else {
            let attached: Vec<_> = datagrams.groups.iter().map(ToString::to_string).collect();
            let attached = match attached.is_empty() {
                true => "none".to_owned(),
                false => attached.join(", "),
            };
            let allowed = format!("one that the queue pair is attached to: {attached}");
            return Err(VerbsError::setting("the multicast group", group, allowed));
        };
        let context = &datagrams.pair.domain.context;
        let failed = context.failed(
            "ibv_detach_mcast",
            "datagrams to that group go on to arrive",
        );
        datagrams.detach(group).map_err(failed)?;
        datagrams.groups.remove(place);
        Ok(())
    }

    fn datagrams(&mut self) -> &mut Datagrams {
        self.any.datagrams()
    }
}

impl AnyPair {
    fn datagrams(&mut self) -> &mut Datagrams {
        let datagrams = self.datagrams.as_mut();
        datagrams.expect("it was made for datagrams")
    }
}

impl Datagrams {
    fn detach(&self, group: MulticastGroup) -> Result<(), rustix::io::Errno> {
        let provider = self.pair.domain.context.provider();
        // SAFETY: the queue pair is alive.
        unsafe { provider.detach_multicast(self.pair.handle, group.gid, group.lid) }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // A queue pair that is attached cannot be destroyed.
        for group in &self.groups {
            if let Err(errno) = self.detach(*group) {
                let context = &self.pair.domain.context;
                context.undestroyed("ibv_detach_mcast", errno);
            }
        }
    }
}

/// A multicast group of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastGroup {
    gid: Gid,
    lid: u16,
}

impl MulticastGroup {
    /// The number that stands for all queue pairs of a group.
    pub const QUEUE_PAIR: u32 = 0x00ff_ffff;

    /// Names a group by its GID, and on InfiniBand by the LID that the subnet manager gave it; on
    /// Ethernet `lid` is 0.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] if the GID is not that of a group, or the LID not one of groups.
    pub fn new(gid: Gid, lid: u16) -> Result<Self, VerbsError> {
        if !gid.is_multicast() {
            let setting = "the GID of a multicast group";
            let allowed = "one that begins with ff, or that of an IPv4 multicast address";
            return Err(VerbsError::setting(setting, gid, allowed));
        }
        if lid != 0 && !(0xc000..=0xfffe).contains(&lid) {
            let (setting, given) = ("the LID of a multicast group", format!("{lid:#x}"));
            let allowed = "0xc000 to 0xfffe, or 0 on Ethernet";
            return Err(VerbsError::setting(setting, given, allowed));
        }
        Ok(Self { gid, lid })
    }

    /// Returns the group's GID.
    #[must_use]
    pub fn gid(self) -> Gid {
        self.gid
    }

    /// Returns the group's LID; 0 on Ethernet.
    #[must_use]
    pub fn lid(self) -> u16 {
        self.lid
    }
}

impl fmt::Display for MulticastGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (LID {:#x})", self.gid, self.lid)
    }
}

/// Datagrams that are about to be posted, with one call. Dropped, it posts nothing.
#[derive(Debug)]
pub struct DatagramBatch<'pair, 'memory> {
    pair: &'pair mut AnyPair,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> DatagramBatch<'_, 'memory> {
    /// Adds a datagram: a [send](SendRequest::send), with all that a send can have but a fence.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was. Refused here are a datagram that is longer than
    /// [`max_bytes`](DatagramQueuePair::max_bytes), which a device would lose without notice, an
    /// address handle of another protection domain, and requests other than sends.
    pub fn push(
        &mut self,
        request: &SendRequest<'_, 'memory>,
        to: &DatagramDestination<'_>,
    ) -> Result<(), PushError> {
        request.check_kind(QueuePairKind::Datagram)?;
        let (bytes, limit) = (request.bytes(), self.pair.datagrams().max_bytes);
        if bytes > u64::from(limit) {
            return Err(PushError::DatagramTooLong { bytes, limit });
        }
        let address = &to.address.inner;
        if !Arc::ptr_eq(&address.domain, &self.pair.inner.domain) {
            return Err(PushError::OtherDomain);
        }
        let inline_bytes = self.pair.sizes.inline_bytes;
        let table = self.pair.table_with_room()?;
        table.push_send(request, inline_bytes)?;
        let last = table.last_mut().expect("a request was just pushed");
        last.set_datagram(address.handle.as_ptr(), to.queue_pair, to.key.0);
        self.pair.datagrams().pending.push(Arc::clone(address));
        Ok(())
    }

    /// Posts the datagrams of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    pub fn post(self) -> Result<u32, PostError> {
        let before = self.pair.outstanding;
        let outcome = self.pair.post_batch();
        let posted = (self.pair.outstanding - before) as usize;
        let datagrams = self.pair.datagrams();
        datagrams.pending.truncate(posted);
        datagrams.last = datagrams
            .pending
            .last()
            .or(datagrams.last.as_ref())
            .cloned();
        datagrams.outstanding.extend(datagrams.pending.drain(..));
        outcome
    }
}

/// Receives of datagrams that are about to be posted, with one call. Dropped, it posts nothing.
#[derive(Debug)]
pub struct DatagramReceives<'queue, 'memory>(ReceiveBatch<'queue, 'memory>);

impl<'memory> DatagramReceives<'_, 'memory> {
    /// Adds a receive.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    pub fn push(&mut self, id: WorkId, entry: DatagramEntry<'memory>) -> Result<(), PushError> {
        self.0.push(&ReceiveRequest::new(id, &[entry.0.0]))
    }

    /// Posts the receives of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    pub fn post(self) -> Result<u32, PostError> {
        self.0.post()
    }
}
