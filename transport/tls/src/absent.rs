//! The types of a build without TLS: they have no values, so none of this is ever called.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::{AuthenticatedAs, Encryption, Method, SecurityStats, TlsError};

/// Credentials, which a build without TLS does not have.
#[derive(Debug)]
pub enum Credentials {}

/// A TLS connection, which a build without TLS does not have.
pub enum Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl Credentials {
    /// Never called.
    pub fn method(&self) -> Method {
        match *self {}
    }

    /// Never called.
    pub fn encryption(&self) -> Encryption {
        match *self {}
    }

    /// Never called.
    pub fn trusts_authenticated(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn max_session_age(&self) -> Option<Duration> {
        match *self {}
    }

    /// Never called.
    pub fn stats(&self) -> SecurityStats {
        match *self {}
    }

    /// Never called.
    pub fn warnings(&self, _: SystemTime) -> Vec<String> {
        match *self {}
    }

    /// Never called.
    pub fn note_other_mode(&self) {
        match *self {}
    }

    /// Never called.
    pub fn dialer(&self, _: Option<Arc<str>>) -> Result<Tls, TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn acceptor(&self) -> Result<Tls, TlsError> {
        match *self {}
    }
}

impl Tls {
    /// Never called.
    pub fn is_handshaking(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn authenticated_as(&self) -> Option<AuthenticatedAs> {
        match *self {}
    }

    /// Never called.
    pub fn receive(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn room(&mut self, _: usize) -> &mut [u8] {
        match *self {}
    }

    /// Never called.
    pub fn arrived(&mut self, _: usize) {
        match *self {}
    }

    /// Never called.
    pub fn process(&mut self, _: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn process_records(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn has_unread(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn part_bytes(&self) -> usize {
        match *self {}
    }

    /// Never called.
    pub fn failed(&self) -> Option<&TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn is_ended(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn seal(&mut self, _: &[u8]) -> Result<(), TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn end(&mut self) -> Result<(), TlsError> {
        match *self {}
    }

    /// Never called.
    pub fn outgoing(&self) -> &[u8] {
        match *self {}
    }

    /// Never called.
    pub fn sent(&mut self, _: usize) {
        match *self {}
    }

    /// Never called.
    pub fn rest(&mut self) {
        match *self {}
    }
}
