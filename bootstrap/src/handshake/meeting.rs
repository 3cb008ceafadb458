//! Both state machines connected in memory, with a clock that stands until a test moves it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reunion::HELLO;
use super::*;
use crate::error::HandshakeError;
use crate::identity::{HostHint, NodeIdentity};
use crate::limits::Limits;
use crate::local::Local;
use crate::message::{ALONE, MAGIC, VerbsEndpoint, checksum};
use crate::party::Party;
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

/// Two nodes on one host, and what happens to what they send.
pub(super) struct Meeting {
    pub(super) dialer: Handshake,
    pub(super) acceptor: Handshake,
    pub(super) now: Instant,
    // The world.
    /// Bytes per delivery.
    pub(super) chunk: usize,
    /// The fate of the dialer's connection to the Unix socket.
    pub(super) unix: Unix,
    /// True if the acceptor can make a Unix socket.
    pub(super) can_listen: bool,
    /// After this many messages in both directions, everything is lost.
    pub(super) cut_after: usize,
    /// Index of the message whose last byte before the checksum is changed when it arrives.
    pub(super) garbles: Option<usize>,
    /// Set once TLS records follow the Hellos; they are not told apart.
    is_sealed: bool,
    /// Bytes that change: in the dialer's stream or the acceptor's, their places, and the bits.
    pub(super) changes: Vec<(bool, usize, u8)>,
    // The record.
    pub(super) from_dialer: Vec<u8>,
    pub(super) from_acceptor: Vec<u8>,
    delivered: usize,
    pub(super) dialer_end: Option<Result<Agreement, HandshakeError>>,
    pub(super) acceptor_end: Option<Result<Agreement, HandshakeError>>,
    pub(super) unix_closed: bool,
    // RDMA: what each end was given to look in, and its queue pair.
    devices: [Option<Arc<dyn VerbsDevices>>; 2],
    pub(super) pairs: [Option<Box<dyn VerbsPair>>; 2],
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unix {
    Joins,
    IsElsewhere,
    LacksDescriptors,
    /// The peer takes the token and never answers.
    IsSilent,
    /// The dialer claims to have joined and never presented the token.
    IsSkipped,
}

pub(super) const ENTROPY: AcceptorEntropy = AcceptorEntropy {
    nonce: [0xa0; 16],
    token: Secret::new([0xa2; 32]),
    session_id: [0xa3; 16],
    resume_secret: Secret::new([0xa4; 32]),
};
/// The two ends in lists of both.
pub(super) const DIALER: usize = 0;
pub(super) const ACCEPTOR: usize = 1;
/// The address of both connections.
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn local(identity: u8) -> Local {
    let mut local = Local::new(NodeIdentity([identity; 16]), u64::from(identity));
    // These are not the defaults, which may change and are no part of the protocol.
    local.limits = Limits {
        channels: 1000,
        session_credit_bytes: 1 << 33,
        max_frame_bytes: 0xf000,
    };
    local
}

pub(super) fn host(boot: u8) -> HostHint {
    HostHint {
        boot_id: [boot; 16],
        pid: 4242,
        uid: 1000,
        pid_namespace: 0xf000_0001,
        network_namespace: 0xf000_0002,
    }
}

impl Meeting {
    pub(super) fn new(dialer: &Local, acceptor: &Local) -> Meeting {
        Meeting::on_hosts(dialer, host(1), acceptor, host(1))
    }

    pub(super) fn on_hosts(
        dialer: &Local,
        dialer_host: HostHint,
        acceptor: &Local,
        acceptor_host: HostHint,
    ) -> Meeting {
        let now = Instant::now();
        let deadline = now + TIMEOUT;
        Meeting {
            dialer: Handshake::dial(dialer, dialer_host, [0xd0; 16], now, deadline),
            acceptor: Handshake::accept(acceptor, acceptor_host, ENTROPY, now, deadline),
            now,
            chunk: usize::MAX,
            unix: Unix::Joins,
            can_listen: true,
            cut_after: usize::MAX,
            garbles: None,
            is_sealed: dialer.credentials.is_some() && acceptor.credentials.is_some(),
            changes: Vec::new(),
            from_dialer: Vec::new(),
            from_acceptor: Vec::new(),
            delivered: 0,
            dialer_end: None,
            acceptor_end: None,
            unix_closed: false,
            devices: [dialer.verbs_devices.clone(), acceptor.verbs_devices.clone()],
            pairs: [None, None],
        }
    }

