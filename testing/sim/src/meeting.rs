//! The meeting of two handshakes over a pair of pipes.
//!
//! Rules:
//!
//! 1. Each end is one of the bootstrap's machines. It receives the bytes from its pipe in the pieces
//!    in which they arrive, the end of the stream, and its own side's clock.
//! 2. The machines' tasks are done some steps later, or fail.
//! 3. An end is over when its machine says so and its last bytes are on their way. Bytes behind the
//!    peer's last ones belong to the session.
#![forbid(unsafe_code)]

use std::{fmt, time::Instant};

use ibex_bootstrap::{
    HandshakeError, Secret, VerbsDevice,
    handshake::{Handshake, HandshakeEvent, HandshakeStep},
    message::{
        ALONE, GidKind, HandshakeMessage, PairAbilities, QueuePairAddress, Resumed, VerbsEndpoint,
        VerbsRail,
    },
};

use ibex_harness::draw::Draw;

use super::{
    Checked, Fault, Faults, Side, ensure,
    met::Met,
    options::SimOptions,
    party,
    security::{self, Records},
    wire::Wire,
};

/// Both ends of a handshake.
#[derive(Debug)]
pub(super) struct Meeting {
    random: Draw,
    /// The source of TLS's random numbers, if the two authenticate each other.
    tls_random: Option<Draw>,
    /// Both ends, by side; those that are over or abandoned are gone.
    ends: [Option<End>; 2],
    /// The queue pair that each end prepared last.
    pairs: [Option<VerbsEndpoint>; 2],
    /// The token presented at the Unix socket, until the listening side checks it.
    presented: Option<Secret>,
    /// The result of that check, until the dialing side learns it.
    welcomed: Option<bool>,

    // The faults.
    errand_steps: u64,
    slow_errand_steps: u64,
    errand_fails_per_mille: u64,
    /// The number of bytes after which the connection breaks.
    breaks_behind: Option<usize>,
    /// Set if the listening side is an impostor, who cannot prove its claim.
    pub(super) has_impostor: bool,
    /// The bytes that the dialing side has sent.
    said: Vec<u8>,
    pub(super) faults: Faults,
}

struct End {
    machine: Handshake,
    /// Bytes that have arrived for a handshake inside TLS.
    records: Records,
    outbox: Vec<u8>,
    /// The task under way, with the step at which it is done.
    errand: Option<(u64, HandshakeEvent)>,
    over: Option<Result<Met, HandshakeError>>,
}

/// The end of one side's meeting.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) met: Result<Met, HandshakeError>,
    /// Bytes that arrived behind the handshake.
    pub(super) leftover: Vec<u8>,
}

/// A side's part of a turn.
pub(super) struct Turn<'a> {
    pub(super) side: Side,
    /// The simulation's step.
    pub(super) now: u64,
    /// The side's own clock.
    pub(super) clock: Instant,
    pub(super) inbound: &'a mut Wire,
    pub(super) outbound: &'a mut Wire,
    /// Set if no more bytes can arrive.
    pub(super) has_ended: bool,
}

impl Meeting {
    pub(super) fn new(
        options: &SimOptions,
        mut random: Draw,
        machines: [Option<Handshake>; 2],
    ) -> Self {
        Self {
            tls_random: options.secured.then(|| random.fork()),
            random,
            ends: machines.map(|machine| machine.map(End::new)),
            pairs: [None, None],
            presented: None,
            welcomed: None,
            errand_steps: options.delay_steps,
            slow_errand_steps: options.handshake_steps[0],
            errand_fails_per_mille: options.errand_fails_per_mille,
            breaks_behind: None,
            has_impostor: false,
            said: Vec::new(),
            faults: Faults::default(),
        }
    }

    /// Breaks the connection when this many bytes have arrived, both ways together.
    pub(super) fn break_behind(&mut self, bytes: usize) {
        self.breaks_behind = Some(bytes);
    }

