//! Reading a control message, field by field.
#![forbid(unsafe_code)]

use super::{
    ChannelSpec, CloseReason, Control, KnownReceiver, MAX_NAME_BYTES, MAX_OLDER_SCHEMA_BYTES,
    MAX_SCHEMA_BYTES, MalformedControl, Role,
};
use crate::format::{
    channel_window::ChannelWindow,
    counters::Counters,
    message_version::{MAX_OLDER_VERSIONS, MessageVersion},
    remote_memory::{MOST_RAILS, RemoteMemory},
};

/// The bytes of a control message that were not read yet. Their contents are checked as they are
/// read: they are a peer's.
pub(super) struct ControlReader<'a> {
    bytes: &'a [u8],
}

impl<'a> ControlReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedControl> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or(MalformedControl { what: "cut short" })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedControl> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MalformedControl> {
        Ok(self.array::<1>()?[0])
    }

    /// A byte that is 0 or 1; else `what` is wrong.
    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, MalformedControl> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MalformedControl { what }),
        }
    }

    pub(super) fn rail(&mut self) -> Result<u8, MalformedControl> {
        match self.byte()? {
            rail if usize::from(rail) < MOST_RAILS => Ok(rail),
            _ => Err(MalformedControl {
                what: "no session has that many rails",
            }),
        }
    }

    pub(super) fn u64(&mut self) -> Result<u64, MalformedControl> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, MalformedControl> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn memory(&mut self) -> Result<RemoteMemory, MalformedControl> {
        let (address, key, bytes) = (self.u64()?, self.u32()?, self.u64()?);
        RemoteMemory::new(address, key, bytes).ok_or(MalformedControl {
            what: "memory is granted where none can be",
        })
    }

    pub(super) fn known(&mut self) -> Result<Control, MalformedControl> {
        let (end, flags) = (self.end()?, self.byte()?);
        if flags > 0b111 {
            return Err(MalformedControl {
                what: "unknown flags in a report of counters",
            });
        }
        let flag = |bit: u8| flags & 1 << bit != 0;
        if flag(2) && !flag(1) {
            return Err(MalformedControl {
                what: "an end of acknowledgement without a receiver's counters",
            });
        }
        let mut receiver = None;
        if flag(1) {
            receiver = Some(KnownReceiver {
                arrived: self.u64()?,
                arrived_position: self.u64()?,
                counters: Counters {
                    received: self.u64()?,
                    released: self.u64()?,
                    released_position: self.u64()?,
                    acknowledged: self.u64()?,
                    acknowledgement_ended: flag(2),
                },
            });
        }
        Ok(Control::Known {
            end,
            received_close: flag(0),
            receiver,
        })
    }

    pub(super) fn end(&mut self) -> Result<u32, MalformedControl> {
        match self.u32()? {
            0 => Err(MalformedControl {
                what: "0 is no channel",
            }),
            end => Ok(end),
        }
    }

    pub(super) fn role(&mut self) -> Result<Role, MalformedControl> {
        match self.byte()? {
            0 => Ok(Role::Sender),
            1 => Ok(Role::Receiver),
            _ => Err(MalformedControl {
                what: "unknown role",
            }),
        }
    }

    pub(super) fn reason(&mut self) -> Result<CloseReason, MalformedControl> {
        match self.byte()? {
            0 => Ok(CloseReason::Dropped),
            1 => Ok(CloseReason::SlotLeaked),
            2 => Ok(CloseReason::Corrupt),
            3 => Ok(CloseReason::NoRoom),
            4 => Ok(CloseReason::Aborted),
            5 => Ok(CloseReason::Unreadable),
            _ => Err(MalformedControl {
                what: "unknown reason of a close",
            }),
        }
    }

    pub(super) fn text(&mut self, limit: usize) -> Result<String, MalformedControl> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > limit {
            return Err(MalformedControl {
                what: "a text is too long",
            });
        }
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| MalformedControl {
            what: "a text is not UTF-8",
        })?;
        Ok(text.to_owned())
    }

    /// The name of a channel, as this end's handles may have it.
    pub(super) fn name(&mut self) -> Result<String, MalformedControl> {
        let name = self.text(MAX_NAME_BYTES)?;
        if name.is_empty() {
            return Err(MalformedControl {
                what: "a channel without a name",
            });
        }
        Ok(name)
    }

    pub(super) fn spec(&mut self) -> Result<ChannelSpec, MalformedControl> {
        let spec = ChannelSpec {
            newest: self.version(MAX_SCHEMA_BYTES)?,
            window: ChannelWindow {
                messages: self.u64()?,
                bytes: self.u64()?,
            },
            max_message_bytes: self.u64()?,
            max_unreleased_bytes: self.u64()?,
            older: self.older_versions()?,
            is_traced: self.flag("unknown flags of a channel")?,
        };
        if spec.window.messages == 0 || spec.window.bytes == 0 {
            return Err(MalformedControl {
                what: "a window of 0",
            });
        }
        Ok(spec)
    }

    fn version(&mut self, schema_limit: usize) -> Result<MessageVersion, MalformedControl> {
        let version = MessageVersion {
            fingerprint: self.array()?,
            schema: self.text(schema_limit)?,
            alignment: self.u32()?,
        };
        if !version.alignment.is_power_of_two() || !(8..=64).contains(&version.alignment) {
            return Err(MalformedControl {
                what: "an alignment is not 8, 16, 32 or 64",
            });
        }
        Ok(version)
    }

    fn older_versions(&mut self) -> Result<Vec<MessageVersion>, MalformedControl> {
        let count = usize::from(self.byte()?);
        if count > MAX_OLDER_VERSIONS {
            return Err(MalformedControl {
                what: "a list of too many older versions",
            });
        }
        (0..count)
            .map(|_| self.version(MAX_OLDER_SCHEMA_BYTES))
            .collect()
    }
}
