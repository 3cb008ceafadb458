//! Both state machines face to face in memory, with a clock that stands until
//! a test moves it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::resume_tests::HELLO;
use super::*;
use crate::error::{Garbling, HandshakeError};
use crate::fabric::Policy;
use crate::identity::{HostHint, NodeIdentity};
use crate::local::{Limits, Local};
use crate::message::{
    ALONE, Choice, Hello, MAGIC, Message, MessageError, MessageKind, SecurityMode, Text,
    VerbsEndpoint, Version, VersionRange, checksum,
};
use crate::negotiate::{End, FabricConflict};
use crate::places::{Places, SessionLimit, SessionLimits};
use crate::verbs::{PairRequest, VerbsPair, VerbsSite};

/// Two nodes on one host, and what happens to what they send.
pub(super) struct Meeting {
    pub(super) dialer: DialerHandshake,
    pub(super) acceptor: AcceptorHandshake,
    pub(super) now: Instant,
    // The world.
    /// Bytes per delivery.
    pub(super) chunk: usize,
    /// The fate of the dialer's errand to the Unix socket.
    pub(super) unix: Unix,
    /// True if the acceptor can make a Unix socket.
    pub(super) can_listen: bool,
    /// After so many messages in both directions, everything is lost.
    pub(super) cut_after: usize,
    /// The message behind so many has another last byte when it arrives.
    garbles: Option<usize>,
    /// Behind the Hellos there are records of TLS, which are not told apart.
    is_sealed: bool,
    /// The bit to flip: in the dialer's stream or the acceptor's, the byte, and the mask.
    pub(super) flips: Option<(bool, usize, u8)>,
    // The record.
    pub(super) from_dialer: Vec<u8>,
    pub(super) from_acceptor: Vec<u8>,
    delivered: usize,
    pub(super) dialer_end: Option<Result<Agreement, HandshakeError>>,
    pub(super) acceptor_end: Option<Result<Agreement, HandshakeError>>,
    unix_closed: bool,
    // RDMA: what each end was given to look in, and its queue pair.
    sites: [Option<Arc<dyn VerbsSite>>; 2],
    pub(super) pairs: [Option<Box<dyn VerbsPair>>; 2],
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unix {
    Joins,
    IsElsewhere,
    /// The peer takes the token and never answers.
    IsSilent,
    /// The dialer claims to have joined and never presented the token.
    IsSkipped,
}

pub(super) const ENTROPY: AcceptorEntropy = AcceptorEntropy {
    nonce: [0xa0; 16],
    unix_name: [0xa1; 16],
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
    // Not the defaults, which may change and are no part of the protocol.
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
            dialer: DialerHandshake::new(dialer, dialer_host, [0xd0; 16], now, deadline),
            acceptor: AcceptorHandshake::new(acceptor, acceptor_host, ENTROPY, now, deadline),
            now,
            chunk: usize::MAX,
            unix: Unix::Joins,
            can_listen: true,
            cut_after: usize::MAX,
            garbles: None,
            is_sealed: dialer.credentials.is_some() && acceptor.credentials.is_some(),
            flips: None,
            from_dialer: Vec::new(),
            from_acceptor: Vec::new(),
            delivered: 0,
            dialer_end: None,
            acceptor_end: None,
            unix_closed: false,
            sites: [dialer.verbs_site.clone(), acceptor.verbs_site.clone()],
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
                    self.attend_acceptor();
                }
            }
            self.attend_dialer();
            self.attend_acceptor();
            while let Some(bytes) = self.acceptor.poll_transmit() {
                quiet = false;
                let start = self.from_acceptor.len();
                self.from_acceptor.extend(&bytes);
                for piece in self.deliverable(&bytes, (false, start)) {
                    self.dialer.handle_bytes(&piece);
                    self.attend_dialer();
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Runs with one end's stream replaced, as far as that end has said as much.
    fn replay(&mut self, of_dialer: bool, stream: &[u8]) {
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
                self.attend_acceptor();
            }
            while let Some(bytes) = self.acceptor.poll_transmit() {
                quiet = false;
                self.from_acceptor.extend(&bytes);
                let bytes = match of_dialer {
                    true => bytes,
                    false => Self::part_of(stream, &mut heard, self.from_acceptor.len()),
                };
                self.dialer.handle_bytes(&bytes);
                self.attend_dialer();
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
    fn before_dialer_hears(&self) -> [&[u8]; 2] {
        match self.dialer.step() {
            Step::Offer => [&self.from_dialer[..HELLO], &self.from_acceptor[..HELLO]],
            _ => ALONE,
        }
    }

    /// Lets the deadline pass.
    pub(super) fn wait_for_ever(&mut self) {
        self.now += TIMEOUT;
        self.dialer.handle_timeout(self.now);
        self.acceptor.handle_timeout(self.now);
        self.attend_dialer();
        self.attend_acceptor();
    }

    /// Returns whether both ends finish, at the latest by the deadline, if they hear `bytes` after
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
        if let Some((of_dialer, place, bit)) = self.flips
            && of_dialer == by_dialer
            && let Some(byte) = place.checked_sub(at).and_then(|at| arriving.get_mut(at))
        {
            *byte ^= 1 << bit;
        }
        arriving
            .chunks(self.chunk.min(bytes.len()))
            .map(<[u8]>::to_vec)
            .collect()
    }

    pub(super) fn attend_dialer(&mut self) {
        while let Some(event) = self.dialer.poll_event() {
            match event {
                DialerEvent::ConnectUnix { name, token } => {
                    assert!(name.starts_with(b"ibex-"));
                    let outcome = match self.unix {
                        Unix::Joins => {
                            assert!(!self.acceptor.handle_token(b"guessed"));
                            assert!(self.acceptor.handle_token(token.expose()));
                            assert!(!self.acceptor.handle_token(token.expose()), "one time");
                            Ok(())
                        }
                        Unix::IsElsewhere => Err("not here".to_string()),
                        Unix::IsSilent => continue,
                        Unix::IsSkipped => Ok(()),
                    };
                    self.dialer.handle_unix(outcome);
                }
                DialerEvent::FindDevice => {
                    let found = self.site(DIALER).device(ADDRESS);
                    self.dialer.handle_device(found);
                }
                DialerEvent::PreparePair => {
                    let prepared = self.prepare(DIALER);
                    self.dialer.handle_prepared(prepared);
                }
                DialerEvent::ConnectPair(theirs) => {
                    let connected = self.connect(DIALER, &theirs);
                    self.dialer.handle_connected(connected);
                }
                DialerEvent::ClosePair => self.pairs[DIALER] = None,
                DialerEvent::Agreed(agreement) => self.dialer_end = Some(Ok(*agreement)),
                DialerEvent::Failed(error) => self.dialer_end = Some(Err(error)),
            }
        }
    }

    pub(super) fn attend_acceptor(&mut self) {
        while let Some(event) = self.acceptor.poll_event() {
            match event {
                AcceptorEvent::ListenUnix { .. } => {
                    let shortage = || "no descriptors".to_string();
                    let outcome = self.can_listen.then_some(()).ok_or_else(shortage);
                    self.acceptor.handle_listening(outcome);
                }
                AcceptorEvent::CloseUnix => self.unix_closed = true,
                AcceptorEvent::FindDevice => {
                    let found = self.site(ACCEPTOR).device(ADDRESS);
                    self.acceptor.handle_device(found);
                }
                AcceptorEvent::PreparePair => {
                    let prepared = self.prepare(ACCEPTOR);
                    self.acceptor.handle_prepared(prepared);
                }
                AcceptorEvent::ConnectPair(theirs) => {
                    let connected = self.connect(ACCEPTOR, &theirs);
                    self.acceptor.handle_connected(connected);
                }
                AcceptorEvent::ClosePair => self.pairs[ACCEPTOR] = None,
                AcceptorEvent::Agreed(agreement) => self.acceptor_end = Some(Ok(*agreement)),
                AcceptorEvent::Resumed(_) => panic!("nobody resumes here"),
                AcceptorEvent::Failed(error) => self.acceptor_end = Some(Err(error)),
            }
        }
    }
}

impl Meeting {
    fn site(&self, end: usize) -> &dyn VerbsSite {
        self.sites[end]
            .as_deref()
            .expect("only a node with a site is asked")
    }

    fn prepare(&mut self, end: usize) -> Result<VerbsEndpoint, String> {
        let role = if end == DIALER {
            End::Dialer
        } else {
            End::Acceptor
        };
        let pair = self.site(end).prepare(&PairRequest {
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

/// Both ends of `meeting`, which must agree and agree on the same.
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

#[test]
fn two_nodes_on_one_host_agree_on_shared_memory() {
    let (dialer, acceptor) = agreed(Meeting::new(&local(1), &local(2)));
    assert_eq!(dialer.reason, "shm: same host, same user");
    assert_eq!(dialer.peer.identity, NodeIdentity([2; 16]));
    assert_eq!(acceptor.peer.identity, NodeIdentity([1; 16]));
    assert_eq!(dialer.session_id, ENTROPY.session_id);
}

#[test]
fn a_node_may_meet_itself() {
    let (dialer, acceptor) = agreed(Meeting::new(&local(1), &local(1)));
    assert_eq!(dialer.peer, acceptor.peer);
}

#[test]
fn two_nodes_on_two_hosts_agree_on_tcp() {
    let meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    assert_eq!(agreed(meeting).0.fabric, FabricKind::Tcp);
}

#[test]
fn a_prologue_is_both_hellos_as_they_were_sent() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.run();
    let sent = (meeting.from_dialer.clone(), meeting.from_acceptor.clone());
    let prologue = meeting.ends().0.expect("agreed").prologue;
    assert!(prologue.dialer.starts_with(&MAGIC) && prologue.acceptor.starts_with(&MAGIC));
    assert!(sent.0.starts_with(&prologue.dialer) && sent.1.starts_with(&prologue.acceptor));
}

#[test]
fn it_makes_no_difference_how_the_bytes_are_cut() {
    let whole = agreed(Meeting::new(&local(1), &local(2))).0;
    for chunk in 1..200 {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.chunk = chunk;
        let cut = agreed(meeting).0;
        assert_eq!(cut.fabric, whole.fabric);
        assert_eq!(cut.prologue, whole.prologue);
    }
}

#[test]
fn a_unix_socket_that_cannot_be_reached_leads_to_tcp() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsElsewhere;
    meeting.run();
    assert!(meeting.unix_closed);
    let (dialer, acceptor) = meeting.ends();
    assert_eq!(acceptor.expect("agreed").fabric, FabricKind::Tcp);
    let reason = dialer.expect("agreed").reason;
    assert!(reason.starts_with("tcp: not shm: not here; "), "{reason}");
}

#[test]
fn a_unix_socket_that_cannot_be_made_leads_to_tcp() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.can_listen = false;
    let reason = agreed(meeting).0.reason;
    assert!(
        reason.starts_with("tcp: not shm: no descriptors; "),
        "{reason}"
    );
}

#[test]
fn without_a_way_back_both_ends_say_so() {
    let mut dialer = local(1);
    dialer.shm = Policy::Require;
    let mut meeting = Meeting::new(&dialer, &local(2));
    meeting.unix = Unix::IsElsewhere;
    let (dialer, acceptor) = failed(meeting);
    assert!(matches!(
        dialer,
        HandshakeError::Fabric(FabricConflict::Unavailable {
            fabric: FabricKind::Shm,
            ..
        })
    ));
    let HandshakeError::Refused { reason, .. } = acceptor else {
        panic!("not a refusal: {acceptor}");
    };
    assert_eq!(reason.as_str(), dialer.to_string());
}

#[test]
fn a_limit_on_sessions_is_told_as_a_value_at_both_ends() {
    let (dialer, mut acceptor) = (local(1), local(2));
    acceptor.places = Places::new(SessionLimits {
        per_peer: 1,
        per_node: 9,
    });
    let (at_dialer, at_acceptor) = agreed(Meeting::new(&dialer, &acceptor));
    let (there, here) = failed(Meeting::new(&dialer, &acceptor));
    let limit = SessionLimit::PerPeer(1);
    let end = End::Acceptor;
    assert_eq!(here, HandshakeError::TooManySessions { end, limit });
    assert_eq!(there, here);
    assert_eq!(
        here.to_string(),
        "the listening node has a session with this peer, the only one that its \
         max_peer_sessions allows; end one, or raise that limit there"
    );
    // Another peer has a place of its own, and a session that ends gives one back.
    agreed(Meeting::new(&local(3), &acceptor));
    drop((at_dialer, at_acceptor));
    agreed(Meeting::new(&dialer, &acceptor));
}

#[test]
fn a_dialer_is_bound_by_its_own_limit_and_a_failed_handshake_costs_no_place() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.places = Places::new(SessionLimits {
        per_peer: 9,
        per_node: 1,
    });
    acceptor.places = Places::new(SessionLimits {
        per_peer: 1,
        per_node: 1,
    });
    let held = dialer.places.take(NodeIdentity([7; 16]), 1).unwrap();
    let (here, there) = failed(Meeting::new(&dialer, &acceptor));
    let (end, limit) = (End::Dialer, SessionLimit::PerNode(1));
    assert_eq!(here, HandshakeError::TooManySessions { end, limit });
    assert_eq!(there, here);
    drop(held);
    agreed(Meeting::new(&dialer, &acceptor));
}

#[test]
fn policies_that_exclude_each_other_fail_alike_at_both_ends() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.shm = Policy::Require;
    acceptor.tcp = Policy::Require;
    let (dialer, acceptor) = failed(Meeting::new(&dialer, &acceptor));
    assert_eq!(dialer, acceptor);
    assert!(matches!(
        dialer,
        HandshakeError::Fabric(FabricConflict::TwoRequired { .. })
    ));
}

