//! The error of memory that could not be had, with the setting that lowers the need for memory.
#![forbid(unsafe_code)]

use std::{fmt, io};

use rustix::io::Errno;

/// The kernel refused memory.
///
/// The text names what the memory was for, the step that failed, what the kernel said and
/// the setting or limit to change.
#[derive(thiserror::Error)]
#[error("cannot get {what} of {bytes} bytes ({step}): {source}; {}", self.next_step())]
#[non_exhaustive]
pub struct MemoryError {
    /// The use of the memory.
    pub what: MemoryUse,
    /// The number of bytes that were requested.
    pub bytes: usize,
    /// The step that failed, by the name of its system call.
    pub step: &'static str,
    /// The kernel's error.
    pub r#source: io::Error,
}

impl MemoryError {
    /// Creates the error of one step from the system call's error.
    pub fn new(
        what: MemoryUse,
        bytes: usize,
        step: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = source.into();
        Self {
            what,
            bytes,
            step,
            source,
        }
    }

    /// Reports that a large message has no room within the node's limit.
    pub fn beyond_limit(bytes: usize) -> Self {
        Self::new(MemoryUse::LargeMessage, bytes, BEYOND_LIMIT, Errno::NOMEM)
    }

    /// Returns whether the node's own limit is in the way, and not the kernel.
    pub fn is_beyond_limit(&self) -> bool {
        self.step == BEYOND_LIMIT
    }

    /// Returns whether the kernel or a sandbox does not allow the step at all, however much memory
    /// there is.
    pub fn is_denied(&self) -> bool {
        let errno = self.source.raw_os_error().map(Errno::from_raw_os_error);
        let is_of_files = ["memfd_create", "fallocate", "F_ADD_SEALS"].contains(&self.step);
        match errno {
            Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => true,
            Some(Errno::INVAL | Errno::OPNOTSUPP) => is_of_files,
            _ => false,
        }
    }

    /// Returns what an operator can do about it.
    fn next_step(&self) -> String {
        match self.source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOMEM | Errno::NOSPC | Errno::AGAIN) => format!(
                "{}, or raise the memory limit of the container or process (ulimit -v, \
                 vm.max_map_count)",
                self.what.saving()
            ),
            Some(Errno::MFILE | Errno::NFILE) => {
                "raise the limit of open files (ulimit -n)".to_owned()
            }
            Some(Errno::FBIG) => format!(
                "{}, or raise the limit of a file's size (ulimit -f)",
                self.what.saving()
            ),
            Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => format!(
                "let the sandbox (seccomp, vm.memfd_noexec) allow {}, or choose another fabric",
                self.step
            ),
            _ if self.is_denied() => format!(
                "this kernel or sandbox has no {} for memory files: choose another fabric",
                self.step
            ),
            Some(Errno::INVAL) => {
                "the size must be a power of two of at least a page on this machine".to_owned()
            }
            _ => self.what.saving().to_owned(),
        }
    }
}

/// The step that fails where the node's limit is in the way.
const BEYOND_LIMIT: &str = "memory_limit";

/// The use of a piece of memory; an error names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryUse {
    /// The ring of one channel.
    Ring,
    /// A block that bytes from the network arrive in.
    ArrivalBlock,
    /// A message that is longer than its channel's ring.
    LargeMessage,
    /// The control blocks that one side of a session shares with the other.
    ControlBlocks,
    /// The buffers that an RDMA device receives into.
    ReceiveBuffers,
    /// The entries of a receiving end, one for each message of its window.
    Window,
    /// The heads before records and chunks that an RDMA device sends.
    FrameHeads,
}

impl MemoryUse {
    /// Returns the setting that asks for less memory.
    fn saving(self) -> &'static str {
        match self {
            Self::Ring => "lower window_bytes",
            Self::ArrivalBlock => "lower session_credit_bytes",
            Self::Window => "lower window_messages",
            Self::LargeMessage => "lower max_message_bytes or send shorter messages",
            Self::ControlBlocks | Self::FrameHeads => "open fewer sessions",
            Self::ReceiveBuffers => "lower receive_buffers and held_buffers",
        }
    }

    /// The name that its memfd shows in `/proc/*/maps`.
    pub fn memfd_name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Ring => c"ibex-ring",
            Self::ArrivalBlock => c"ibex-block",
            Self::Window => c"ibex-window",
            Self::LargeMessage => c"ibex-message",
            Self::ControlBlocks => c"ibex-control",
            Self::ReceiveBuffers => c"ibex-receive",
            Self::FrameHeads => c"ibex-heads",
        }
    }
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "a ring",
            Self::ArrivalBlock => "an arrival block",
            Self::Window => "a window of messages",
            Self::LargeMessage => "memory for a large message",
            Self::ControlBlocks => "control blocks",
            Self::ReceiveBuffers => "receive buffers",
            Self::FrameHeads => "memory for frame heads",
        })
    }
}

ibex_base::debug_as_display!(MemoryError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_use_the_step_and_the_setting() {
        let error = MemoryError::new(MemoryUse::Ring, 1 << 20, "fallocate", Errno::NOMEM);
        assert_eq!(
            error.to_string(),
            "cannot get a ring of 1048576 bytes (fallocate): Cannot allocate memory (os error 12); \
             lower window_bytes, or raise the memory limit of the container or process (ulimit -v, \
             vm.max_map_count)"
        );
    }

    #[test]
    fn the_kernel_is_quoted_once() {
        let error = MemoryError::new(MemoryUse::Ring, 1 << 20, "fallocate", Errno::NOMEM);
        assert!(std::error::Error::source(&error).is_none());
    }

    #[test]
    fn each_kind_of_refusal_has_its_own_next_step() {
        let text = |errno: Errno| {
            MemoryError::new(MemoryUse::LargeMessage, 1, "memfd_create", errno).to_string()
        };
        assert!(text(Errno::MFILE).ends_with("raise the limit of open files (ulimit -n)"));
        assert!(text(Errno::FBIG).ends_with("a file's size (ulimit -f)"));
        assert!(text(Errno::NOSYS).contains("allow memfd_create"));
        assert!(text(Errno::IO).ends_with("send shorter messages"));
    }

    #[test]
    fn a_kernel_without_seals_is_not_told_to_lower_sizes() {
        for (step, errno) in [
            ("memfd_create", Errno::INVAL),
            ("fallocate", Errno::OPNOTSUPP),
            ("F_ADD_SEALS", Errno::INVAL),
        ] {
            let error = MemoryError::new(MemoryUse::ControlBlocks, 4096, step, errno);
            assert!(error.is_denied(), "{error}");
            let next = format!("has no {step} for memory files: choose another fabric");
            assert!(error.to_string().ends_with(&next), "{error}");
        }
        let size = MemoryError::new(MemoryUse::Ring, 100, "mmap", Errno::INVAL);
        assert!(
            size.to_string().contains("power of two") && !size.is_denied(),
            "{size}"
        );
        let shortage = MemoryError::new(MemoryUse::Ring, 100, "fallocate", Errno::NOMEM);
        assert!(!shortage.is_denied(), "{shortage}");
    }
}
