//! Handshakes over verbs, between nodes whose queue pairs are numbers.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::meeting::{ACCEPTOR, DIALER, Meeting, TIMEOUT, agreed, failed, host, local};
use super::reunion::bytes_of;
use super::*;
use crate::error::HandshakeError;
use crate::fabric::{Policy, VerbsDevice};
use crate::local::Local;
use crate::message::{
    ALONE, CHECKSUM_BYTES, Endpoint, FieldError, GidKind, HandshakeMessage, MessageError,
    MessageKind, PairAbilities, QueuePairAddress, Ready, VerbsEndpoint, checksum,
};
use crate::negotiate::FabricConflict;
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

mod malformed;

/// A device that behaves as its fields say.
#[derive(Clone, Debug)]
struct FakeDevices {
    device: Result<VerbsDevice, String>,
    endpoint: VerbsEndpoint,
    prepares: Result<(), String>,
    connects: Result<(), String>,
}

#[derive(Debug)]
struct FakePair {
    endpoint: VerbsEndpoint,
    connects: Result<(), String>,
    connected_to: Option<VerbsEndpoint>,
}

impl VerbsDevices for FakeDevices {
    fn device(&self, _: IpAddr) -> Result<VerbsDevice, String> {
        self.device.clone()
    }

    fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        self.prepares.clone()?;
        Ok(Box::new(FakePair {
            endpoint: self.endpoint.clone(),
            connects: self.connects.clone(),
            connected_to: None,
        }))
    }
}

