//! What the examples share: the device, options as rdma-core's programs take them, and the ping-pong.
#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod check;
pub(crate) mod ends;
pub(crate) mod exchange;
pub(crate) mod lines;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod pingpong;

use std::error::Error;
use std::sync::Arc;

#[cfg(not(feature = "libibverbs"))]
use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};
use ibex_verbs::{Device, VerbsError, provider::Provider};

/// The result of an example; its errors pass from thread to thread.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns this machine's devices, or, without the feature `libibverbs`, one that is made of memory.
pub(crate) fn provider() -> Result<Arc<dyn Provider>, VerbsError> {
    #[cfg(feature = "libibverbs")]
    return Ok(Arc::new(ibex_verbs::provider::Libibverbs::load()?));
    #[cfg(not(feature = "libibverbs"))]
    Ok(fake().provider())
}

/// Returns a machine with one device, which is made of memory.
#[cfg(not(feature = "libibverbs"))]
pub(crate) fn fake() -> FakeProvider {
    FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 1, [192, 0, 2, 1])])
}

/// Opens a device by name, or the first one.
pub(crate) fn open(provider: &Arc<dyn Provider>, name: Option<&str>) -> Outcome<Device> {
    let first = match name {
        Some(name) => name.to_owned(),
        None => {
            let listed = provider.devices()?;
            let first = listed.into_iter().next();
            first.ok_or("there is no RDMA device")?.name
        }
    };
    Ok(Device::open(provider, &first)?)
}
