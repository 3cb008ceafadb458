//! The options of a simulation and its faults, all drawn from the seed.
#![forbid(unsafe_code)]

use ibex_harness::draw::Draw;
use ibex_protocol::{
    format::{
        frame::HEAD_BYTES,
        record::{HEADER_BYTES, MAX_ALIGNMENT},
    },
    framing::{Carriage, LEAST_BUFFER_BYTES},
};

use super::Side;

/// Sizes and probabilities of a run. Probabilities are per thousand and step.
#[derive(Clone, Debug)]
pub struct SimOptions {
    // The wires.
    /// The most steps that bytes are on their way.
    pub delay_steps: u64,
    /// The most bytes that one write or read moves; 1 cuts everything into single bytes.
    pub piece_bytes: usize,
    /// Bytes that a direction holds before a write takes nothing.
    pub wire_bytes: usize,
    /// The chance that a direction stalls.
    pub stall_per_mille: u64,
    /// The most steps of a stall.
    pub stall_steps: u64,
    /// A side that dies without a goodbye, and restarts.
    pub crash: Option<Crash>,

    /// The number of left nodes. All of their right sides are one node, which shares its capacity
    /// between them.
    pub peers: usize,

    // The connection.
    /// A step at which the connection breaks in any case.
    pub break_at: Option<u64>,
    /// The chance that the connection breaks.
    pub break_per_mille: u64,
    /// The chance that new wires break at once, at any byte of the handshake or before both sides
    /// have exchanged what they know.
    pub break_again_per_mille: u64,
    /// A handshake that breaks behind a given byte.
    pub meeting_cut: Option<MeetingCut>,
    /// The most steps until a side notices a break.
    pub notice_steps: u64,
    /// The most steps until the next attempt.
    pub redial_steps: u64,
    /// The time that a handshake may take at each side, by its clock.
    pub handshake_steps: [u64; 2],
    /// Both sides authenticate each other by TLS.
    pub secured: bool,
    /// The share of attempts that are given up, and whose bytes arrive late.
    pub late_per_mille: u64,
    /// The chance that a stranger without the secret dials the listening side.
    pub stranger_per_mille: u64,
    /// The share of resumption attempts that an impostor answers.
    pub impostor_per_mille: u64,
    /// The chance that a queue pair, a device or a Unix socket is unavailable, or slow.
    pub errand_fails_per_mille: u64,
    /// The chance that the dialing side never dials again.
    pub outage_per_mille: u64,
    /// The steps that a side waits for new wires before its session is over, by its own clock.
    pub patience_steps: u64,
    /// The credit of a stream that may replace the first choice, buffers.
    pub fails_over: Option<u64>,
    /// A session on a stream may return to buffers.
    pub fails_back: bool,

    // The engines.
    /// The chance that an engine stops.
    pub stop_per_mille: u64,
    /// The most steps of a stop.
    pub stop_steps: u64,
    /// The chance that a clock jumps.
    pub leap_per_mille: u64,
    /// The chance that channels are served in an unusual order.
    pub reorder_per_mille: u64,
    /// The chance that a repeatable control message arrives twice.
    pub duplicate_per_mille: u64,
    /// The chance that a control message arrives with other bytes, which ends the session.
    pub malform_per_mille: u64,

    // The sessions.
    /// Records travel in frames. Otherwise they travel through shared memory, which is not
    /// simulated, and channels only open and close.
    pub data_in_band: bool,
    /// Ends that either side may have open at a time.
    pub max_channels: usize,
    /// The carriage of frames.
    pub carriage: Carriage,
    /// The most that either side may keep in flight, in arrival bytes or buffers.
    pub credit: u64,
    /// The chance that an engine recalls credit or lends some again.
    pub lend_per_mille: u64,
    /// Large messages of even sequences are written into granted memory, and some of medium size
    /// into blocks granted ahead.
    pub writes: bool,
    /// A write announces itself by immediate data if it can.
    pub immediate: bool,
    /// Long messages are offered, and most of them read.
    pub reads: bool,
    /// The alignment of payloads in each version of the message type, the oldest first. Every end
    /// knows the oldest, some know the next one or all.
    pub alignments: [u32; 3],
    /// The largest window that an end asks for, a power of two; some ends ask for less.
    pub window_bytes: u64,
    /// The largest window in messages.
    pub window_messages: u64,
    /// The longest message that travels as a record, if a ring holds it. A longer one is announced
    /// and sent in chunks.
    pub max_record_bytes: usize,
    /// The longest message.
    pub max_message_bytes: u64,

    // The applications.
    /// The number of channel names.
    pub names: u64,
    /// The chance that an application opens an end.
    pub open_per_mille: u64,
    /// The chance that an end does not fit its counterpart.
    pub mismatch_per_mille: u64,
    /// The chance that an application closes an end.
    pub close_per_mille: u64,
    /// The chance that an application sends.
    pub send_per_mille: u64,
    /// The share of messages that are long.
    pub long_per_mille: u64,
    /// The chance that a sender waits until its messages are received or acknowledged.
    pub wait_per_mille: u64,
    /// The chance that a receiver takes messages.
    pub receive_per_mille: u64,
    /// The chance that a receiver releases a message that it holds.
    pub settle_per_mille: u64,
    /// The share of released messages that are acknowledged.
    pub acknowledge_per_mille: u64,
    /// The chance that a session sends goodbye although its channels are busy.
    pub goodbye_per_mille: u64,
    /// The chance that a program takes nothing for a while, or has no memory for large messages.
    pub pause_per_mille: u64,
    /// The most steps of such a pause.
    pub pause_steps: u64,
    /// The bytes of large messages that the receiving end of a channel may have before it releases
    /// some; it may always have one.
    pub large_bytes: u64,

