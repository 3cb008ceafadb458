//! Tests of what errors of sending say.

use std::mem::size_of;

use ibex_protocol::format::control::Role;
use ibex_transport::channel::{ChannelFailure, InTheWay};

use super::*;
use crate::{Counts, PeerId};

#[test]
fn the_result_of_a_send_is_small() {
    assert_eq!(size_of::<Result<u64, SendError>>(), 3 * size_of::<usize>());
}

#[test]
fn a_group_names_the_member_that_is_in_the_way() {
    let peer = PeerAt {
        id: PeerId::new([1; 16], 0),
        address: "10.0.0.1:7000".parse().expect("an address"),
    };
    let member = InTheWay {
        peer: Arc::new(peer),
        suspended: None,
    };
    let error = SendError::of_group("wal", GroupFailure::Full(member));
    assert_eq!(
        (error.kind(), error.member()),
        (SendErrorKind::Full, Some(peer))
    );
    assert!(error.is_transient());
    let error = SendError::of_group("wal", GroupFailure::NoMembers);
    assert_eq!(
        (error.kind(), error.channel()),
        (SendErrorKind::NoMembers, Some("wal"))
    );
    let nested = ChannelFailure {
        channel: "wal".into(),
        peer: peer.to_string(),
        end: Role::Sender,
        label: None,
        counts: Counts::default(),
        suspended: None,
        reason: FailureReason::Nested,
    };
    let failure = GroupFailure::Failed(Arc::new(peer), Box::new(nested).into());
    let error = SendError::of_group("wal", failure);
    assert_eq!(
        (error.kind(), error.member()),
        (SendErrorKind::Nested, Some(peer))
    );
    assert!(!error.is_transient() && error.spares_channel());
    let slow = SendError::of_loss(LossReason::Full(Duration::from_secs(2), None));
    assert_eq!(slow.kind(), SendErrorKind::Full);
    assert_eq!(
        slow.to_string(),
        "its window was full for 2s: its receiver falls behind"
    );
}
