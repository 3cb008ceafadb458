//! What a node tells a peer of the host it runs on: hashes, which only a peer on the same host can
//! compare with its own.
//!
//! A tag is HMAC-SHA256 under the host's boot id, cut to 16 bytes, over:
//!
//! - a label;
//! - the role of the end that sends it, so that no end can be answered with its own tag;
//! - the kind of the fact, and the fact;
//! - both Hellos as they were on the wire, each of which has a nonce, so that a tag is worthless in
//!   any other conversation.
//!
//! The boot id has 128 random bits, which are the same for all processes of a host and known to
//! nobody else. So a peer elsewhere learns nothing from a tag, and cannot make one that a node takes
//! for a tag of its own host.
#![forbid(unsafe_code)]

use hmac_sha256::HMAC;

use crate::identity::HostHint;
use crate::party::Party;

/// A fact, hashed; [`UNKNOWN`] where the node cannot tell it.
pub(crate) type Tag = [u8; 16];

/// The tag of a fact that a node cannot tell.
pub(crate) const UNKNOWN: Tag = [0; 16];

/// The tag that [`HostTags::recognized`] gives a fact that this node does not share.
const OTHER: Tag = [0xff; 16];

ibex_base::wire_structs! {
    /// The facts of a node's host that decide whether memory can be shared, each hashed.
    ///
    /// Tags on the wire are those of one end. Once an end has recognized the other's, equal tags of
    /// both ends are equal facts.
    #[derive(Copy)]
    pub struct HostTags {
        /// The running kernel; all zero in this and the others where the node cannot tell.
        pub boot: [u8; 16] = "tag of the host",
        /// The network namespace, where both addresses of the connection belong to it.
        pub network: [u8; 16] = "tag of the network namespace",
        /// The namespace in which the number of the process counts.
        pub pid_namespace: [u8; 16] = "tag of the pid namespace",
        /// The user as which the process runs.
        pub user: [u8; 16] = "tag of the user",
    }
}

impl HostTags {
    /// The tags of a node that can tell nothing.
    pub const NOTHING: HostTags = HostTags {
        boot: UNKNOWN,
        network: UNKNOWN,
        pid_namespace: UNKNOWN,
        user: UNKNOWN,
    };

    /// Returns the tags that the end `by` sends if it runs on `host`. `hellos` are both Hellos, the
    /// dialer's first.
    pub(crate) fn new(host: &HostHint, by: Party, hellos: [&[u8]; 2]) -> HostTags {
        if host.boot_id == [0; 16] {
            return HostTags::NOTHING;
        }
        let tag = |kind: u8, fact: Option<u64>| {
            let Some(fact) = fact else {
                return UNKNOWN;
            };
            let mut mac = HMAC::new(host.boot_id);
            mac.update(LABEL);
            mac.update(match by {
                Party::Dialer => [0, kind],
                Party::Acceptor => [1, kind],
            });
            mac.update(fact.to_le_bytes());
            hellos.iter().for_each(|hello| mac.update(hello));
            let mut tag = [0; 16];
            tag.copy_from_slice(&mac.finalize()[..16]);
            tag
        };
        let known = |fact: u64| (fact != 0).then_some(fact);
        let user = (host.uid != HostHint::NO_USER).then_some(host.uid.into());
        HostTags {
            boot: tag(0, Some(0)),
            network: tag(1, known(host.network_namespace)),
            pid_namespace: tag(2, known(host.pid_namespace)),
            user: tag(3, user),
        }
    }

    /// Returns the peer's tags as this end would have sent them. `ours` are this end's, and
    /// `expected` those of a peer for which all facts are the same.
    pub(crate) fn recognized(&self, ours: &HostTags, expected: &HostTags) -> HostTags {
        let recognized = |theirs: Tag, ours, expected| match theirs {
            UNKNOWN => UNKNOWN,
            theirs if theirs == expected => ours,
            _ => OTHER,
        };
        HostTags {
            boot: recognized(self.boot, ours.boot, expected.boot),
            network: recognized(self.network, ours.network, expected.network),
            pid_namespace: recognized(
                self.pid_namespace,
                ours.pid_namespace,
                expected.pid_namespace,
            ),
            user: recognized(self.user, ours.user, expected.user),
        }
    }

    /// Returns whether both run on one kernel.
    #[must_use]
    pub fn same_boot(&self, other: &HostTags) -> bool {
        is_same(self.boot, other.boot)
    }

    /// Returns whether the connection between the two stays within one network stack.
    #[must_use]
    pub fn same_network(&self, other: &HostTags) -> bool {
        self.same_boot(other) && is_same(self.network, other.network)
    }

