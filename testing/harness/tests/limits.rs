//! The raw limits between two real processes. The test does without libtest, because the second
//! process is this same program and must reach its task.

use std::{
    env,
    net::Ipv4Addr,
    process::{self, ExitCode},
    thread,
    time::{Duration, Instant},
};

use ibex_harness::{
    Error,
    cores::{self, Cores},
    far_limit::{self, Door},
    job::{Job, Mode},
    limit::Limit,
    pair::{self, Pair, Task},
    regime,
    verbs_port::{DEVICE_VARIABLE, VerbsPort},
};
use serde_json::json;

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(|_, task| subject(&task)) {
        return code;
    }
    let cores = match cores::choose(None) {
        Ok(cores) => cores,
        Err(error) => {
            println!("skipped: {error}");
            return ExitCode::SUCCESS;
        }
    };
    println!("cores {cores:?}: {}", regime::measure(cores).unwrap());
    test("every size arrives whole", || {
        every_size_arrives_whole(cores);
    });
    test("rings wrap", || rings_wrap(cores));
    test("a flipped byte is counted", || {
        a_flipped_byte_is_counted(cores);
    });
    test(
        "a door lets in who has its key",
        a_door_lets_in_who_has_its_key,
    );
    test("a peer is another process", || {
        a_peer_is_another_process(cores);
    });
    test("a peer that dies is reported", || {
        a_peer_that_dies_is_reported(cores);
    });
    ExitCode::SUCCESS
}

fn test(name: &str, body: impl FnOnce()) {
    let start = Instant::now();
    body();
    println!("test {name} ... ok ({:.1?})", start.elapsed());
}

/// Returns the limits of this machine, or only the device's if one is named.
fn limits() -> Vec<Limit> {
    match (VerbsPort::choose(), env::var_os(DEVICE_VARIABLE)) {
        (Ok(port), Some(_)) => {
            println!("{port}");
            vec![Limit::Verbs]
        }
        (Err(error), Some(_)) => panic!("{error}"),
        (Ok(_), None) => [OF_EVERY_HOST, &[Limit::Verbs]].concat(),
        (Err(error), None) => {
            println!("without verbs: {error}");
            OF_EVERY_HOST.to_vec()
        }
    }
}

#[cfg(feature = "tls")]
const OF_EVERY_HOST: &[Limit] = &[Limit::Shm, Limit::Tcp, Limit::BlockingTcp, Limit::Tls];
#[cfg(not(feature = "tls"))]
const OF_EVERY_HOST: &[Limit] = &[Limit::Shm, Limit::Tcp, Limit::BlockingTcp];

fn every_size_arrives_whole(cores: Cores) {
    for limit in limits() {
        for mode in [Mode::Latency, Mode::Stream] {
            for (size, iters) in SIZES {
                // A device gets fewer, since the guest's is software under emulation, and so does
                // TLS, which builds without optimization encrypt slowly.
                let iters = match limit {
                    Limit::Verbs | Limit::Tls => (iters / 4).max(2),
                    _ => iters,
                };
                let job = Job {
                    mode,
                    size,
                    iters,
                    flip: false,
                    rate: None,
                };
                let figures = limit.measure(cores, job).unwrap();
                assert_eq!(
                    figures.tally.faults, 0,
                    "{limit:?} {job:?}: {:?}",
                    figures.tally
                );
                assert!(
                    figures.bytes_touched(),
                    "{limit:?} {job:?}: {:?}",
                    figures.tally
                );
                assert_eq!(figures.one_way.is_some(), mode == Mode::Latency);
            }
        }
    }
}

fn rings_wrap(cores: Cores) {
    // Streams more bytes than any ring of the limit holds, in its smallest and in odd steps.
    for (size, iters) in [(1, 1_000_000), (100, 100_000), (200_001, 100)] {
        let job = Job {
            mode: Mode::Stream,
            size,
            iters,
            flip: false,
            rate: None,
        };
        let figures = Limit::Shm.measure(cores, job).unwrap();
        assert_eq!(figures.tally.faults, 0, "{job:?}: {:?}", figures.tally);
        assert!(figures.bytes_touched());
    }
}

fn a_flipped_byte_is_counted(cores: Cores) {
    for limit in limits() {
        for mode in [Mode::Latency, Mode::Stream] {
            for size in [1, 64, 100_000] {
                let job = Job {
                    mode,
                    size,
                    iters: 50,
                    flip: true,
                    rate: None,
                };
                let tally = limit.measure(cores, job).unwrap().tally;
                assert_eq!(tally.faults, 1, "{limit:?} {job:?}: {tally:?}");
                let place = format!("message 54, byte {}:", size / 2);
                assert!(tally.first_fault.unwrap().starts_with(&place));
            }
        }
    }
}

fn a_door_lets_in_who_has_its_key() {
    for limit in limits().into_iter().filter(|limit| *limit != Limit::Shm) {
        let job = Job {
            mode: Mode::Latency,
            size: 1000,
            iters: 20,
            flip: false,
            rate: Some(2000),
        };
        let host = Ipv4Addr::LOCALHOST.into();
        let door = Door::open(host, limit).unwrap();
        let key = door.key().unwrap();
        let answering = thread::spawn(move || door.answer(&job).unwrap());
        let (stopped, tally) = far_limit::measure(host, &key, limit, job).unwrap();
        let figures = stopped.figures(tally, &answering.join().unwrap());
        assert!(figures.bytes_touched(), "{limit:?}: {:?}", figures.tally);
        assert!(figures.elapsed >= Duration::from_millis(9), "{figures:?}");
    }
    assert!(Door::open(Ipv4Addr::LOCALHOST.into(), Limit::Shm).is_err());
}

fn a_peer_is_another_process(cores: Cores) {
    let mut pair = Pair::start(cores, Task::Subject(json!("say your pid"))).unwrap();
    let pid: u32 = pair.receive("a process id").unwrap();
    assert_eq!(pid, pair.pid());
    assert_ne!(pid, process::id());
    assert_eq!(pair.finish().unwrap(), Default::default());
}

fn a_peer_that_dies_is_reported(cores: Cores) {
    for (task, part) in [("die", "exit status: 3"), ("fail", "exit status: 1")] {
        let error = Pair::start(cores, Task::Subject(json!(task)))
            .unwrap()
            .finish()
            .unwrap_err();
        assert!(matches!(error, Error::PeerEnded { .. }));
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Runs the peer's part in the tests of [`Pair`] itself.
fn subject(task: &serde_json::Value) -> Result<ibex_harness::check::Tally, Error> {
    match task.as_str() {
        Some("say your pid") => pair::tell(&process::id())?,
        Some("die") => process::exit(3),
        _ => return Err(Error::subject("failing, as the test wants")),
    }
    Ok(Default::default())
}

/// Lengths around words, lines, parts, frames and rings.
const SIZES: [(usize, u64); 14] = [
    (0, 100),
    (1, 1000),
    (7, 1000),
    (8, 1000),
    (56, 1000),
    (57, 1000),
    (64, 2000),
    (100, 2000),
    (8191, 200),
    (8193, 200),
    (65_536, 100),
    (200_001, 20),
    (1 << 20, 20),
    (3_000_001, 2),
];
