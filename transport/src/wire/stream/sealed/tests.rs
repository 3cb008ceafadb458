//! A sealed stream over sockets, with an interceptor that changes the records that it passes on.

use std::net::{Shutdown, TcpListener};

use ibex_base::tls::TlsCredentials;
use ibex_tls::{Credentials, Security, SharedSecret};
use proptest::prelude::*;
use rustix::io::ioctl_fionread;

use super::*;

fn credentials() -> Credentials {
    let bytes = std::array::from_fn(|at| (at * 37 + 5) as u8);
    let secret = SharedSecret::from_bytes(bytes).unwrap();
    Security::shared_secret(secret).open().unwrap()
}

/// Returns both ends of a TLS connection after its handshake.
pub(crate) fn tls_ends() -> [Box<dyn TlsConnection>; 2] {
    let credentials = credentials();
    let mut ends = [
        credentials.dialer(None).unwrap(),
        credentials.acceptor().unwrap(),
    ];
    let nothing = &mut |_: &[u8]| {};
    while ends.iter().any(|end| end.is_handshaking()) {
        for from in [0, 1] {
            ends[from].receive(&[], nothing).unwrap();
            let flight = ends[from].outgoing().to_vec();
            ends[from].sent(flight.len());
            ends[1 - from].receive(&flight, nothing).unwrap();
        }
    }
    ends
}

fn ends() -> [SealedLayer; 2] {
    tls_ends().map(SealedLayer::new)
}

/// Returns both ends of a connection over loopback.
fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [near, listener.accept().unwrap().0]
}

/// An interceptor that collects all records of one direction before it passes them on.
struct Interceptor {
    records: Vec<Vec<u8>>,
}

/// A change that the interceptor makes.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    Drop,
    Double,
    Exchange,
    /// The record loses its last bytes, and nothing follows.
    CutOff,
    /// A bit after the header of 5 bytes is flipped.
    Flip,
    /// A bit of the length is flipped, so that a record seems longer.
    FlipLength,
}

const HARMS: [Harm; 7] = [
    Harm::Nothing,
    Harm::Drop,
    Harm::Double,
    Harm::Exchange,
    Harm::CutOff,
    Harm::Flip,
    Harm::FlipLength,
];

impl Interceptor {
    /// Collects the bytes that are written to the other end of `socket`.
    fn new(socket: &TcpStream) -> Self {
        let mut bytes = Vec::new();
        while let waiting @ 1.. = ioctl_fionread(socket).unwrap() {
            let start = bytes.len();
            bytes.resize(start + waiting as usize, 0);
            let (_, read) = recv(socket, &mut bytes[start..], RecvFlags::empty()).unwrap();
            bytes.truncate(start + read);
        }
        let (mut records, mut rest) = (Vec::new(), &bytes[..]);
        while let [_, _, _, high, low, ..] = *rest {
            let (record, behind) = rest.split_at(5 + usize::from(u16::from_be_bytes([high, low])));
            records.push(record.to_vec());
            rest = behind;
        }
        Self { records }
    }

    /// Damages record `at` or, if `harm` takes two records, also the next one.
    fn harm(&mut self, harm: Harm, at: usize, bit: usize) {
        let records = &mut self.records;
        match harm {
            Harm::Nothing => {}
            Harm::Drop => drop(records.remove(at)),
            Harm::Double => records.insert(at, records[at].clone()),
            Harm::Exchange => records.swap(at, at + 1),
            Harm::CutOff => {
                records.truncate(at + 1);
                let kept = bit % records[at].len();
                records[at].truncate(kept);
            }
            Harm::Flip => {
                let body = &mut records[at][5..];
                let byte = bit / 8 % body.len();
                body[byte] ^= 1 << (bit % 8);
            }
            Harm::FlipLength => records[at][3] ^= 0x20,
        }
    }
}

/// The bytes that a reader got, and the error after them.
#[derive(Default)]
struct Heard {
    plain: Vec<u8>,
    error: Option<io::Error>,
    is_over: bool,
}

