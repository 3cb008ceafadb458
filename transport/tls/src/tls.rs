//! A TLS connection.

use std::sync::Arc;

use ibex_base::tls::{
    AuthenticatedAs, AuthenticationError, Cause, HandshakeCounts, HandshakeResult, Method,
    RefusedBy, TlsConnection, TlsError,
};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{AlertDescription, ClientConfig, Error, ServerConfig};

use crate::buffers::{ReceivedBytes, SealedBytes};
use crate::identity_slot::IdentitySlot;

/// An end of a TLS connection by rustls.
pub(crate) struct Tls {
    connection: RustlsConnection,
    method: Method,
    slot: Arc<IdentitySlot>,
    counts: Arc<HandshakeCounts>,
    /// Bytes from the peer that are not processed yet. Between calls, they are a part of one
    /// record.
    incoming: ReceivedBytes,
    outgoing: SealedBytes,
    is_handshaking: bool,
    /// The peer has announced that nothing follows.
    is_ended: bool,
    /// Set once an error has ended the connection.
    failed: Option<TlsError>,
}

enum RustlsConnection {
    Dialer(Box<UnbufferedClientConnection>),
    Acceptor(Box<UnbufferedServerConnection>),
}

impl Tls {
    pub(crate) fn dialer(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        method: Method,
        slot: Arc<IdentitySlot>,
        counts: Arc<HandshakeCounts>,
    ) -> Result<Tls, TlsError> {
        let connection = UnbufferedClientConnection::new(config, name);
        let connection = connection.map_err(|error| TlsError::Incompatible(error.to_string()))?;
        Ok(Tls::new(
            RustlsConnection::Dialer(Box::new(connection)),
            method,
            slot,
            counts,
        ))
    }

    pub(crate) fn acceptor(
        config: Arc<ServerConfig>,
        method: Method,
        slot: Arc<IdentitySlot>,
        counts: Arc<HandshakeCounts>,
    ) -> Result<Tls, TlsError> {
        let connection = UnbufferedServerConnection::new(config);
        let connection = connection.map_err(|error| TlsError::Incompatible(error.to_string()))?;
        Ok(Tls::new(
            RustlsConnection::Acceptor(Box::new(connection)),
            method,
            slot,
            counts,
        ))
    }

    fn new(
        connection: RustlsConnection,
        method: Method,
        slot: Arc<IdentitySlot>,
        counts: Arc<HandshakeCounts>,
    ) -> Tls {
        Tls {
            connection,
            method,
            slot,
            counts,
            incoming: ReceivedBytes::default(),
            outgoing: SealedBytes::default(),
            is_handshaking: true,
            is_ended: false,
            failed: None,
        }
    }

    /// Goes on until rustls wants more than the first `readable` bytes of those that are here;
    /// seals `record` then, or the end if that is empty.
    fn advance(
        &mut self,
        sink: &mut dyn FnMut(&[u8]),
        record: Option<&[u8]>,
        readable: usize,
    ) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pump = Pump {
            incoming: &mut self.incoming,
            outgoing: &mut self.outgoing,
            is_ended: &mut self.is_ended,
            sink,
            record,
            readable,
        };
        let outcome = match &mut self.connection {
            RustlsConnection::Dialer(connection) => pump.run(&mut **connection),
            RustlsConnection::Acceptor(connection) => pump.run(&mut **connection),
        };
        match outcome {
            Ok(may_send) => {
                if may_send && std::mem::take(&mut self.is_handshaking) {
                    self.counts.note(HandshakeResult::Completed);
                }
                Ok(())
            }
            Err(error) => {
                let error = self.diagnose(error);
                Err(self.fail(error))
            }
        }
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        if self.is_handshaking && self.failed.is_none() {
            self.counts.note(HandshakeResult::of(&error));
        }
        self.failed.get_or_insert(error).clone()
    }

    /// Says whose fault an error of rustls is.
    fn diagnose(&self, error: Error) -> TlsError {
        if let (Error::InvalidCertificate(_), Some(Err(refusal))) = (&error, self.slot.get()) {
            return refusal.into();
        }
        let refused = |by, cause| {
            TlsError::Refused(AuthenticationError {
                by,
                method: self.method,
                name: None,
                cause,
            })
        };
        let by_peer = |cause| refused(RefusedBy::OtherNode, cause);
        match error {
            Error::InvalidCertificate(error) => {
                refused(RefusedBy::ThisNode, Cause::Unusable(error.to_string()))
            }
            Error::NoCertificatesPresented => refused(
                RefusedBy::ThisNode,
                Cause::Unusable("it presented none".to_owned()),
            ),
            Error::PeerIncompatible(_) => TlsError::Incompatible(error.to_string()),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::AccessDenied => by_peer(match self.method {
                    Method::SharedSecret => Cause::WrongSecret,
                    Method::Certificates => Cause::NotAuthorized,
                }),
                AlertDescription::UnknownCA => by_peer(Cause::UnknownIssuer),
                AlertDescription::CertificateExpired => by_peer(Cause::Expired { since: None }),
                AlertDescription::CertificateRevoked => by_peer(Cause::Revoked),
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired => {
                    by_peer(Cause::Unusable(format!("alert {alert:?}")))
                }
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::InsufficientSecurity
                | AlertDescription::NoApplicationProtocol => {
                    TlsError::Incompatible(format!("alert {alert:?} of the peer"))
                }
                alert => TlsError::BrokenAtPeer(format!("alert {alert:?}")),
            },
            error => TlsError::Broken(error.to_string()),
        }
    }
}

