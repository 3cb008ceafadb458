//! The library's own pointers, in the types of the crate `rdma-sys` (feature `rdma-sys`).
//!
//! They are the way to a verb that this crate does not have. `None` says that the object has no such
//! pointer: it is of the fake device, or the device no longer knows it.
//!
//! Whoever uses a pointer keeps this true, for each object:
//! 1. The pointer is used while the object exists, and in no child of a fork.
//! 2. The object is not destroyed by it, and its state, size and keys are not changed behind the back of
//!    the value that the pointer came from.
//! 3. What the value takes `&mut` for is done by one thread at a time: posting, polling and arming.
//!    Requests that are posted by the pointer count against the room that the value counts, and their
//!    memory stays mapped until they have completed.
//! 4. Completions and events that are taken by the pointer are not seen by the value: an event of a
//!    channel is acknowledged by whoever took it.

use std::ptr::NonNull;

use rdma_sys::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_dm, ibv_mr, ibv_mw, ibv_pd,
    ibv_qp, ibv_srq, ibv_xrcd,
};

use crate::{
    AddressHandle, CompletionQueue, Device, DeviceMemory, ForeignRegion, MemoryRegion,
    MemoryWindow, OnDeviceMemory, ProtectionDomain, QueuePair, ReceiveQueue, XrcDomain,
    XrcReceiveQueue, XrcReceiveQueuePair, device::DeviceContext,
};

/// Returns a pointer of the library's; `None` if the objects of the context are not the library's.
fn library_pointer<T>(context: &DeviceContext, pointer: *mut T) -> Option<NonNull<T>> {
    NonNull::new(pointer).filter(|_| context.provider().is_libibverbs())
}

macro_rules! pointers {
    ($($owner:ty: $target:ident, $what:literal, |$value:ident| $context:expr, $pointer:expr;)*) => {$(
        impl $owner {
            #[doc = concat!("Returns the library's ", $what, ".")]
            ///
            /// # Safety
            /// The rules of [`raw`](crate::raw).
            #[must_use]
            pub unsafe fn as_ptr(&self) -> Option<NonNull<$target>> {
                let $value = self;
                library_pointer($context, $pointer)
            }
        }
    )*};
}

pointers! {
    Device: ibv_context, "context", |it| it.context(), it.context().handle().as_ptr();
    ProtectionDomain: ibv_pd, "protection domain",
        |it| &it.inner().context, it.inner().handle.as_ptr();
    MemoryWindow: ibv_mw, "memory window", |it| &it.domain.context, it.handle.as_ptr();
    OnDeviceMemory: ibv_dm, "device memory", |it| it.context(), it.handle().as_ptr();
    CompletionQueue: ibv_cq, "completion queue, also of an extended one",
        |it| &it.inner().context, it.inner().handle.as_ptr();
    AddressHandle: ibv_ah, "address handle",
        |it| &it.inner().domain.context, it.inner().handle.as_ptr();
    XrcDomain: ibv_xrcd, "domain of extended connections",
        |it| it.inner().context(), it.inner().handle.as_ptr();
    XrcReceiveQueuePair: ibv_qp, "queue pair", |it| it.context(), it.handle().as_ptr();
}

impl<K> QueuePair<K> {
    /// Returns the library's queue pair.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<NonNull<ibv_qp>> {
        library_pointer(self.context(), self.handle().as_ptr())
    }
}

impl CompletionQueue {
    /// Returns the library's extended completion queue; `None` if the queue is a plain one.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_extended_ptr(&self) -> Option<NonNull<ibv_cq_ex>> {
        match self.inner().is_extended() {
            true => library_pointer(&self.inner().context, self.inner().handle.as_ptr()),
            false => None,
        }
    }

    /// Returns the library's completion channel; `None` if the queue has none.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn channel_ptr(&self) -> Option<NonNull<ibv_comp_channel>> {
        let handle = self.inner().channel_handle()?;
        library_pointer(&self.inner().context, handle.as_ptr())
    }
}

impl ReceiveQueue {
    /// Returns the library's shared receive queue; `None` if it is a queue pair's own.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<NonNull<ibv_srq>> {
        let shared = self.shared_inner()?;
        library_pointer(shared.context(), shared.handle.as_ptr())
    }
}

impl XrcReceiveQueue {
    /// Returns the library's shared receive queue.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<NonNull<ibv_srq>> {
        // SAFETY: the caller's contract.
        unsafe { self.queue().as_ptr() }
    }
}

impl<M: DeviceMemory> MemoryRegion<M> {
    /// Returns the library's memory region; `None` if it is registered no more. It also goes when the
    /// device is closed ([`ProtectionDomain::end_registrations`]).
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<NonNull<ibv_mr>> {
        self.while_registered(|domain, region| library_pointer(&domain.context, region.cast()))?
    }
}

impl ForeignRegion {
    /// Returns the library's memory region; `None` if it is registered no more.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<NonNull<ibv_mr>> {
        self.while_registered(|domain, region| library_pointer(&domain.context, region.cast()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AddressVector, AnonymousMemory, QKey, QueuePairBuilder, RegionAccess, WindowKind,
        provider::fake::{FakeDevice, FakeProvider},
    };

    #[test]
    fn objects_of_the_fake_have_no_pointer_of_the_library() {
        let fake = FakeProvider::new(vec![FakeDevice::soft_roce("rxe0", 1, [192, 0, 2, 1])]);
        let device = Device::open(&fake.provider(), "rxe0").unwrap();
        let domain = ProtectionDomain::new(&device).unwrap();
        let queue = CompletionQueue::with_channel(&device, 8).unwrap();
        let window = MemoryWindow::new(&domain, WindowKind::One).unwrap();
        let memory = AnonymousMemory::new(4096).unwrap();
        let region = MemoryRegion::register(&domain, memory, RegionAccess::SEND).unwrap();
        let shared = ReceiveQueue::shared(&domain, 8, 1).unwrap();
        let port = AddressVector {
            lid: 1,
            port: 1,
            ..AddressVector::default()
        };
        fake.change("rxe0", |device| {
            device.ports[0].attributes.needs_global_route = false;
        });
        let address = AddressHandle::new(&domain, &port).unwrap();
        let xrc = XrcDomain::private(&device).unwrap();
        let receives = XrcReceiveQueue::new(&domain, &xrc, &queue, 8, 1).unwrap();
        let end = XrcReceiveQueuePair::new(&xrc, 1, RegionAccess::SEND).unwrap();
        let builder = QueuePairBuilder::new(&domain, &queue);
        let datagrams = builder.build_datagram(1, QKey(1)).unwrap();
        // SAFETY: the pointers are not used.
        unsafe {
            assert!(address.as_ptr().is_none() && datagrams.as_ptr().is_none());
            assert!(xrc.as_ptr().is_none() && receives.as_ptr().is_none());
            assert!(end.as_ptr().is_none());
            assert!(device.as_ptr().is_none() && domain.as_ptr().is_none());
            assert!(queue.as_ptr().is_none() && queue.channel_ptr().is_none());
            assert!(queue.as_extended_ptr().is_none() && window.as_ptr().is_none());
            assert!(region.as_ptr().is_none() && shared.as_ptr().is_none());
        }
    }
}
