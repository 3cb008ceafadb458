//! The peer did not open its end of a channel.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use ibex_base::Rounded;
use ibex_protocol::format::control::Role;

use super::{Interface, Suspension};

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
    pub(crate) interface: Interface,
}

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            missing,
            is_same_there,
            other_names,
            waited,
            open_timeout,
            suspended,
            interface,
        } = self;
        // Converting a time-out to a deadline and back loses a little.
        let time = Rounded(*waited);
        if let Some(suspended) = suspended {
            let subject = interface.subject(channel, peer);
            return write!(
                f,
                "{subject}: it is not known whether the peer opened its end, after {time}: \
                 {suspended}; a later call goes on"
            );
        }
        if *interface != Interface::Channel {
            f.write_str(&interface.not_opened(self, format_args!("{time}")))?;
            return match is_same_there {
                true => Ok(()),
                false => write_longer(f, *waited, *open_timeout),
            };
        }
        write!(
            f,
            "channel \"{channel}\": {peer} did not open a {missing} of this name within \
             {time}; "
        )?;
        if *is_same_there {
            let same = missing.opposite();
            return write!(
                f,
                "it opened a {same} as well: one of the two must be a {missing}"
            );
        }
        match &other_names[..] {
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
        write_longer(f, *waited, *open_timeout)
    }
}

/// Writes further advice for a wait of the given duration.
fn write_longer(
    f: &mut fmt::Formatter<'_>,
    waited: Duration,
    open_timeout: Duration,
) -> fmt::Result {
    if waited < open_timeout {
        write!(f, "or wait longer (open_timeout is {open_timeout:?})")
    } else {
        f.write_str("or raise open_timeout")
    }
}

impl Error for NotOpened {}

ibex_base::debug_as_display!(NotOpened);
