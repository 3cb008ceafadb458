//! Errors of channels, worded for the person who has to act on them.
//!
//! Each message names the channel and its state, what happened, the consequence and what to do. The
//! error that ends a channel has a file of its own: [`Disconnected`].

use std::{cmp::Ordering, error::Error, fmt, sync::Arc, time::Duration};

use ibex_base::{Rounded, fork::UsedAfterFork};
use ibex_protocol::format::control::ChannelSpec;
use ibex_ring::memory::MemoryError;

pub use crate::session::{
    NotOpened,
    disconnected::{Counts, Disconnected, EndCause},
};
use crate::{
    session::{Interface, Suspension},
    shared_memory::MESSAGE_SLOTS,
};

/// The two ends of a channel have no version of the message type in common.
#[derive(Clone)]
#[non_exhaustive]
pub struct SchemaMismatch {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// This end's message type, with all of its versions.
    pub ours: ChannelSpec,
    /// The message type of the peer's end, with all of its versions.
    pub theirs: ChannelSpec,
    /// Counts of the channel. The channel carries no message before the ends have compared their
    /// types.
    pub counts: Counts,
    pub(crate) interface: Interface,
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.interface != Interface::Channel {
            return self.interface.mismatch(self, f);
        }
        let (ours, theirs) = (Offered(&self.ours), Offered(&self.theirs));
        write!(
            f,
            "channel \"{}\" with {}: the ends have ",
            self.channel, self.peer
        )?;
        if self.ours.older.is_empty() && self.theirs.older.is_empty() {
            write!(
                f,
                "different message types; here {ours}, there {theirs}; no message was delivered; \
                 make both the same, let the newer end offer both by `versioned_sender` or \
                 `versioned_receiver`, or give the new type a channel of a new name"
            )
        } else {
            write!(
                f,
                "no version of the message type in common; here {ours}, there {theirs}; no \
                 message was delivered; update the older end to a release in between first, or \
                 give the new type a channel of a new name"
            )
        }
    }
}

impl Error for SchemaMismatch {}

/// All versions that an end offers, in a readable form.
struct Offered<'a>(&'a ChannelSpec);

impl fmt::Display for Offered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.newest.fmt(f)?;
        let mut older = self.0.older.iter();
        older.try_for_each(|version| write!(f, " or {version}"))
    }
}

/// A message was not sent before the caller's deadline: its channel stayed full, or another clone
/// of the sender was sending all the time.
#[derive(Clone)]
#[non_exhaustive]
pub struct StayedFull {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// Progress of the channel.
    pub counts: Counts,
    /// Another clone of this sender had the turn: it holds a reservation, or is in a call that
    /// sends. There may have been room.
    pub is_behind_clone: bool,
    /// Messages that the receiver released while the call waited. If there are none, the program
    /// there takes no messages, or keeps those that it took.
    pub released_meanwhile: u64,
    /// The time for which the channel had been full without a release when the call gave up. It may
    /// be longer than the call. `None` if another clone had the turn.
    pub stalled_for: Option<Duration>,
    /// The suspension of the session, if it has no connection.
    pub suspended: Option<Arc<Suspension>>,
    /// The limit that was reached, unless another clone had the turn.
    pub(crate) full: Option<Full>,
    pub(crate) interface: Interface,
}

impl StayedFull {
    /// Returns the setting to raise so that more messages of this kind can be unreleased; `None` if
    /// no setting helps, for example when another clone had the turn. The setting belongs to the
    /// channel and holds for both ends; `memory_limit` belongs to the receiving node.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        Some(match self.full? {
            Full::Messages => "window_messages",
            Full::Window => "window_bytes",
            Full::WindowOfAll => "window_bytes and max_unreleased_bytes",
            Full::Unreleased => "max_unreleased_bytes",
            Full::Memory => "memory_limit",
            Full::Slots => return None,
        })
    }

    /// Returns for how long nothing was released, in words.
    pub(crate) fn for_how_long(&self) -> String {
        match self.stalled_for {
            Some(time) => format!("for {}", Rounded(time)),
            None => "in that time".to_owned(),
        }
    }
}

