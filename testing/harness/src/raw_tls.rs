//! A TCP connection that rustls encrypts, as an ordinary program does it: blocking calls over
//! [`StreamOwned`]. The end that listens has a certificate of its own making, which the other end
//! gets another way and trusts alone.

#![forbid(unsafe_code)]

use std::{net::TcpStream, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, ServerName},
    version::TLS13,
};

use crate::{Error, authority};

/// The end that listens.
pub(crate) struct Listening {
    config: Arc<ServerConfig>,
    certificate: Vec<u8>,
}

impl Listening {
    pub(crate) fn new() -> Result<Self, Error> {
        let (certificate, key) = authority::self_signed(NAME).map_err(Error::subject)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                let config = config.with_no_client_auth();
                config.with_single_cert(vec![certificate.clone()], key)
            });
        let mut config = config.map_err(Error::subject)?;
        // The other end may only write. A ticket that it never read would make its close a reset,
        // at which the kernel drops what this end has not read yet.
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            certificate: certificate.to_vec(),
        })
    }

    pub(crate) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    pub(crate) fn accept(
        &self,
        socket: TcpStream,
    ) -> Result<StreamOwned<ServerConnection, TcpStream>, Error> {
        prepare(&socket)?;
        let connection = ServerConnection::new(Arc::clone(&self.config));
        Ok(StreamOwned::new(
            connection.map_err(Error::subject)?,
            socket,
        ))
    }
}

/// Begins TLS as the end that dialed, which trusts this certificate alone.
pub(crate) fn dial(
    certificate: &[u8],
    socket: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>, Error> {
    prepare(&socket)?;
    let mut roots = RootCertStore::empty();
    let trusted = roots.add(CertificateDer::from(certificate.to_vec()));
    trusted.map_err(Error::subject)?;
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let config = config.map_err(Error::subject)?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(NAME).map_err(Error::subject)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(Error::subject)?;
    Ok(StreamOwned::new(connection, socket))
}

fn prepare(socket: &TcpStream) -> Result<(), Error> {
    let prepared = socket.set_nodelay(true);
    prepared
        .and_then(|()| socket.set_nonblocking(false))
        .map_err(Error::io("preparing the socket"))
}

const NAME: &str = "ibex-limit";
