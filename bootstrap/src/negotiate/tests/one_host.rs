//! Nodes of one host, with and without walls between them.

use super::*;

#[test]
fn another_user_is_another_host() {
    let mut other = plain(1);
    other.host.user = [1; 16];
    let reason = chosen(&plain(1), &other);
    assert!(
        reason.starts_with("tcp: not shm: the nodes run as different users"),
        "{reason}"
    );
}

#[test]
fn other_users_share_memory_if_both_nodes_say_so() {
    let crossing = |user| {
        let mut node = plain(1);
        node.host.user = user;
        node.fabrics[0].crosses_users = true;
        node
    };
    let shared = "shm: same host, and both nodes share memory with other users";
    assert_eq!(chosen(&crossing([1; 16]), &crossing([2; 16])), shared);
    assert_eq!(chosen(&crossing(UNKNOWN), &crossing(UNKNOWN)), shared);
    let reason = chosen(&crossing([1; 16]), &plain(1));
    let why = "and the listening node shares memory with no other (share_memory_with)";
    assert!(reason.contains(why), "{reason}");
    let one = crossing(plain(1).host.user);
    assert_eq!(chosen(&one, &plain(1)), "shm: same host, same user");
}

#[test]
fn other_network_namespaces_share_memory_if_both_nodes_have_a_directory() {
    let away = |network| {
        let mut node = plain(1);
        node.host.network = network;
        node.fabrics[0].has_directory = true;
        node
    };
    for network in [UNKNOWN, [1; 16]] {
        let (here, there) = (away(network), away([2; 16]));
        assert_eq!(chosen(&here, &there), "shm: same host, same user");
        assert!(here.meets_in_directory(&there));
        let reason = chosen(&here, &plain(1));
        let why = "and the listening node has no shared_memory_directory";
        assert!(reason.contains(why), "{reason}");
    }
    assert!(!plain(1).meets_in_directory(&plain(1)));
    let mut elsewhere = away([1; 16]);
    elsewhere.host.boot = [9; 16];
    let reason = chosen(&away([2; 16]), &elsewhere);
    let why = "tcp: not shm: the nodes run on different hosts";
    assert!(reason.starts_with(why), "{reason}");
}

#[test]
fn nodes_that_cannot_tell_their_host_or_user_are_not_said_to_differ() {
    let cannot_tell = "tcp: not shm: the connecting node cannot tell which host it runs on";
    assert!(chosen(&plain(0), &plain(0)).starts_with(cannot_tell));
    assert!(chosen(&plain(0), &plain(1)).starts_with(cannot_tell));
    let cannot_tell = "tcp: not shm: the listening node cannot tell which host it runs on";
    assert!(chosen(&plain(1), &plain(0)).starts_with(cannot_tell));

    // Two users that their namespaces do not map, both shown as 65534, are not one user.
    let mut unmapped = plain(1);
    unmapped.host.user = UNKNOWN;
    let reason = chosen(&unmapped, &unmapped);
    let why = "tcp: not shm: the connecting node runs as a user that its user namespace";
    assert!(reason.starts_with(why), "{reason}");
    let reason = chosen(&plain(1), &unmapped);
    let why = "tcp: not shm: the listening node runs as a user that its user namespace";
    assert!(reason.starts_with(why), "{reason}");
}

#[test]
fn a_node_without_memory_files_uses_another_fabric() {
    let mut denied = plain(1);
    denied.fabrics[0].is_denied = true;
    let reason = chosen(&plain(1), &denied);
    let why = "tcp: not shm: the kernel or sandbox of the listening node gives it no memory files";
    assert!(reason.starts_with(why), "{reason}");
    denied.fabrics[0].policy = Policy::Require;
    let conflict = fabric(&denied, &plain(1), &[]).unwrap_err().to_string();
    let why = "the connecting node insists on shm, which cannot be had: the kernel or sandbox";
    assert!(conflict.starts_with(why), "{conflict}");
}
