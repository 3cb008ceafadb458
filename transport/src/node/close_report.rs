//! The report of a node that was closed.
#![forbid(unsafe_code)]

use std::fmt;

/// The messages that a closed node could not deliver. Its `Display` is one line, for a log or the
/// error of `main`.
#[must_use = "it says what was not delivered"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// One entry for each channel with undelivered messages.
    pub undelivered: Vec<Undelivered>,
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
        let Some((first, others)) = self.undelivered.split_first() else {
            return f.write_str("all that was sent is delivered");
        };
        write!(f, "not all that was sent is delivered: {first}")?;
        others.iter().try_for_each(|other| write!(f, "; {other}"))
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
    }
}