#[test]
fn a_later_minor_version_with_unknown_features_is_understood() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.versions.newest.minor = 9;
    dialer.features = 0b1110;
    acceptor.features = 0b0111;
    let (dialer, _) = agreed(Meeting::new(&dialer, &acceptor));
    assert_eq!(dialer.version, VersionRange::SUPPORTED.newest);
}

#[test]
fn other_versions_fail_at_both_ends_with_both_ranges() {
    let mut dialer = local(1);
    let other = Version { major: 7, minor: 3 };
    dialer.versions = VersionRange {
        oldest: other,
        newest: other,
    };
    let (newer, older) = failed(Meeting::new(&dialer, &local(2)));
    let (ours, theirs) = (dialer.versions, VersionRange::SUPPORTED);
    assert_eq!(newer, HandshakeError::Version { ours, theirs });
    assert_eq!(
        older,
        HandshakeError::Version {
            ours: theirs,
            theirs: ours
        }
    );
}

#[test]
fn another_security_mode_fails_at_both_ends() {
    let mut dialer = local(1);
    dialer.credentials = Some(security_tests::secret(1));
    let (strict, plain) = failed(Meeting::new(&dialer, &local(2)));
    let (ours, theirs) = (SecurityMode::SharedSecret, SecurityMode::None);
    assert_eq!(strict, HandshakeError::Security { ours, theirs });
    assert_eq!(
        plain,
        HandshakeError::Security {
            ours: theirs,
            theirs: ours
        }
    );
    let text = "the peer's security mode is none, this node's is a shared secret";
    assert!(strict.to_string().contains(text), "{strict}");
}

