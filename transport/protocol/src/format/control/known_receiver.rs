//! The progress of a receiving end, for a sender that goes on over new wires.
#![forbid(unsafe_code)]

use ibex_base::field::{FieldError, FieldReader, WireField};

use crate::format::{counters::Counters, record};

/// An end that the hearer opened, as it is known over new wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEnd {
    /// The end is known to be closed.
    pub received_close: bool,
    /// The state of the channel's receiving end, for a sending end whose records go over the
    /// wires and whose channel is open.
    pub receiver: Option<KnownReceiver>,
}

/// The state of a channel's receiving end, as it is told to the sender over new wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownReceiver {
    /// Messages that arrived, large ones counted when announced.
    pub arrived: u64,
    /// The ring position behind the last of them.
    pub arrived_position: u64,
    /// The receiver's counters; large messages that are announced and not whole end `received`.
    pub counters: Counters,
}

impl KnownReceiver {
    /// Creates the state of a channel of that alignment before any message has arrived.
    #[must_use]
    pub fn nothing(alignment: usize) -> Self {
        let position = record::first_position(alignment);
        Self {
            arrived: 0,
            arrived_position: position,
            counters: Counters {
                released_position: position,
                ..Counters::default()
            },
        }
    }
}

/// A byte of flags, and the counters behind it if there is a receiver.
impl WireField for KnownEnd {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        let flags = u8::read(from, name)?;
        let flag = |bit: u8| flags & bit != 0;
        // An end of acknowledgement comes with a receiver's counters.
        if flags > CLOSED | RECEIVER | ENDED || flag(ENDED) && !flag(RECEIVER) {
            let (field, value) = (name, flags.into());
            return Err(FieldError::UnknownValue { field, value });
        }
        let mut receiver = None;
        if flag(RECEIVER) {
            let mut next = || u64::read(from, "counter");
            receiver = Some(KnownReceiver {
                arrived: next()?,
                arrived_position: next()?,
                counters: Counters {
                    received: next()?,
                    released: next()?,
                    released_position: next()?,
                    acknowledged: next()?,
                    acknowledgement_ended: flag(ENDED),
                },
            });
        }
        Ok(Self {
            received_close: flag(CLOSED),
            receiver,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let closed = flag(self.received_close, CLOSED);
        let Some(known) = &self.receiver else {
            return out.push(closed);
        };
        let counters = &known.counters;
        out.push(closed | RECEIVER | flag(counters.acknowledgement_ended, ENDED));
        for counter in [
            known.arrived,
            known.arrived_position,
            counters.received,
            counters.released,
            counters.released_position,
            counters.acknowledged,
        ] {
            counter.write(out);
        }
    }
}

/// The flag of an end that is known to be closed.
const CLOSED: u8 = 1;
/// The flag of a receiver's counters.
const RECEIVER: u8 = 2;
/// The flag of an acknowledgement that has ended.
const ENDED: u8 = 4;
