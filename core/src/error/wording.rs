//! What the failure of a channel's end says to the user, in the terms of the handle that failed.
//!
//! Each text names the channel and its state, what happened, the consequence and what to do.

use std::{cmp::Ordering, fmt};

use ibex_base::{Rounded, fork::UsedAfterFork};
use ibex_protocol::format::control::{ChannelSpec, CloseReason, Role};
use ibex_transport::{
    channel::{ChannelError, ChannelFailure, EndLabel, FailureReason, Full},
    shared_memory::MESSAGE_SLOTS,
};

use super::{NotOpened, subject};
use crate::{EndCause, Suspension};

/// What a channel's error says.
pub(super) struct Wording<'a>(pub(super) &'a ChannelError);

impl fmt::Display for Wording<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            // The error says what the call found.
            ChannelError::WouldBlock => "it would block",
            ChannelError::NotOpenYet => "the peer has not opened its end yet",
            ChannelError::Ended => {
                "the channel has ended in order: every sender is gone and everything was received"
            }
            ChannelError::Failed(failure) => return FailureText(failure).fmt(f),
        })
    }
}

/// The text of a failure.
struct FailureText<'a>(&'a ChannelFailure);

impl FailureText<'_> {
    fn subject(&self) -> String {
        subject(self.0.label, &self.0.channel, &self.0.peer)
    }

    /// Returns what to look for if the peer is there and takes nothing. A stopped process keeps its
    /// connections, so no time-out of the session applies.
    fn see_that_it_runs(&self) -> String {
        let channels = "takes messages and drops them";
        let until_taken = self.0.label.map_or(channels, |label| label.until_taken);
        format!(
            "see that the process there runs, is not stopped, and {until_taken}; the session does \
             not end for that"
        )
    }
}

impl fmt::Display for FailureText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChannelFailure {
            channel,
            peer,
            end,
            label,
            counts,
            suspended,
            reason,
        } = self.0;
        match reason {
            FailureReason::NoRoom {
                full,
                released_meanwhile,
                stalled_for,
            } => {
                let time = stalled_for.map(|time| format!("for {}", Rounded(time)));
                let time = time.unwrap_or_else(|| "in that time".to_owned());
                match label {
                    None => self.no_room_in_channel(*full, *released_meanwhile, &time, f),
                    Some(label) => self.no_room(label, *released_meanwhile, &time, f),
                }
            }
            FailureReason::NoMessage { lacks_room } => self.no_message(*lacks_room, f),
            FailureReason::NotDone {
                sequence,
                meanwhile,
            } => write!(
                f,
                "channel \"{channel}\": {peer} is not done with message {sequence} within the \
                 time-out ({counts}); what was sent stays sent, and a later call may succeed; {}",
                not_done(*meanwhile, suspended.as_deref())
            ),
            FailureReason::Unacknowledged(sequence) => write!(
                f,
                "channel \"{channel}\": {peer} dropped message {sequence} without acknowledging \
                 it; messages up to {} are acknowledged, and no later one will be: open the \
                 channel anew, and have its receiver `ack` what it takes",
                sequence - 1
            ),
            FailureReason::Mismatch { ours, theirs } => self.mismatch(ours, theirs, f),
            FailureReason::TooLong {
                length,
                limit,
                here_to_there,
            } => self.too_long(*length, *limit, *here_to_there, f),
            FailureReason::HeaderTooLong { length, limit } => write!(
                f,
                "channel \"{channel}\": nothing was sent to {peer}: a header of {length} bytes is \
                 above the limit of {limit}; put the rest into the body"
            ),
            FailureReason::Encode(error) => write!(f, "the value cannot be encoded: {error}"),
            FailureReason::Unreadable(why) => write!(
                f,
                "channel \"{channel}\": nothing was sent to {peer}: {why}; the channel goes on: \
                 map the file again, and send what it has"
            ),
            FailureReason::Corrupt { sequence, why } => write!(
                f,
                "channel \"{channel}\": message {sequence} from {peer} is not valid: {why}; it was \
                 dropped unacknowledged and the channel goes on; see what that peer's codec writes"
            ),
            FailureReason::Memory(error) if *end == Role::Receiver => write!(
                f,
                "{error}; this is said once: what has come is kept, and later calls wait for memory"
            ),
            FailureReason::Memory(error) => error.fmt(f),
            FailureReason::RegionUnfit(unfit) => unfit.fmt(f),
            FailureReason::Nested => f.write_str(
                "nothing was sent: this thread is already building a message of the same channel, \
                 in a loan or permit of another clone or in a value's serializer; finish that first",
            ),
            FailureReason::Broken(cause) => self.broken(cause, f),
            FailureReason::UsedAfterFork => UsedAfterFork::new(self.subject()).fmt(f),
            // The text for users is that of the type `NotOpened`.
            FailureReason::NotOpened { .. } => match NotOpened::of(self.0) {
                Some(missing) => missing.fmt(f),
                None => Ok(()),
            },
        }
    }
}

