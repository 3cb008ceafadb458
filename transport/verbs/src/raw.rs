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
    AddressHandle, CompletionQueue, Device, MemoryRegion, MemoryWindow, OnDeviceMemory,
    ProtectionDomain, QueuePair, ReceiveQueue, XrcDomain, XrcReceiveQueue, XrcReceiveQueuePair,
    device::DeviceContext,
};

/// Returns a pointer of the library's; `None` if the objects of the context are not the library's.
fn library_pointer<T>(context: &DeviceContext, pointer: *mut T) -> Option<NonNull<T>> {
    NonNull::new(pointer).filter(|_| context.provider().is_libibverbs())
}

macro_rules! pointers {
    ($([$($kind:ident)?] $owner:ty, $method:ident: $target:ident, $what:literal,
        |$value:ident| $pointer:expr;)*) => {$(
        impl<$($kind)?> $owner {
            #[doc = concat!("Returns the library's ", $what, ".")]
            ///
            /// # Safety
            /// The rules of [`raw`](crate::raw).
            #[must_use]
            pub unsafe fn $method(&self) -> Option<NonNull<$target>> {
                let $value = self;
                $pointer
            }
        }
    )*};
}

pointers! {
    [] Device, as_ptr: ibv_context, "context",
        |it| library_pointer(it.context(), it.context().opened.handle.as_ptr());
    [] ProtectionDomain, as_ptr: ibv_pd, "protection domain",
        |it| library_pointer(&it.inner.context, it.inner.handle.as_ptr());
    [] MemoryWindow, as_ptr: ibv_mw, "memory window",
        |it| library_pointer(&it.domain.context, it.handle.as_ptr());
    [] OnDeviceMemory, as_ptr: ibv_dm, "device memory",
        |it| library_pointer(&it.buffer.context, it.buffer.handle.as_ptr());
    [M] MemoryRegion<M>, as_ptr: ibv_mr, "memory region; `None` if it is registered no more. It also \
        goes when the device is closed ([`ProtectionDomain::end_registrations`])",
        |it| it.while_registered(|domain, region| {
            library_pointer(&domain.context, region.cast())
        })?;
    [] CompletionQueue, as_ptr: ibv_cq, "completion queue, also of an extended one",
        |it| library_pointer(&it.inner.context, it.inner.handle.as_ptr());
    [] CompletionQueue, as_extended_ptr: ibv_cq_ex,
        "extended completion queue; `None` if the queue is a plain one",
        |it| library_pointer(&it.inner.context, it.inner.handle.as_ptr())
            .filter(|_| it.inner.is_extended());
    [] CompletionQueue, channel_ptr: ibv_comp_channel,
        "completion channel; `None` if the queue has none",
        |it| library_pointer(&it.inner.context, it.inner.channel.as_ref()?.handle.as_ptr());
    [] ReceiveQueue, as_ptr: ibv_srq, "shared receive queue; `None` if it is a queue pair's own",
        |it| library_pointer(it.shared_inner()?.context(), it.shared_inner()?.handle.as_ptr());
    [] XrcReceiveQueue, as_ptr: ibv_srq, "shared receive queue",
        // SAFETY: the caller's contract.
        |it| unsafe { it.queue.as_ptr() };
    [K] QueuePair<K>, as_ptr: ibv_qp, "queue pair",
        |it| library_pointer(&it.any.inner.domain.context, it.any.inner.handle.as_ptr());
    [] XrcReceiveQueuePair, as_ptr: ibv_qp, "queue pair",
        |it| library_pointer(it.domain.context(), it.state.handle.as_ptr());
    [] AddressHandle, as_ptr: ibv_ah, "address handle",
        |it| library_pointer(&it.inner.domain.context, it.inner.handle.as_ptr());
    [] XrcDomain, as_ptr: ibv_xrcd, "domain of extended connections",
        |it| library_pointer(it.inner.context(), it.inner.handle.as_ptr());
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