#[test]
fn a_dialer_that_never_showed_the_token_is_not_let_in() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsSkipped;
    let (dialer, acceptor) = failed(meeting);
    let (step, kind) = (Step::Ready, MessageKind::Ready);
    assert_eq!(acceptor, HandshakeError::OutOfTurn { step, kind });
    assert!(matches!(dialer, HandshakeError::Refused { .. }));
}

#[test]
fn a_choice_is_made_once_per_fabric() {
    let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    meeting.cut_after = 5;
    meeting.run();
    assert_eq!(meeting.acceptor.step(), Step::Ready);
    let mut again = Vec::new();
    let (fabric, reason) = (FabricKind::Tcp, Text::new("again"));
    Message::Choice(Choice { fabric, reason }).write_checked(ALONE, &mut again);
    meeting.acceptor.handle_bytes(&again);
    meeting.attend_acceptor();
    let problem = MessageError::Repeated {
        field: "choice of fabric",
    };
    let error = meeting.acceptor_end.expect("ended").unwrap_err();
    assert_eq!(
        error,
        HandshakeError::Malformed {
            step: Step::Ready,
            problem
        }
    );
}

#[test]
fn whoever_is_silent_at_any_step_is_given_up_by_name_of_the_step() {
    use Step::*;
    // By messages delivered: D Hello, A Hello, A Offer, D Offer, D Choice,
    // A Endpoint, D Ready, A Ready.
    let waiting = [
        (Hello, Hello),
        (Hello, Offer),
        (Offer, Offer),
        (Endpoint, Offer),
        (Endpoint, Choice),
        (Endpoint, Ready),
        (Ready, Ready),
        (Ready, Finished),
    ];
    for (delivered, (dialer_waits, acceptor_waits)) in waiting.into_iter().enumerate() {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.cut_after = delivered;
        meeting.run();
        meeting
            .dialer
            .handle_timeout(meeting.now + TIMEOUT - Duration::from_nanos(1));
        assert!(
            meeting.dialer.deadline().is_some(),
            "not a moment too early"
        );
        meeting.wait_for_ever();
        let (dialer, acceptor) = meeting.ends();
        let silent = |step| HandshakeError::Silent {
            step,
            waited: TIMEOUT,
        };
        assert_eq!(
            dialer.unwrap_err(),
            silent(dialer_waits),
            "after {delivered}"
        );
        match acceptor_waits {
            Finished => assert!(acceptor.is_ok()),
            step => assert_eq!(acceptor.unwrap_err(), silent(step), "after {delivered}"),
        }
    }
}

