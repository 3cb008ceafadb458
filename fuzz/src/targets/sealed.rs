//! TLS as a peer meets it: a listener's handshake, the messages of an authenticated peer inside it,
//! and the records of a stream that were changed on the way.
//!
//! All random numbers follow from a seed, so an input means the same in every run.
#![forbid(unsafe_code)]

use std::sync::{Arc, LazyLock};

use hmac_sha256::Hash;
use ibex_base::tls::{TlsConnection, TlsCredentials};
use ibex_bootstrap::handshake::{Handshake, HandshakeEvent};
use ibex_bootstrap::message::{Binding, HandshakeMessage, MAGIC};
use ibex_harness::fixed_random;
use ibex_tls::{Credentials, Security, SharedSecret};

use super::bootstrap::{self, Recording};
use crate::Seed;
use crate::reader::Reader;

/// Feeds a dialer's half to an acceptor that authenticates its peers. Accepts it if they agree.
///
/// The first byte says whether the dialer is a member. A member's TLS handshake is made here, and
/// the rest are messages that it seals, with the number of bytes per record that the second byte
/// gives. Their checksums are corrected, so that an input gets beyond them. A stranger's half is
/// fed to the acceptor unchanged.
pub(crate) fn acceptor_accepts(bytes: &[u8]) -> bool {
    let mut input = Reader::new(bytes);
    let (Some(is_member), Some(piece)) = (input.byte(), input.byte()) else {
        return false;
    };
    fixed_random::seed(SEED);
    let mut acceptor = bootstrap::secured_acceptor(CREDENTIALS.clone());
    if is_member & 1 == 0 {
        let half = input.rest();
        let pieces = half.chunks(usize::from(piece) + 1);
        return pieces
            .into_iter()
            .any(|piece| hears(&mut acceptor, piece).0 == Some(true));
    }
    let Some(mut dialer) = Member::meets(&mut acceptor) else {
        panic!("a member is not let in");
    };
    let plain = dialer.mended(input.rest());
    for piece in plain.chunks(usize::from(piece) + 1) {
        dialer
            .tls
            .seal(piece)
            .expect("the member's TLS is as it was");
        let sealed = dialer.take_outgoing();
        if let (Some(is_agreed), _) = hears(&mut acceptor, &sealed) {
            return is_agreed;
        }
    }
    false
}

/// Returns messages of a member behind its Hello, in small records and in one.
pub(crate) fn acceptor_seeds() -> Vec<Seed> {
    // Its tags of a host are of the Hellos that were recorded, so both ends are on two hosts here.
    let recording = Recording::over_tcp();
    let messages = behind_hello(&recording.from_dialer);
    [("tcp_in_pieces", 7), ("tcp", 255)]
        .map(|(name, piece)| Seed {
            name,
            bytes: [&[1, piece], messages].concat(),
        })
        .into()
}

/// Feeds records of an authenticated peer that are dropped, doubled, cut, changed or extended on
/// the way. Panics if plaintext comes out that was not put in, or if whole records are refused.
/// Accepts them if all of the plaintext came out.
///
/// The input is a list of changes, each a byte for its kind and two for its amount: see [`Deed`].
pub(crate) fn records_accept(bytes: &[u8]) -> bool {
    fixed_random::seed(SEED);
    let mut sender = CREDENTIALS.dialer(None).expect("an end");
    let mut receiver = CREDENTIALS.acceptor().expect("an end");
    introduce(&mut *sender, &mut *receiver);
    let mut stream = Stream::new(sender);
    let mut input = Reader::new(bytes);
    while let (Some(deed), Some(amount)) = (input.byte(), input.array()) {
        stream.hears_of(Deed::of(deed), usize::from(u16::from_le_bytes(amount)));
    }
    // A rest of the input has no meaning.
    let is_read = input.is_empty();
    stream.arrives_at(receiver) && is_read
}

/// Returns long and short records, in one read and in many.
pub(crate) fn records_seeds() -> Vec<Seed> {
    let deeds = |deeds: &[(u8, u16)]| {
        let bytes = deeds.iter().map(|(deed, amount)| {
            let [low, high] = amount.to_le_bytes();
            [*deed, low, high]
        });
        bytes.flatten().collect::<Vec<u8>>()
    };
    let seed = |name, bytes| Seed { name, bytes };
    vec![
        seed("short", deeds(&[(0, 64), (0, 1), (0, 300), (6, 4095)])),
        seed("pieces", deeds(&[(6, 100), (0, 4000), (0, 10), (0, 2000)])),
        seed("long", deeds(&[(0, 16384), (0, 16383), (6, 7000)])),
    ]
}

