//! The state of a queue pair of any kind, and its way to the next.

use crate::{
    ConnectCause, ConnectionSettings, FirstSequence, LocalPort, Mtu, QueriedPair, QueuePairKind,
    QueuePairState, ReadLimits, RemoteEndpoint, StateChangeError, VerbsError,
    abi::attribute_mask::AttributeMask, abi::queue_pair_attributes::QueuePairAttributes,
    device::DeviceContext, provider::PairHandle,
};

/// The state that a queue pair was last brought to. Its owner destroys the queue pair, and not before
/// the last call.
#[derive(Debug)]
pub(crate) struct PairLifecycle {
    pub(crate) handle: PairHandle,
    pub(super) number: u32,
    pub(super) kind: QueuePairKind,
    pub(super) now: QueuePairState,
    pub(super) local: Option<LocalPort>,
    remote: Option<RemoteEndpoint>,
}

impl PairLifecycle {
    /// Describes a queue pair that was just made.
    pub(super) fn new(handle: PairHandle, number: u32, kind: QueuePairKind) -> Self {
        Self {
            handle,
            number,
            kind,
            now: QueuePairState::Reset,
            local: None,
            remote: None,
        }
    }

    /// Connects the queue pair: INIT → RTR → RTS.
    pub(super) fn connect(
        &mut self,
        context: &DeviceContext,
        (settings, reads): (ConnectionSettings, ReadLimits),
        first: FirstSequence,
        local: LocalPort,
        remote: RemoteEndpoint,
    ) -> Result<Mtu, VerbsError> {
        remote.check_against(&local)?;
        let mtu = settings.mtu_between(local.attributes.active_mtu, remote.mtu)?;
        (self.local, self.remote) = (Some(local), Some(remote));
        let receive = settings.to_receive(&local, &remote, mtu, reads.resources);
        self.modify(context, &receive)?;
        self.modify(context, &settings.to_send(first, reads.depth))?;
        Ok(mtu)
    }

    /// Brings the queue pair to the state of the attributes, with those that this change takes.
    pub(super) fn modify(
        &mut self,
        context: &DeviceContext,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        let taken = self.kind.attributes_of(self.now, attributes.state);
        let mask = taken.unwrap_or_default() | AttributeMask::STATE;
        let cause = match taken {
            None => ConnectCause::Illegal,
            Some(_) => {
                let provider = context.provider();
                // SAFETY: the queue pair is alive, as its owner sees to.
                match unsafe { provider.modify_pair(self.handle, attributes, mask) } {
                    Ok(()) => {
                        self.now = attributes.state;
                        return Ok(());
                    }
                    Err(errno) => ConnectCause::Refused(errno),
                }
            }
        };
        Err(VerbsError::Connect(Box::new(StateChangeError {
            device: context.name.to_owned(),
            queue_pair: self.number,
            from: self.now,
            attributes: *attributes,
            mask,
            local: self.local,
            remote: self.remote,
            cause,
        })))
    }

    /// Asks the device for what it knows of the queue pair.
    pub(super) fn query(&self, context: &DeviceContext) -> Result<QueriedPair, VerbsError> {
        // SAFETY: the queue pair is alive, as its owner sees to.
        let queried = unsafe { context.provider().query_pair(self.handle) };
        let consequence = "what the device knows of the queue pair stays unknown";
        queried.map_err(context.failed("ibv_query_qp", consequence))
    }
}
