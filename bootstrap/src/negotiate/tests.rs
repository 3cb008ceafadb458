//! Version and fabric, always computed from both ends.

mod one_host;

use super::*;
use crate::identity::NodeIdentity;
use crate::limits::Limits;
use crate::local::Local;
use crate::message::{HostTags, Text};

const POLICIES: [Policy; 4] = [
    Policy::Auto,
    Policy::Require,
    Policy::Prefer,
    Policy::Forbid,
];

/// A node on host `boot` with these wishes, in the order shm, tcp, verbs.
fn node(boot: u8, policies: [Policy; 3], device: Option<VerbsDevice>) -> Offer {
    let fabric = |kind, policy, device| FabricOffer {
        device,
        ..FabricOffer::new(kind, policy)
    };
    Offer {
        requires_encryption: false,
        name: Text::default(),
        identity: NodeIdentity([1; 16]),
        incarnation: 1,
        host: HostTags {
            boot: [boot; 16],
            network: [9; 16],
            pid_namespace: UNKNOWN,
            user: [100; 16],
        },
        limits: Limits::default(),
        integrity: Integrity::Auto,
        fabrics: vec![
            fabric(Fabric::Shm, policies[0], None),
            fabric(Fabric::Tcp, policies[1], None),
            fabric(Fabric::Verbs, policies[2], device),
        ],
    }
}

fn device(hardware: bool) -> Option<VerbsDevice> {
    let name = if hardware { "mlx5_0" } else { "rxe0" };
    Some(VerbsDevice {
        hardware,
        name: name.to_string(),
    })
}

fn plain(boot: u8) -> Offer {
    node(boot, [Policy::Auto; 3], None)
}

fn chosen(dialer: &Offer, acceptor: &Offer) -> String {
    fabric(dialer, acceptor, &[])
        .expect("a fabric for both")
        .reason
}

fn range(oldest: (u16, u16), newest: (u16, u16)) -> VersionRange {
    let version = |(major, minor)| Version { major, minor };
    VersionRange {
        oldest: version(oldest),
        newest: version(newest),
    }
}

#[test]
fn both_ends_find_the_same_highest_version() {
    let cases = [
        (range((1, 0), (1, 0)), range((1, 0), (1, 0)), Some((1, 0))),
        (range((1, 0), (1, 0)), range((1, 0), (1, 7)), Some((1, 0))),
        (range((1, 0), (1, 5)), range((1, 3), (2, 1)), Some((1, 5))),
        (range((1, 0), (3, 2)), range((2, 0), (2, 9)), Some((2, 9))),
        (range((1, 0), (1, 9)), range((2, 0), (2, 0)), None),
        (range((1, 0), (1, 2)), range((1, 3), (1, 4)), None),
        // A peer whose range contradicts itself speaks no version.
        (range((2, 0), (1, 0)), range((1, 0), (3, 0)), None),
    ];
    for (a, b, expected) in cases {
        let expected = expected.map(|(major, minor)| Version { major, minor });
        assert_eq!(version(a, b), expected, "{a} with {b}");
        assert_eq!(version(b, a), expected, "{b} with {a}");
    }
}

#[test]
fn left_alone_two_nodes_take_the_fastest_that_both_have() {
    assert_eq!(chosen(&plain(1), &plain(1)), "shm: same host, same user");
    let rdma = |boot| node(boot, [Policy::Auto; 3], device(true));
    assert_eq!(
        chosen(&rdma(1), &rdma(2)),
        "verbs: RDMA hardware on both nodes"
    );
    assert_eq!(chosen(&rdma(1), &rdma(1)), "shm: same host, same user");
    assert_eq!(
        chosen(&plain(1), &plain(2)),
        "tcp: not shm: the nodes run on different hosts; \
         not verbs: the connecting node has no RDMA device"
    );
    assert_eq!(
        chosen(&rdma(1), &plain(2)),
        "tcp: not shm: the nodes run on different hosts; \
         not verbs: the listening node has no RDMA device"
    );
}