    /// The steps during which faults happen and applications are busy; then progress is demanded.
    pub busy_steps: u64,
}

/// The death of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The side that dies.
    pub side: Side,
    /// The step at which it dies.
    pub step: u64,
}

/// The break of one handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingCut {
    /// The number of the attempt; the first is 0.
    pub meeting: u64,
    /// The number of bytes before the break, both ways together.
    pub byte: usize,
}

impl SimOptions {
    /// Draws the options that belong to `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Draw::new(seed);
        let busy_steps = 1500 + random.below(1500);
        let window_bytes = random.pick(&[1 << 10, 1 << 12, 1 << 12, 1 << 14, 1 << 16, 1 << 18]);
        let carriage = random.pick(&[
            Carriage::Stream,
            Carriage::Stream,
            Carriage::Buffers {
                bytes: LEAST_BUFFER_BYTES,
            },
        ]);
        let eager = carriage.eager_bytes();
        let max_record_bytes = random.pick(&[40, 500, eager, eager]);
        let longest = max_record_bytes.min(window_bytes as usize / 2);
        let least_credit = match carriage {
            Carriage::Stream => least_credit_bytes(longest),
            Carriage::Buffers { .. } => 2,
        };
        let peers = match random.below(100) {
            0..80 => 1,
            80..96 => 2 + random.below(4),
            _ => 6 + random.below(MOST_PEERS - 5),
        } as usize;
        // With many peers, each has a shorter run.
        let busy_steps = (busy_steps / peers as u64).max(LEAST_BUSY_STEPS);
        let crash = random.chance(200).then(|| Crash {
            side: random.pick(&[Side::Left, Side::Right]),
            step: random.below(busy_steps),
        });
        let spare = random.pick(&[1, 1, 2, 8]);
        Self {
            delay_steps: random.pick(&[0, 0, 1, 1, 5, 5, 50]),
            piece_bytes: random.pick(&[16, 100, 1000, 30_000, 1 << 17]),
            wire_bytes: random.pick(&[256, 1 << 12, 1 << 16, 1 << 18]),
            peers,
            stall_per_mille: random.pick(&[0, 0, 1, 10]),
            stall_steps: random.pick(&[10, 300]),
            crash,
            data_in_band: random.chance(900),
            max_channels: random.pick(&[2, 4, 8, 16]),
            carriage,
            credit: least_credit * spare,
            lend_per_mille: random.pick(&[0, 5, 50, 500]),
            alignments: [(); 3].map(|()| random.pick(&[8, 8, 16, 32, 64])),
            window_bytes,
            window_messages: random.pick(&[1, 2, 7, 64, 1024]),
            max_record_bytes,
            max_message_bytes: random.pick(&[2000, 70_000, 200_000]),
            names: random.pick(&[1, 2, 4, 12]),
            open_per_mille: random.pick(&[5, 30, 200]),
            mismatch_per_mille: random.pick(&[0, 0, 50]),
            close_per_mille: random.pick(&[0, 2, 20]),
            send_per_mille: random.pick(&[50, 300, 900]),
            long_per_mille: random.pick(&[0, 5, 50, 200]),
            wait_per_mille: random.pick(&[0, 10, 100]),
            receive_per_mille: random.pick(&[20, 300, 900]),
            settle_per_mille: random.pick(&[20, 300, 900]),
            acknowledge_per_mille: random.pick(&[0, 500, 990, 1000]),
            goodbye_per_mille: random.pick(&[0, 0, 0, 1]),
            busy_steps,
            writes: random.chance(500),
            immediate: random.chance(500),
            break_at: None,
            break_per_mille: random.pick(&[0, 1, 5, 20]),
            break_again_per_mille: random.pick(&[0, 100, 500]),
            notice_steps: random.pick(&[0, 5, 100]),
            redial_steps: random.pick(&[0, 5, 100]),
            outage_per_mille: random.pick(&[0, 0, 30]),
            patience_steps: 250 + random.below(200),
            fails_over: (carriage != Carriage::Stream && random.chance(500))
                .then(|| least_credit_bytes(longest) * spare),
            stop_per_mille: random.pick(&[0, 0, 2]),
            stop_steps: random.pick(&[10, 300]),
            leap_per_mille: random.pick(&[0, 0, 2]),
            reorder_per_mille: random.pick(&[0, 100]),
            duplicate_per_mille: random.pick(&[0, 0, 100]),
            malform_per_mille: random.pick(&[0, 0, 1]),
            pause_per_mille: random.pick(&[0, 0, 5]),
            pause_steps: random.pick(&[10, 300]),
            late_per_mille: random.pick(&[0, 200]),
            meeting_cut: None,
            handshake_steps: [(); 2].map(|()| random.pick(&[200, 500])),
            stranger_per_mille: random.pick(&[0, 2]),
            impostor_per_mille: random.pick(&[0, 50]),
            errand_fails_per_mille: random.pick(&[0, 100]),
            fails_back: random.chance(500),
            large_bytes: random.pick(&[0, 1 << 16, 1 << 20]),
            // This option is drawn last, and seldom true: a handshake of TLS takes as much time as
            // many steps.
            secured: random.chance(200),
            reads: random.chance(400),
        }
    }
}

/// Returns the least credit of a session, which covers two of its longest frames. Credit is
/// reported when half of it is due, and less than half could be too little for the next frame.
fn least_credit_bytes(longest_record: usize) -> u64 {
    2 * (longest_record + HEAD_BYTES + HEADER_BYTES + MAX_ALIGNMENT) as u64
}

/// The most peers; with the node that they all dial, they are 32 nodes.
const MOST_PEERS: u64 = 31;
/// The fewest busy steps, which suffice for channels to open, fill up and break.
const LEAST_BUSY_STEPS: u64 = 300;