impl VerbsPair for FakePair {
    fn endpoint(&self) -> VerbsEndpoint {
        self.endpoint.clone()
    }

    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String> {
        self.connects.clone()?;
        assert_eq!(self.connected_to.replace(theirs.clone()), None, "once");
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Returns the RDMA devices of node `identity`, in good order.
fn devices(identity: u8, hardware: bool) -> FakeDevices {
    FakeDevices {
        device: Ok(VerbsDevice {
            hardware,
            name: if hardware { "mlx5_0" } else { "rxe0" }.to_string(),
        }),
        endpoint: endpoint(identity),
        prepares: Ok(()),
        connects: Ok(()),
    }
}

/// A queue pair of node `identity`.
pub(super) fn endpoint(identity: u8) -> VerbsEndpoint {
    VerbsEndpoint {
        address: QueuePairAddress {
            queue_pair: 0x100 + u32::from(identity),
            packet_sequence: 0x200 + u32::from(identity),
            lid: 0,
            gid: [identity; 16],
            gid_type: GidKind::RoceV2,
            mtu_bytes: 1024,
        },
        max_inline_bytes: 220,
        max_send_sge: 30,
        max_receive_sge: 30,
        abilities: PairAbilities {
            immediate: true,
            read_depth: 0,
            read_resources: 0,
        },
        partition_key: 0xffff,
        rails: Vec::new(),
        receive_buffer_bytes: 4096,
        credit: 64,
    }
}

fn with(identity: u8, devices: FakeDevices) -> Local {
    let mut local = local(identity);
    local.verbs_devices = Some(Arc::new(devices));
    local
}

/// A meeting across two hosts.
fn meeting(dialer: &Local, acceptor: &Local) -> Meeting {
    Meeting::on_hosts(dialer, host(1), acceptor, host(2))
}

/// A node in good order with hardware.
pub(super) fn with_hardware(identity: u8) -> Local {
    with(identity, devices(identity, true))
}

/// A meeting of two such nodes across two hosts.
pub(super) fn hardware_of(dialer: &Local, acceptor: &Local) -> Meeting {
    meeting(dialer, acceptor)
}

/// A meeting of two nodes in good order with hardware.
pub(super) fn hardware() -> Meeting {
    meeting(&with(1, devices(1, true)), &with(2, devices(2, true)))
}

/// Returns the endpoint that the queue pair of `end` is connected to, if it still has one.
fn connected_to(meeting: &mut Meeting, end: usize) -> Option<VerbsEndpoint> {
    let pair = meeting.pairs[end].take()?.into_any();
    pair.downcast::<FakePair>()
        .expect("a fake one")
        .connected_to
}

/// Runs a meeting that ends with tcp, leaves no queue pair, and says why.
fn falls_back(mut meeting: Meeting) -> String {
    meeting.run();
    assert!(meeting.pairs.iter().all(Option::is_none), "left over");
    let (dialer, acceptor) = meeting.ends();
    let (dialer, acceptor) = (dialer.expect("dialer"), acceptor.expect("acceptor"));
    assert_eq!(dialer.fabric, Fabric::Tcp);
    assert_eq!(acceptor.fabric, Fabric::Tcp);
    assert!(
        acceptor.reason.starts_with(&dialer.reason),
        "{} but {}",
        dialer.reason,
        acceptor.reason
    );
    acceptor.reason
}

#[test]
fn two_nodes_with_hardware_agree_on_verbs_and_connect_to_each_other() {
    let mut meeting = hardware();
    meeting.run();
    let theirs = [DIALER, ACCEPTOR].map(|end| connected_to(&mut meeting, end));
    assert_eq!(theirs[DIALER], Some(devices(2, true).endpoint));
    assert_eq!(theirs[ACCEPTOR], Some(devices(1, true).endpoint));
    let (dialer, acceptor) = agreed(hardware());
    assert_eq!(dialer.reason, "verbs: RDMA hardware on both nodes");
    assert_eq!(acceptor.fabric, Fabric::Verbs);
}

#[test]
fn it_makes_no_difference_how_the_bytes_over_verbs_are_cut() {
    for chunk in 1..200 {
        let mut meeting = hardware();
        meeting.chunk = chunk;
        assert_eq!(agreed(meeting).0.fabric, Fabric::Verbs);
    }
}

#[test]
fn two_software_devices_left_alone_take_tcp_and_say_so() {
    let software = |identity| with(identity, devices(identity, false));
    assert_eq!(
        falls_back(meeting(&software(1), &software(2))),
        "tcp: not shm: the nodes run on different hosts; \
         not verbs: the connecting node's device rxe0 is software, slower than tcp"
    );
    let mut preferring = software(2);
    preferring.verbs = Policy::Prefer;
    let (dialer, _) = agreed(meeting(&software(1), &preferring));
    assert_eq!(dialer.reason, "verbs: preferred by the listening node");
}

#[test]
fn only_one_end_with_a_device_is_tcp_with_the_reason() {
    let none = |identity| {
        let device = Err("libibverbs.so.1 cannot be loaded".to_string());
        with(
            identity,
            FakeDevices {
                device,
                ..devices(identity, true)
            },
        )
    };
    assert_eq!(
        falls_back(meeting(&none(1), &with(2, devices(2, true)))),
        "tcp: not shm: the nodes run on different hosts; not verbs: the connecting node has no \
         RDMA device for this connection: libibverbs.so.1 cannot be loaded"
    );
    // Only the acceptor knows what it lacks.
    assert_eq!(
        falls_back(meeting(&with(1, devices(1, true)), &none(2))),
        "tcp: not shm: the nodes run on different hosts; not verbs: the listening node has no \
         RDMA device; the listening node has none because libibverbs.so.1 cannot be loaded"
    );
    // This node knows no RDMA at all.
    assert!(
        falls_back(meeting(&with(1, devices(1, true)), &local(2)))
            .ends_with("not verbs: the listening node has no RDMA device")
    );
}

#[test]
fn a_node_that_forbids_verbs_is_not_asked_for_a_device() {
    let mut forbids = with(2, devices(2, true));
    forbids.verbs = Policy::Forbid;
    assert!(forbids.usable_devices().is_none());
    assert!(
        falls_back(meeting(&with(1, devices(1, true)), &forbids))
            .ends_with("not verbs: the listening node's policy forbids verbs")
    );
    let mut absent = with(2, devices(2, true));
    absent.absent = vec![Fabric::Verbs];
    assert!(absent.usable_devices().is_none());
}

#[test]
fn a_node_that_cannot_prepare_or_connect_is_named_and_tcp_goes_on() {
    let no = || Err("its limit is 0".to_string());
    let unprepared = |identity| FakeDevices {
        prepares: no(),
        ..devices(identity, true)
    };
    let unconnected = |identity| FakeDevices {
        connects: no(),
        ..devices(identity, true)
    };
    let cases = [
        (
            devices(1, true),
            unprepared(2),
            "the listening node cannot make a queue pair",
        ),
        (
            unprepared(1),
            devices(2, true),
            "the connecting node cannot make a queue pair",
        ),
        (
            unconnected(1),
            devices(2, true),
            "the connecting node cannot connect",
        ),
        (
            devices(1, true),
            unconnected(2),
            "the listening node cannot connect",
        ),
    ];
    for (dialer, acceptor, who) in cases {
        assert_eq!(
            falls_back(meeting(
                &with(1, dialer.clone()),
                &with(2, acceptor.clone())
            )),
            format!(
                "tcp: not shm: the nodes run on different hosts; not verbs: {who}: its limit is 0"
            )
        );
        // If verbs is required, there is no session.
        let mut insists = with(1, dialer);
        insists.verbs = Policy::Require;
        let (dialer, acceptor) = failed(meeting(&insists, &with(2, acceptor)));
        let HandshakeError::Fabric(FabricConflict::Unavailable { fabric, why, .. }) = &dialer
        else {
            panic!("not a conflict: {dialer}");
        };
        assert_eq!(*fabric, Fabric::Verbs);
        assert_eq!(*why, format!("{who}: its limit is 0"));
        assert!(
            matches!(&acceptor, HandshakeError::Refused { reason, .. }
                if reason.as_str() == dialer.to_string()),
            "{acceptor}"
        );
    }
}

#[test]
fn other_kinds_of_gid_are_found_before_anything_is_connected() {
    let mut older = devices(1, true);
    older.endpoint.address.gid_type = GidKind::RoceV1;
    // A call of `connect` would fail with other words.
    older.connects = Err("not to be called".to_string());
    let reason = falls_back(meeting(&with(1, older), &with(2, devices(2, true))));
    assert!(
        reason.ends_with(
            "not verbs: the connecting node speaks RoCE v1 and the listening node RoCE v2; \
             choose a GID of the same type at both ends"
        ),
        "{reason}"
    );
}

#[test]
fn after_verbs_a_dialer_may_still_choose_shared_memory() {
    // This dialer prefers another order: the acceptor goes along, and drops its queue pair.
    let mut meeting = Meeting::new(&with(1, devices(1, true)), &with(2, devices(2, true)));
    meeting.cut_after = 4;
    meeting.run();
    assert_eq!(meeting.acceptor.step(), HandshakeStep::Choice);
    for (fabric, step) in [
        (Fabric::Verbs, HandshakeStep::Endpoint),
        (Fabric::Shm, HandshakeStep::Ready),
    ] {
        let reason = crate::message::Text::new("another order");
        let choice = HandshakeMessage::Choice(crate::message::FabricChoice { fabric, reason });
        meeting.acceptor.handle_bytes(&bytes_of(&choice));
        meeting.drive_acceptor();
        assert_eq!(meeting.acceptor.step(), step);
        assert_eq!(meeting.pairs[ACCEPTOR].is_some(), fabric == Fabric::Verbs);
    }
}

#[test]
fn a_peer_silent_at_any_step_of_verbs_is_given_up_by_name_of_the_step() {
    use HandshakeStep::*;
    // `delivered` counts messages: D Hello, A Hello, A Offer, D Offer, D Choice, A Endpoint, D
    // Endpoint, D Ready, A Ready.
    let waiting = [
        (5, Endpoint, Endpoint),
        (6, Ready, Endpoint),
        (7, Ready, Ready),
        (8, Ready, Finished),
    ];
    for (delivered, dialer_waits, acceptor_waits) in waiting {
        let mut meeting = hardware();
        meeting.cut_after = delivered;
        meeting.run();
        meeting.wait_for_ever();
        let (dialer, acceptor) = meeting.ends();
        let silent = |step| HandshakeError::Silent {
            step,
            waited: TIMEOUT,
        };
        assert_eq!(dialer.unwrap_err(), silent(dialer_waits), "{delivered}");
        match acceptor_waits {
            Finished => assert!(acceptor.is_ok()),
            step => assert_eq!(acceptor.unwrap_err(), silent(step), "{delivered}"),
        }
    }
}

#[test]
fn a_device_that_never_answers_is_not_blamed_on_the_peer() {
    let now = std::time::Instant::now();
    let node = with(1, devices(1, true));
    let mut dialer = Handshake::dial(&node, host(1), [0; 16], now, now + TIMEOUT);
    let mut said = crate::message::MAGIC.to_vec();
    HandshakeMessage::Hello(local(2).hello([0; 16])).write(&mut said);
    dialer.handle_bytes(&said);
    let event = dialer.poll_event();
    assert!(matches!(event, Some(HandshakeEvent::FindDevice)));
    dialer.handle_timeout(now + TIMEOUT);
    let Some(HandshakeEvent::Failed(error)) = dialer.poll_event() else {
        panic!("no failure");
    };
    let (step, waited) = (HandshakeStep::Device, TIMEOUT);
    assert_eq!(error, HandshakeError::Slow { step, waited });
    while dialer.poll_transmit().is_some() {}
    // The answer comes too late, and is ignored.
    dialer.handle_device(Err("late".to_string()));
    assert!(dialer.poll_event().is_none() && dialer.poll_transmit().is_none());
}
