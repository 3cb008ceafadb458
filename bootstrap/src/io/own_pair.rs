//! The queue pair of an end that dialed. Work that takes time is done at once, since the dialing
//! thread waits anyhow.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;

use super::tcp;
use crate::fabric::VerbsDevice;
use crate::local::Local;
use crate::message::VerbsEndpoint;
use crate::negotiate::End;
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

/// A queue pair, and the RDMA devices that make it.
pub(super) struct OwnPair {
    /// This end's address on the connection, by which one of the devices is chosen.
    own_address: IpAddr,
    peer: SocketAddr,
    /// The session to resume, if it is not a new one.
    resumes: Option<[u8; 16]>,
    devices: Option<Arc<dyn VerbsDevices>>,
    pair: Option<Box<dyn VerbsPair>>,
}

impl OwnPair {
    /// Holds no queue pair yet. `resumes` names the session to resume, if there is one.
    pub(super) fn new(
        stream: &TcpStream,
        peer: SocketAddr,
        local: &Local,
        resumes: Option<[u8; 16]>,
    ) -> io::Result<OwnPair> {
        Ok(OwnPair {
            own_address: tcp::own_address(stream)?,
            peer,
            resumes,
            devices: local.usable_devices().cloned(),
            pair: None,
        })
    }

    pub(super) fn find_device(&self) -> Result<VerbsDevice, String> {
        self.devices()?.device(self.own_address)
    }

    pub(super) fn prepare(&mut self) -> Result<VerbsEndpoint, String> {
        let pair = self.devices()?.prepare(&PairRequest {
            local: self.own_address,
            peer: self.peer,
            offered: None,
            end: End::Dialer,
            resumes: self.resumes,
        })?;
        Ok(self.pair.insert(pair).endpoint())
    }

    /// Connects the queue pair to the peer's, or drops it if that fails.
    pub(super) fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String> {
        let mut pair = self.pair.take().ok_or("there is none")?;
        pair.connect(theirs)?;
        self.pair = Some(pair);
        Ok(())
    }

    pub(super) fn close(&mut self) {
        self.pair = None;
    }

    pub(super) fn into_pair(self) -> Option<Box<dyn VerbsPair>> {
        self.pair
    }

    fn devices(&self) -> Result<&Arc<dyn VerbsDevices>, String> {
        let devices = self.devices.as_ref();
        devices.ok_or_else(|| "it uses no RDMA devices".to_owned())
    }
}

pub(super) const OWN_ADDRESS: &str = "ask for its own address";
