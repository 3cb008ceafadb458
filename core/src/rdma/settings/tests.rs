use std::{net::Ipv4Addr, time::Duration};

use super::*;

fn tuned(tuning: Tuning) -> RdmaSettings {
    RdmaSettings::new().tuning(tuning)
}

#[test]
fn tuning_leaves_alone_what_the_settings_have_themselves() {
    let settings = || {
        RdmaSettings::new()
            .receive_buffers(512)
            .held_buffers(7)
            .max_sessions(3)
            .service_level(4)
            .traffic_class(5)
            .trust_peers(true)
    };
    let tuning = Tuning::new().retry_count(2).send_requests(64);
    let (resources, plain) = (
        settings().tuning(tuning).resources(0),
        settings().resources(0),
    );
    assert_eq!(resources.send_requests, 64);
    assert_ne!(resources.connection, plain.connection);
    let same = PortSettings {
        send_requests: resources.send_requests,
        connection: resources.connection,
        ..plain
    };
    assert_eq!(resources, same);
}

#[test]
fn peers_are_trusted_one_by_one_or_all_or_none() {
    let [near, far]: [IpAddr; 2] = [[10, 1, 7, 9].into(), [10, 1, 8, 9].into()];
    let trusts = |settings: &RdmaSettings| [near, far].map(|peer| settings.trusts(peer));
    let nobody = RdmaSettings::new();
    assert_eq!(trusts(&nobody), [false, false]);
    assert_eq!(trusts(&nobody.trust_peers(true)), [true, true]);
    let some = RdmaSettings::new().trust_peers_at(move |peer| peer == near);
    assert_eq!(trusts(&some), [true, false]);
    let mapped = Ipv4Addr::new(10, 1, 7, 9).to_ipv6_mapped();
    assert!(some.trusts(mapped.into()));
    assert_eq!(trusts(&some.trust_peers(false)), [false, false]);
}

#[test]
fn sessions_have_rails_on_hardware_that_is_not_named_or_as_many_as_are_set() {
    let kinds = [
        DeviceKind::Hardware,
        DeviceKind::Software,
        DeviceKind::Unknown,
    ];
    let rails = |settings: RdmaSettings| kinds.map(|kind| settings.rails_beside(kind));
    assert_eq!(rails(RdmaSettings::new()), [1, 0, 0]);
    assert_eq!(rails(RdmaSettings::new().port(2).gid_index(3)), [1, 0, 0]);
    let named = RdmaSettings::new().device("mlx5_0");
    assert_eq!(rails(named.clone()), [0; 3]);
    for max in 0..=3 {
        let settings = RdmaSettings::new().max_rails(max);
        assert_eq!(settings.error(), None);
        assert_eq!(rails(settings), [usize::from(max); 3]);
        assert_eq!(rails(named.clone().max_rails(max)), [usize::from(max); 3]);
    }
}

#[test]
fn the_table_has_the_defaults() {
    let resources = RdmaSettings::new().resources(0);
    let defaults = [
        ("receive_buffers", resources.receive_buffers),
        ("held_buffers", resources.held_buffers),
        ("max_sessions", resources.max_sessions),
        ("eager_blocks", resources.eager_blocks),
        ("session_credit", resources.session_credit),
        ("send_requests", resources.send_requests),
        ("inline_bytes", resources.inline_bytes),
        ("send_entries", resources.send_entries),
        ("completion_vector", resources.completion_vector),
    ]
    .map(|(name, value)| (name, value.to_string()));
    let switches = [
        ("shared_receives", resources.shared_receives),
        ("completion_times", resources.completion_times),
        ("relaxed_ordering", resources.relaxed_ordering),
        ("trust_peers", resources.grants_memory),
    ]
    .map(|(name, value)| (name, value.to_string()));
    let tables = [RdmaSettings::TABLE, RdmaSettings::BUFFERS, Tuning::TABLE].concat();
    for (name, value) in defaults.into_iter().chain(switches) {
        let row = tables.iter().find(|row| row.name == name).expect(name);
        assert_eq!(row.default, value, "{name}");
    }
}

#[test]
fn the_defaults_are_within_their_ranges() {
    let settings = RdmaSettings::new();
    assert_eq!(
        (settings.error(), settings.check_relations()),
        (None, Ok(()))
    );
    let resources = settings.resources(0);
    let tuning = Tuning::new()
        .receive_buffer_bytes(resources.buffer_bytes.into())
        .session_credit(resources.session_credit)
        .send_requests(resources.send_requests)
        .inline_bytes(resources.inline_bytes.into())
        .shared_receives(resources.shared_receives)
        .timeout(resources.connection.actual_timeout())
        .min_rnr_timer(resources.connection.actual_rnr_timer())
        .retry_count(6);
    let again = tuned(tuning)
        .receive_buffers(resources.receive_buffers)
        .held_buffers(resources.held_buffers)
        .max_sessions(resources.max_sessions);
    assert_eq!((again.error(), again.check_relations()), (None, Ok(())));
    assert_eq!(again.resources(0), resources);
}