/// With the dialer's Ready the connection may have become the session's at the acceptor, which
/// would read a refusal as a frame.
#[test]
fn a_dialer_says_nothing_behind_its_ready() {
    let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    // All but the acceptor's Ready.
    meeting.cut_after = 7;
    meeting.run();
    assert_eq!(meeting.dialer.step(), Step::Ready);
    assert!(meeting.acceptor_end.as_ref().is_some_and(Result::is_ok));
    meeting.wait_for_ever();
    assert!(meeting.dialer_end.is_some() && meeting.dialer.poll_transmit().is_none());
}

#[test]
fn a_unix_socket_that_never_answers_is_a_silent_peer() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsSilent;
    meeting.run();
    meeting.wait_for_ever();
    let (dialer, acceptor) = meeting.ends();
    let silent = |step| HandshakeError::Silent {
        step,
        waited: TIMEOUT,
    };
    assert_eq!(dialer.unwrap_err(), silent(Step::UnixSocket));
    assert_eq!(acceptor.unwrap_err(), silent(Step::Ready));
}

#[test]
fn whoever_closes_at_any_step_is_reported_by_name_of_the_step() {
    for delivered in 0..8 {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.cut_after = delivered;
        meeting.run();
        let step = meeting.dialer.step();
        let detail = Some("Connection reset by peer".to_string());
        meeting.dialer.handle_closed(detail.clone());
        meeting.attend_dialer();
        let error = meeting.dialer_end.expect("ended").unwrap_err();
        assert_eq!(error, HandshakeError::Closed { step, detail });
    }
}

