//! An open RDMA device, from which every other object is made and which keeps the context open.
//!
//! The rule of the whole layer: an object holds an `Arc` of the object that it was made from. So
//! the order of destruction is the reverse of the order of making, in whatever order the program
//! drops them. The context closes when the last object is dropped.

pub(crate) mod async_event;
pub(crate) mod clock;
pub(crate) mod fork_report;
pub(crate) mod guid;
pub(crate) mod requested_size;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use guid::Guid;
use ibex_base::fork;
use requested_size::RequestedSize;
use rustix::fs::{Access, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::provider::{AnyHandle, OpenedContext, Provider, RawEvent, Transport};
use crate::{
    DeviceAttributes, GidEntry, LockedMemory, Partition, PartitionKey, PortAttributes, PortState,
    VerbsError, error::consequence,
};

/// An open device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<DeviceContext>,
}

/// The part of a device that its objects share.
#[derive(Debug)]
pub(crate) struct DeviceContext {
    provider: Arc<dyn Provider>,
    pub(crate) opened: OpenedContext,
    pub(crate) name: String,
    /// The name of the device's file, which identifies the device in the list even after it was
    /// renamed.
    file: String,
    /// The path of the device's directory under `/sys/class/infiniband`.
    entry: String,
    pub(crate) attributes: DeviceAttributes,
    /// The one reader of asynchronous events is taken.
    pub(crate) events_taken: AtomicBool,
}

impl Device {
    /// Opens a device by name.
    ///
    /// See [`ibv_open_device(3)`](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html).
    ///
    /// # Errors
    /// [`VerbsError`]: there are none, none of that name, it may not be opened, or it
    /// speaks another protocol.
    pub fn open(provider: &Arc<dyn Provider>, name: &str) -> Result<Self, VerbsError> {
        let present = provider.devices()?;
        let Some(entry) = present.iter().find(|entry| entry.name == name) else {
            return Err(VerbsError::NoSuchDevice {
                name: name.to_owned(),
                present: present.into_iter().map(|entry| entry.name).collect(),
            });
        };
        if entry.transport != Transport::InfiniBand {
            return Err(VerbsError::WrongTransport {
                device: name.to_owned(),
                transport: entry.transport,
            });
        }
        let opened = provider.open(name)?;
        let mut context = DeviceContext {
            provider: Arc::clone(provider),
            opened,
            name: name.to_owned(),
            file: entry.file.clone(),
            entry: format!("/sys/class/infiniband_verbs/{}", entry.file),
            attributes: DeviceAttributes::default(),
            events_taken: AtomicBool::new(false),
        };
        // SAFETY: the context was just opened; if this fails, `context` closes it.
        let queried = unsafe { provider.query_device(opened.handle) };
        let consequence = "the device cannot be used";
        context.attributes = queried.map_err(context.failed("ibv_query_device", consequence))?;
        Ok(Self {
            context: Arc::new(context),
        })
    }

    /// Opens a device by its node's 64-bit identifier, which stays when the device is renamed.
    ///
    /// See [`ibv_get_device_guid(3)`](https://man7.org/linux/man-pages/man3/ibv_get_device_guid.3.html).
    ///
    /// # Errors
    /// [`VerbsError::NoSuchDevice`] if no device of the list has it, and the errors of
    /// [`open`](Self::open).
    pub fn open_by_guid(provider: &Arc<dyn Provider>, guid: u64) -> Result<Self, VerbsError> {
        let present = provider.devices()?;
        match present.iter().find(|entry| entry.guid == guid) {
            Some(entry) => Self::open(provider, &entry.name),
            None => Err(VerbsError::NoSuchDevice {
                name: format!("with GUID {}", Guid(guid)),
                present: present
                    .iter()
                    .map(|entry| format!("{} with GUID {}", entry.name, Guid(entry.guid)))
                    .collect(),
            }),
        }
    }

