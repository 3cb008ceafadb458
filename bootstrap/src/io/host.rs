//! Facts that the system tells about this process.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;

use ibex_base::Address;
use rustix::io::Errno;

use super::tcp;
use crate::identity::HostHint;

/// The step that fails if [`HostHint::read`] does.
pub(super) const HINT: &str = "read which host this is (/proc/sys/kernel/random/boot_id)";

impl HostHint {
    /// Reads what this process can tell of itself and of its host to the peer at the other end of
    /// `stream`. Every handshake reads it again, because a fork changes the process number, and
    /// `setuid` the user.
    ///
    /// # Errors
    /// Descriptors or memory have run out. A host that never tells its identity has a hint that
    /// says so. A host that cannot tell it just now must not pass for another host.
    pub fn read(stream: &TcpStream) -> io::Result<HostHint> {
        let network_namespace = match stays_here(stream)? {
            true => namespace("net"),
            false => None,
        };
        Ok(HostHint {
            boot_id: boot_id()?.unwrap_or_default(),
            pid: std::process::id(),
            uid: user(),
            pid_namespace: namespace("pid").unwrap_or_default(),
            network_namespace: network_namespace.unwrap_or_default(),
        })
    }
}

/// Returns this process's effective user; [`HostHint::NO_USER`] where its user namespace may not map
/// that user.
pub(super) fn user() -> u32 {
    mapped_user(rustix::process::geteuid().as_raw()).unwrap_or(HostHint::NO_USER)
}

/// Returns the user that the kernel shows to this process as number `shown`; `None` where that may
/// be a user that its user namespace does not map.
pub(super) fn mapped_user(shown: u32) -> Option<u32> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let map = fs::read_to_string("/proc/self/uid_map");
    mapped(shown, overflow.as_deref().ok(), map.as_deref().ok())
}

/// Returns the group that the kernel shows to this process as number `shown`; `None` where that may
/// be a group that its user namespace does not map.
pub(super) fn mapped_group(shown: u32) -> Option<u32> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowgid");
    let map = fs::read_to_string("/proc/self/gid_map");
    mapped(shown, overflow.as_deref().ok(), map.as_deref().ok())
}

/// Returns the user or group that the kernel shows as number `shown`.
///
/// It shows each user that the process's user namespace does not map as the overflow uid, which may
/// also be the number of a user, usually `nobody`. Only where the namespace maps every number is it
/// sure to be that user. See
/// [user_namespaces(7)](https://man7.org/linux/man-pages/man7/user_namespaces.7.html), "Unmapped
/// user and group IDs".
fn mapped(shown: u32, overflow: Option<&str>, map: Option<&str>) -> Option<u32> {
    let overflow = overflow.and_then(|text| text.trim().parse().ok());
    let maps_all = || {
        let fields = map.unwrap_or_default().split_whitespace();
        fields.eq(["0", "0", "4294967295"])
    };
    let is_overflow = shown == overflow.unwrap_or(OVERFLOW_ID);
    (!is_overflow || maps_all()).then_some(shown)
}

/// The overflow uid and gid of a kernel that does not tell another: `DEFAULT_OVERFLOWUID` of
/// include/linux/highuid.h.
const OVERFLOW_ID: u32 = 65534;

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

/// Returns whether both addresses of a connection belong to this network namespace, or to the CID 1
/// of this machine. Clones of a virtual machine share boot id and namespace, and have addresses of
/// their own. Another CID of vsock says nothing: the dialing end need not know its own.
///
/// Packets to an address of this namespace have that address as their source, too, and connecting a
/// datagram socket sends none; see
/// [ip-route(8)](https://man7.org/linux/man-pages/man8/ip-route.8.html), type `local`. That an
/// address can be bound says less: `ip_nonlocal_bind` of
/// [ip(7)](https://man7.org/linux/man-pages/man7/ip.7.html) allows every address.
fn stays_here(stream: &TcpStream) -> io::Result<bool> {
    let (Ok(ours), Ok(theirs)) = (tcp::own_address(stream), tcp::peer_address(stream)) else {
        return Ok(false);
    };
    let Some(theirs) = theirs.inet() else {
        return Ok(theirs.is_loopback());
    };
    if ours.ip() == Some(theirs.ip()) || theirs.ip().is_loopback() {
        return Ok(true);
    }
    let any: IpAddr = match theirs {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(theirs)?;
        socket.local_addr()
    });
    match source {
        Ok(source) => Ok(source.ip() == theirs.ip()),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Returns whether two addresses differ in their ports at most.
pub(super) fn is_one_host(one: Address, other: Address) -> bool {
    match (one, other) {
        (Address::Vsock { cid: one, .. }, Address::Vsock { cid: other, .. }) => one == other,
        _ => one.ip() == other.ip() && one.ip().is_some(),
    }
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
    fn the_overflow_uid_is_a_user_only_where_every_user_is_mapped() {
        let (all, some) = ("         0          0 4294967295\n", "0 100000 65536\n");
        assert_eq!(mapped(1000, Some("65534\n"), Some(some)), Some(1000));
        assert_eq!(mapped(1000, None, None), Some(1000));
        assert_eq!(mapped(65534, Some("65534\n"), Some(all)), Some(65534));
        for map in [None, Some(""), Some(some), Some("0 0 1\n1 1 4294967294\n")] {
            for overflow in [None, Some("65534\n"), Some("no number")] {
                assert_eq!(mapped(65534, overflow, map), None, "{map:?}");
            }
        }
        assert_eq!(mapped(65533, Some("65533\n"), Some(some)), None);
        assert_eq!(mapped(65534, Some("65533\n"), Some(some)), Some(65534));
    }

    #[test]
    fn two_readings_name_the_same_host() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let dialed = TcpStream::connect(address).expect("a connection");
        let (accepted, _) = listener.accept().expect("its other end");
        let hint = |stream| HostHint::read(stream).expect("a hint");
        let (one, other) = (hint(&dialed), hint(&accepted));
        assert_eq!(one, other);
        assert!(one.boot_id != [0; 16] && one.network_namespace != 0);
        assert_eq!(one.pid, std::process::id());
    }
}
