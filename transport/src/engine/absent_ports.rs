//! The RDMA ports of an engine in a build without RDMA: there are none.

use std::{convert::Infallible, io, sync::Arc, time::Instant};

use ibex_protocol::credit::broker::CreditBroker;

use super::Engine;
use crate::{connection::Context, rdma::RdmaPort};

/// A port that an engine polls, which has no value.
pub(super) struct PortPoller {
    pub(super) broker: Option<CreditBroker>,
    _none: Infallible,
}

/// The time of the next check that devices still exist, which never comes.
#[derive(Debug, Default)]
pub(super) struct PortLooks {
    pub(super) is_due: bool,
}

impl PortLooks {
    pub(super) fn next(&self) -> Option<Instant> {
        None
    }

    pub(super) fn note(&mut self, _: Instant) {}
}

impl Engine {
    pub(crate) fn care_for(&mut self, rdma_port: &Arc<RdmaPort>) -> io::Result<()> {
        match **rdma_port {}
    }

    pub(crate) fn device_was_removed(&mut self, rdma_port: &Arc<RdmaPort>) {
        match **rdma_port {}
    }

    pub(super) fn look_for_devices(&mut self, _: &mut Context<'_>) {}

    pub(super) fn joins_port(
        &mut self,
        _: u64,
        _: Option<u64>,
        _: &mut Context<'_>,
    ) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn leaves_port(&mut self, _: u64) {}

    pub(super) fn has_found_completions(&self) -> bool {
        false
    }

    pub(super) fn is_left(&self) -> bool {
        false
    }

    pub(crate) fn has_completions(&mut self) -> bool {
        false
    }

    pub(super) fn turn_ports(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    pub(super) fn take_found(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    pub(super) fn arm_ports(&mut self) -> bool {
        false
    }

    pub(super) fn arm_ports_once(&mut self) -> bool {
        false
    }

    pub(super) fn port_is_ready(&mut self, _: u64, _: &mut Context<'_>) {}

    pub(super) fn close_ports(&mut self) {}
}