    /// Returns true once, when that moment has come.
    pub(super) fn is_to_break(&mut self) -> bool {
        self.breaks_behind.take_if(|bytes| *bytes == 0).is_some()
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        (self.errand_steps, self.errand_fails_per_mille) = (0, 0);
        self.breaks_behind = None;
    }

    /// Returns whether a side still takes part.
    pub(super) fn is_open(&self, side: Side) -> bool {
        self.ends[side as usize].is_some()
    }

    /// Makes a side abandon the meeting without a word.
    pub(super) fn leave(&mut self, side: Side) {
        self.ends[side as usize] = None;
    }

    /// Returns whether the dialing side has sent its last request and waits for the answer.
    pub(super) fn awaits_last_word(&self) -> bool {
        self.ends[Side::Left as usize].as_ref().is_some_and(|end| {
            end.outbox.is_empty()
                && matches!(
                    end.machine.step(),
                    HandshakeStep::Resumed | HandshakeStep::Ready
                )
        })
    }

    /// Returns the bytes that the dialing side has sent, for a stranger to repeat.
    pub(super) fn said(&self) -> &[u8] {
        &self.said
    }

    /// Takes a side's turn: receives, does and sends what is due. Returns the outcome if the end is
    /// over.
    pub(super) fn turn(&mut self, turn: Turn<'_>) -> Checked<Option<Outcome>> {
        let Turn {
            side,
            now,
            clock,
            inbound,
            outbound,
            has_ended,
        } = turn;
        let Some(mut end) = self.ends[side as usize].take() else {
            return Ok(None);
        };
        if let Some(random) = &mut self.tls_random {
            security::seed(random);
        }
        end.machine.handle_timeout(clock);
        let mut bytes = Vec::new();
        inbound.read(now, &mut bytes);
        if let Some(behind) = &mut self.breaks_behind {
            bytes.truncate(*behind);
            *behind -= bytes.len();
        }
        self.feed(now, &mut end, &bytes);
        if has_ended {
            end.machine.handle_closed(None);
        }
        self.answer(side, now, &mut end)?;
        self.hear(now, &mut end);
        if self.has_impostor && side == Side::Right && matches!(end.over, Some(Err(_))) {
            end.outbox.clear();
            let proof = party::drawn(&mut self.random);
            HandshakeMessage::Resumed(Resumed { proof }).write_checked(ALONE, &mut end.outbox);
        }
        let written = outbound.write_all(now, &end.outbox);
        if side == Side::Left {
            self.said.extend_from_slice(&end.outbox[..written]);
        }
        end.outbox.drain(..written);
        let is_over = match &end.over {
            None => false,
            Some(Ok(_)) => end.outbox.is_empty(),
            Some(Err(_)) => true,
        };
        if !is_over {
            self.ends[side as usize] = Some(end);
            return Ok(None);
        }
        let met = end.over.expect("it is over");
        let is_late = matches!(
            met,
            Err(HandshakeError::Silent { .. } | HandshakeError::Slow { .. })
        );
        self.faults.count(Fault::Expired, is_late);
        let mut leftover = end.machine.into_leftover();
        leftover.extend(end.records.into_rest());
        Ok(Some(Outcome { met, leftover }))
    }

    /// Passes arrived bytes to a machine; inside TLS only up to the end of its handshake.
    fn feed(&mut self, now: u64, end: &mut End, bytes: &[u8]) {
        if self.tls_random.is_none() {
            if !bytes.is_empty() {
                end.machine.handle_bytes(bytes);
            }
            return;
        }
        end.records.push(bytes);
        while end.over.is_none() && end.records.feed(&mut end.machine) {
            self.hear(now, end);
        }
    }

