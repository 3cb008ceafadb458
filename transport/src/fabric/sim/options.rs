//! What a simulation does and what goes wrong in it, all drawn from the seed.
#![forbid(unsafe_code)]

use super::{Side, random::Random};
use crate::engine::{
    carriage::{Carriage, LEAST_BUFFER_BYTES},
    frame::HEAD_BYTES,
    record::{HEADER_BYTES, MAX_ALIGNMENT},
};

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
    /// One side dies without a word.
    pub crash: Option<Crash>,

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
        let crash = random.chance(150).then(|| Crash {
            side: random.pick(&[Side::Left, Side::Right]),
            step: random.below(busy_steps),
        });
        Self {
            delay_steps: random.pick(&[0, 1, 5, 50]),
            piece_bytes: random.pick(&[16, 100, 1000, 30_000, 1 << 17]),
            wire_bytes: random.pick(&[256, 1 << 12, 1 << 16, 1 << 18]),
            stall_per_mille: random.pick(&[0, 0, 1, 10]),
            stall_steps: random.pick(&[10, 300]),
            crash,
            data_in_band: random.chance(900),
            max_channels: random.pick(&[2, 4, 8, 16]),
            carriage,
            credit: least_credit * random.pick(&[1, 1, 2, 8]),
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
            long_per_mille: random.pick(&[0, 5, 50]),
            wait_per_mille: random.pick(&[0, 10, 100]),
            receive_per_mille: random.pick(&[20, 300, 900]),
            settle_per_mille: random.pick(&[20, 300, 900]),
            acknowledge_per_mille: random.pick(&[0, 500, 990, 1000]),
            goodbye_per_mille: random.pick(&[0, 0, 0, 1]),
            busy_steps,
            // Drawn last: the other options of a seed stay what they were.
            writes: random.chance(500),
            immediate: random.chance(500),
        }
    }
}

/// A session needs credit for two of its longest frames: news of credit are owed at half
/// of it, and less than half could then be too little for the next frame.
fn least_credit_bytes(longest_record: usize) -> u64 {
    2 * (longest_record + HEAD_BYTES + HEADER_BYTES + MAX_ALIGNMENT) as u64
}
