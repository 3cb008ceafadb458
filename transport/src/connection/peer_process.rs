//! The process at the other end of a session, if it runs on this host: its end proves that the
//! session will not continue.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The process of a peer.
#[derive(Debug)]
pub(super) enum PeerProcess {
    /// The process lived when its pidfd was opened; the descriptor is readable once the process has
    /// ended.
    Found(OwnedFd),
    /// The process had ended before.
    Ended,
    /// The process is on another host, or not visible from here.
    Unknown,
}

impl PeerProcess {
    pub(super) fn find(pid: Option<u32>) -> Self {
        let pid = pid
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => PeerProcess::Found(process),
            Some(Err(Errno::SRCH)) => PeerProcess::Ended,
            Some(Err(_)) | None => PeerProcess::Unknown,
        }
    }

    /// Returns the descriptor by which epoll reports the end of the process.
    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        match self {
            PeerProcess::Found(process) => Some(process),
            PeerProcess::Ended | PeerProcess::Unknown => None,
        }
    }

    /// Returns whether the process is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        let process = match self {
            PeerProcess::Found(process) => process,
            PeerProcess::Ended => return true,
            PeerProcess::Unknown => return false,
        };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)) == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_to_live_until_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = PeerProcess::find(Some(child.id()));
        assert!(process.descriptor().is_some() && !process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(PeerProcess::find(Some(child.id())).has_ended());
    }

    #[test]
    fn an_unknown_peer_process_is_not_taken_for_ended() {
        for pid in [None, Some(0), Some(u32::MAX)] {
            let process = PeerProcess::find(pid);
            assert!(matches!(process, PeerProcess::Unknown), "{process:?}");
            assert!(process.descriptor().is_none() && !process.has_ended());
        }
    }
}
