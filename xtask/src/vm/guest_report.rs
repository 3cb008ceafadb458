//! The reports of `vm/guest`, a line each.

/// A report of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuestReport {
    /// The version of rdma-core in a root that was not made here.
    RdmaCore(String),
    /// An RDMA device, as rdma(8) shows it.
    Device(String),
    /// The guest cannot run the command.
    Failed(String),
    /// The command starts here.
    Started,
    /// The command has ended.
    Exit(Exit),
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit status, or 128 plus the number of the signal that ended the command.
    pub(crate) status: u8,
    /// Bytes that the command has written to its standard output.
    pub(crate) stdout_bytes: u64,
    /// Bytes that the command has written to its standard error.
    pub(crate) stderr_bytes: u64,
}

impl GuestReport {
    /// Parses a report; `None` if it is unknown.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.trim_end();
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match name {
            "rdma-core" => Self::RdmaCore(rest.to_string()),
            "device" => Self::Device(rest.to_string()),
            "failed" => Self::Failed(rest.to_string()),
            "started" => Self::Started,
            "exit" => Self::Exit(Exit::parse(rest)?),
            _ => return None,
        })
    }
}

impl Exit {
    fn parse(numbers: &str) -> Option<Self> {
        let mut numbers = numbers.split(' ');
        let exit = Self {
            status: numbers.next()?.parse().ok()?,
            stdout_bytes: numbers.next()?.parse().ok()?,
            stderr_bytes: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_is_read() {
        let parse = GuestReport::parse;
        assert_eq!(parse("started\n"), Some(GuestReport::Started));
        assert_eq!(
            parse("device link rxe0/1 state ACTIVE"),
            Some(GuestReport::Device("link rxe0/1 state ACTIVE".into()))
        );
        assert_eq!(
            parse("failed `ip link`\n"),
            Some(GuestReport::Failed("`ip link`".into()))
        );
        assert_eq!(
            parse("rdma-core 44.0-2"),
            Some(GuestReport::RdmaCore("44.0-2".into()))
        );
        let exit = Exit {
            status: 139,
            stdout_bytes: 5_000_000_000,
            stderr_bytes: 0,
        };
        assert_eq!(
            parse("exit 139 5000000000 0"),
            Some(GuestReport::Exit(exit))
        );
    }

    #[test]
    fn a_cut_or_unknown_line_is_no_guest_report() {
        for line in [
            "",
            "exit",
            "exit 0",
            "exit 0 1",
            "exit 0 1 2 3",
            "exit 256 0 0",
            "Started",
        ] {
            assert_eq!(GuestReport::parse(line), None, "{line}");
        }
    }
}
