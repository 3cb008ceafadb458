//! The options of a simulation and its faults, all drawn from the seed.
#![forbid(unsafe_code)]

use ibex_protocol::{
    format::{
        frame::HEAD_BYTES,
        record::{HEADER_BYTES, MAX_ALIGNMENT},
    },
    framing::{Carriage, LEAST_BUFFER_BYTES},
};

use super::{Side, random::Random};

/// Sizes and probabilities of one run. Probabilities are per thousand and step.
#[derive(Clone, Debug)]
pub struct SimOptions {
    // The wires.
    /// How long bytes may be on their way.
    pub delay_steps: u64,
    /// The most that one write or read moves; 1 cuts everything into single bytes.
    pub piece_bytes: usize,
    /// What a direction holds before a write takes nothing.
    pub wire_bytes: usize,
    /// How often a direction stands still.
    pub stall_per_mille: u64,
    /// For how long, at most.
    pub stall_steps: u64,
    /// One side dies without a word, and begins anew.
    pub crash: Option<Crash>,

    /// How many nodes the left sides are; all of their right sides are one, which shares what
    /// it has between them.
    pub peers: usize,

    // The connection.
    /// It breaks at this step in any case.
    pub break_at: Option<u64>,
    /// How often it breaks.
    pub break_per_mille: u64,
    /// How often new wires break at once, at any byte of the handshake or before both sides have
    /// said what they know.
    pub break_again_per_mille: u64,
    /// One breaks behind this byte of a handshake.
    pub meeting_cut: Option<MeetingCut>,
    /// How long a side may take to notice, at most.
    pub notice_steps: u64,
    /// How long nobody dials, at most.
    pub redial_steps: u64,
    /// How long a handshake may take at each side, by its clock.
    pub handshake_steps: [u64; 2],
    /// Both sides authenticate each other by TLS.
    pub secured: bool,
    /// How many attempts are given up, and come late.
    pub late_per_mille: u64,
    /// How often somebody calls at the side that listens who knows no secret.
    pub stranger_per_mille: u64,
    /// How many attempts to go on with a session are answered by such a one.
    pub impostor_per_mille: u64,
    /// How often a queue pair, a device or a Unix socket cannot be had, or is slow to come.
    pub errand_fails_per_mille: u64,
    /// How often nobody dials at all.
    pub outage_per_mille: u64,
    /// How long a side waits for new wires before the session is over, by its own clock.
    pub patience_steps: u64,
    /// Wires may be a stream where buffers are chosen first, with so much credit.
    pub fails_over: Option<u64>,
    /// And buffers again behind that.
    pub fails_back: bool,

    // The engines.
    /// How often one stands still.
    pub stop_per_mille: u64,
    /// For how long, at most.
    pub stop_steps: u64,
    /// How often a clock leaps.
    pub leap_per_mille: u64,
    /// How often channels are served in another order than usual.
    pub reorder_per_mille: u64,
    /// How often a control message comes twice that may.
    pub duplicate_per_mille: u64,
    /// How often one comes with other bytes, which ends the session.
    pub malform_per_mille: u64,

    // The sessions.
    /// Records travel in frames; else through shared memory, which is not simulated, and
    /// only channels are opened and closed.
    pub data_in_band: bool,
    /// Ends that either side may have open at a time.
    pub max_channels: usize,
    /// What frames travel in.
    pub carriage: Carriage,
    /// What either side may keep in flight, arrival bytes or buffers.
    pub credit: u64,
    /// How often an engine recalls credit or lends some again.
    pub lend_per_mille: u64,
    /// Large messages of even sequences are written into memory that was granted, and some of
    /// medium size into blocks that were granted ahead.
    pub writes: bool,
    /// A write tells of itself where it can.
    pub immediate: bool,
    /// The alignment of payloads in each version of the message type, the oldest first. Every
    /// end knows the oldest, some know the next one or all.
    pub alignments: [u32; 3],
    /// The largest window that an end asks for, a power of two; some ask for less.
    pub window_bytes: u64,
    /// The same in messages.
    pub window_messages: u64,
    /// The longest message that travels as a record, if a ring holds it; a longer one is
    /// announced and goes in chunks.
    pub max_record_bytes: usize,
    /// The longest message.
    pub max_message_bytes: u64,

    // The applications.
    /// From how many names they choose.
    pub names: u64,
    /// How often they open an end.
    pub open_per_mille: u64,
    /// How often an end does not fit its counterpart.
    pub mismatch_per_mille: u64,
    /// How often they close an end.
    pub close_per_mille: u64,
    /// How often they send.
    pub send_per_mille: u64,
    /// How much of it is long.
    pub long_per_mille: u64,
    /// How often senders wait to hear that their messages are received or acknowledged.
    pub wait_per_mille: u64,
    /// How often receivers take messages.
    pub receive_per_mille: u64,
    /// How often they let go of a message that they hold.
    pub settle_per_mille: u64,
    /// How many of these are acknowledged.
    pub acknowledge_per_mille: u64,
    /// How often a session says goodbye although its channels are busy.
    pub goodbye_per_mille: u64,
    /// How often a program takes nothing for a while, or has no memory for large messages.
    pub pause_per_mille: u64,
    /// For how long, at most.
    pub pause_steps: u64,
    /// How much of large messages the receiving end of a channel may have before it lets go of
    /// some; it always has one.
    pub large_bytes: u64,

    /// How long faults happen and applications are busy; then progress is demanded.
    pub busy_steps: u64,
}

/// The death of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Whose.
    pub side: Side,
    /// When.
    pub step: u64,
}

/// The break of one meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingCut {
    /// The number of the attempt; that of the first is 0.
    pub meeting: u64,
    /// Behind so many bytes, both ways together.
    pub byte: usize,
}

impl SimOptions {
    /// The options that belong to `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
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
        // Of many each has a shorter run.
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
            // The last that is drawn, and of few: a handshake of TLS takes as long as many steps.
            secured: random.chance(200),
        }
    }
}

/// A session needs credit for two of its longest frames: news of credit are owed at half
/// of it, and less than half could then be too little for the next frame.
fn least_credit_bytes(longest_record: usize) -> u64 {
    2 * (longest_record + HEAD_BYTES + HEADER_BYTES + MAX_ALIGNMENT) as u64
}

/// With the one that all of them dial they are 32.
const MOST_PEERS: u64 = 31;
/// Enough for channels to open, fill up and break.
const LEAST_BUSY_STEPS: u64 = 300;
