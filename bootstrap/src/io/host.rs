//! What the system tells about this process.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use crate::identity::HostHint;

/// What could not be done where [`hint`] fails.
pub(super) const HINT: &str = "read which host this is (/proc/sys/kernel/random/boot_id)";

/// Read anew for every handshake: a fork changes the process number, and
/// `setuid` the user.
///
/// Fails only where there is a [shortage](is_shortage). A host that does not tell who it is
/// has a hint that says so; one that cannot tell just now must not pass for another host.
pub(super) fn hint() -> io::Result<HostHint> {
    Ok(HostHint {
        boot_id: boot_id()?.unwrap_or_default(),
        pid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        pid_namespace: pid_namespace().unwrap_or_default(),
    })
}

/// Whether descriptors or memory have run out, of which there may be some again in a moment.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// 128 random bits that the kernel draws at boot, the same in every container;
/// see random(4).
fn boot_id() -> io::Result<Option<[u8; 16]>> {
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(text) => Ok(parse_uuid(&text)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// See namespaces(7). In a container that has another one's /proc there is no `self`, and the
/// number of this process would mean nothing to others anyhow.
fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_read_as_its_digits() {
        assert_eq!(
            parse_uuid("00112233-4455-6677-8899-aabbccddeeff\n"),
            Some([
                0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
                0xee, 0xff
            ])
        );
        assert_eq!(parse_uuid("none"), None);
        assert_eq!(parse_uuid(&"€".repeat(32)), None);
    }

    #[test]
    fn two_readings_name_the_same_host() {
        let (one, other) = (hint().expect("a hint"), hint().expect("another"));
        assert!(one.same_boot(&other));
        assert_eq!(one.pid_of(&other), Some(std::process::id()));
    }
}