/// A step in the life of the stream.
#[derive(Clone, Copy)]
enum Deed {
    /// Seals this many bytes of plaintext as a record.
    Seal,
    /// Drops the last record, or one that many records before it.
    Drop,
    Double,
    /// Removes this many of the record's last bytes.
    Cut,
    /// Changes a bit of the record.
    Flip,
    /// Appends this many bytes that no peer has sealed.
    Add,
    /// Lets everything arrive in pieces of this size.
    Pieces,
}

impl Deed {
    fn of(byte: u8) -> Deed {
        match byte % 8 {
            0 => Deed::Seal,
            1 => Deed::Drop,
            2 => Deed::Double,
            3 => Deed::Cut,
            4 => Deed::Flip,
            6 => Deed::Pieces,
            _ => Deed::Add,
        }
    }
}

/// A sealed stream before it arrives.
struct Stream {
    sender: Box<dyn TlsConnection>,
    plain: Vec<u8>,
    records: Vec<Vec<u8>>,
    is_harmed: bool,
    piece: usize,
}

impl Stream {
    fn new(sender: Box<dyn TlsConnection>) -> Stream {
        Stream {
            sender,
            plain: Vec::new(),
            records: Vec::new(),
            is_harmed: false,
            piece: 4096,
        }
    }

    fn hears_of(&mut self, deed: Deed, amount: usize) {
        match deed {
            Deed::Seal => self.seal(amount % (RECORD_BYTES + 1)),
            Deed::Pieces => self.piece = amount % 8192 + 1,
            harm if !self.records.is_empty() => {
                self.is_harmed = true;
                self.harm(harm, amount);
            }
            _ => {}
        }
    }

    fn seal(&mut self, length: usize) {
        if length == 0 || self.plain.len() > MOST_BYTES {
            return;
        }
        let start = self.plain.len();
        self.plain
            .extend((start..start + length).map(|at| (at % 251) as u8));
        self.sender
            .seal(&self.plain[start..])
            .expect("its TLS is as it was");
        let sealed = self.sender.outgoing().to_vec();
        self.sender.sent(sealed.len());
        self.records.push(sealed);
    }

    fn harm(&mut self, deed: Deed, amount: usize) {
        let at = self.records.len() - 1 - amount % self.records.len();
        let record = &mut self.records[at];
        match deed {
            Deed::Drop => drop(self.records.remove(at)),
            Deed::Double => self.records.insert(at, self.records[at].clone()),
            Deed::Cut => record.truncate(record.len().saturating_sub(amount)),
            Deed::Flip => {
                let byte = amount % record.len().max(1);
                if let Some(byte) = record.get_mut(byte) {
                    *byte ^= 1 << (amount % 7);
                }
            }
            _ => record.extend((0..amount).map(|at| (at * amount) as u8)),
        }
    }

    /// Returns whether all of the plaintext comes out.
    fn arrives_at(self, mut receiver: Box<dyn TlsConnection>) -> bool {
        let (bytes, mut got) = (self.records.concat(), Vec::new());
        let mut error = None;
        for piece in bytes.chunks(self.piece) {
            if let Err(why) = receiver.receive(piece, &mut |plain| got.extend_from_slice(plain)) {
                error = Some(why);
                break;
            }
        }
        assert!(
            self.plain.starts_with(&got),
            "what nobody sealed was opened"
        );
        if let (Some(error), false) = (&error, self.is_harmed) {
            panic!("records that came as they were sealed are refused: {error}");
        }
        let is_whole = got.len() == self.plain.len();
        assert!(
            is_whole || self.is_harmed,
            "records came and were not opened"
        );
        is_whole && error.is_none() && !self.is_harmed && !got.is_empty()
    }
}

/// A dialer of the acceptor's cluster, after its TLS handshake.
struct Member {
    tls: Box<dyn TlsConnection>,
    hellos: [Vec<u8>; 2],
}