    /// Returns the device's name, as in `/sys/class/infiniband`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// Returns whether `/sys` shows the device, as it does unless `/sys` is hidden. Costs one
    /// short system call and allocates nothing.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        rustix::fs::access(self.context.entry.as_str(), Access::EXISTS).is_ok()
    }

    /// Returns whether the machine still has the device. A device that is being removed is no
    /// longer listed, and goes when all programs have closed it. It need not raise an event
    /// (soft-RoCE does not). The call takes long, so make it on another thread than the one that
    /// turns the engine.
    ///
    /// See [`ibv_get_device_list(3)`](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html).
    #[must_use]
    pub fn is_listed(&self) -> bool {
        match self.provider().devices() {
            Ok(listed) => listed.iter().any(|entry| entry.file == self.context.file),
            // Without an answer, the device is assumed to exist.
            Err(_) => true,
        }
    }

    /// Returns the device's limits and capabilities.
    ///
    /// See [`ibv_query_device_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html).
    #[must_use]
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.context.attributes
    }

    /// Queries the present state of a port.
    ///
    /// See [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, or the device is gone.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.check_port(port)?;
        // SAFETY: the context is open while `self` lives.
        let queried = unsafe { self.provider().query_port(self.context.opened.handle, port) };
        let consequence = "the port cannot be used";
        queried.map_err(self.context.failed("ibv_query_port", consequence))
    }

    /// Queries a port that has to carry traffic.
    ///
    /// # Errors
    /// The errors of [`Device::query_port`], and if the port is not active.
    pub fn query_active_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let attributes = self.query_port(port)?;
        match attributes.state {
            PortState::Active => Ok(attributes),
            state => Err(VerbsError::PortNotActive {
                device: self.name().to_owned(),
                port,
                state,
            }),
        }
    }

    /// Queries a slot of a port's GID table; `None` if it is empty.
    ///
    /// See [`ibv_query_gid(3)`](https://man7.org/linux/man-pages/man3/ibv_query_gid.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, or the device is gone.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        self.check_port(port)?;
        let context = self.context.opened.handle;
        // SAFETY: the context is open while `self` lives.
        let queried = unsafe { self.provider().query_gid(context, port, index) };
        queried.map_err(
            self.context
                .failed("ibv_query_gid", "the GID cannot be used"),
        )
    }

    /// Returns the occupied slots of a port's GID table, as they are now, as far as a connection
    /// can name them.
    ///
    /// See [`ibv_query_gid_table(3)`](https://man7.org/linux/man-pages/man3/ibv_query_gid_table.3.html).
    ///
    /// # Errors
    /// The errors of [`Device::query_gid`].
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let length = self.query_port(port)?.gid_table_len;
        let mut found = Vec::new();
        for index in 0..length.min(GidEntry::LAST_INDEX + 1) {
            found.extend(self.query_gid(port, index)?);
        }
        Ok(found)
    }

    /// Returns a port's partition keys.
    ///
    /// See [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
    ///
    /// # Errors
    /// The errors of [`Device::query_port`].
    pub fn pkeys(&self, port: u8) -> Result<Vec<u16>, VerbsError> {
        let length = self.query_port(port)?.pkey_table_len;
        (0..length).map(|index| self.pkey(port, index)).collect()
    }

    /// Returns a port's place in a partition, as its table is now. Without a wish, this is the
    /// place of the table's first key.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchPartition`] if the port is not in the partition, or its table cannot
    /// be read and a key is wanted.
    pub fn partition(
        &self,
        port: u8,
        wanted: Option<PartitionKey>,
    ) -> Result<Partition, VerbsError> {
        let Some(wanted) = wanted else {
            // Older libraries read keys from /sys, which may be hidden.
            let key = self.pkey(port, 0).ok().and_then(PartitionKey::new);
            return Ok(Partition { index: 0, key });
        };
        let table = self.pkeys(port)?;
        Partition::find(wanted, &table).ok_or_else(|| VerbsError::NoSuchPartition {
            device: self.name().to_owned(),
            port,
            key: wanted,
            present: table.into_iter().filter_map(PartitionKey::new).collect(),
        })
    }

    /// Queries one partition key of a port.
    ///
    /// See [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if there is no such port, the device is gone, or no key is at that index.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        self.check_port(port)?;
        let context = self.context.opened.handle;
        // SAFETY: the context is open while `self` lives.
        let queried = unsafe { self.provider().query_pkey(context, port, index) };
        let consequence = "the partition cannot be used";
        queried.map_err(self.context.failed("ibv_query_pkey", consequence))
    }

    /// Refuses a place behind the end of a port's table of partition keys. The first place needs no
    /// look at the table: each has one.
    pub(crate) fn check_pkey_index(&self, port: u8, index: u16) -> Result<(), VerbsError> {
        if index == 0 {
            return Ok(());
        }
        let keys = self.query_port(port)?.pkey_table_len;
        match index < keys {
            true => Ok(()),
            false => Err(VerbsError::NoSuchPartitionIndex {
                device: self.name().to_owned(),
                port,
                index,
                keys,
            }),
        }
    }

    /// Returns an open device that another object keeps open.
    pub(crate) fn of(context: &Arc<DeviceContext>) -> Self {
        Self {
            context: Arc::clone(context),
        }
    }

    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    fn provider(&self) -> &dyn Provider {
        self.context.provider()
    }

    fn check_port(&self, port: u8) -> Result<(), VerbsError> {
        let ports = self.attributes().ports;
        if (1..=ports).contains(&port) {
            return Ok(());
        }
        Err(VerbsError::NoSuchPort {
            device: self.name().to_owned(),
            port,
            ports,
        })
    }
}

