//! The report of a node or a session that was closed.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_base::Counted;

/// The messages that a closed node, or a closed session, could not deliver. Its `Display` is one line, for a log or the
/// error of `main`.
#[must_use = "it says what was not delivered"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// One entry for each channel with undelivered messages.
    pub undelivered: Vec<Undelivered>,
    /// The number of messages that sessions which had ended before the node was closed are not
    /// known to have delivered. It includes what a [`Peer::close`] reported at the time. 0 in the
    /// report of a session.
    ///
    /// [`Peer::close`]: https://docs.rs/ibex/latest/ibex/struct.Peer.html#method.close
    pub undelivered_before: u64,
}

impl CloseReport {
    /// Returns whether all that was sent is delivered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.undelivered.is_empty() && self.undelivered_before == 0
    }

    /// Adds the report of another engine.
    pub(crate) fn add(&mut self, other: CloseReport) {
        self.undelivered.extend(other.undelivered);
        self.undelivered_before += other.undelivered_before;
    }
}

/// A channel's undelivered messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The channel.
    pub channel: String,
    /// The peer's address.
    pub peer: String,
    /// Messages sent.
    pub sent: u64,
    /// Messages that the peer's engine has received, at least.
    pub received: u64,
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_complete() {
            return f.write_str("all that was sent is delivered");
        }
        let channels = self.undelivered.iter().map(ToString::to_string);
        let before = (self.undelivered_before > 0).then(|| {
            let messages = Counted(self.undelivered_before, "message");
            format!("{messages} of sessions that had ended before")
        });
        let parts: Vec<_> = channels.chain(before).collect();
        write!(
            f,
            "not all that was sent is delivered: {}",
            parts.join("; ")
        )
    }
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            sent,
            received,
        } = self;
        write!(
            f,
            "channel \"{channel}\" to {peer} ({sent} sent, at least {received} received)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_in_one_line_which_channels_lack_what() {
        let mut report = CloseReport::default();
        assert_eq!(report.to_string(), "all that was sent is delivered");
        for (channel, sent) in [("wal", 9), ("news", 7)] {
            report.undelivered.push(Undelivered {
                channel: channel.to_owned(),
                peer: "10.0.0.2:7000".to_owned(),
                sent,
                received: 5,
            });
        }
        assert_eq!(
            report.to_string(),
            "not all that was sent is delivered: channel \"wal\" to 10.0.0.2:7000 (9 sent, at \
             least 5 received); channel \"news\" to 10.0.0.2:7000 (7 sent, at least 5 received)"
        );
        let before = CloseReport {
            undelivered_before: 1,
            ..CloseReport::default()
        };
        assert!(!before.is_complete());
        assert_eq!(
            before.to_string(),
            "not all that was sent is delivered: 1 message of sessions that had ended before"
        );
        report.add(before);
        assert!(
            report
                .to_string()
                .ends_with("at least 5 received); 1 message of sessions that had ended before")
        );
    }
}
