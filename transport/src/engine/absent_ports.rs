//! The RDMA ports of an engine in a build without RDMA: there are none.

use std::{io, sync::Arc, time::Instant};

use super::connections::Connections;
use crate::{connection::Context, rdma::RdmaPort};

/// The RDMA ports of an engine.
pub(crate) struct RdmaPorts;

impl RdmaPorts {
    pub(super) fn new() -> Self {
        Self
    }

    pub(crate) fn attach(
        &mut self,
        rdma_port: &Arc<RdmaPort>,
        _: &mut Connections,
        _: &mut Context<'_>,
    ) -> io::Result<()> {
        match **rdma_port {}
    }

    pub(super) fn join(
        &mut self,
        _: u64,
        _: Option<u64>,
        _: &mut Connections,
        _: &mut Context<'_>,
    ) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn leave(&mut self, _: u64, _: &mut Connections, _: &mut Context<'_>) {}

    pub(super) fn close(&mut self, _: &mut Connections, _: &mut Context<'_>) {}

    pub(super) fn has_found(&self) -> bool {
        false
    }

    pub(super) fn is_left(&self) -> bool {
        false
    }

    pub(crate) fn has_completions(&mut self) -> bool {
        false
    }

    pub(super) fn take_completions(
        &mut self,
        _: &mut Connections,
        _: &mut Context<'_>,
    ) -> (bool, bool) {
        (false, false)
    }

    pub(super) fn arm(&mut self) -> bool {
        false
    }

    pub(super) fn arm_once(&mut self) -> bool {
        false
    }

    pub(super) fn is_ready(&mut self, _: u64, _: &mut Connections, _: &mut Context<'_>) {}

    pub(super) fn next_check(&self) -> Option<Instant> {
        None
    }

    pub(super) fn is_check_due(&self) -> bool {
        false
    }

    pub(super) fn note(&mut self, _: Instant) {}

    pub(super) fn check_for_devices(&mut self, _: &mut Connections, _: &mut Context<'_>) {}

    pub(crate) fn device_was_removed(
        &mut self,
        rdma_port: &Arc<RdmaPort>,
        _: &mut Connections,
        _: &mut Context<'_>,
    ) {
        match **rdma_port {}
    }
}
