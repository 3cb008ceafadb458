//! How the objects of the fake are made, changed and described.

use std::collections::VecDeque;
use std::fs;

use rustix::io::Errno;

use super::{
    Call, FakeExtended,
    world::{Batch, FakeCompletions, Maker, State, unring},
};
use crate::{
    abi::{
        access_flags, attribute_mask::AttributeMask, queue_pair_attributes::QueuePairAttributes,
        queue_pair_state::QueuePairState,
    },
    error::VerbsError,
    provider::{CompletionInit, QueriedPair, SharedReceiveAttributes},
};

impl State {
    pub(super) fn modify(
        &mut self,
        id: u64,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        let pair = &self.pairs[&id];
        let taken = pair.kind.attributes_of(pair.state, attributes.state);
        if taken.map(|taken| taken | AttributeMask::STATE) != Some(mask) {
            return Err(Errno::INVAL);
        }
        if let (true, Some(route)) = (
            mask.contains(AttributeMask::ADDRESS),
            attributes.address.route,
        ) {
            // The kernel does the same when the index has moved.
            let ports = &self.device_of(pair.context).ports;
            let port = ports.get(usize::from(attributes.address.port).wrapping_sub(1));
            let gids = &port.ok_or(Errno::INVAL)?.gids;
            let index = u32::from(route.source_index);
            if !gids.iter().any(|gid| gid.index == index) {
                return Err(Errno::NODATA);
            }
        }
        let pair = self.pairs.get_mut(&id).ok_or(Errno::BADF)?;
        pair.attributes.set(attributes, mask);
        if mask.contains(AttributeMask::DESTINATION) {
            pair.destination = attributes.destination.into();
        }
        if mask.contains(AttributeMask::ACCESS_FLAGS) {
            pair.access = attributes.access_flags;
        }
        if mask.contains(AttributeMask::Q_KEY) {
            pair.q_key = attributes.q_key;
        }
        if mask.contains(AttributeMask::RESPONDER_RESOURCES) {
            pair.responder_resources = attributes.responder_resources;
        }
        match attributes.state {
            QueuePairState::Error => self.die(id),
            QueuePairState::Reset => {
                pair.state = QueuePairState::Reset;
                pair.sends.clear();
                pair.receives.clear();
                pair.silent = 0;
            }
            other => {
                pair.state = other;
                self.progress();
            }
        }
        Ok(())
    }
}

impl State {
    /// Removes a completion queue, and its events from its channel.
    pub(super) fn end_completions(&mut self, id: u64) {
        let queue = self.completions.remove(&id).and_then(|queue| queue.channel);
        if let Some(channel) = queue.and_then(|channel| self.channels.get_mut(&channel)) {
            let before = channel.events.len();
            channel.events.retain(|of| *of != id);
            (channel.events.len()..before).for_each(|_| unring(&channel.fd));
        }
    }

    pub(super) fn describe_shared(&self, id: u64) -> Result<SharedReceiveAttributes, Errno> {
        let queue = self.shared.get(&id).ok_or(Errno::BADF)?;
        Ok(SharedReceiveAttributes {
            requests: queue.capacity as u32,
            entries: queue.entries as u32,
            limit: queue.limit as u32,
        })
    }

    pub(super) fn describe_pair(&self, id: u64) -> Result<QueriedPair, Errno> {
        let pair = self.pairs.get(&id).ok_or(Errno::BADF)?;
        Ok(QueriedPair {
            attributes: QueuePairAttributes {
                state: pair.state,
                ..pair.attributes
            },
            sizes: pair.sizes,
            is_draining: false,
        })
    }

    /// Takes the list of devices, as `ibv_get_device_list` does, unless a test refuses it.
    pub(super) fn list_devices(&mut self) -> Result<(), VerbsError> {
        self.grant(Call::Devices).map_err(|source| match source {
            Errno::NOSYS => VerbsError::NoKernelSupport {
                source,
                hidden: None,
            },
            source => VerbsError::DeviceList { source },
        })
    }

    pub(super) fn new_completions(
        &mut self,
        context: u64,
        init: &CompletionInit,
        channel: Option<u64>,
        extended: Option<FakeExtended>,
    ) -> Result<(u64, u32), Errno> {
        let &CompletionInit {
            entries,
            vector,
            tag,
            ..
        } = init;
        let attributes = &self.device_of(context).attributes;
        if entries == 0
            || entries > attributes.max_completions
            || vector >= attributes.completion_vectors
        {
            return Err(Errno::INVAL);
        }
        let capacity = self.device_of(context).queue_size(entries);
        let id = self.new_id();
        self.completions.insert(
            id,
            FakeCompletions {
                context,
                tag,
                vector,
                capacity: capacity as usize,
                ready: VecDeque::new(),
                extended,
                batch: Batch::None,
                channel,
                armed: None,
                unacknowledged: 0,
                maker: Maker::calls(),
            },
        );
        Ok((id, capacity))
    }
}

/// Fails as the kernel does where memory that is mapped for reading alone is registered with a right
/// to write. The right to bind windows is one (`ib_access_writable`).
pub(super) fn refuse_read_only(start: u64, access: u32) -> Result<(), Errno> {
    const WRITES: u32 = access_flags::LOCAL_WRITE
        | access_flags::REMOTE_WRITE
        | access_flags::REMOTE_ATOMIC
        | access_flags::WINDOW_BIND;
    if access & WRITES == 0 {
        return Ok(());
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_read_only = maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap_or_default();
        let (first, end) = range.split_once('-').unwrap_or_default();
        let number = |hexadecimal| u64::from_str_radix(hexadecimal, 16).unwrap_or(0);
        (number(first)..number(end)).contains(&start) && rest.starts_with("r-")
    });
    if is_read_only {
        Err(Errno::FAULT)
    } else {
        Ok(())
    }
}