    /// Delivers due answers to tasks.
    fn answer(&mut self, side: Side, now: u64, end: &mut End) -> Checked {
        if side == Side::Right
            && let Some(token) = self.presented.take()
        {
            self.welcomed = Some(end.machine.handle_token(token.expose()));
        }
        if side == Side::Left
            && let Some(is_welcome) = self.welcomed.take()
        {
            ensure!(is_welcome, "the token that was told is not the right one");
            end.machine.handle_unix(Ok(()));
        }
        let Some((_, errand)) = end.errand.take_if(|(due, _)| *due <= now) else {
            return Ok(());
        };
        let outcome = match self.random.chance(self.errand_fails_per_mille) {
            true => Err("it is simulated".to_owned()),
            false => Ok(()),
        };
        self.faults.count(Fault::NoPair, outcome.is_err());
        match errand {
            HandshakeEvent::FindDevice => {
                end.machine.handle_device(outcome.map(|()| VerbsDevice {
                    hardware: true,
                    name: "simulated".to_owned(),
                }));
            }
            HandshakeEvent::PreparePair => {
                let prepared = outcome.map(|()| queue_pair(&mut self.random));
                self.pairs[side as usize] = prepared.clone().ok();
                end.machine.handle_prepared(prepared);
            }
            HandshakeEvent::ConnectPair(theirs) => {
                ensure!(
                    self.pairs[side.other() as usize].as_ref() == Some(&*theirs),
                    "a queue pair is connected to {theirs:?}, which is not the other side's"
                );
                end.machine.handle_connected(outcome);
            }
            HandshakeEvent::ConnectUnix { token, .. } if outcome.is_ok() => {
                self.presented = Some(token);
            }
            HandshakeEvent::ListenUnix { .. } | HandshakeEvent::ConnectUnix { .. } => {
                end.machine.handle_unix(outcome);
            }
            other => unreachable!("{other:?} expects no answer"),
        }
        Ok(())
    }

    /// Takes the machine's outputs.
    fn hear(&mut self, now: u64, end: &mut End) {
        while let Some(event) = end.machine.poll_event() {
            match event {
                // The simulation undoes nothing.
                HandshakeEvent::CloseUnix | HandshakeEvent::ClosePair => {}
                HandshakeEvent::Agreed(agreement) => {
                    end.over = Some(Ok(Met::begins(&agreement)));
                }
                HandshakeEvent::Resumed(session) => end.over = Some(Ok(Met::goes_on(&session))),
                HandshakeEvent::Failed(error) => end.over = Some(Err(error)),
                errand => {
                    // Now and then a device takes longer than either end waits.
                    let within = match self.random.chance(self.errand_fails_per_mille) {
                        true => self.slow_errand_steps,
                        false => self.errand_steps,
                    };
                    let due = now + self.random.below(within + 1);
                    end.errand = Some((due, errand));
                }
            }
        }
        while let Some(bytes) = end.machine.poll_transmit() {
            end.outbox.extend(bytes);
        }
    }
}

impl End {
    fn new(machine: Handshake) -> Self {
        Self {
            machine,
            records: Records::default(),
            outbox: Vec::new(),
            errand: None,
            over: None,
        }
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waits for {}", self.machine.step())
    }
}

/// Draws a queue pair with numbers that tell it from others.
fn queue_pair(random: &mut Draw) -> VerbsEndpoint {
    let address = QueuePairAddress {
        queue_pair: random.below(1 << 24) as u32,
        packet_sequence: random.below(1 << 24) as u32,
        lid: 0,
        gid: party::drawn(random),
        gid_type: GidKind::RoceV2,
        mtu_bytes: 1024,
    };
    let rail = VerbsRail {
        address: QueuePairAddress {
            packet_sequence: 0,
            ..address
        },
        abilities: PairAbilities {
            immediate: false,
            read_depth: 3,
            read_resources: 3,
        },
        partition_key: 0xffff,
        probe_address: 4096,
        probe_key: 7,
    };
    VerbsEndpoint {
        address,
        max_inline_bytes: 220,
        max_send_sge: 30,
        max_receive_sge: 30,
        receive_buffer_bytes: 4096,
        credit: 64,
        abilities: PairAbilities {
            immediate: true,
            read_depth: 3,
            read_resources: 3,
        },
        partition_key: 0xffff,
        rails: vec![rail],
    }
}
