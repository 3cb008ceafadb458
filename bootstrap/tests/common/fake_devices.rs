//! A device whose queue pairs are numbers, for handshakes over real sockets.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use ibex_bootstrap::message::{GidKind, PairAbilities, QueuePairAddress, VerbsEndpoint};
use ibex_bootstrap::{PairRequest, VerbsDevice, VerbsDevices, VerbsPair};

/// A device of hardware, as its handshakes say.
#[derive(Debug, Default)]
pub(crate) struct FakeDevices {
    /// The time that every call takes.
    pub(crate) delay: Duration,
    /// Queue pairs that exist.
    pub(crate) pairs: Arc<AtomicU32>,
    /// Addresses asked about, and by which thread.
    pub(crate) asked: Mutex<Vec<(IpAddr, ThreadId)>>,
}

/// A queue pair of the fake devices.
#[derive(Debug)]
pub(crate) struct FakePair {
    /// The peer that it is connected to.
    pub(crate) peer: Option<VerbsEndpoint>,
    delay: Duration,
    pairs: Arc<AtomicU32>,
}

impl VerbsDevices for FakeDevices {
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String> {
        thread::sleep(self.delay);
        let asked = (local, thread::current().id());
        self.asked.lock().unwrap().push(asked);
        Ok(VerbsDevice {
            hardware: true,
            name: "fake0".to_string(),
        })
    }

    fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        thread::sleep(self.delay);
        self.pairs.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FakePair {
            peer: None,
            delay: self.delay,
            pairs: self.pairs.clone(),
        }))
    }
}

impl VerbsPair for FakePair {
    fn endpoint(&self) -> VerbsEndpoint {
        VerbsEndpoint {
            address: QueuePairAddress {
                queue_pair: 17,
                packet_sequence: 1,
                lid: 0,
                gid: [1; 16],
                gid_type: GidKind::RoceV2,
                mtu_bytes: 1024,
            },
            max_inline_bytes: 64,
            max_send_sge: 4,
            max_receive_sge: 1,
            abilities: PairAbilities {
                immediate: false,
                read_depth: 0,
                read_resources: 0,
            },
            partition_key: 0,
            rails: Vec::new(),
            receive_buffer_bytes: 4096,
            credit: 64,
        }
    }

    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String> {
        thread::sleep(self.delay);
        self.peer = Some(theirs.clone());
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        self.pairs.fetch_sub(1, Ordering::Relaxed);
    }
}