impl DeviceContext {
    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    /// Returns the descriptor that is readable when an asynchronous event waits.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor and closes it with itself, which is
        // not before `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.opened.async_fd) }
    }

    /// Takes one asynchronous event, acknowledged already.
    pub(crate) fn next_event(&self) -> Result<Option<RawEvent>, VerbsError> {
        // SAFETY: the context is open.
        let taken = unsafe { self.provider.async_event(self.opened.handle) };
        let consequence = "changes of ports and queues are no longer told";
        taken.map_err(self.failed("ibv_get_async_event", consequence))
    }

    /// Checks that an object is of this open device, like the protection domain.
    pub(crate) fn check_same(
        self: &Arc<Self>,
        object: &'static str,
        other: &Arc<Self>,
    ) -> Result<(), VerbsError> {
        if Arc::ptr_eq(self, other) {
            return Ok(());
        }
        Err(VerbsError::OtherDevice {
            object,
            device: self.name.clone(),
            other: other.name.clone(),
        })
    }

    pub(crate) fn failed(
        &self,
        call: &'static str,
        consequence: &'static str,
    ) -> impl FnOnce(Errno) -> VerbsError {
        move |source| VerbsError::Call {
            device: self.name.clone(),
            call,
            source,
            consequence,
        }
    }

    /// Makes the error of a verb that not every device has.
    pub(crate) fn lacks(
        &self,
        call: &'static str,
        source: Errno,
        what: &'static str,
        instead: &'static str,
    ) -> VerbsError {
        let is_absent = matches!(source, Errno::OPNOTSUPP | Errno::NOSYS);
        match is_absent {
            true => VerbsError::Unsupported {
                device: self.name.clone(),
                what,
                call,
                source,
                instead,
            },
            false => self.failed(call, consequence(source, instead))(source),
        }
    }

    /// Refuses a size that is beyond the device's limit.
    #[cfg(feature = "all")]
    pub(crate) fn check_limit(&self, asked: &RequestedSize) -> Result<(), VerbsError> {
        match asked.asked <= asked.limit {
            true => Ok(()),
            false => Err(self.beyond(asked)),
        }
    }

    fn beyond(&self, asked: &RequestedSize) -> VerbsError {
        VerbsError::Limit {
            device: self.name.clone(),
            what: asked.what,
            asked: asked.asked,
            limit: asked.limit,
            setting: asked.setting,
        }
    }

    /// Makes the error of a refused creation, which names a limit if the request was beyond one.
    pub(crate) fn refused(
        &self,
        call: &'static str,
        source: Errno,
        limits: &[RequestedSize],
    ) -> VerbsError {
        let beyond = limits.iter().find(|asked| asked.asked > asked.limit);
        match beyond {
            Some(asked) => self.beyond(asked),
            None => VerbsError::creation(&self.name, call, LockedMemory::now(), source),
        }
    }

    /// Destroys an object of the context, but not in a child of a fork. Logs a refusal.
    ///
    /// # Safety
    /// The contract of [`Provider::destroy`].
    pub(crate) unsafe fn destroy(&self, handle: impl Into<AnyHandle>) {
        if fork::is_child() {
            return;
        }
        let handle = handle.into();
        // SAFETY: the caller's contract.
        if let Err(errno) = unsafe { self.provider.destroy(handle) } {
            self.undestroyed(handle.end_verb(), errno);
        }
    }

    /// Logs that an object could not be destroyed. The object stays with the kernel until the
    /// context is closed, at the latest when the process ends.
    pub(crate) fn undestroyed(&self, call: &'static str, errno: Errno) {
        ibex_base::warn_limited!(
            self.name,
            device = %self.name,
            call,
            error = %errno,
            "an RDMA object could not be destroyed; it stays until the device is closed"
        );
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        // SAFETY: every object of this context held an `Arc` of it, so all are destroyed.
        unsafe { self.destroy(self.opened.handle) };
    }
}

/// Returns a number that no other queue of this process has, by which events name the queue.
pub(crate) fn new_tag() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Makes reads of a descriptor return `EAGAIN` instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}
