//! The types of a build without TLS: they have no values, so none of this is ever called.

use std::fmt;

use crate::{AuthenticatedAs, Encryption, Method, TlsError};

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
    /// As with TLS.
    pub fn method(&self) -> Method {
        match *self {}
    }

    /// As with TLS.
    pub fn encryption(&self) -> Encryption {
        match *self {}
    }

    /// As with TLS.
    pub fn trusts_authenticated(&self) -> bool {
        match *self {}
    }

    /// As with TLS.
    pub fn dialer(&self) -> Result<Tls, TlsError> {
        match *self {}
    }

    /// As with TLS.
    pub fn acceptor(&self) -> Result<Tls, TlsError> {
        match *self {}
    }
}

impl Tls {
    /// As with TLS.
    pub fn is_handshaking(&self) -> bool {
        match *self {}
    }

    /// As with TLS.
    pub fn authenticated_as(&self) -> Option<AuthenticatedAs> {
        match *self {}
    }

    /// As with TLS.
    pub fn receive(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        match *self {}
    }

    /// As with TLS.
    pub fn room(&mut self, _: usize) -> &mut [u8] {
        match *self {}
    }

    /// As with TLS.
    pub fn arrived(&mut self, _: usize) {
        match *self {}
    }

    /// As with TLS.
    pub fn process(&mut self, _: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        match *self {}
    }

    /// As with TLS.
    pub fn has_unread(&self) -> bool {
        match *self {}
    }

    /// As with TLS.
    pub fn is_ended(&self) -> bool {
        match *self {}
    }

    /// As with TLS.
    pub fn seal(&mut self, _: &[u8]) -> Result<(), TlsError> {
        match *self {}
    }

    /// As with TLS.
    pub fn end(&mut self) -> Result<(), TlsError> {
        match *self {}
    }

    /// As with TLS.
    pub fn outgoing(&self) -> &[u8] {
        match *self {}
    }

    /// As with TLS.
    pub fn sent(&mut self, _: usize) {
        match *self {}
    }

    /// As with TLS.
    pub fn rest(&mut self) {
        match *self {}
    }
}
