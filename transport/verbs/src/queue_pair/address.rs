//! Address handles: the ways to the receivers of datagrams.
//!
//! An address handle is made from an [`AddressVector`], from the endpoint that a peer has sent, or
//! from a datagram of the peer. It belongs to a protection domain, as queue pairs do; one of another
//! domain is refused when a datagram is pushed. Datagrams that are outstanding keep their address
//! handles alive.

use std::sync::Arc;

use crate::abi::{wc_flags, wc_opcode};
use crate::{
    AddressVector, ConnectionSettings, Device, GidType, GlobalHeader, GlobalRoute, LocalPort,
    ProtectionDomain, RemoteEndpoint, VerbsError, WorkCompletion,
    memory::protection_domain::Domain, provider::AddressObject,
};

/// The way to a receiver of datagrams
/// ([`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html)). Clones are the
/// same one.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    pub(crate) inner: Arc<OwnedAddressHandle>,
}

/// The object itself, which outstanding datagrams keep alive.
#[derive(Debug)]
pub(crate) struct OwnedAddressHandle {
    pub(crate) handle: AddressObject,
    pub(crate) domain: Arc<Domain>,
}

impl AddressHandle {
    /// Makes an address handle of a protection domain.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses: a GID index without a GID, a peer that the kernel cannot
    /// resolve.
    pub fn new(domain: &ProtectionDomain, vector: &AddressVector) -> Result<Self, VerbsError> {
        Self::make(&domain.inner, vector)
    }

    /// Makes an address handle to the port of a peer, of which `settings` gives service level and
    /// traffic class.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new) and of [`RemoteEndpoint::check_against`].
    pub fn to(
        domain: &ProtectionDomain,
        local: &LocalPort,
        remote: &RemoteEndpoint,
        settings: ConnectionSettings,
    ) -> Result<Self, VerbsError> {
        remote.check_against(local)?;
        Self::new(domain, &settings.address(local, remote))
    }

    /// Makes an address handle to the sender of a datagram that has arrived at `port`
    /// ([`ibv_create_ah_from_wc(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah_from_wc.3.html)).
    ///
    /// # Errors
    /// The errors of [`AddressVector::from_completion`] and of [`new`](Self::new).
    pub fn from_completion(
        domain: &ProtectionDomain,
        port: u8,
        completion: &WorkCompletion,
        header: &GlobalHeader,
    ) -> Result<Self, VerbsError> {
        let device = Device::of(&domain.inner.context);
        let vector = AddressVector::from_completion(&device, port, completion, header)?;
        Self::new(domain, &vector)
    }

    fn make(domain: &Arc<Domain>, vector: &AddressVector) -> Result<Self, VerbsError> {
        let context = &domain.context;
        // SAFETY: the domain is alive.
        let made = unsafe { context.provider().create_address(domain.handle, vector) };
        let handle = made.map_err(context.failed(
            "ibv_create_ah",
            "no datagrams can be sent there; read the port and its GIDs again, and check \
             `ip route get` and `ip neigh` for the peer's address",
        ))?;
        Ok(Self {
            inner: Arc::new(OwnedAddressHandle {
                handle,
                domain: Arc::clone(domain),
            }),
        })
    }
}

impl Drop for OwnedAddressHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and outstanding requests that name it held an `Arc` of it.
        unsafe { self.domain.context.destroy(self.handle) };
    }
}

impl AddressVector {
    /// Returns the way back to the sender of a datagram that has arrived at `port`
    /// (`ibv_init_ah_from_wc`, on the page of
    /// [`ibv_create_ah_from_wc(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah_from_wc.3.html)).
    /// `header` is what stood in front of the datagram.
    ///
    /// # Errors
    /// [`VerbsError::NoReturnAddress`] if the completion is not one of a datagram, if the header is
    /// none, or if the datagram was sent to a multicast group or to a GID that the port has no more.
    pub fn from_completion(
        device: &Device,
        port: u8,
        completion: &WorkCompletion,
        header: &GlobalHeader,
    ) -> Result<Self, VerbsError> {
        let refused = |reason| VerbsError::NoReturnAddress {
            device: device.name().to_owned(),
            port,
            reason,
        };
        let wc = &completion.0;
        if wc.status != 0 || wc.opcode != wc_opcode::RECV {
            return Err(refused("the completion is not that of a message"));
        }
        let mut vector = Self {
            lid: wc.slid,
            route: None,
            service_level: wc.sl,
            path_bits: wc.dlid_path_bits,
            port,
        };
        if wc.wc_flags & wc_flags::GRH == 0 {
            return Ok(vector);
        }
        let route = header
            .route()
            .ok_or_else(|| refused("the 40 bytes in front of it are no header"))?;
        if route.destination.is_multicast() {
            return Err(refused("the datagram was sent to a multicast group"));
        }
        let present = device.gids(port)?;
        let is_v2 = route.gid_type == GidType::RoceV2;
        let ours = present.iter().find(|entry| {
            entry.gid == route.destination && (entry.gid_type == GidType::RoceV2) == is_v2
        });
        let ours = ours.ok_or_else(|| refused("the port has no such GID any more"))?;
        vector.route = Some(GlobalRoute {
            destination: route.source,
            // `Device::gids` returns no entry beyond 8 bits.
            source_index: ours.index as u8,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            flow_label: route.flow_label,
        });
        Ok(vector)
    }
}