/// A limit that keeps a message from being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The window has no message left.
    Messages,
    /// The window has too few bytes left for this message.
    Window,
    /// The window has too few bytes left for this message, and `max_unreleased_bytes` does not
    /// allow a larger window.
    WindowOfAll,
    /// Unreleased messages with memory of their own have reached their limit.
    Unreleased,
    /// Earlier messages have not been transmitted yet.
    Memory,
    /// All slots for messages in shared memory segments are in use.
    Slots,
}

impl fmt::Display for StayedFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            counts,
            is_behind_clone,
            released_meanwhile,
            stalled_for: _,
            suspended,
            full,
            interface,
        } = self;
        if *interface != Interface::Channel {
            return interface.stayed_full(self, f);
        }
        write!(f, "channel \"{channel}\": not sent within the time-out, ")?;
        if let Some(suspended) = suspended {
            write!(
                f,
                "as {} ({counts}): {suspended}; what was sent is kept, and a later call may succeed",
                state_of(suspended)
            )
        } else if *is_behind_clone {
            write!(
                f,
                "another clone of this sender had the turn to send to {peer}, in a reservation or \
                 in a call that waits for room ({counts}); a later call may succeed; send or drop \
                 that reservation, or give each sending thread a channel of its own"
            )
        } else {
            write!(f, "the channel to {peer} stayed full ({counts}")?;
            if *full == Some(Full::Slots) {
                write!(
                    f,
                    "; of messages longer than half of window_bytes {MESSAGE_SLOTS} may be \
                     unreleased over shared memory"
                )?;
            }
            match released_meanwhile {
                0 => write!(
                    f,
                    "); a later call may succeed; the receiver released nothing {}: {}",
                    self.for_how_long(),
                    interface.see_that_it_runs()
                )?,
                released => write!(
                    f,
                    "); a later call may succeed; the receiver released {released} in that time, \
                     so it works, and is slower than this sender: wait longer, or send less"
                )?,
            }
            match (full, self.setting()) {
                (Some(Full::Memory), _) => f.write_str(
                    ", or raise the memory_limit of its node, which has to give memory for the \
                     long messages before this one",
                ),
                (_, None) => Ok(()),
                (_, Some(setting)) if *released_meanwhile == 0 => write!(
                    f,
                    "; a greater {setting} at both ends helps only if that program keeps messages \
                     on purpose"
                ),
                (_, Some(setting)) => write!(f, ", or raise {setting} at both ends"),
            }
        }
    }
}

impl Error for StayedFull {}

/// A message was not sent because it is longer than the channel's limit.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageTooLong {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// Length of the message in bytes, if it is known.
    pub length: Option<u64>,
    /// The limit: the smaller of the two ends' limits.
    pub limit: u64,
    /// This end's limit compared to the peer's.
    pub(crate) here_to_there: Ordering,
    pub(crate) interface: Interface,
}

impl fmt::Display for MessageTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            length,
            limit,
            here_to_there,
            interface,
        } = self;
        let length =
            length.map_or_else(|| format!("more than {limit}"), |length| length.to_string());
        if *interface != Interface::Channel {
            return f.write_str(&interface.too_long(self, &length));
        }
        let whose = match here_to_there {
            Ordering::Less => "that of this end; raise max_message_bytes here",
            Ordering::Equal => "that of both ends; raise max_message_bytes at both",
            Ordering::Greater => {
                "that of the receiving end; raise max_message_bytes there, or memory_limit of its \
                 node if that is what lowers it"
            }
        };
        write!(
            f,
            "channel \"{channel}\" with {peer}: a message of {length} bytes is above its limit \
             of {limit}, {whose}, or send it in parts"
        )
    }
}

impl Error for MessageTooLong {}

/// No message came before the caller's deadline.
#[derive(Clone)]
#[non_exhaustive]
pub struct NoMessage {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// Messages that this end received before.
    pub received: u64,
    /// A message has arrived, or begun to, and waits for room within this node's `memory_limit`.
    pub lacks_room: bool,
    /// The suspension of the session, if it has no connection.
    pub suspended: Option<Arc<Suspension>>,
    pub(crate) interface: Interface,
}