#[test]
fn the_session_may_begin_in_the_same_read_as_ready() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.cut_after = 7;
    meeting.run();
    let ready = meeting.from_acceptor.len() - (2 + 1 + 1 + 16 + 32 + 4);
    let ready = meeting.from_acceptor.split_off(ready);
    meeting
        .dialer
        .handle_bytes(&[&ready, &b"first frame"[..]].concat());
    meeting.dialer.handle_bytes(b" and more");
    meeting.attend_dialer();
    assert!(meeting.dialer_end.expect("ended").is_ok());
    assert_eq!(meeting.dialer.into_leftover(), b"first frame and more");
}

#[test]
fn another_protocol_is_known_by_its_first_bytes() {
    let now = Instant::now();
    for (answer, shown) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            "HTTP/1.1 400 Bad Request\\r\\n",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0-OpenSSH_9.6\\r\\n"),
        (b"\x89ibeX", "\\x89ibeX"),
        (b"\0", "\\x00"),
    ] {
        let mut dialer = DialerHandshake::new(&local(1), host(1), [0; 16], now, now + TIMEOUT);
        dialer.handle_bytes(answer);
        let Some(DialerEvent::Failed(error)) = dialer.poll_event() else {
            panic!("no failure");
        };
        assert_eq!(
            error,
            HandshakeError::NotIbex {
                seen: shown.to_string()
            }
        );
    }
    let long = HandshakeError::NotIbex {
        seen: "HTTP/1.1 400".to_string(),
    };
    assert!(
        long.to_string()
            .contains("an HTTP server's answer; check the address")
    );
}