    /// Runs until both have nothing more to do.
    pub(super) fn run(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(bytes) = self.dialer.poll_transmit() {
                quiet = false;
                let start = self.from_dialer.len();
                self.from_dialer.extend(&bytes);
                for piece in self.deliverable(&bytes, (true, start)) {
                    self.acceptor.handle_bytes(&piece);
                    self.drive_acceptor();
                }
            }
            self.drive_dialer();
            self.drive_acceptor();
            while let Some(bytes) = self.acceptor.poll_transmit() {
                quiet = false;
                let start = self.from_acceptor.len();
                self.from_acceptor.extend(&bytes);
                for piece in self.deliverable(&bytes, (false, start)) {
                    self.dialer.handle_bytes(&piece);
                    self.drive_dialer();
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Runs with one end's stream replaced, for as many bytes as that end has sent.
    pub(super) fn replay(&mut self, of_dialer: bool, stream: &[u8]) {
        let mut heard = 0;
        loop {
            let mut quiet = true;
            while let Some(bytes) = self.dialer.poll_transmit() {
                quiet = false;
                self.from_dialer.extend(&bytes);
                let bytes = match of_dialer {
                    true => Self::part_of(stream, &mut heard, self.from_dialer.len()),
                    false => bytes,
                };
                self.acceptor.handle_bytes(&bytes);
                self.drive_acceptor();
            }
            while let Some(bytes) = self.acceptor.poll_transmit() {
                quiet = false;
                self.from_acceptor.extend(&bytes);
                let bytes = match of_dialer {
                    true => bytes,
                    false => Self::part_of(stream, &mut heard, self.from_acceptor.len()),
                };
                self.dialer.handle_bytes(&bytes);
                self.drive_dialer();
            }
            if quiet {
                return;
            }
        }
    }

    fn part_of(stream: &[u8], heard: &mut usize, said: usize) -> Vec<u8> {
        let start = std::mem::replace(heard, said.min(stream.len()));
        stream[start.min(*heard)..*heard].to_vec()
    }

    /// Returns the bytes that the checksum of the acceptor's next message covers beside the
    /// message.
    pub(super) fn before_dialer_hears(&self) -> [&[u8]; 2] {
        match self.dialer.step() {
            HandshakeStep::Offer => [&self.from_dialer[..HELLO], &self.from_acceptor[..HELLO]],
            _ => ALONE,
        }
    }

    /// Lets the deadline pass.
    pub(super) fn wait_for_ever(&mut self) {
        self.now += TIMEOUT;
        self.dialer.handle_timeout(self.now);
        self.acceptor.handle_timeout(self.now);
        self.drive_dialer();
        self.drive_acceptor();
    }

    /// Returns whether both ends finish, at the latest by the deadline, if they receive `bytes` after
    /// `delivered` messages.
    pub(super) fn ends_in_spite_of(
        mut self,
        mut bytes: Vec<u8>,
        as_message: bool,
        delivered: usize,
    ) -> bool {
        self.cut_after = delivered;
        self.run();
        if as_message {
            bytes.splice(..0, (bytes.len() as u16 + 4).to_le_bytes());
            let checksum = checksum(ALONE, &bytes);
            bytes.extend(checksum.to_le_bytes());
        }
        self.dialer.handle_bytes(&bytes);
        self.acceptor.handle_bytes(&bytes);
        self.cut_after = usize::MAX;
        self.run();
        self.wait_for_ever();
        self.dialer_end.is_some() && self.acceptor_end.is_some()
    }

    pub(super) fn ends(
        self,
    ) -> (
        Result<Agreement, HandshakeError>,
        Result<Agreement, HandshakeError>,
    ) {
        let ended = "the handshake has ended";
        (
            self.dialer_end.expect(ended),
            self.acceptor_end.expect(ended),
        )
    }

    /// Returns the part of `bytes`, which are whole messages, that arrives, in pieces. The second
    /// argument is the end that sent them and their place in its stream.
    fn deliverable(&mut self, bytes: &[u8], (by_dialer, at): (bool, usize)) -> Vec<Vec<u8>> {
        let mut arriving = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() && self.delivered < self.cut_after {
            let start = if rest.starts_with(&MAGIC) {
                MAGIC.len()
            } else {
                0
            };
            let length = usize::from(u16::from_le_bytes([rest[start], rest[start + 1]]));
            let length = match self.is_sealed && start == 0 {
                true => rest.len(),
                false => start + 2 + length,
            };
            let (message, behind) = rest.split_at(length);
            arriving.extend(message);
            if self.garbles == Some(self.delivered) {
                let before_checksum = arriving.len() - 5;
                arriving[before_checksum] ^= 0x10;
            }
            rest = behind;
            self.delivered += 1;
        }
        for (of_dialer, place, bits) in &self.changes {
            let place = place.checked_sub(at).filter(|_| *of_dialer == by_dialer);
            if let Some(byte) = place.and_then(|place| arriving.get_mut(place)) {
                *byte ^= bits;
            }
        }
        arriving
            .chunks(self.chunk.min(bytes.len()))
            .map(<[u8]>::to_vec)
            .collect()
    }

    pub(super) fn drive_dialer(&mut self) {
        while let Some(event) = self.dialer.poll_event() {
            match event {
                HandshakeEvent::ConnectUnix { name, token, .. } => {
                    assert!(name.starts_with(b"ibex-"));
                    let outcome = match self.unix {
                        Unix::Joins => {
                            assert!(!self.acceptor.handle_token(b"guessed"));
                            assert!(self.acceptor.handle_token(token.expose()));
                            assert!(!self.acceptor.handle_token(token.expose()), "one time");
                            Ok(())
                        }
                        Unix::IsElsewhere => Err("not here".to_string()),
                        Unix::LacksDescriptors => {
                            self.dialer.handle_shortage(64);
                            continue;
                        }
                        Unix::IsSilent => continue,
                        Unix::IsSkipped => Ok(()),
                    };
                    self.dialer.handle_unix(outcome);
                }
                HandshakeEvent::FindDevice => {
                    let found = self.devices(DIALER).device(ADDRESS);
                    self.dialer.handle_device(found);
                }
                HandshakeEvent::PreparePair => {
                    let prepared = self.prepare(DIALER);
                    self.dialer.handle_prepared(prepared);
                }
                HandshakeEvent::ConnectPair(theirs) => {
                    let connected = self.connect(DIALER, &theirs);
                    self.dialer.handle_connected(connected);
                }
                HandshakeEvent::ClosePair => self.pairs[DIALER] = None,
                HandshakeEvent::Agreed(agreement) => self.dialer_end = Some(Ok(*agreement)),
                HandshakeEvent::Failed(error) => self.dialer_end = Some(Err(error)),
                other => panic!("no event of a dialer: {other:?}"),
            }
        }
    }

    pub(super) fn drive_acceptor(&mut self) {
        while let Some(event) = self.acceptor.poll_event() {
            match event {
                HandshakeEvent::ListenUnix { .. } => {
                    let shortage = || "no descriptors".to_string();
                    let outcome = self.can_listen.then_some(()).ok_or_else(shortage);
                    self.acceptor.handle_unix(outcome);
                }
                HandshakeEvent::CloseUnix => self.unix_closed = true,
                HandshakeEvent::FindDevice => {
                    let found = self.devices(ACCEPTOR).device(ADDRESS);
                    self.acceptor.handle_device(found);
                }
                HandshakeEvent::PreparePair => {
                    let prepared = self.prepare(ACCEPTOR);
                    self.acceptor.handle_prepared(prepared);
                }
                HandshakeEvent::ConnectPair(theirs) => {
                    let connected = self.connect(ACCEPTOR, &theirs);
                    self.acceptor.handle_connected(connected);
                }
                HandshakeEvent::ClosePair => self.pairs[ACCEPTOR] = None,
                HandshakeEvent::Agreed(agreement) => self.acceptor_end = Some(Ok(*agreement)),
                HandshakeEvent::Failed(error) => self.acceptor_end = Some(Err(error)),
                other => panic!("no event of an acceptor that begins: {other:?}"),
            }
        }
    }
}

impl Meeting {
    fn devices(&self, end: usize) -> &dyn VerbsDevices {
        self.devices[end]
            .as_deref()
            .expect("only a node with devices is asked")
    }

    fn prepare(&mut self, end: usize) -> Result<VerbsEndpoint, String> {
        let role = if end == DIALER {
            Party::Dialer
        } else {
            Party::Acceptor
        };
        let pair = self.devices(end).prepare(&PairRequest {
            local: ADDRESS,
            peer: (ADDRESS, 7000).into(),
            offered: None,
            end: role,
            resumes: None,
        })?;
        Ok(self.pairs[end].insert(pair).endpoint())
    }

    fn connect(&mut self, end: usize, theirs: &VerbsEndpoint) -> Result<(), String> {
        let pair = self.pairs[end].as_mut();
        pair.expect("it was prepared").connect(theirs)
    }
}

/// Runs a meeting, whose ends must reach the same agreement. Returns the agreement of each.
pub(super) fn agreed(mut meeting: Meeting) -> (Agreement, Agreement) {
    meeting.run();
    let (dialer, acceptor) = meeting.ends();
    let (dialer, acceptor) = (dialer.expect("dialer"), acceptor.expect("acceptor"));
    assert_eq!(dialer.fabric, acceptor.fabric);
    assert_eq!(dialer.reason, acceptor.reason);
    assert_eq!(dialer.version, acceptor.version);
    assert_eq!(dialer.session_id, acceptor.session_id);
    assert_eq!(dialer.resume_secret, acceptor.resume_secret);
    assert_eq!(dialer.prologue, acceptor.prologue);
    (dialer, acceptor)
}

pub(super) fn failed(mut meeting: Meeting) -> (HandshakeError, HandshakeError) {
    meeting.run();
    let (dialer, acceptor) = meeting.ends();
    (dialer.expect_err("dialer"), acceptor.expect_err("acceptor"))
}
