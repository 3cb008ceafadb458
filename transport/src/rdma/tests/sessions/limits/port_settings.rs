//! Settings of ports, and endpoints of peers, that are taken or refused.

use super::*;

#[test]
fn settings_and_peers_that_no_session_can_work_with_are_refused() {
    let fake = one_device();
    let refused = |settings| {
        let error =
            RdmaPort::open(&fake.provider(), &choice(DeviceKind::Software), settings).unwrap_err();
        error.to_string()
    };
    let wrong = [
        (
            PortSettings {
                buffer_bytes: 2048,
                ..settings()
            },
            "buffer_bytes is 2048, and can be a multiple of 64 from 4096 to 65536",
        ),
        (
            PortSettings {
                buffer_bytes: 4097,
                ..settings()
            },
            "buffer_bytes is 4097, and can be a multiple of 64 from 4096 to 65536",
        ),
        (
            PortSettings {
                session_credit: 1,
                ..settings()
            },
            "session_credit is 1, and can be 2 to 65536",
        ),
        (
            PortSettings {
                send_requests: 8,
                ..settings()
            },
            "send_requests is 8, and can be 64 to 32768",
        ),
        (
            PortSettings {
                receive_buffers: 48,
                ..settings()
            },
            "receive_buffers is 48, and can be 49 (two for each of max_sessions, and 17) to \
             1048576",
        ),
        (
            PortSettings {
                receive_buffers: 49,
                shared_receives: false,
                ..settings()
            },
            "receive_buffers is 49, and can be 50 (session_credit and 18, for one session) to \
             1048576",
        ),
        (
            PortSettings {
                held_buffers: (1 << 20) + 1,
                ..settings()
            },
            "held_buffers is 1048577, and can be 0 to 1048576",
        ),
    ];
    for (settings, says) in wrong {
        assert_eq!(refused(settings), says);
    }
    let rdma_port = open_port(&fake, settings());
    let (mut one, other) = (
        rdma_port.prepare(true).unwrap(),
        rdma_port.prepare(false).unwrap(),
    );
    let mut theirs = other.endpoint();
    theirs.buffer_bytes = 1024;
    let error = one.connect(&theirs).unwrap_err();
    assert!(matches!(
        of_port(&error),
        PortError::PeerEndpoint { given: 1024, .. }
    ));
    one.connect(&other.endpoint()).unwrap();
}

#[test]
fn completions_interrupt_by_the_vector_of_the_settings() {
    let fake = one_device();
    let on_vector = |completion_vector| PortSettings {
        completion_vector,
        ..settings()
    };
    let rdma_ports = [0, 1].map(|vector| open_port(&fake, on_vector(vector)));
    let made = fake.completion_queues();
    let vectors: Vec<_> = made.iter().map(|(vector, _)| *vector).collect();
    assert_eq!(vectors, [0, 1]);
    drop(rdma_ports);
    let chosen = choice(DeviceKind::Software);
    let error = RdmaPort::open(&fake.provider(), &chosen, on_vector(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "completion_vector is 2, and can be 0 to 1: RDMA device rxe0 has 2"
    );
}

#[test]
fn relaxed_ordering_is_asked_for_in_all_memory_or_in_none() {
    for relaxed_ordering in [false, true] {
        let fake = one_device();
        let relaxed = PortSettings {
            relaxed_ordering,
            ..settings()
        };
        let rdma_port = open_port(&fake, relaxed);
        let pairs = pairs([&rdma_port, &rdma_port]).unwrap();
        let asked = fake.region_accesses();
        // The regions are the receive buffers, and the heads of two sessions.
        assert_eq!(asked.len(), 3);
        let is_relaxed = |access: &u32| access & access_flags::RELAXED_ORDERING != 0;
        assert!(
            asked
                .iter()
                .all(|access| is_relaxed(access) == relaxed_ordering),
            "{asked:x?}"
        );
        drop(pairs);
    }
}

/// Checks that receives can still complete if the RDMA port replaced them wrongly.
#[test]
fn the_completion_queue_has_room_for_receives_that_are_replaced() {
    let mut device = soft_roce();
    device.has_exact_queues = true;
    let fake = FakeProvider::new(vec![device]);
    let rdma_ports = [(256, 128), (1024, 256)].map(|(held_buffers, replaceable)| {
        let settings = PortSettings {
            held_buffers,
            ..settings()
        };
        (open_port(&fake, settings), replaceable)
    });
    // The sizes are 256 receives, and for each of 16 sessions 128 sends and the last two requests.
    let sizes = rdma_ports.each_ref().map(|(_, more)| 256 + 16 * 130 + more);
    let made = fake.completion_queues();
    assert_eq!(made, sizes.map(|size| (0, size)));
}
