//! The examples, over a device made of memory.
#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "each example has what they share, and a `main`"
)]

use ibex_verbs::{
    AsyncEvent, Device,
    provider::{
        RawEvent,
        fake::{FakeDevice, FakeProvider},
    },
};

#[path = "../examples/asyncwatch.rs"]
mod asyncwatch;
#[path = "../examples/devinfo.rs"]
mod devinfo;
#[path = "../examples/rc_pingpong.rs"]
mod rc_pingpong;
#[path = "../examples/read_atomic.rs"]
mod read_atomic;
#[path = "../examples/show_gids.rs"]
mod show_gids;
#[path = "../examples/srq_pingpong.rs"]
mod srq_pingpong;
#[path = "../examples/uc_pingpong.rs"]
mod uc_pingpong;
#[path = "../examples/ud_pingpong.rs"]
mod ud_pingpong;
#[path = "../examples/window.rs"]
mod window;
#[path = "../examples/xrc_pingpong.rs"]
mod xrc_pingpong;

fn fake() -> FakeProvider {
    FakeProvider::new(vec![FakeDevice::soft_roce("fake0", 1, [192, 0, 2, 1])])
}

/// Runs a ping-pong of some messages, fewer receives than those, and an odd length.
macro_rules! pingpongs {
    ($($name:ident: $program:ident, $pairs:ident, $queue_pairs:literal;)*) => {$(
        #[test]
        fn $name() {
            use $program::common::{options::Options, pingpong};

            let fake = fake();
            let options = Options {
                rounds: 100,
                receives: 70,
                queue_pairs: $queue_pairs,
                ..Options::new(1001)
            };
            pingpong::both::<$program::$pairs>(&fake.provider(), &options).unwrap();
            assert!(fake.alive().is_empty(), "{:?}", fake.alive());
        }
    )*};
}

pingpongs! {
    rc_pingpong_exchanges_checked_messages: rc_pingpong, Reliable, 1;
    uc_pingpong_exchanges_checked_messages: uc_pingpong, Unreliable, 1;
    ud_pingpong_exchanges_checked_messages: ud_pingpong, Datagrams, 1;
    srq_pingpong_exchanges_checked_messages: srq_pingpong, Shared, 16;
    xrc_pingpong_exchanges_checked_messages: xrc_pingpong, Extended, 1;
}

#[test]
fn pingpong_takes_the_options_of_rdma_core() {
    use rc_pingpong::common::options::Options;

    let parse = |line: &str| {
        let arguments = line.split_whitespace().map(str::to_owned);
        Options::new(4096).parse(arguments)
    };
    let options = parse("-d rxe0 -g 1 --iters=10 -s 64 -m 2048 192.0.2.1").unwrap();
    assert_eq!(options.device.as_deref(), Some("rxe0"));
    assert_eq!((options.gid_index, options.rounds), (Some(1), 10));
    assert_eq!((options.bytes, options.mtu.bytes()), (64, 2048));
    assert_eq!(options.host.as_deref(), Some("192.0.2.1"));
    for (refused, reason) in [
        ("-s 0", r#"-s is "0": it is a whole number from 1 to"#),
        ("-s 99999999999", r#"-s is "99999999999": it is a whole"#),
        ("-n abc", r#"-n is "abc": it is a whole number from 1"#),
        ("--iters=0", r#"--iters is "0""#),
        ("-l 16", r#"-l is "16": it is a whole number from 0 to 15"#),
        ("-m 1000", r#"-m is "1000": it is 256, 512"#),
        ("-q", "-q wants a value"),
        ("-q 257", r#"-q is "257""#),
        ("-r 15 -q 16", "--rx-depth is 15: it is at least --num-qp"),
        ("--odp", "there is no option --odp"),
        ("one two", "one is one host"),
    ] {
        let error = parse(refused).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{refused}: {error}");
    }
}

#[test]
#[cfg(not(feature = "libibverbs"))]
fn pingpong_over_memory_reaches_no_host() {
    use rc_pingpong::common::{options::Options, pingpong};

    let options = Options {
        host: Some("192.0.2.1".to_owned()),
        ..Options::new(64)
    };
    let refused = pingpong::run::<rc_pingpong::Reliable>(&options).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.starts_with("HOST needs the feature libibverbs"),
        "{refused}"
    );
}

fn opened(fake: &FakeProvider) -> Device {
    Device::open(&fake.provider(), "fake0").unwrap()
}

#[test]
fn read_atomic_reads_adds_and_swaps() {
    read_atomic::run(&opened(&fake())).unwrap();
}

#[test]
fn window_lets_the_peer_in_once() {
    window::run(&opened(&fake())).unwrap();
}

#[test]
fn asyncwatch_tells_each_event() {
    let fake = fake();
    let device = opened(&fake);
    for event_type in [10, 9, 8] {
        let element = u64::from(event_type != 8);
        let event = RawEvent {
            event_type,
            element,
        };
        fake.raise("fake0", event);
    }
    let mut notified = Vec::new();
    asyncwatch::watch(&device, |event| notified.push(*event)).unwrap();
    assert_eq!(notified.len(), 3);
    assert!(matches!(notified[0], AsyncEvent::Port(1, _)));
    assert_eq!(notified[2], AsyncEvent::DeviceFatal);
}

#[test]
fn show_gids_has_a_line_for_each_gid() {
    let table = show_gids::table(&fake().provider()).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].contains("fe80:0000:0000:0000:0000:0000:0000:0001"));
    let words: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(words[..3], ["fake0", "1", "1"]);
    assert_eq!(words[4..6], ["192.0.2.1", "v2"]);
}

#[test]
fn devinfo_has_the_lines_of_ibv_devinfo() {
    let fake = fake();
    fake.change("fake0", |device| {
        device.attributes.capabilities = 1 << 17 | 1 << 30;
        device.attributes.on_demand_paging = true;
    });
    let provider = fake.provider();
    let entry = provider.devices().unwrap().remove(0);
    let lines = devinfo::describe(&provider, &entry).unwrap().0;
    for line in [
        "hca_id: fake0",
        "transport: InfiniBand (0)",
        "node_guid: 0002:c903:0000:0001",
        "vendor_id: 0xffffff",
        "device_cap_flags: 0x40020000",
        "MEM_WINDOW",
        "Unknown flags: 0x40000000",
        "ODP_SUPPORT",
        "atomic_cap: ATOMIC_HCA (1)",
        "core clock not supported",
        "state: PORT_ACTIVE (4)",
        "active_mtu: 1024 (3)",
        "link_layer: Ethernet",
        "GID[  1]: ::ffff:192.0.2.1, RoCE v2",
    ] {
        assert!(
            lines.iter().any(|one| one == line),
            "{line} is not in {lines:#?}"
        );
    }
}