impl fmt::Display for NoMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            received,
            lacks_room,
            suspended,
            interface,
        } = self;
        if *interface != Interface::Channel {
            return interface.no_message(self, f);
        }
        write!(f, "channel \"{channel}\": ")?;
        match (lacks_room, suspended) {
            (false, Some(suspended)) => write!(
                f,
                "no message came within the time-out, behind {received} that this end was handed, \
                 as {}: {suspended}; a later call goes on",
                state_of(suspended)
            ),
            (false, None) => write!(
                f,
                "no message came from {peer} within the time-out, behind {received} that this end \
                 was handed; a later call goes on"
            ),
            (true, _) => write!(
                f,
                "message {} from {peer} waits for memory: what this process holds of long messages \
                 leaves it no room within the node's memory_limit; it is not lost, and a later \
                 call goes on; drop messages that are held, on whatever channel, or raise \
                 memory_limit",
                received + 1
            ),
        }
    }
}

impl Error for NoMessage {}

/// A message was not sent. The value stays with the caller: sending only borrows it.
#[derive(thiserror::Error)]
pub enum SendError {
    /// The peer did not open its end within `open_timeout`.
    #[error(transparent)]
    NotOpened(Box<NotOpened>),
    /// The peer's end has another message type.
    #[error(transparent)]
    Mismatch(Box<SchemaMismatch>),
    /// The message is longer than the channel's limit. The channel stays usable.
    #[error(transparent)]
    TooLong(Box<MessageTooLong>),
    /// The channel has ended.
    #[error(transparent)]
    Disconnected(Box<Disconnected>),
    /// The codec refused the value. Nothing was sent, and the channel stays usable.
    #[error("the value cannot be encoded: {0}")]
    Encode(Box<dyn Error + Send + Sync>),
    /// There is no memory for the ring or the message. Nothing was sent, and the channel stays
    /// usable.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The calling thread is in the middle of a message of the same channel: it holds a reservation
    /// of another clone, or a value's serializer made this call. The thread would wait for itself,
    /// without end.
    #[error(
        "nothing was sent: this thread is already building a message of the same channel, in a \
         reservation of another clone or in a value's serializer; finish that first"
    )]
    Nested,
    /// The calling process is a fork of the one that opened the channel.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl SendError {
    /// Returns whether the channel stays usable: the error concerns this message alone, or a
    /// shortage that may pass.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        matches!(
            self,
            SendError::TooLong(_) | SendError::Encode(_) | SendError::Memory(_) | SendError::Nested
        )
    }
}

/// The outcome of an attempt to send that sent nothing.
#[derive(Debug)]
pub enum SendFailure {
    /// There is no room, and the caller did not ask to wait.
    Full,
    /// The peer has not opened its end, and the caller did not ask to wait.
    NotOpen,
    /// The peer did not open its end before the caller's deadline.
    NotOpenInTime(Box<NotOpened>),
    /// The caller's deadline passed.
    TimedOut(Box<StayedFull>),
    /// The attempt failed for good.
    Failed(SendError),
}

impl From<SendError> for SendFailure {
    fn from(error: SendError) -> Self {
        SendFailure::Failed(error)
    }
}

/// The error of `flush` and `wait_acked`.
#[derive(thiserror::Error)]
pub enum WaitAckedError {
    /// The receiver dropped a message without acknowledging it, so nothing from there on
    /// will ever be acknowledged.
    #[error(
        "channel \"{channel}\": {peer} dropped message {sequence} without acknowledging it; \
         messages up to {} are acknowledged, and no later one will be: open the channel anew, and \
         have its receiver `ack` what it takes", .sequence - 1
    )]
    #[non_exhaustive]
    Unacknowledged {
        /// The channel's name.
        channel: String,
        /// The peer, as an address.
        peer: String,
        /// The first message that will not be acknowledged.
        sequence: u64,
    },
    /// The caller's deadline passed: the receiver has not acknowledged the message yet, or has not
    /// opened its end.
    #[error(
        "channel \"{channel}\": {peer} is not done with message {sequence} within the time-out \
         ({counts}); what was sent stays sent, and a later call may succeed; {}",
        not_done(*.meanwhile, .suspended.as_deref())
    )]
    #[non_exhaustive]
    Timeout {
        /// The channel's name.
        channel: String,
        /// The peer, as an address.
        peer: String,
        /// The message whose acknowledgement the call waited for.
        sequence: u64,
        /// Progress of the channel.
        counts: Counts,
        /// Messages that the receiver acknowledged while the call waited, or that its node got if
        /// the call waited for that alone.
        meanwhile: u64,
        /// The suspension of the session, if it has no connection.
        suspended: Option<Arc<Suspension>>,
    },
    /// The channel failed before the answer came.
    #[error(transparent)]
    Failed(#[from] SendError),
}