#[test]
fn a_software_device_serves_only_whoever_asks_for_it() {
    let soft = |boot, policy| node(boot, [Policy::Auto, Policy::Auto, policy], device(false));
    let (auto, there) = (soft(1, Policy::Auto), soft(2, Policy::Auto));
    assert_eq!(
        chosen(&auto, &there),
        "tcp: not shm: the nodes run on different hosts; \
         not verbs: the connecting node's device rxe0 is software, slower than tcp"
    );
    // One software device among the two is enough for that.
    let hard = node(1, [Policy::Auto; 3], device(true));
    assert!(
        chosen(&hard, &there)
            .ends_with("not verbs: the listening node's device rxe0 is software, slower than tcp")
    );
    assert!(permitted(&auto, &there, Fabric::Verbs).is_err());
    for (policy, wish) in [(Policy::Require, "required"), (Policy::Prefer, "preferred")] {
        let asking = soft(1, policy);
        assert_eq!(
            chosen(&asking, &there),
            format!("verbs: {wish} by the connecting node")
        );
        assert_eq!(
            chosen(&there, &asking),
            format!("verbs: {wish} by the listening node")
        );
        assert!(permitted(&asking, &there, Fabric::Verbs).is_ok());
    }
}

#[test]
fn a_policy_against_verbs_is_named_whatever_the_peer_has() {
    let with_device = node(1, [Policy::Auto; 3], device(true));
    let forbids = node(
        2,
        [Policy::Auto, Policy::Auto, Policy::Forbid],
        device(true),
    );
    assert!(
        chosen(&with_device, &forbids)
            .ends_with("not verbs: the listening node's policy forbids verbs")
    );
    let insists = node(
        1,
        [Policy::Auto, Policy::Auto, Policy::Require],
        device(true),
    );
    assert_eq!(
        fabric(&insists, &forbids, &[]).unwrap_err().to_string(),
        "the connecting node insists on verbs, which cannot be had: the listening node's policy \
         forbids verbs; use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
    );
}

#[test]
fn an_end_without_a_device_says_why_in_its_own_words() {
    let mut lacking = plain(1);
    lacking.set_device(Err("libibverbs.so.1 cannot be loaded".to_string()));
    let there = node(2, [Policy::Auto; 3], device(true));
    let reason = chosen(&lacking, &there);
    assert!(
        reason.ends_with(
            "not verbs: the connecting node has no RDMA device for this connection: \
             libibverbs.so.1 cannot be loaded"
        ),
        "{reason}"
    );
    let lack = |theirs: &Offer, chosen| own_lack(Party::Acceptor, &lacking, theirs, chosen);
    assert_eq!(
        lack(&there, Fabric::Tcp),
        "; the listening node has none because libibverbs.so.1 cannot be loaded"
    );
    // The text is empty where something else decided.
    assert_eq!(lack(&plain(2), Fabric::Tcp), "");
    assert_eq!(lack(&there, Fabric::Shm), "");
    lacking.set_device(Ok(device(true).unwrap()));
    assert_eq!(
        chosen(&lacking, &there),
        "verbs: RDMA hardware on both nodes"
    );
}

#[test]
fn other_kinds_of_gid_are_named_with_both_ends() {
    use GidKind::*;
    for kind in [Infiniband, RoceV1, RoceV2] {
        assert_eq!(gid_types(kind, kind), Ok(()));
    }
    assert_eq!(
        gid_types(RoceV1, RoceV2).unwrap_err(),
        "the connecting node speaks RoCE v1 and the listening node RoCE v2; choose a GID of the \
         same type at both ends"
    );
}

#[test]
fn a_preference_beats_speed_and_gives_way() {
    let tcp = node(1, [Policy::Auto, Policy::Prefer, Policy::Auto], None);
    assert_eq!(
        chosen(&plain(1), &tcp),
        "tcp: preferred by the listening node"
    );
    assert_eq!(
        chosen(&tcp, &plain(1)),
        "tcp: preferred by the connecting node"
    );
    let shm = node(2, [Policy::Prefer, Policy::Auto, Policy::Auto], None);
    assert!(chosen(&shm, &plain(1)).starts_with("tcp: not shm"));
    // An end whose preference is not met learns why, even if another fabric was as good.
    let verbs = node(1, [Policy::Auto, Policy::Auto, Policy::Prefer], None);
    assert_eq!(
        chosen(&plain(1), &verbs),
        "shm: same host, same user; not verbs: the connecting node has no RDMA device"
    );
    assert_eq!(
        chosen(&verbs, &tcp),
        "tcp: preferred by the listening node; not verbs: the connecting node has no RDMA device"
    );
}