impl TlsConnection for Tls {
    fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    fn authenticated_as(&self) -> Option<AuthenticatedAs> {
        match self.is_handshaking {
            true => None,
            false => self.slot.get().and_then(Result::ok),
        }
    }

    // Input from the peer.

    fn receive(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<(), TlsError> {
        if self.is_handshaking && self.incoming.len() + bytes.len() > MAX_HANDSHAKE_BYTES {
            return Err(self.fail(TlsError::Broken("an endless handshake".to_owned())));
        }
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.arrived(bytes.len());
        self.advance(sink, None, usize::MAX)
    }

    fn room(&mut self, least: usize) -> &mut [u8] {
        self.incoming.room(least)
    }

    fn arrived(&mut self, bytes: usize) {
        self.incoming.arrived(bytes);
    }

    fn process_records(
        &mut self,
        most: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TlsError> {
        let (records, bytes) = self.incoming.whole_records(most);
        // Below the limit, the beginning of a record is looked at too: its header may be wrong.
        let bytes = if records < most { usize::MAX } else { bytes };
        self.advance(sink, None, bytes)?;
        Ok(records)
    }

    fn part_bytes(&self) -> usize {
        self.incoming.len()
    }

    fn failed(&self) -> Option<&TlsError> {
        self.failed.as_ref()
    }

    fn is_ended(&self) -> bool {
        self.is_ended
    }

    // Output to the peer.

    fn seal(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        debug_assert!(!self.is_handshaking);
        for record in plaintext.chunks(MAX_RECORD_BYTES) {
            self.advance(&mut |_| {}, Some(record), 0)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), TlsError> {
        self.advance(&mut |_| {}, Some(&[]), 0)
    }

    fn outgoing(&self) -> &[u8] {
        self.outgoing.unsent()
    }

    fn sent(&mut self, bytes: usize) {
        self.outgoing.sent(bytes);
    }

    fn rest(&mut self) {
        if self.incoming.len() == 0 {
            self.incoming = ReceivedBytes::default();
        }
        if self.outgoing().is_empty() {
            self.outgoing = SealedBytes::default();
        }
    }
}

// Without anything that is inside.
ibex_base::debug_fields! {
    [] Tls: |tls|
        method = tls.method, is_handshaking = tls.is_handshaking, is_ended = tls.is_ended
}

/// The call that both kinds of connection have.
trait RecordProcessor {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl RecordProcessor for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ClientConnectionData> {
        self.process_tls_records(incoming)
    }
}

impl RecordProcessor for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ServerConnectionData> {
        self.process_tls_records(incoming)
    }
}

/// Everything that one run of rustls' state machine reads and writes.
struct Pump<'a> {
    incoming: &'a mut ReceivedBytes,
    outgoing: &'a mut SealedBytes,
    is_ended: &'a mut bool,
    sink: &'a mut dyn FnMut(&[u8]),
    record: Option<&'a [u8]>,
    /// Number of bytes of `incoming` that are to be read.
    readable: usize,
}

impl Pump<'_> {
    /// Returns whether the handshake is over.
    fn run<R: RecordProcessor>(mut self, records: &mut R) -> Result<bool, Error> {
        loop {
            let UnbufferedStatus { discard, state } =
                records.process(self.incoming.first(self.readable));
            let is_done = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        (self.sink)(record?.payload);
                    }
                    None
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    self.outgoing.append(|into| data.encode(into))?;
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::PeerClosed) => {
                    *self.is_ended = true;
                    None
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => match self.record.take() {
                    Some([]) => {
                        self.outgoing
                            .append(|into| traffic.queue_close_notify(into))?;
                        Some(true)
                    }
                    // One more round follows, for a key update that the record may have led to.
                    Some(record) => {
                        self.outgoing.append(|into| traffic.encrypt(record, into))?;
                        None
                    }
                    None => Some(true),
                },
                Ok(ConnectionState::Closed) => Some(true),
                Ok(ConnectionState::BlockedHandshake) => Some(false),
                Ok(state) => {
                    return Err(Error::General(format!("unexpected state {state:?}")));
                }
                Err(error) => {
                    self.collect_alert(records);
                    return Err(error);
                }
            };
            self.incoming.discard(discard);
            self.readable = self.readable.saturating_sub(discard);
            if let Some(is_over) = is_done {
                return Ok(is_over);
            }
        }
    }

    /// Lets rustls say to the peer why it gave up: with the same bytes, it gives what is queued
    /// first, and its alert last. Asked once more, it would meet the same bytes again.
    fn collect_alert<R: RecordProcessor>(&mut self, records: &mut R) {
        loop {
            match records.process(self.incoming.first(self.readable)).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let before = self.outgoing.unsent().len();
                    let appended = self.outgoing.append(|into| data.encode(into));
                    let length = self.outgoing.unsent().len() - before;
                    if appended.is_err() || ALERT_BYTES.contains(&length) {
                        return;
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                _ => return,
            }
        }
    }
}

/// Plaintext of one record: RFC 8446, section 5.1.
const MAX_RECORD_BYTES: usize = 16 << 10;

/// Bytes of a handshake that may wait for more: the longest record, and those that come with
/// its end.
const MAX_HANDSHAKE_BYTES: usize = 48 << 10;

/// Lengths of an alert's record, in clear and sealed: a header of 5 bytes, 2 of the alert, and
/// where it is sealed the type and a tag of 16 bytes (RFC 8446, sections 5.2 and 6). No handshake
/// message is as short.
const ALERT_BYTES: [usize; 2] = [7, 24];