/// Returns the state of a session in which waits are in vain.
fn state_of(suspended: &Suspension) -> &'static str {
    match suspended.is_silence {
        true => "the peer's host does not answer",
        false => "the session is suspended",
    }
}

/// Returns what keeps the receiver from being done, and what to do about it.
fn not_done(meanwhile: u64, suspended: Option<&Suspension>) -> String {
    match (suspended, meanwhile) {
        (Some(suspended), _) => suspended.to_string(),
        (None, 0) => "nothing moved in that time: see that the process there runs, opens its end \
                      and takes messages, and acknowledges them where that is waited for"
            .to_owned(),
        (None, moved) => format!(
            "the receiver came on by {moved} in that time, so it works, and is slower than this \
             sender: wait longer, or send less"
        ),
    }
}

/// No message came.
#[derive(thiserror::Error)]
pub enum RecvError {
    /// The last sender closed, and every message that it sent was handed out.
    #[error("the channel has ended in order: every sender is gone and everything was received")]
    Ended,
    /// The peer did not open its end within `open_timeout`.
    #[error(transparent)]
    NotOpened(Box<NotOpened>),
    /// The peer's end has another message type.
    #[error(transparent)]
    Mismatch(Box<SchemaMismatch>),
    /// The session broke. Every message that had arrived was handed out before.
    #[error(transparent)]
    Disconnected(Box<Disconnected>),
    /// The bytes of a message are not a valid value. The message was released, and the next call
    /// continues after it.
    #[error(
        "channel \"{channel}\": message {sequence} from {peer} is not valid: {why}; it was \
         dropped unacknowledged and the channel goes on; see what that peer's codec writes"
    )]
    Corrupt {
        /// The channel's name.
        channel: String,
        /// The peer, as an address.
        peer: String,
        /// The message.
        sequence: u64,
        /// The codec's finding.
        why: String,
    },
    /// The kernel refused memory for messages that have arrived (shared memory). They stay where
    /// they are. The error is returned once: later calls wait, as they do for a message, until
    /// memory is available or their deadline passes. ibex asks the kernel again every 20 ms.
    #[error("{0}; this is said once: what has come is kept, and later calls wait for memory")]
    Memory(#[from] MemoryError),
    /// The calling process is a fork of the one that opened the channel.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl RecvError {
    /// Returns whether the next call can succeed, as it can after an invalid message.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        matches!(self, RecvError::Corrupt { .. } | RecvError::Memory(_))
    }
}

/// The outcome of an attempt to receive that returned no message.
#[derive(Debug)]
pub enum RecvFailure {
    /// No message is there, and the caller did not ask to wait.
    Empty,
    /// The peer has not opened its end, and the caller did not ask to wait.
    NotOpen,
    /// The peer did not open its end before the caller's deadline.
    NotOpenInTime(Box<NotOpened>),
    /// The caller's deadline passed.
    TimedOut(Box<NoMessage>),
    /// The attempt failed for good.
    Failed(RecvError),
}

impl From<RecvError> for RecvFailure {
    fn from(error: RecvError) -> Self {
        RecvFailure::Failed(error)
    }
}

ibex_base::debug_as_display!(
    SchemaMismatch,
    MessageTooLong,
    StayedFull,
    NoMessage,
    SendError,
    WaitAckedError,
    RecvError,
);