// ---- Waits in vain -------------------------------------------------------------------------

/// Returns the setting to raise so that more messages can be unreleased that meet this limit.
pub(super) fn setting_of(full: Full) -> Option<&'static str> {
    Some(match full {
        Full::Messages => "window_messages",
        Full::Window => "window_bytes",
        Full::WindowOfAll => "window_bytes and max_unreleased_bytes",
        Full::Unreleased => "max_unreleased_bytes",
        Full::Memory => "memory_limit",
        Full::Slots => return None,
    })
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

impl FailureText<'_> {
    fn no_room_in_channel(
        &self,
        full: Option<Full>,
        released: u64,
        time: &str,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let ChannelFailure {
            channel,
            peer,
            counts,
            suspended,
            ..
        } = self.0;
        write!(f, "channel \"{channel}\": not sent within the time-out, ")?;
        if let Some(suspended) = suspended {
            return write!(
                f,
                "as {} ({counts}): {suspended}; what was sent is kept, and a later call may succeed",
                state_of(suspended)
            );
        }
        let Some(full) = full else {
            return write!(
                f,
                "another clone of this sender had the turn to send to {peer}, in a loan, a \
                 permit or a call that waits for room ({counts}); a later call may succeed; send \
                 or drop what it holds, or give each sending thread a channel of its own"
            );
        };
        write!(f, "the channel to {peer} stayed full ({counts}")?;
        if full == Full::Slots {
            write!(
                f,
                "; of long messages, which take more than half of window_bytes, {MESSAGE_SLOTS} may \
                 be unreleased over shared memory"
            )?;
        }
        match released {
            0 => write!(
                f,
                "); a later call may succeed; the receiver released nothing {time}: {}",
                self.see_that_it_runs()
            )?,
            released => write!(
                f,
                "); a later call may succeed; the receiver released {released} in that time, so it \
                 works, and is slower than this sender: wait longer, or send less"
            )?,
        }
        match (full, setting_of(full)) {
            (Full::Memory, _) => f.write_str(
                ", or raise the memory_limit of its node, which has to give memory for the long \
                 messages before this one",
            ),
            (_, None) => Ok(()),
            (_, Some(setting)) if released == 0 => write!(
                f,
                "; a greater {setting} at both ends helps only if that program keeps messages on \
                 purpose"
            ),
            (_, Some(setting)) => write!(f, ", or raise {setting} at both ends"),
        }
    }

    fn no_room(
        &self,
        label: &EndLabel,
        released: u64,
        time: &str,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let (subject, attempt) = (self.subject(), label.attempt);
        write!(f, "{subject}: nothing was sent within the time-out: ")?;
        match (&self.0.suspended, released) {
            (Some(suspended), _) => write!(f, "{suspended}; a later {attempt} may succeed"),
            (None, 0) => write!(
                f,
                "there is no room behind what was sent before, and nothing of it was taken {time}; \
                 a later {attempt} may succeed; {}",
                self.see_that_it_runs()
            ),
            (None, _) => write!(
                f,
                "there is no room behind what was sent before, of which some was taken in that \
                 time: the program there works, and is slower than this one; a later {attempt} \
                 may succeed"
            ),
        }
    }

    fn no_message(&self, lacks_room: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NO_ROOM: &str = "waits for memory: what this process holds of long messages leaves \
                               it no room within the node's memory_limit; it is not lost, and a \
                               later";
        const MAKE_ROOM: &str = "drop messages that are held, on whatever channel, or raise \
                                 memory_limit";
        let ChannelFailure {
            channel,
            peer,
            counts,
            suspended,
            ..
        } = self.0;
        let (subject, received) = (self.subject(), counts.received);
        match (self.0.label.is_none(), lacks_room, suspended) {
            (true, false, Some(suspended)) => write!(
                f,
                "channel \"{channel}\": no message came within the time-out, behind {received} \
                 that this end was handed, as {}: {suspended}; a later call goes on",
                state_of(suspended)
            ),
            (true, false, None) => write!(
                f,
                "channel \"{channel}\": no message came from {peer} within the time-out, behind \
                 {received} that this end was handed; a later call goes on"
            ),
            (true, true, _) => write!(
                f,
                "channel \"{channel}\": message {} from {peer} {NO_ROOM} call goes on; {MAKE_ROOM}",
                received + 1
            ),
            (false, false, Some(suspended)) => write!(
                f,
                "{subject}: nothing came within the time-out: {suspended}; a later read goes on"
            ),
            (false, false, None) => write!(
                f,
                "{subject}: nothing came within the time-out; a later read goes on"
            ),
            (false, true, _) => write!(
                f,
                "{subject}: what has come {NO_ROOM} read goes on; {MAKE_ROOM}"
            ),
        }
    }
}

