//! The peer did not open its end of a channel.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use ibex_base::Rounded;
use ibex_protocol::format::control::Role;
use ibex_transport::channel::{ChannelFailure, EndLabel, FailureReason};

use super::subject;
use crate::Suspension;

/// The peer did not open its end of a channel in time.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotOpened {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// The end that is missing at the peer.
    pub missing: Role,
    /// The peer opened the same kind of end under this name as this node: two senders, or two
    /// receivers, wait for each other.
    pub is_same_there: bool,
    /// Other names, at most eight, under which the peer has opened the missing kind of end and this
    /// node has opened none. The intended name may be among them.
    pub other_names: Vec<String>,
    /// Time for which the call waited.
    pub waited: Duration,
    /// Time for which the call would have waited without a deadline of the caller.
    pub open_timeout: Duration,
    /// The suspension of the session, if it has no connection. The peer may have opened its end,
    /// and cannot say so.
    pub suspended: Option<Arc<Suspension>>,
    label: Option<&'static EndLabel>,
}

impl NotOpened {
    /// Takes the facts out of a failure, unless it is another one.
    pub(crate) fn of(failure: &ChannelFailure) -> Option<Self> {
        let FailureReason::NotOpened {
            is_same_there,
            ref other_names,
            waited,
            open_timeout,
        } = failure.reason
        else {
            return None;
        };
        Some(Self {
            channel: failure.channel.to_string(),
            peer: failure.peer.clone(),
            missing: failure.end.opposite(),
            is_same_there,
            other_names: other_names.clone(),
            waited,
            open_timeout,
            suspended: failure.suspended.clone(),
            label: failure.label,
        })
    }

    /// Writes that an end of a channel of messages is missing, in which time, and what to do.
    fn fmt_of_channel(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, missing) = (&self.peer, self.missing);
        write!(
            f,
            "channel \"{}\": {peer} did not open a {missing} of this name within {}; ",
            self.channel,
            Rounded(self.waited)
        )?;
        if self.is_same_there {
            let same = missing.opposite();
            return write!(
                f,
                "it opened a {same} as well: one of the two must be a {missing}"
            );
        }
        match &self.other_names[..] {
            [] => f.write_str(
                "see that the program there opens it (a fan-in does when it is asked for what \
                 comes) and by this name, ",
            )?,
            // The name comes from the peer, so it is escaped.
            [name] => write!(
                f,
                "it has a {missing} of another name, {name:?}, that is not open here: check the \
                 name at both ends, "
            )?,
            [first, others @ ..] => {
                write!(f, "it has {missing}s of other names, {first:?}")?;
                others.iter().try_for_each(|name| write!(f, ", {name:?}"))?;
                f.write_str(", that are not open here: check the name at both ends, ")?;
            }
        }
        self.fmt_longer(f)
    }

    /// Writes the same in the terms of a label.
    fn fmt_of(&self, label: &EndLabel, subject: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [fact, same, advice] = label.not_opened;
        write!(f, "{subject}: {fact} within {}; ", Rounded(self.waited))?;
        if self.is_same_there {
            return f.write_str(same);
        }
        // The names come from the peer, so they are escaped.
        let names = self.other_names.iter().map(|name| format!("{name:?}"));
        match names.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => write!(f, "{advice}, ")?,
            names => write!(
                f,
                "it has opened {names}, of which this node has not opened the other side: check \
                 the name at both nodes, "
            )?,
        }
        self.fmt_longer(f)
    }

    /// Writes advice for a longer wait.
    fn fmt_longer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.waited < self.open_timeout {
            true => write!(
                f,
                "or wait longer (open_timeout is {:?})",
                self.open_timeout
            ),
            false => f.write_str("or raise open_timeout"),
        }
    }
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = subject(self.label, &self.channel, &self.peer);
        match (&self.suspended, self.label) {
            // Converting a time-out to a deadline and back loses a little.
            (Some(suspended), _) => write!(
                f,
                "{subject}: it is not known whether the peer opened its end, after {}: \
                 {suspended}; a later call goes on",
                Rounded(self.waited)
            ),
            (None, None) => self.fmt_of_channel(f),
            (None, Some(label)) => self.fmt_of(label, &subject, f),
        }
    }
}

impl Error for NotOpened {}

ibex_base::debug_as_display!(NotOpened);
