//! The parts of a shared memory session beside its wire: a socket that passes descriptors, and
//! bells that the peer rings. Data never passes through them.
//!
//! A channel is open once both its `Open` came over the connection and the peer's block
//! of words over the Unix socket, in whatever order. A sending end tells of its words when it is
//! made, a receiving end once it knows of its sender. So what a sender passes finds its receiver
//! open, and no descriptor is kept for a channel that the peer may never open.
//!
//! A sending end that is made for a receiving end which is there already tells of its words once it
//! is open itself. So a subscriber whose end is open knows that its publisher's is.

mod arriving;
mod bell;
mod passing;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
};

use ibex_base::sync::Asymmetry;
use ibex_protocol::{
    format::control::{CloseReason, Role},
    id_map::IdMap,
    session::{Agreed, CannotOpen},
};
use ibex_ring::{
    end_status::{ReceiverWords, SenderWords, Words},
    memory::{MemoryError, RegionFile},
};
use rustix::event::epoll::{self, EventData, EventFlags};

pub(super) use arriving::MOST_PASSED;

use crate::{
    node::SessionShared,
    session::EndCause,
    shared_memory::{
        Bells, ControlBlock, ControlSegments, FdSocket, PeerControlSegment, Provided,
        SegmentReader, SegmentShare, UnixWires, message::ShmMessage, most_segments, segment_bytes,
    },
    wire::EpollToken,
};

/// A session's socket for descriptors, its bells, and the words of its channels' ends.
pub(crate) struct SharedMemory {
    pub(in crate::connection) socket: FdSocket,
    /// The bells: the peer rings this end, and this end rings the peer.
    pub(in crate::connection) bells: Arc<Bells>,
    /// Messages that the socket has not accepted yet.
    pub(in crate::connection) outbox: VecDeque<(ShmMessage, Option<Passed>)>,
    /// Regions of the program that the peer maps, by their sending ends and slots.
    regions: Vec<(u32, u32, Weak<RegionFile>)>,

    // Words of channel ends.
    /// The number of ends that each side may have open.
    max_channels: usize,
    /// The peer's process, if it is known.
    reader: Option<SegmentReader>,
    shares: Vec<Arc<SegmentShare>>,
    /// The blocks of ends that the peer is notified of later: of receiving ends whose senders are not known
    /// yet, and of sending ends that are not open yet.
    unnotified: IdMap<(u32, u32)>,
    /// The words of closed receiving ends, which their senders may still read.
    closed: IdMap<Words<ReceiverWords>>,
    pub(in crate::connection) peer_segments: Vec<Arc<PeerControlSegment>>,
    /// The peer's blocks, by role and id, until the channel opens.
    pub(in crate::connection) blocks: [IdMap<(u32, u32)>; 2],
    /// Channels that both ends have opened and whose peer's block has not come.
    pub(in crate::connection) opening: Vec<Opening>,
    pub(in crate::connection) greeted: bool,
    /// The next message needs a descriptor that this process may not open now.
    pub(in crate::connection) lacks_descriptor: bool,
    /// The socket holds more messages than one check takes.
    pub(in crate::connection) has_more: bool,
    /// Ends that the peer has closed, not in order, after messages that this end has not taken yet.
    pub(in crate::connection) closed_behind: Vec<(u32, CloseReason)>,
    /// The peer has sent its goodbye after messages that this end has not taken yet.
    pub(in crate::connection) goodbye: Option<EndCause>,
}

/// The descriptor that a message carries.
pub(in crate::connection) enum Passed {
    /// It is closed when the message is sent.
    Own(OwnedFd),
    /// A region without a description for the peer.
    Region(Arc<RegionFile>),
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Region(file) => file.as_fd(),
        }
    }
}

/// A channel that both ends have opened.
#[derive(Clone, Copy)]
pub(in crate::connection) struct Opening {
    pub(in crate::connection) end: u32,
    pub(in crate::connection) role: Role,
    pub(in crate::connection) peer_end: u32,
    pub(in crate::connection) agreed: Agreed,
}