#[test]
fn a_requirement_that_cannot_be_had_says_whose_and_why() {
    let shm = node(1, [Policy::Require, Policy::Auto, Policy::Auto], None);
    let tcp = node(1, [Policy::Auto, Policy::Require, Policy::Auto], None);
    let no_shm = node(1, [Policy::Forbid, Policy::Auto, Policy::Auto], None);
    assert_eq!(
        fabric(&shm, &tcp, &[]),
        Err(FabricConflict::TwoRequired {
            first: (Party::Dialer, Fabric::Shm),
            second: (Party::Acceptor, Fabric::Tcp),
        })
    );
    assert_eq!(
        fabric(&no_shm, &shm, &[]),
        Err(FabricConflict::Unavailable {
            by: Party::Acceptor,
            fabric: Fabric::Shm,
            why: "the connecting node's policy forbids shm".to_string(),
        })
    );
    assert_eq!(
        fabric(&shm, &plain(2), &[]).unwrap_err().to_string(),
        "the connecting node insists on shm, which cannot be had: the nodes run on different \
         hosts; use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
    );
}

#[test]
fn a_fabric_that_was_tried_is_not_chosen_again() {
    let tried = [RuledOut {
        fabric: Fabric::Shm,
        why: "refused".to_string(),
    }];
    let next = fabric(&plain(1), &plain(1), &tried).unwrap();
    assert_eq!(next.fabric, Fabric::Tcp);
    assert!(
        next.reason.starts_with("tcp: not shm: refused; "),
        "{}",
        next.reason
    );
    let shm = node(1, [Policy::Require, Policy::Auto, Policy::Auto], None);
    assert!(fabric(&shm, &plain(1), &tried).is_err());
    let no_tcp = node(1, [Policy::Auto, Policy::Forbid, Policy::Auto], None);
    assert!(matches!(
        fabric(&no_tcp, &plain(1), &tried),
        Err(FabricConflict::Nothing { .. })
    ));
}

#[test]
fn a_node_without_a_fabric_is_no_match_for_it() {
    let mut tcp_only = plain(1);
    tcp_only.fabrics.retain(|fabric| fabric.kind == Fabric::Tcp);
    assert_eq!(
        chosen(&plain(1), &tcp_only),
        "tcp: not shm: shm is not compiled into the listening node (feature `shm`); \
         not verbs: verbs is not compiled into the listening node (feature `verbs`)"
    );
    let verbs = node(1, [Policy::Auto, Policy::Auto, Policy::Require], None);
    assert_eq!(
        fabric(&verbs, &tcp_only, &[]).unwrap_err().to_string(),
        "the connecting node insists on verbs, which cannot be had: verbs is not compiled into \
         the listening node (feature `verbs`); use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
    );
}

#[test]
fn a_fabric_that_the_build_lacks_is_not_offered() {
    let mut local = Local::new(NodeIdentity([1; 16]), 1);
    local.absent = vec![Fabric::Verbs];
    let offer = local.offer();
    let kinds: Vec<Fabric> = offer.fabrics.iter().map(|fabric| fabric.kind).collect();
    assert_eq!(kinds, [Fabric::Shm, Fabric::Tcp]);
}

/// Checks every combination of policies and circumstances against the rules in words.
#[test]
fn in_every_combination_the_rules_hold() {
    let mut wishes = Vec::new();
    for shm in POLICIES {
        for tcp in POLICIES {
            wishes.extend(POLICIES.map(|verbs| [shm, tcp, verbs]));
        }
    }
    for boot in [1, 2] {
        for devices in [None, device(false), device(true)] {
            for ours in &wishes {
                for theirs in &wishes {
                    let dialer = node(1, *ours, devices.clone());
                    let acceptor = node(boot, *theirs, device(true));
                    check(&dialer, &acceptor);
                }
            }
        }
    }
}

fn check(dialer: &Offer, acceptor: &Offer) {
    let of = |kind| [dialer, acceptor].map(|offer| offer.fabric(kind).unwrap().policy);
    let required: Vec<Fabric> = Fabric::FASTEST_FIRST
        .into_iter()
        .filter(|kind| of(*kind).contains(&Policy::Require))
        .collect();
    match fabric(dialer, acceptor, &[]) {
        Ok(chosen) => {
            assert!(
                !of(chosen.fabric).contains(&Policy::Forbid),
                "forbidden: {chosen:?}"
            );
            assert!(
                required.iter().all(|kind| *kind == chosen.fabric),
                "{required:?} {chosen:?}"
            );
            assert_eq!(permitted(dialer, acceptor, chosen.fabric), Ok(()));
            // With the roles exchanged, the same two nodes make the same choice.
            assert_eq!(fabric(acceptor, dialer, &[]).unwrap().fabric, chosen.fabric);
        }
        Err(FabricConflict::TwoRequired { first, second }) => {
            assert!(required.len() > 1 && first.1 != second.1);
        }
        Err(FabricConflict::Unavailable { fabric, .. }) => assert_eq!(required, [fabric]),
        Err(FabricConflict::Nothing { .. }) => {
            assert!(of(Fabric::Tcp).contains(&Policy::Forbid) && required.is_empty());
        }
    }
}

