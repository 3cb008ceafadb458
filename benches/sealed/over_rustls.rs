//! The messages through rustls' unbuffered API, over sockets that are polled.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use ibex::rustls::{
    self,
    client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus},
};

use ibex_harness::cores::{self, Cores};

use crate::{Configs, Outcome, Shape, check, payload};

pub(crate) fn measure(shape: Shape, configs: &Configs, cores: Cores) -> Outcome<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = configs.server.clone();
    let answering = thread::spawn(move || -> Outcome {
        cores::keep_to(&cores[1..])?;
        let (socket, _) = listener.accept()?;
        let mut end = Unbuffered::new(UnbufferedServerConnection::new(server)?, socket)?;
        let mut message = vec![0; shape.size];
        for number in 0..shape.messages {
            end.read(&mut message)?;
            check(&message, number, shape)?;
            if !shape.is_stream {
                end.write(&message)?;
            }
        }
        end.write(&[1])
    });
    let connection = UnbufferedClientConnection::new(configs.client.clone(), configs.name())?;
    let mut end = Unbuffered::new(connection, TcpStream::connect(address)?)?;
    end.write(&[])?;
    let (mut bytes, mut answer) = (payload(0, shape), vec![0; shape.size]);
    let begun = Instant::now();
    for number in 0..shape.messages {
        bytes[0] = number as u8;
        end.write(&bytes)?;
        if !shape.is_stream {
            end.read(&mut answer)?;
            check(&answer, number, shape)?;
        }
    }
    end.read(&mut [0])?;
    let took = begun.elapsed();
    answering.join().map_err(|_| "the other end panicked")??;
    Ok(took)
}

/// A connection by rustls' unbuffered API, over a socket that is polled.
struct Unbuffered<C> {
    connection: C,
    socket: TcpStream,
    incoming: Vec<u8>,
    start: usize,
    filled: usize,
    outgoing: Vec<u8>,
    plain: Vec<u8>,
    plain_from: usize,
}

/// The operation that client and server connections share.
trait Process {
    type Data;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Process for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }
}

impl Process for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }
}

impl<C: Process> Unbuffered<C> {
    fn new(connection: C, socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            connection,
            socket,
            incoming: vec![0; INCOMING],
            start: 0,
            filled: 0,
            outgoing: Vec::new(),
            plain: Vec::new(),
            plain_from: 0,
        })
    }

    /// Encrypts and writes all of `bytes`, after the handshake.
    fn write(&mut self, bytes: &[u8]) -> Outcome {
        let mut pieces = bytes.chunks(16 << 10).peekable();
        loop {
            let may_send = self.advance(pieces.peek().copied())?;
            self.flush()?;
            match may_send {
                true if pieces.next().is_none() || pieces.peek().is_none() => return Ok(()),
                true => {}
                false => self.receive()?,
            }
        }
    }

    /// Reads until `into` is full.
    fn read(&mut self, into: &mut [u8]) -> Outcome {
        let mut copied = 0;
        loop {
            let unread = &self.plain[self.plain_from..];
            let taken = unread.len().min(into.len() - copied);
            into[copied..][..taken].copy_from_slice(&unread[..taken]);
            (copied, self.plain_from) = (copied + taken, self.plain_from + taken);
            if copied == into.len() {
                return Ok(());
            }
            self.plain.clear();
            self.plain_from = 0;
            self.receive()?;
            self.advance(None)?;
            self.flush()?;
        }
    }

    /// Continues until rustls needs more bytes, and seals `piece` as soon as it can. Returns
    /// whether `piece` was sealed.
    fn advance(&mut self, mut piece: Option<&[u8]>) -> Outcome<bool> {
        loop {
            let bytes = &mut self.incoming[self.start..self.filled];
            let status = self.connection.process(bytes);
            let UnbufferedStatus { discard, state } = status;
            let end = match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        self.plain.extend_from_slice(record?.payload);
                    }
                    None
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |into| match data.encode(into) {
                        Ok(length) => Ok(length),
                        Err(EncodeError::InsufficientSize(size)) => Err(size.required_size),
                        Err(EncodeError::AlreadyEncoded) => Ok(0),
                    });
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    None
                }
                ConnectionState::WriteTraffic(mut traffic) => {
                    if let Some(piece) = piece.take() {
                        append(&mut self.outgoing, |into| {
                            match traffic.encrypt(piece, into) {
                                Ok(length) => Ok(length),
                                Err(EncryptError::InsufficientSize(size)) => {
                                    Err(size.required_size)
                                }
                                Err(EncryptError::EncryptExhausted) => Ok(0),
                            }
                        });
                    }
                    Some(true)
                }
                ConnectionState::BlockedHandshake => Some(false),
                state => return Err(format!("{state:?}").into()),
            };
            self.start += discard;
            if let Some(may_send) = end {
                return Ok(may_send);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut rest = &self.outgoing[..];
        while !rest.is_empty() {
            match (&self.socket).write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        // The few remaining bytes are a part of one record.
        self.incoming.copy_within(self.start..self.filled, 0);
        (self.start, self.filled) = (0, self.filled - self.start);
        loop {
            match (&self.socket).read(&mut self.incoming[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.filled += read;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Appends the output of `encode`, which reports how many bytes it lacks.
fn append(outgoing: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, usize>) {
    let start = outgoing.len();
    let Err(required) = encode(&mut []) else {
        return;
    };
    outgoing.resize(start + required, 0);
    let written = encode(&mut outgoing[start..]).unwrap_or(0);
    outgoing.truncate(start + written);
}

/// The most bytes of a read.
const INCOMING: usize = 256 << 10;