impl SharedMemory {
    /// Makes the shared memory parts of a session. A peer that supports resting rings also supports
    /// control segments of several lengths.
    pub(in crate::connection) fn new(
        wires: UnixWires,
        shared: &SessionShared,
        max_channels: usize,
        epoll: &OwnedFd,
    ) -> io::Result<Self> {
        let UnixWires { socket, bells, .. } = wires;
        let add = |fd: BorrowedFd<'_>, wire: EpollToken, flags| {
            epoll::add(epoll, fd, EventData::new_u64(wire.token(shared.id)), flags)
        };
        bells
            .with_fd(|fd| add(fd, EpollToken::Bell, EventFlags::IN))
            .transpose()?;
        // Edge-triggered, because a message may stay in the socket while this process lacks a
        // descriptor.
        add(
            socket.as_fd(),
            EpollToken::Unix,
            EventFlags::IN | EventFlags::ET,
        )?;
        let peer = shared.peer();
        let asymmetry = shared.asymmetry() == Asymmetry::Membarrier;
        Ok(Self {
            socket,
            bells,
            outbox: VecDeque::from([(ShmMessage::Hello { asymmetry }, None)]),
            regions: Vec::new(),
            max_channels,
            reader: peer.pid.map(|pid| SegmentReader {
                pid,
                incarnation: peer.incarnation,
            }),
            shares: Vec::new(),
            unnotified: IdMap::new(),
            closed: IdMap::new(),
            peer_segments: Vec::new(),
            blocks: Default::default(),
            opening: Vec::new(),
            greeted: false,
            lacks_descriptor: false,
            has_more: false,
            closed_behind: Vec::new(),
            goodbye: None,
        })
    }

    /// Returns whether the peer is known to have passed messages that this end has not taken yet.
    pub(in crate::connection) fn is_behind(&self) -> bool {
        self.lacks_descriptor || self.has_more
    }

    pub(in crate::connection) fn unregister(&self, epoll: &OwnedFd) {
        self.stop_hearing(epoll);
        let _ = epoll::delete(epoll, &self.socket);
    }

    /// Takes the bell out of the epoll set, because the peer will not ring any more.
    pub(in crate::connection) fn stop_hearing(&self, epoll: &OwnedFd) {
        let _ = self.bells.with_fd(|fd| epoll::delete(epoll, fd));
    }

    /// Returns whether memory that messages of sending end `end` lie in is still to be passed.
    pub(in crate::connection) fn holds_back(&self, end: u32) -> bool {
        self.outbox.iter().any(|(message, _)| match message {
            ShmMessage::Ring { end: of, .. } | ShmMessage::Large { end: of, .. } => *of == end,
            _ => false,
        })
    }

    /// Frees the spare capacity of the queues.
    pub(in crate::connection) fn rest(&mut self) {
        self.outbox.shrink_to_fit();
        self.regions.shrink_to_fit();
        self.opening.shrink_to_fit();
        self.unnotified.shrink_to_fit();
        self.closed_behind.shrink_to_fit();
        self.closed.shrink_to_fit();
        self.blocks.iter_mut().for_each(IdMap::shrink_to_fit);
    }

    /// Returns a block for an end of this node, in a new segment if all are full. Dropping the
    /// block frees it.
    ///
    /// # Errors
    /// There is not enough memory, or ends that are over take all blocks, since the program keeps
    /// messages of theirs.
    pub(in crate::connection) fn lease_block(
        &mut self,
        segments: &ControlSegments,
    ) -> Result<LeasedBlock, CannotOpen> {
        let mut shares = self.shares.iter().enumerate();
        let free = shares.find_map(|(segment, share)| Some((segment, share.lease_block()?)));
        let (segment, block) = match free {
            Some(found) => found,
            None => {
                let index = self.shares.len();
                let limit = self.max_channels;
                if index >= most_segments(limit) {
                    return Err(CannotOpen::TooMany { limit });
                }
                let refused = |error: MemoryError| CannotOpen::Memory(error.to_string());
                let bytes = segment_bytes(index as u32);
                let provided = segments.provide(self.reader, bytes);
                let Provided { share, block, fd } = provided.map_err(refused)?;
                self.shares.push(share);
                let message = ShmMessage::Control {
                    index: index as u32,
                };
                self.outbox.push_back((message, Some(Passed::Own(fd))));
                (index, block)
            }
        };
        let segment = segment as u32;
        Ok(LeasedBlock { segment, block })
    }

    /// Makes the words of sending end `end`. The peer is notified of them now, or, if the end `is_paired`
    /// from the beginning, when it is open.
    pub(in crate::connection) fn give_to_sender(
        &mut self,
        end: u32,
        leased: LeasedBlock,
        is_paired: bool,
    ) -> Words<SenderWords> {
        let LeasedBlock { segment, block } = leased;
        let place = (segment, block.index());
        match is_paired {
            true => _ = self.unnotified.insert(end, place),
            false => self.tell_block(end, Role::Sender, place),
        }
        block.into_sender_words()
    }

    /// Makes the words of receiving end `end`, whose ring begins at `first_position`. The peer is
    /// notified of them when the channel is [`opened`](Self::opened).
    pub(in crate::connection) fn give_to_receiver(
        &mut self,
        end: u32,
        first_position: u64,
        leased: LeasedBlock,
    ) -> Words<ReceiverWords> {
        let LeasedBlock { segment, block } = leased;
        self.unnotified.insert(end, (segment, block.index()));
        block.into_receiver_words(first_position)
    }

    /// Keeps the words of receiving end `end`, which is closed and whose peer does not know it yet.
    pub(in crate::connection) fn keep_words(&mut self, end: u32, words: Words<ReceiverWords>) {
        self.closed.insert(end, words);
    }

    /// Drops the words of `end`, whose counterpart at the peer is gone too.
    pub(in crate::connection) fn forget_words(&mut self, end: u32) {
        self.regions.retain(|(of, ..)| *of != end);
        self.closed.remove(end);
        self.unnotified.remove(end);
    }

    /// Tells the peer where the words of `end` are, unless it was notified.
    pub(crate) fn tell_untold(&mut self, end: u32, role: Role) {
        if let Some(place) = self.unnotified.remove(end) {
            self.tell_block(end, role, place);
        }
    }

    fn tell_block(&mut self, end: u32, role: Role, (segment, block): (u32, u32)) {
        let message = ShmMessage::End {
            end,
            role,
            segment,
            block,
        };
        self.outbox.push_back((message, None));
    }

    /// Notes that both ends have opened the channel.
    pub(in crate::connection) fn opened(
        &mut self,
        end: u32,
        role: Role,
        peer_end: u32,
        agreed: Agreed,
    ) {
        if role == Role::Receiver {
            self.tell_untold(end, role);
        }
        self.opening.push(Opening {
            end,
            role,
            peer_end,
            agreed,
        });
    }
}

/// A block that belongs to no end yet.
#[derive(Debug)]
pub(in crate::connection) struct LeasedBlock {
    segment: u32,
    block: ControlBlock,
}