impl Heard {
    /// Reads in pieces of `piece` bytes until no more bytes are available.
    fn read(&mut self, sealed: &mut SealedLayer, socket: &TcpStream, piece: usize) {
        let mut buffer = vec![0; piece];
        loop {
            sealed.begin_turn();
            let socket_has = ioctl_fionread(socket).unwrap() > 0;
            let outcome = sealed.read(socket, &mut [IoSliceMut::new(&mut buffer)]);
            match outcome {
                Ok(0) => return self.is_over = true,
                Ok(read) => self.plain.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !socket_has && !sealed.has_unread() {
                        return;
                    }
                }
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to the records, the reader gets a prefix of the written bytes, and learns
    /// of the damage without waiting for more.
    #[test]
    fn records_that_were_harmed_are_told_and_never_read(
        lengths in prop::collection::vec(1usize..3000, 3..12),
        harm in prop::sample::select(&HARMS[..]),
        at in any::<prop::sample::Index>(),
        bit in any::<usize>(),
        piece in 1usize..5000,
        cut in any::<prop::sample::Index>(),
    ) {
        let [mut writer, mut reader] = ends();
        let ([near, tap], [out, far]) = (connection(), connection());
        let mut written = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let frame: Vec<u8> = (0..*length).map(|at| (at + 31 * number) as u8).collect();
            prop_assert_eq!(writer.write(&near, &[IoSlice::new(&frame)]).unwrap(), *length);
            prop_assert!(!writer.has_backlog());
            written.extend(frame);
        }
        let mut between = Interceptor::new(&tap);
        prop_assert_eq!(between.records.len(), lengths.len());
        between.harm(harm, at.index(lengths.len() - 1), bit);
        let bytes = between.records.concat();
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        let mut heard = Heard::default();
        for part in [first, second] {
            io::Write::write_all(&mut (&out), part).unwrap();
            while heard.error.is_none() {
                heard.read(&mut reader, &far, piece);
                if ioctl_fionread(&far).unwrap() == 0 {
                    break;
                }
            }
        }
        prop_assert!(written.starts_with(&heard.plain), "{harm:?}");
        let seems_whole = match harm {
            Harm::Nothing | Harm::CutOff | Harm::FlipLength => true,
            Harm::Drop | Harm::Double | Harm::Exchange | Harm::Flip => false,
        };
        prop_assert!(heard.error.is_some() || seems_whole, "{harm:?}: it waits for ever");
        // The end is valid only if it was announced.
        out.shutdown(Shutdown::Both).unwrap();
        if heard.error.is_none() {
            heard.read(&mut reader, &far, piece);
        }
        prop_assert!(heard.error.is_some() && !heard.is_over, "{harm:?}");
        if let Harm::Nothing = harm {
            prop_assert_eq!(heard.plain, written);
        }
    }
}

#[test]
fn a_damaged_record_is_reported_after_the_intact_one_before_it() {
    let [mut writer, mut reader] = ends();
    let ([near, tap], [mut out, far]) = (connection(), connection());
    for frame in [b"right", b"wrong"] {
        writer.write(&near, &[IoSlice::new(frame)]).unwrap();
    }
    let mut between = Interceptor::new(&tap);
    between.harm(Harm::Flip, 1, 0);
    io::Write::write_all(&mut out, &between.records.concat()).unwrap();
    let mut buffer = [0; 64];
    let mut read =
        |sealed: &mut SealedLayer| sealed.read(&far, &mut [IoSliceMut::new(&mut buffer)]);
    assert_eq!(read(&mut reader).unwrap(), 5);
    // No more bytes arrive, and epoll reports nothing.
    assert!(reader.has_unread());
    let error = read(&mut reader).unwrap_err();
    assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}");
}

#[test]
fn an_announced_end_is_told_from_a_stream_that_is_cut_off() {
    for is_announced in [true, false] {
        let [mut writer, mut reader] = ends();
        let [near, far] = connection();
        writer.write(&near, &[IoSlice::new(b"last")]).unwrap();
        if is_announced {
            writer.end(&near).unwrap();
        }
        drop(near);
        let mut heard = Heard::default();
        while !heard.is_over && heard.error.is_none() {
            heard.read(&mut reader, &far, 64);
        }
        assert_eq!(
            (&heard.plain[..], heard.is_over),
            (&b"last"[..], is_announced)
        );
    }
}

#[test]
fn long_writes_are_taken_in_part_while_the_socket_is_full() {
    let [mut writer, mut reader] = ends();
    let [near, far] = connection();
    let frame: Vec<u8> = (0..8 << 20).map(|at: usize| (at % 251) as u8).collect();
    let (mut sent, mut heard) = (0, Heard::default());
    let mut was_full = false;
    while heard.plain.len() < frame.len() {
        match writer.write(&near, &[IoSlice::new(&frame[sent..])]) {
            Ok(taken) => sent += taken,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                was_full = true;
                heard.read(&mut reader, &far, 10_000);
            }
        }
        if sent == frame.len() {
            writer.flush(&near).unwrap();
            heard.read(&mut reader, &far, 10_000);
        }
    }
    assert!(was_full && heard.plain == frame && heard.error.is_none());
}

#[test]
fn a_turn_opens_a_share_of_records_however_short_they_are() {
    const RECORDS: usize = 3 * RECORDS_PER_TURN + 1;
    let [mut writer, mut reader] = ends();
    let [near, far] = connection();
    let plain: Vec<u8> = (0..RECORDS).map(|at| at as u8).collect();
    for byte in &plain {
        let taken = writer.write(&near, &[IoSlice::new(&[*byte])]).unwrap();
        assert_eq!(taken, 1);
    }
    let mut heard = Vec::new();
    for turn in 1.. {
        reader.begin_turn();
        let mut buffer = [0; 64];
        loop {
            match reader.read(&far, &mut [IoSliceMut::new(&mut buffer)]) {
                Ok(read) => heard.extend_from_slice(&buffer[..read]),
                Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert!(heard.len() <= turn * RECORDS_PER_TURN, "in turn {turn}");
        if heard.len() == RECORDS {
            break;
        }
        // The rest has left the socket, so epoll does not report it.
        assert!(reader.is_share_spent() && reader.has_unread());
        // A turn also writes, and that opens nothing.
        reader.write(&far, &[IoSlice::new(&[7])]).unwrap();
    }
    assert!(heard == plain && !reader.has_unread());
}