#[test]
fn no_dialer_talks_an_acceptor_into_a_fabric_it_excludes() {
    let no_shm = node(1, [Policy::Forbid, Policy::Auto, Policy::Auto], None);
    assert!(permitted(&plain(1), &no_shm, Fabric::Shm).is_err());
    assert!(permitted(&plain(1), &plain(2), Fabric::Shm).is_err());
    assert!(permitted(&plain(1), &plain(1), Fabric::Verbs).is_err());
    let shm = node(1, [Policy::Require, Policy::Auto, Policy::Auto], None);
    assert!(permitted(&plain(1), &shm, Fabric::Tcp).is_err());
    assert!(permitted(&plain(1), &plain(1), Fabric::Tcp).is_ok());
}

#[test]
fn an_excluded_fabric_is_explained_by_the_policy_or_the_build() {
    let auto = plain(1);
    let wishing = |policies| node(2, policies, device(true));
    let tcp = |offer: &Offer| exclusion(&auto, offer, Fabric::Tcp);
    assert_eq!(tcp(&plain(2)), None);
    for wish in [Policy::Prefer, Policy::Auto, Policy::Forbid] {
        assert_eq!(tcp(&wishing([Policy::Forbid, Policy::Auto, wish])), None);
    }
    let forbids = wishing([Policy::Auto, Policy::Forbid, Policy::Auto]);
    let why = "the listening node's policy forbids tcp".to_string();
    assert_eq!(tcp(&forbids), Some(why));
    let requires = wishing([Policy::Auto, Policy::Auto, Policy::Require]);
    let why = |end| format!("the {end} requires verbs");
    assert_eq!(tcp(&requires), Some(why(Party::Acceptor)));
    let by_dialer = exclusion(&requires, &auto, Fabric::Tcp);
    assert_eq!(by_dialer, Some(why(Party::Dialer)));
    let verbs = exclusion(&requires, &auto, Fabric::Verbs);
    assert_eq!(verbs, None, "whether it can be had is another question");
    let mut without = plain(2);
    without.fabrics.retain(|fabric| fabric.kind != Fabric::Tcp);
    assert!(tcp(&without).is_some_and(|why| why.contains("not compiled in")));
}

#[test]
fn payload_checksums_follow_both_wishes_and_the_place_of_the_peer() {
    use Integrity::{Auto, Off, On};
    let with = |integrity, boot, network: u8| {
        let mut offer = plain(boot);
        offer.integrity = integrity;
        offer.host.network = [network; 16];
        offer
    };
    let cases = [
        // Two nodes that say `Auto` have checksums with another host: another kernel, another
        // network namespace, or one that an end does not state.
        (Auto, Auto, (1, 9), false),
        (Auto, Auto, (2, 9), true),
        (Auto, Auto, (1, 8), true),
        (Auto, Auto, (1, 0), true),
        (Auto, Off, (1, 9), false),
        (Auto, Off, (2, 9), false),
        (Off, Off, (2, 9), false),
        (Auto, On, (1, 9), true),
        (Auto, On, (2, 9), true),
        (Off, On, (1, 9), true),
        (Off, On, (2, 9), true),
        (On, On, (1, 9), true),
    ];
    for (one, other, (boot, network), expected) in cases {
        let (one, other) = (with(one, 1, 9), with(other, boot, network));
        let context = format!("{:?} and {:?}", one.integrity, other.integrity);
        assert_eq!(
            payload_checksums(&one, &other, false),
            expected,
            "{context}"
        );
        assert_eq!(
            payload_checksums(&other, &one, false),
            expected,
            "{context}"
        );
    }
    let untold = with(Auto, 1, 0);
    assert!(payload_checksums(&untold, &untold, false));
}