    /// Returns whether both processes run as one user of one host.
    #[must_use]
    pub fn same_user(&self, other: &HostTags) -> bool {
        self.same_boot(other) && is_same(self.user, other.user)
    }

    /// Returns whether the number of one process means the same to the other.
    ///
    /// The connection has to stay within one network stack. Clones of a virtual machine have one
    /// boot id, and their first namespaces have one inode, so that the number of a process in one
    /// clone would name another process in the other, or none.
    #[must_use]
    pub fn share_pids(&self, other: &HostTags) -> bool {
        self.same_network(other) && is_same(self.pid_namespace, other.pid_namespace)
    }
}

fn is_same(one: Tag, other: Tag) -> bool {
    one != UNKNOWN && one == other
}

const LABEL: &[u8] = b"ibex host 1";

#[cfg(test)]
mod tests {
    use super::*;

    const HELLOS: [&[u8]; 2] = [b"one Hello", b"another Hello"];

    const HERE: HostHint = HostHint {
        boot_id: [1; 16],
        pid: 1,
        uid: 1000,
        pid_namespace: 7,
        network_namespace: 8,
    };

    /// Returns the dialer's own tags, and those of an acceptor on `theirs` as the dialer takes them.
    fn met(ours: &HostHint, theirs: &HostHint) -> [HostTags; 2] {
        let sent = HostTags::new(ours, Party::Dialer, HELLOS);
        let expected = HostTags::new(ours, Party::Acceptor, HELLOS);
        let came = HostTags::new(theirs, Party::Acceptor, HELLOS);
        [sent, came.recognized(&sent, &expected)]
    }

    #[test]
    fn equal_facts_are_recognized_and_others_are_not() {
        let [ours, theirs] = met(&HERE, &HostHint { pid: 2, ..HERE });
        assert_eq!(ours, theirs);
        assert!(ours.share_pids(&theirs));
        let elsewhere = HostHint {
            boot_id: [2; 16],
            ..HERE
        };
        let [ours, theirs] = met(&HERE, &elsewhere);
        assert!(!ours.same_boot(&theirs) && !ours.same_network(&theirs));
        assert!([theirs.boot, theirs.user, theirs.network] == [OTHER; 3]);
        let root = HostHint { uid: 0, ..HERE };
        let [ours, theirs] = met(&HERE, &root);
        assert!(ours.same_network(&theirs) && ours.user != theirs.user);
    }

    #[test]
    fn a_process_number_is_taken_from_its_own_namespace_alone() {
        for elsewhere in [
            HostHint {
                pid_namespace: 8,
                ..HERE
            },
            HostHint {
                boot_id: [2; 16],
                ..HERE
            },
            // A clone of this virtual machine: everything is the same, but one of the two
            // addresses is not of this host.
            HostHint {
                network_namespace: 0,
                ..HERE
            },
            HostHint {
                network_namespace: 9,
                ..HERE
            },
        ] {
            let [ours, theirs] = met(&HERE, &elsewhere);
            assert!(!ours.share_pids(&theirs), "{elsewhere:?}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_shared_with_nobody() {
        let untold = HostHint {
            boot_id: [0; 16],
            ..HERE
        };
        assert_eq!(met(&untold, &untold), [HostTags::NOTHING; 2]);
        let [ours, theirs] = met(&untold, &untold);
        assert!(!ours.same_boot(&theirs));
        let unmapped = HostHint {
            uid: HostHint::NO_USER,
            pid_namespace: 0,
            ..HERE
        };
        let [ours, theirs] = met(&unmapped, &unmapped);
        assert_eq!([ours.user, theirs.user], [UNKNOWN; 2]);
        assert!(ours.same_network(&theirs) && !ours.share_pids(&theirs));
    }

    /// An end that sends back what it received does not pass for an end on the same host.
    #[test]
    fn a_tag_that_is_sent_back_is_not_recognized() {
        let sent = HostTags::new(&HERE, Party::Dialer, HELLOS);
        let expected = HostTags::new(&HERE, Party::Acceptor, HELLOS);
        let theirs = sent.recognized(&sent, &expected);
        assert!(!sent.same_boot(&theirs));
        // Nor does an end that repeats what an acceptor of this host sent in another conversation.
        let earlier = HostTags::new(&HERE, Party::Acceptor, [b"an older Hello", HELLOS[1]]);
        assert!(!sent.same_boot(&earlier.recognized(&sent, &expected)));
    }
}