#[test]
fn a_stranger_is_told_nothing() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    assert_eq!(meeting.acceptor.poll_transmit(), None);
    meeting.acceptor.handle_bytes(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(meeting.acceptor.poll_transmit(), None);
    assert!(!meeting.acceptor.has_hello());
}

#[test]
fn a_length_out_of_bounds_is_refused_before_its_bytes_come() {
    let now = Instant::now();
    for (prefix, problem) in [
        ([0, 0], MessageError::Empty),
        ([0x01, 0x10], MessageError::Oversize { length: 4097 }),
    ] {
        let mut dialer = DialerHandshake::new(&local(1), host(1), [0; 16], now, now + TIMEOUT);
        dialer.handle_bytes(&MAGIC);
        dialer.handle_bytes(&prefix);
        let Some(DialerEvent::Failed(error)) = dialer.poll_event() else {
            panic!("no failure");
        };
        assert_eq!(
            error,
            HandshakeError::Malformed {
                step: Step::Hello,
                problem
            }
        );
    }
}

/// Both ends know it, nothing of what came is acted on, and whoever dialed may try again.
#[test]
fn a_message_that_changed_on_its_way_ends_the_handshake_at_both_ends() {
    // By messages delivered, as above; the last byte before the checksum is changed.
    for delivered in 2..8 {
        let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        meeting.garbles = Some(delivered);
        meeting.run();
        let (dialer, acceptor) = meeting.ends();
        let is_by_dialer = [3, 4, 6].contains(&delivered);
        let dialer = dialer.expect_err("it cannot go on");
        assert!(dialer.may_be_garbling());
        match (is_by_dialer, delivered) {
            (true, _) => {
                let acceptor = acceptor.expect_err("it cannot go on");
                let (here, there) = (&acceptor, &dialer);
                assert!(matches!(
                    here,
                    HandshakeError::Garbled {
                        how: Garbling::Here { .. },
                        ..
                    }
                ));
                let HandshakeError::Garbled {
                    how: Garbling::AtPeer(said),
                    ..
                } = there
                else {
                    panic!("after {delivered}: {there}");
                };
                assert_eq!(said.as_str(), here.to_string());
            }
            (false, _) => {
                assert!(matches!(
                    dialer,
                    HandshakeError::Garbled {
                        how: Garbling::Here { .. },
                        ..
                    }
                ));
                // The last is the acceptor's Ready, behind which it has a session.
                match delivered {
                    7 => assert!(acceptor.is_ok()),
                    _ => assert!(acceptor.expect_err("told").may_be_garbling()),
                }
            }
        }
    }
}

/// A Hello that changed is found out by what comes behind it, also where it says another version
/// or another security mode: that is no permanent failure.
#[test]
fn a_hello_that_changed_on_its_way_is_no_permanent_failure() {
    for of_dialer in [true, false] {
        for at in 0..HELLO {
            for bit in 0..8 {
                let mut meeting = Meeting::new(&local(1), &local(2));
                meeting.flips = Some((of_dialer, at, bit));
                meeting.run();
                meeting.wait_for_ever();
                let dialer = meeting.dialer_end.expect("ended").expect_err("found out");
                let context = format!("{of_dialer} {at} {bit}: {dialer}");
                assert!(dialer.may_be_garbling(), "{context}");
                assert!(meeting.acceptor_end.expect("ended").is_err(), "{context}");
            }
        }
    }
}