/// As those of the other builders: a program has one type for its lengths.
#[test]
fn numbers_of_bytes_have_64_bits() {
    let setters: [fn(Tuning, u64) -> Tuning; 3] = [
        Tuning::receive_buffer_bytes,
        Tuning::inline_bytes,
        Tuning::path_mtu,
    ];
    for setter in setters {
        let error = setter(Tuning::new(), (1 << 32) + 1)
            .error
            .expect("too many");
        assert!(error.to_string().contains("4294967297"), "{error}");
    }
}

#[test]
fn times_and_plain_completions_do_not_go_together() {
    let plain = Tuning::new().completion_polling(CompletionPolling::Plain);
    assert_eq!(tuned(plain).check_relations(), Ok(()));
    let both = tuned(plain.completion_times(true));
    let conflict = both.check_relations().unwrap_err();
    assert!(conflict.to_string().contains("have no times"), "{conflict}");
}

#[test]
fn each_setting_out_of_its_range_says_so() {
    let second = Duration::from_secs(1);
    let cases = [
        (RdmaSettings::new().port(0), "port is 0; it may be 1 to 255"),
        (
            RdmaSettings::new().gid_index(256),
            "gid_index is 256; it may be 0 to 255",
        ),
        (
            RdmaSettings::new().partition_key(0x8000),
            "partition_key is 0; it may be 1 to 32767",
        ),
        (
            RdmaSettings::new().max_rails(4),
            "max_rails is 4; it may be 0 to 3",
        ),
        (
            RdmaSettings::new().held_buffers((1 << 20) + 1),
            "held_buffers is 1048577; it may be 0 to 1048576",
        ),
        (
            tuned(Tuning::new().receive_buffer_bytes(u64::MAX)),
            "receive_buffer_bytes is 18446744073709551615 bytes; it may be 4 KiB to 64 KiB",
        ),
        (
            tuned(Tuning::new().session_credit(1)),
            "session_credit is 1; it may be 2 to 65536",
        ),
        (
            RdmaSettings::new().max_sessions(0),
            "max_sessions is 0; it may be 1 to 65536",
        ),
        (
            tuned(Tuning::new().send_requests(63)),
            "send_requests is 63; it may be 64 to 32768",
        ),
        (
            tuned(Tuning::new().inline_bytes(4097)),
            "inline_bytes is 4097 bytes; it may be 0 bytes to 4 KiB",
        ),
        (
            tuned(Tuning::new().timeout(Duration::ZERO)),
            "timeout is 0ns; it may be 5µs to 8796s",
        ),
        (
            tuned(Tuning::new().retry_count(7)),
            "retry_count is 7; it may be 0 to 6",
        ),
        (
            tuned(Tuning::new().min_rnr_timer(second)),
            "min_rnr_timer is 1s; it may be 10µs to 655.36ms",
        ),
        (
            RdmaSettings::new().service_level(16),
            "service_level is 16; it may be 0 to 15",
        ),
        (
            tuned(Tuning::new().eager_blocks((1 << 16) + 1)),
            "eager_blocks is 65537; it may be 0 to 65536",
        ),
        (
            tuned(Tuning::new().send_entries(0)),
            "send_entries is 0; it may be 1 to 3",
        ),
        (
            tuned(Tuning::new().send_entries(4)),
            "send_entries is 4; it may be 1 to 3",
        ),
        (
            RdmaSettings::new().receive_buffers(18),
            "receive_buffers is 18; it may be 19 to 1048576",
        ),
        (
            RdmaSettings::new().receive_buffers((1 << 20) + 1),
            "receive_buffers is 1048577; it may be 19 to 1048576",
        ),
    ];
    for (settings, says) in cases {
        assert_eq!(settings.error().unwrap().to_string(), says);
    }
}

#[test]
fn buffers_that_do_not_cover_the_sessions_are_told_with_both_settings() {
    let cases = [
        (
            RdmaSettings::new().receive_buffers(528),
            "receive_buffers is 528 and max_sessions is 256: each place for a session keeps \
             two, and 17 are for all, so it has to be 529 or more; raise it or lower \
             max_sessions",
        ),
        (
            tuned(Tuning::new().shared_receives(false)).receive_buffers(81),
            "receive_buffers is 81 and session_credit is 64: without shared_receives each \
             session has so many and 18 to itself, so it has to be 82 or more; raise it or \
             lower session_credit",
        ),
        (
            tuned(Tuning::new().shared_receives(false).session_credit(5000)),
            "receive_buffers is 4096 and session_credit is 5000: without shared_receives each \
             session has so many and 18 to itself, so it has to be 5018 or more; raise it or \
             lower session_credit",
        ),
    ];
    for (settings, says) in cases {
        assert_eq!(settings.error(), None);
        assert_eq!(settings.check_relations().unwrap_err().to_string(), says);
    }
    let few = RdmaSettings::new().max_sessions(1).receive_buffers(19);
    assert_eq!((few.error(), few.check_relations()), (None, Ok(())));
    let for_one = tuned(Tuning::new().shared_receives(false)).receive_buffers(82);
    assert_eq!((for_one.error(), for_one.check_relations()), (None, Ok(())));
}

#[test]
fn buffers_are_rounded_up_to_whole_lines() {
    let resources = tuned(Tuning::new().receive_buffer_bytes(5000)).resources(0);
    assert_eq!(resources.buffer_bytes, 5056);
}
