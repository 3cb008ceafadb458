//! A recorded peer: its parts, the connection over which they are played, and the node's answers.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use ibex_bootstrap::{
    message::{ALONE, CHECKSUM_BYTES, HandshakeMessage, MAGIC, MessageKind, checksum},
    parse_message,
};
use ibex_protocol::format::{
    control::{ChannelSpec, Control},
    counters::Counters,
    frame::{EXTENSION_BYTES, Extension, FrameHeader, FrameKind, HEADER_BYTES},
    frame_check::{CHECKED_HEADER_BYTES, Coverage, verify_body, verify_head},
    record::{HEADER_BYTES as RECORD_HEADER_BYTES, RecordHeader, record_size},
};

/// A peer that is being played.
pub(crate) struct Recording {
    parts: Vec<(String, Vec<u8>)>,
    wire: TcpStream,
    /// The Hellos of both, as far as they were sent: the peer's and the node's.
    hellos: [Vec<u8>; 2],
    /// Set once the peer has sent a message that covers both.
    has_vouched: bool,
    /// Frames that the node has sent.
    frames: u64,
    /// The node's statements in the session so far.
    pub(crate) said: Said,
}

/// The statements of a node in a session.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The credit that the peer may use.
    pub(crate) credit: u64,
    /// The ends that were opened, in order.
    pub(crate) opened: Vec<(Arc<str>, Arc<ChannelSpec>)>,
    /// The payloads of all records.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The latest counters of the peer's messages.
    pub(crate) counters: Counters,
    /// Set when the node has sent its goodbye.
    pub(crate) goodbye: bool,
}

impl Recording {
    /// Connects to a node, and sends nothing yet.
    pub(crate) fn open(text: &str, address: SocketAddr) -> Self {
        Self::over(text, TcpStream::connect(address).expect("the node listens"))
    }

    /// Plays over a given connection. `text` has the parts, each a name in brackets and lines of
    /// hexadecimal, with comments.
    pub(crate) fn over(text: &str, wire: TcpStream) -> Self {
        let mut parts: Vec<(String, Vec<u8>)> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[') {
                let name = name.strip_suffix(']').expect("a name in brackets");
                parts.push((name.to_owned(), Vec::new()));
            } else if !line.is_empty() && !line.starts_with('#') {
                let (_, bytes) = parts.last_mut().expect("a part begins with its name");
                let digits = line.as_bytes().chunks(2);
                bytes.extend(digits.map(|pair| {
                    let pair = std::str::from_utf8(pair).expect("ASCII");
                    u8::from_str_radix(pair, 16).expect("hexadecimal")
                }));
            }
        }
        parts.reverse();
        // This is not a time limit: a node that is silent for so long stays silent.
        wire.set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a time-out");
        Self {
            parts,
            wire,
            hellos: [Vec::new(), Vec::new()],
            has_vouched: false,
            frames: 0,
            said: Said::default(),
        }
    }

    /// Sends the next part, which must have this name.
    pub(crate) fn say(&mut self, part: &str) {
        let bytes = self.next(part);
        if self.hellos[0].is_empty() {
            self.hellos[0].clone_from(&bytes);
        }
        self.wire.write_all(&bytes).expect("the node listens");
    }

    /// Sends the next part with its checksum: a message of a handshake for which the peer dialed.
    pub(crate) fn say_checked(&mut self, part: &str) {
        let mut bytes = self.next(part);
        let before = match std::mem::replace(&mut self.has_vouched, true) {
            false => [&self.hellos[0][..], &self.hellos[1]],
            true => ALONE,
        };
        let checksum = checksum(before, &bytes);
        bytes.extend(checksum.to_le_bytes());
        self.wire.write_all(&bytes).expect("the node listens");
    }

    fn next(&mut self, part: &str) -> Vec<u8> {
        let (name, bytes) = self.parts.pop().expect("there is another part");
        assert_eq!(name, part, "the parts are played in their order");
        bytes
    }

    /// Returns whether everything was sent.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.is_empty()
    }

    // ---- The node's answers ----------------------------------------------------------

    pub(crate) fn hear_magic(&mut self) {
        self.hellos[1] = self.hear(MAGIC.len());
        assert_eq!(self.hellos[1], MAGIC);
    }

    /// Receives the next message of the handshake.
    pub(crate) fn hear_message(&mut self, kind: MessageKind) -> HandshakeMessage {
        let length = self.hear(2);
        let mut bytes = self.hear(usize::from(u16::from_le_bytes([length[0], length[1]])));
        if kind == MessageKind::Hello {
            self.hellos[1].extend([&length[..], &bytes].concat());
        } else {
            bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        }
        let message = parse_message(&bytes).expect("a node says what it should");
        assert_eq!(message.kind(), kind, "{message:?}");
        message
    }

    /// Receives frames until the node has said enough.
    pub(crate) fn hear_until(&mut self, is_enough: impl Fn(&Said) -> bool) {
        while !is_enough(&self.said) {
            let head = self.hear(CHECKED_HEADER_BYTES);
            let checked = verify_head(self.frames, &head).expect("as it was sent");
            let checked = checked.expect("whole");
            self.frames += 1;
            let mut frame = checked.frame.to_vec();
            let header = FrameHeader::parse(&frame)
                .expect("a header")
                .expect("whole");
            let rest = (header.length as usize).next_multiple_of(8) - HEADER_BYTES;
            frame.extend(self.hear(rest));
            let frame = &frame[..header.length as usize];
            verify_body(&header, frame, Coverage::Whole, checked.body_check)
                .expect("as it was sent");
            self.said.take(&header, frame);
        }
    }

    fn hear(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = self.wire.read_exact(&mut bytes);
        read.unwrap_or_else(|error| panic!("{error}, after {:?}", self.said));
        bytes
    }
}

impl Said {
    fn take(&mut self, header: &FrameHeader, frame: &[u8]) {
        if header.extension {
            let bytes = frame[HEADER_BYTES..].first_chunk::<EXTENSION_BYTES>();
            let extension = Extension::parse(bytes.expect("an extension"));
            self.credit = extension.credit.unwrap_or(self.credit);
            if let Some((_, counters)) = extension.counters {
                self.counters = counters;
            }
        }
        let body = &frame[header.body_offset()..];
        match header.kind {
            FrameKind::Control if body.is_empty() => {}
            FrameKind::Control => match Control::decode(body).expect("a control message") {
                Control::Open { name, spec, .. } => self.opened.push((name, spec)),
                Control::Goodbye { .. } => self.goodbye = true,
                _ => {}
            },
            FrameKind::Records => self.take_records(body),
            FrameKind::Chunk | FrameKind::Written => panic!("nothing here is large"),
        }
    }

    fn take_records(&mut self, mut body: &[u8]) {
        while let Some(word) = body.first_chunk() {
            let header = RecordHeader::from_word(u64::from_le_bytes(*word));
            let header = header.expect("a record").expect("of a known kind");
            let length = header.length as usize;
            self.payloads
                .push(body[RECORD_HEADER_BYTES..][..length].to_vec());
            body = &body[record_size(length, 8)..];
        }
    }
}