/// Returns all versions that an end offers, in a readable form.
fn offered(spec: &ChannelSpec) -> String {
    let older = spec.older.iter().map(|version| format!(" or {version}"));
    format!("{}{}", spec.newest, older.collect::<String>())
}

impl FailureText<'_> {
    fn mismatch(
        &self,
        ours: &ChannelSpec,
        theirs: &ChannelSpec,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let subject = self.subject();
        let (here, there) = (offered(ours), offered(theirs));
        if let Some(label) = self.0.label {
            let (here, there) = (ours.newest.to_string(), theirs.newest.to_string());
            return write!(f, "{subject}: {}", (label.mismatch)(&here, &there));
        }
        match ours.older.is_empty() && theirs.older.is_empty() {
            true => write!(
                f,
                "{subject}: the ends have different message types; here {here}, there {there}; no \
                 message was delivered; make both the same, let the newer end offer both by \
                 `versioned_sender` or `versioned_receiver`, or give the new type a channel of a \
                 new name"
            ),
            false => write!(
                f,
                "{subject}: the ends have no version of the message type in common; here {here}, \
                 there {there}; no message was delivered; update the older end to a release in \
                 between first, or give the new type a channel of a new name"
            ),
        }
    }

    fn too_long(
        &self,
        length: Option<u64>,
        limit: u64,
        here_to_there: Ordering,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let subject = self.subject();
        let length =
            length.map_or_else(|| format!("more than {limit}"), |length| length.to_string());
        let (words, both, or) = match self.0.label {
            Some(label) => (label.message, "both nodes", "split it"),
            None => (
                Some(["message", "this end", "the receiving end"]),
                "both ends",
                "send it in parts",
            ),
        };
        let Some([what, here, there]) = words else {
            return write!(
                f,
                "{subject}: a write of {length} bytes is above its limit of {limit}, to which \
                 memory_limit of a node lowers it; raise that, or write less at a time"
            );
        };
        write!(
            f,
            "{subject}: a {what} of {length} bytes is above its limit of {limit}, that of "
        )?;
        match here_to_there {
            Ordering::Less => write!(f, "{here}; raise max_message_bytes here")?,
            Ordering::Equal => write!(f, "{both}; raise max_message_bytes at both")?,
            Ordering::Greater => write!(
                f,
                "{there}; raise max_message_bytes there, or memory_limit of its node if that is \
                 what lowers it"
            )?,
        }
        write!(f, ", or {or}")
    }
}