impl Member {
    fn meets(acceptor: &mut Handshake) -> Option<Member> {
        let hello = bootstrap::secured_hello(CREDENTIALS.clone());
        let (_, answer) = hears(acceptor, &hello);
        let length = MAGIC.len() + 2 + usize::from(u16::from_le_bytes([answer[8], answer[9]]));
        let (theirs, flight) = answer.split_at(length);
        let mut member = Member {
            tls: CREDENTIALS.dialer(None).ok()?,
            hellos: [hello, theirs.to_vec()],
        };
        let mut flight = flight.to_vec();
        while member.tls.is_handshaking() || !flight.is_empty() {
            // The acceptor's messages behind its handshake are not read.
            member.tls.receive(&flight, &mut |_| {}).ok()?;
            let outgoing = member.take_outgoing();
            flight = hears(acceptor, &outgoing).1;
        }
        Some(member)
    }

    fn take_outgoing(&mut self) -> Vec<u8> {
        let outgoing = self.tls.outgoing().to_vec();
        self.tls.sent(outgoing.len());
        outgoing
    }

    /// Returns its Binding and the messages of `half`, with correct checksums.
    fn mended(&self, half: &[u8]) -> Vec<u8> {
        let mut hash = Hash::new();
        self.hellos.iter().for_each(|hello| hash.update(hello));
        let hellos = hash.finalize();
        let mut said = self.hellos[0].clone();
        HandshakeMessage::Binding(Binding { hellos })
            .write_checked(self.hellos.each_ref().map(|hello| &hello[..]), &mut said);
        said.extend_from_slice(half);
        let mended = bootstrap::mended(&said, |_| self.hellos.clone());
        mended[self.hellos[0].len()..].to_vec()
    }
}

/// Lets the acceptor receive `bytes` and do what it wants done. Returns the outcome of its handshake,
/// if it is over, and its output.
fn hears(acceptor: &mut Handshake, bytes: &[u8]) -> (Option<bool>, Vec<u8>) {
    let (mut end, mut said) = (None, Vec::new());
    acceptor.handle_bytes(bytes);
    while let Some(event) = acceptor.poll_event() {
        match event {
            HandshakeEvent::ListenUnix { .. } => {
                acceptor.handle_unix(Ok(()));
                let _ = acceptor.handle_token(bootstrap::TOKEN.expose());
            }
            HandshakeEvent::Agreed(_) | HandshakeEvent::Resumed(_) => end = Some(true),
            HandshakeEvent::Failed(_) => end = Some(false),
            _ => {}
        }
    }
    while let Some(bytes) = acceptor.poll_transmit() {
        said.extend(bytes);
    }
    (end, said)
}

/// Passes flights between both ends until they know each other.
fn introduce(dialer: &mut dyn TlsConnection, acceptor: &mut dyn TlsConnection) {
    while dialer.is_handshaking() || acceptor.is_handshaking() {
        pass_flight(dialer, acceptor);
        pass_flight(acceptor, dialer);
    }
}

fn pass_flight(from: &mut dyn TlsConnection, to: &mut dyn TlsConnection) {
    from.receive(&[], &mut |_| {}).expect("nothing was changed");
    let flight = from.outgoing().to_vec();
    from.sent(flight.len());
    to.receive(&flight, &mut |_| {})
        .expect("nothing was changed");
}

/// Returns the messages of a half behind its Hello.
fn behind_hello(half: &[u8]) -> &[u8] {
    let length = u16::from_le_bytes([half[MAGIC.len()], half[MAGIC.len() + 1]]);
    &half[MAGIC.len() + 2 + usize::from(length)..]
}

/// Both ends' keys.
static CREDENTIALS: LazyLock<Arc<Credentials>> = LazyLock::new(|| {
    let secret = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(3));
    let secret = SharedSecret::from_bytes(secret).expect("bytes that look random");
    let security = Security::shared_secret(secret).provider(fixed_random::provider());
    Arc::new(security.open().expect("keys of the fixed provider"))
});

const SEED: u64 = 31;
/// Plaintext of one record: RFC 8446, section 5.1.
const RECORD_BYTES: usize = 16 << 10;
/// The most plaintext of one input, not counting the last record.
const MOST_BYTES: usize = 64 << 10;
