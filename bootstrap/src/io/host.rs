//! Facts that the system tells about this process.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use crate::identity::HostHint;

/// The step that fails if [`hint`] does.
pub(super) const HINT: &str = "read which host this is (/proc/sys/kernel/random/boot_id)";

/// Describes this host to the peer at the other end of `stream`. Every handshake reads it again,
/// because a fork changes the process number, and `setuid` the user.
///
/// Fails only where there is a [shortage](is_shortage). A host that never tells its identity has a
/// hint that says so. A host that cannot tell it just now must not pass for another host.
pub(super) fn hint(stream: &TcpStream) -> io::Result<HostHint> {
    let network_namespace = match stays_here(stream) {
        true => namespace("net"),
        false => None,
    };
    Ok(HostHint {
        boot_id: boot_id()?.unwrap_or_default(),
        pid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        pid_namespace: namespace("pid").unwrap_or_default(),
        network_namespace: network_namespace.unwrap_or_default(),
    })
}

/// Returns whether descriptors or memory have run out. Either may be there again in a moment.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// 128 random bits that the kernel draws at boot, the same in every container; see
/// [random(4)](https://man7.org/linux/man-pages/man4/random.4.html).
fn boot_id() -> io::Result<Option<[u8; 16]>> {
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(text) => Ok(parse_uuid(&text)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns the inode of one of this process's namespaces; see
/// [namespaces(7)](https://man7.org/linux/man-pages/man7/namespaces.7.html). In a container with
/// the /proc of another one there is no `self`, and the number of this process would mean nothing
/// to others anyhow.
fn namespace(kind: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/self/ns/{kind}")).ok()?.ino())
}

/// Returns whether both addresses of a connection belong to this network namespace. Clones of a
/// virtual machine share boot id and namespace, and have addresses of their own.
fn stays_here(stream: &TcpStream) -> bool {
    let (Ok(ours), Ok(theirs)) = (stream.local_addr(), stream.peer_addr()) else {
        return false;
    };
    let mut any_port = theirs;
    any_port.set_port(0);
    // An address of another host cannot be bound; see bind(2), EADDRNOTAVAIL.
    ours.ip() == theirs.ip() || UdpSocket::bind(any_port).is_ok()
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
    use std::net::TcpListener;

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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let dialed = TcpStream::connect(address).expect("a connection");
        let (accepted, _) = listener.accept().expect("its other end");
        let hint = |stream| hint(stream).expect("a hint");
        let (one, other) = (hint(&dialed), hint(&accepted));
        assert!(one.same_boot(&other));
        assert!(one.same_network(&other));
        assert_eq!(one.pid_of(&other), Some(std::process::id()));
    }
}