// ---- Ends ----------------------------------------------------------------------------------

impl FailureText<'_> {
    fn broken(&self, cause: &EndCause, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subject, end) = (self.subject(), self.0.end);
        let counts = &self.0.counts;
        let Some(label) = self.0.label else {
            write!(f, "{subject} has ended: {cause} (")?;
            match end {
                Role::Sender => write!(f, "{counts}")?,
                // A receiver does not know how many messages were sent, and knows the other counts
                // exactly.
                Role::Receiver => write!(
                    f,
                    "{} received, {} released, {} acknowledged",
                    counts.received, counts.released, counts.acknowledged
                )?,
            }
            return write!(f, "); {}", advice_for_channel(cause, end));
        };
        write!(f, "{subject} {} ended: ", label.has)?;
        match cause {
            EndCause::PeerClosed(reason) => f.write_str(closed(label, *reason))?,
            cause => write!(f, "{cause}")?,
        }
        let [anew, in_session, in_another] = (label.advice)(end);
        let advice = match cause {
            EndCause::RuntimeEnded => LIVE_LONGER,
            EndCause::NodeClosed => anew,
            cause if cause.spares_session() => in_session,
            _ => in_another,
        };
        write!(f, "; {advice}")
    }
}

/// Returns the text for a peer that closed its side of what is no channel of messages.
fn closed(label: &EndLabel, reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Dropped => label.dropped,
        CloseReason::Corrupt => "the peer got bytes that are not valid",
        CloseReason::NoRoom => "the peer has no room",
        CloseReason::Unreadable => {
            "the kernel there could not read the memory of what was sent (EFAULT)"
        }
        CloseReason::SlotLeaked | CloseReason::Aborted => label.gave_up,
        // The protocol crate may know more reasons than this crate.
        _ => "the peer gave it up",
    }
}

const LIVE_LONGER: &str = "close the node before its runtime is shut down, or make it in a runtime \
                           that lives longer";

/// Returns advice for the holder of `end` of a channel of messages.
fn advice_for_channel(cause: &EndCause, end: Role) -> &'static str {
    match (cause, end) {
        (EndCause::NodeClosed, Role::Sender) => {
            "to go on, make a new node, connect, and send what was not acknowledged"
        }
        (EndCause::NodeClosed, Role::Receiver) => "to go on, make a new node and connect",
        (EndCause::RuntimeEnded, _) => LIVE_LONGER,
        (EndCause::SlotLeaked, _) => {
            "send or drop every loan and permit; then drop this sender, open the channel again, \
             and send what was not acknowledged"
        }
        (EndCause::PeerClosed(CloseReason::Corrupt), Role::Sender) => {
            "see that both programs agree on the message type before sending again; the \
             session and its other channels go on"
        }
        (EndCause::PeerClosed(CloseReason::SlotLeaked), Role::Receiver) => {
            "the fault is in the sending program; once it opens the channel again, drop this \
             receiver and do the same"
        }
        (cause, Role::Sender) if cause.spares_session() => {
            "the session and its other channels go on: drop this sender, and once the peer \
             opens the channel again, do the same and send what was not acknowledged"
        }
        (cause, Role::Receiver) if cause.spares_session() => {
            "the session and its other channels go on: drop this receiver and open the \
             channel again; the sender may send again what was not acknowledged"
        }
        (_, Role::Sender) => "connect again and send what was not acknowledged",
        (_, Role::Receiver) => {
            "connect or accept again; the sender may send again what was not acknowledged"
        }
    }
}

#[cfg(test)]
mod tests;