/// A peer of the first major version says its Hello and hangs up, or hears a Refusal behind ours
/// that it can read.
#[test]
fn a_peer_of_another_major_version_is_told_in_its_own_way() {
    let mut older = local(1);
    older.versions = VersionRange {
        oldest: Version { major: 1, minor: 0 },
        newest: Version { major: 1, minor: 6 },
    };
    let (ours, theirs) = (VersionRange::SUPPORTED, older.versions);
    let ending = HandshakeError::Version { ours, theirs };
    // It dials.
    let mut meeting = Meeting::new(&older, &local(2));
    meeting.run();
    assert_eq!(meeting.acceptor_end.expect("ended").unwrap_err(), ending);
    let refusal = &meeting.from_acceptor[HELLO..];
    let Ok(Message::Refusal(refusal)) = crate::parse_message(&refusal[2..]) else {
        panic!("no refusal that it can read: {refusal:?}");
    };
    assert_eq!(refusal.reason.as_str(), ending.to_string());
    // It listens, and hangs up behind its Hello.
    let mut meeting = Meeting::new(&local(1), &older);
    meeting.cut_after = 2;
    meeting.run();
    meeting.dialer.handle_closed(None);
    meeting.attend_dialer();
    assert_eq!(meeting.dialer_end.expect("ended").unwrap_err(), ending);
    // Or never does.
    let mut meeting = Meeting::new(&local(1), &older);
    meeting.cut_after = 2;
    meeting.run();
    meeting.wait_for_ever();
    assert_eq!(meeting.dialer_end.expect("ended").unwrap_err(), ending);
}

/// Each message at each step where it has no business.
#[test]
fn a_message_out_of_turn_ends_the_handshake() {
    let hello = Message::Hello(Hello {
        versions: VersionRange::SUPPORTED,
        features: 0,
        security: SecurityMode::None,
        nonce: [0; 16],
    });
    let ready = Message::Ready(crate::message::Ready { session: None });
    for delivered in 1..8 {
        for message in [&hello, &ready] {
            let mut meeting = Meeting::new(&local(1), &local(2));
            meeting.cut_after = delivered;
            meeting.run();
            let (step, kind) = (meeting.dialer.step(), message.kind());
            if step == Step::Hello {
                continue;
            }
            let mut bytes = Vec::new();
            message.write_checked(meeting.before_dialer_hears(), &mut bytes);
            meeting.dialer.handle_bytes(&bytes);
            meeting.attend_dialer();
            let error = meeting.dialer_end.expect("ended").unwrap_err();
            assert_eq!(error, HandshakeError::OutOfTurn { step, kind });
        }
    }
}

proptest! {
    /// A byte that is changed, lost, doubled or swapped with the next, anywhere.
    #[test]
    fn a_stream_that_changes_leads_to_no_session_at_the_dialer_and_to_no_permanent_failure(
        of_dialer: bool,
        at in any::<prop::sample::Index>(),
        fault in 0..4,
        change in 1..=255u8,
    ) {
        let mut whole = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        whole.run();
        let mut stream = match of_dialer {
            true => whole.from_dialer,
            false => whole.from_acceptor,
        };
        let at = at.index(stream.len());
        match fault {
            0 => stream[at] ^= change,
            1 => drop(stream.remove(at)),
            2 => stream.insert(at, stream[at]),
            _ => {
                let next = (at + 1) % stream.len();
                if stream[at] == stream[next] {
                    return Ok(());
                }
                stream.swap(at, next);
            }
        }
        let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        // Each end hears all of the other's, of which one stream has changed.
        meeting.replay(of_dialer, &stream);
        meeting.wait_for_ever();
        let dialer = meeting.dialer_end.expect("ended");
        match (dialer, of_dialer) {
            (Err(error), _) => prop_assert!(error.may_be_garbling(), "{}", error),
            // Doubling the last byte leaves all as it was; the session finds one more.
            (Ok(_), _) => prop_assert!(fault == 2 && at + 1 == stream.len() - 1),
        }
    }

    #[test]
    fn garbage_after_any_step_ends_or_waits(
        delivered in 0..8usize,
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
        as_message: bool,
    ) {
        let meeting = Meeting::new(&local(1), &local(2));
        prop_assert!(meeting.ends_in_spite_of(garbage, as_message, delivered));
    }

    #[test]
    fn any_bytes_end_or_wait(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let with_magic = [&MAGIC, &*bytes].concat();
        for bytes in [&bytes, &with_magic] {
            let mut meeting = Meeting::new(&local(1), &local(2));
            // All that either hears is these bytes.
            meeting.cut_after = 0;
            meeting.unix = Unix::IsElsewhere;
            meeting.dialer.handle_bytes(bytes);
            meeting.acceptor.handle_bytes(bytes);
            meeting.run();
            meeting.wait_for_ever();
            prop_assert!(meeting.dialer_end.is_some() && meeting.acceptor_end.is_some());
        }
    }
}
