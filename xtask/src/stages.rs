//! The stages of `cargo xtask test`, in two lists that run side by side, each in its order. A new
//! stage is a new entry.
//!
//! One list alone leaves two cores partly idle: its tests wait more than they compute. Both build in
//! the profile `tested`, so that no crate is built twice; only the models of loom are built apart.
//! They stand where the second list builds, and the checks beside its tests, which run without cargo:
//! cargo waits for the compiler of the other list.
//!
//! Two crates have a feature that needs what no user needs, a C++ compiler or libclang; the torture
//! checks these with all features.
//!
//! The budgets of each list add up to at most `LONGEST`. Longer lists of the same tests, and
//! whatever needs an optimized build, are stages of [`crate::torture`].

use std::time::Duration;

use crate::failure::Failure;
use crate::stage::{Stage, Work};
use crate::step::{Step, side_by_side};
use crate::tool::{CLIPPY, IPROUTE, RUSTFMT};
use crate::watchdog::Watchdog;
use crate::{house, integrations, links, minimum, mutants, simulate, soak, tested, verbs};

pub(crate) const STAGES: &[&[Stage]] = &[CHECKS, TESTED];

/// The longest time of a whole run from a clean clone on two cores.
#[cfg(test)]
const LONGEST: Duration = seconds(25 * 60);

/// The stages that check the code, those whose builds are their own, and behind them some that use
/// what the other list has built long before.
const CHECKS: &[Stage] = &[
    Stage {
        name: "fmt",
        about: "the code is formatted",
        budget: seconds(10),
        quick: true,
        tools: &[RUSTFMT],
        work: Work::Commands(&["cargo fmt --all --check"]),
    },
    Stage {
        name: "house",
        about: "lines, methods, long files, lone orderings and shared names do not become more",
        budget: seconds(10),
        quick: true,
        tools: &[],
        work: Work::Function(house::stage),
    },
    Stage {
        name: "minimum",
        about: "no dependency needs a newer Rust than the README names, and no user a C compiler",
        budget: seconds(10),
        quick: true,
        tools: &[],
        work: Work::Function(minimum::stage),
    },
    Stage {
        name: "loom",
        about: "the models of the rings hold in most orders of events, and find each bug that is planted",
        budget: seconds(180),
        quick: true,
        tools: &[],
        work: Work::Function(mutants::loom),
    },
    Stage {
        name: "doc",
        about: "the documentation builds, its links lead somewhere, and its examples run",
        budget: seconds(60),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(doc),
    },
    Stage {
        name: "commands",
        about: "the tests of what runs these stages",
        budget: seconds(120),
        quick: true,
        tools: &[CLIPPY],
        work: Work::Function(|watchdog| {
            let tests = "cargo test --profile tested -p xtask --bins";
            Step::of_line(tests).linted().run(watchdog)
        }),
    },
    Stage {
        name: "integrations",
        about: "software of others, over every fabric that needs no device",
        budget: seconds(300),
        quick: false,
        tools: integrations::TOOLS,
        work: Work::Function(integrations::stage),
    },
    Stage {
        name: "proofs",
        about: "no allocation, no copy, idle peers for nothing, idle, flat memory, nothing left, forks",
        budget: seconds(240),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(proofs),
    },
    Stage {
        name: "soak",
        about: "processes are killed, stopped, starved and cut off, and nothing is lost",
        budget: seconds(60),
        quick: false,
        tools: &[CLIPPY, IPROUTE],
        work: Work::Function(soak::stage),
    },
    Stage {
        name: "examples",
        about: "the examples run, between real processes, and one of them under kill -9",
        budget: seconds(90),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(examples),
    },
];

/// The stages that share the build of what runs.
const TESTED: &[Stage] = &[
    Stage {
        name: "build",
        about: "no lint fires where the programs of all stages behind this one are built",
        budget: seconds(240),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(build),
    },
    Stage {
        name: "unit",
        about: "every test within one process; each parser meets its corpus, and inputs near it",
        budget: seconds(180),
        quick: true,
        tools: &[CLIPPY, IPROUTE],
        work: Work::Function(unit),
    },
    Stage {
        name: "simulation",
        about: "two million steps of engines under faults break no rule",
        budget: seconds(60),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(simulate::stage),
    },
    Stage {
        name: "conformance",
        about: "every promise, on each fabric and by each driver, between real processes",
        budget: seconds(180),
        quick: false,
        tools: &[CLIPPY, IPROUTE],
        work: Work::Function(conformance),
    },
    Stage {
        name: "masks",
        about: "every promise over an RDMA device made of memory, and a short list over each that lacks something",
        budget: seconds(90),
        quick: false,
        tools: &[CLIPPY],
        work: Work::Function(masks),
    },
    Stage {
        name: "verbs",
        about: "the verbs layer, no copy, no allocation and a drawn part of the promises, on the guest's device",
        budget: seconds(360),
        quick: false,
        tools: verbs::TOOLS,
        work: Work::Function(verbs::stage),
    },
];

/// The documentation of what users link, with all features, and that of the verbs without the feature
/// that needs libclang.
const DOCUMENTED: [&str; 2] = [
    "cargo doc --profile tested -p ibex -p ibex-calls -p ibex-codec -p ibex-core -p ibex-inspect -p ibex-io \
     -p ibex-log -p ibex-peers -p ibex-transport --lib --no-deps --all-features",
    "cargo doc --profile tested -p ibex-verbs --lib --no-deps --features fake,libibverbs",
];

fn doc(watchdog: &Watchdog) -> Result<(), Failure> {
    links::check()?;
    for line in DOCUMENTED {
        Step::of_line(line)
            .add_flags("RUSTDOCFLAGS", "-D warnings")
            .run(watchdog)?;
    }
    tested::test("--doc").run(watchdog)
}

/// Runs the tests that need neither a device nor much time.
fn unit(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::at_once(UNIT, watchdog)
}

/// Builds the programs of later stages in as few calls as possible, since two cores that compile
/// one crate at a time are one core.
fn build(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    let on_devices = "--test rdma --test rdma_crowd --test rdma_errors --test rdma_links --test verbs_device \
                      --test verbs_operations --test verbs_datagrams --test verbs_faults";
    let others = [SUITE, on_devices, "--test replication"];
    tested::build_tests(&[UNIT, CONFORMANCE, PROOFS, &others].concat(), watchdog).map(drop)
}

/// Runs the suite beside the tests without cells, since all of them wait more than they compute.
pub(crate) fn conformance(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    tested::at_once(&[&[SUITE], CONFORMANCE].concat(), watchdog)
}

/// Plays all scenarios over the device that has everything, and a short list over every device that
/// lacks something. `cargo xtask torture` plays all of them over each.
fn masks(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::at_once(&["--test conformance -- /fake/whole/"], watchdog)?;
    let tests = tested::build_tests(&["--test conformance"], watchdog)?;
    let short = tests.of_list("--test conformance -- /fake/").into_iter();
    let short: Vec<_> = short.map(|step| step.env("IBEX_TEST_SHORT", "1")).collect();
    side_by_side(&[&short], watchdog)
}

/// Runs the proofs in concurrent lists: they wait more than they compute, and each counts only its
/// own processes' resources.
fn proofs(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::at_once(PROOFS, watchdog)
}

/// Unit tests, those of the crates from outside, and those of the facade that need one process.
const UNIT: &[&str] = &[
    "--lib --bins --example custom_codec",
    "--test allocation --test derive --test extremes --test fingerprint --test hostile \
     --test round_trip --test serde --test serde_bounds --test corpus --test moving_region \
     --test examples --test dialing --test flood --test garbled --test half_open --test meeting --test rogue \
     --test shortage --test shortage_of_dialers --test strangers --test verbs --test hostile_peer \
     --test queue --test limits --test commands",
    "--test advice --test asynchronous --test bytes --test calls --test environment \
     --test fingerprints --test group --test inspect --test keeping_connected --test keeping_many \
     --test log --test memory_bound --test owned_messages --test peer_names --test peers_caller \
     --test polls --test publisher --test readme --test refusals --test security \
     --test send_sync --test shared_credit --test streams --test subscribing --test unopened",
];

/// The suite over all fabrics that need no device.
const SUITE: &str = "--test conformance -- --skip /fake/";

/// The tests beside the suite that need no device: lists of those that compute, and of those that
/// mostly wait.
const CONFORMANCE: &[&str] = &[
    "--test damage --test first_bytes --test memory_limit --test short_sessions",
    "--test descriptors --test dropped_connects --test io_threads --test io_threads_rdma --test io_threads_spanning",
    "--test black_hole --test fan_in --test hostile_shm --test log_group --test log_sender --test one_host \
     --test rdma_rails --test recorded_peers --test regions --test resuming --test rolling_upgrade --test sandboxed --test select --test service_life --test tasks --test vsock",
];

/// The proofs that need no device. Each test runs its proofs one after the other.
const PROOFS: &[&str] = &[
    "--test fan_in_cost",
    "--test fork",
    "--test idle -- /shm/",
    "--test idle -- /tcp/",
    "--test idle_memory",
    "--test leaves_nothing",
    "--test memory_flat --test no_allocation",
    "--test event_loop --test idle_futures --test no_copy --test system_calls",
];

/// Runs each example once, `ibex perf` also encrypted, and the replicated log. The latter and
/// `ibex perf` run over every fabric that needs no device.
fn examples(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    let examples = EXAMPLES
        .iter()
        .map(|name| Step::new(&tested::example(name)));
    let programs = PROGRAMS
        .iter()
        .map(|(name, line)| Step::new(&tested::binary(name)).args(line.split_whitespace()));
    let each: Vec<_> = examples.chain(programs).collect();
    let replication = "--test replication";
    let replication = tested::build_tests(&[replication], watchdog)?.of_list(replication);
    side_by_side(&[&each, &replication], watchdog)
}

const EXAMPLES: &[&str] = &[
    "custom_codec",
    "tokio",
    "fan_in",
    "event_loop",
    "large_payload",
    "regions",
    "growing_log",
    "calls",
    "restart",
    "stream",
    "group",
    "log_group",
    "publish",
    "secure",
];

/// Programs that are packages of their own, with their arguments.
const PROGRAMS: &[(&str, &str)] = &[
    ("quickstart", ""),
    ("quickstart", "--kill"),
    (
        "ibex",
        "perf --fabric tcp --tls --size 64 --iters 2000 --json",
    ),
    (
        "ibex",
        "perf --fabric all --codec serde --size 64 --iters 2000 --json",
    ),
    (
        "ibex",
        "perf --fabric tcp --pairs 8 --io-threads 2 --size 64 --iters 500 --json",
    ),
    (
        "replication",
        "--replicas 2 --compare --fabric tcp --records 5000 --pairs 1 --json",
    ),
];

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A test that no stage names is never run, and a file that no manifest names is not even built.
    #[test]
    fn every_test_is_in_a_stage() {
        let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
        let entries = |path: &str| {
            let entries = fs::read_dir(xtask.join(path)).expect("a folder");
            entries.map(|entry| entry.expect("an entry").path())
        };
        let sources: String = entries("src")
            .filter(|path| path.is_file())
            .map(|path| fs::read_to_string(path).expect("text"))
            .collect();
        let run: Vec<_> = sources.split_whitespace().collect();
        let metadata = Step::of_line("cargo metadata --offline --no-deps --format-version 1");
        let metadata = metadata.capture(&Watchdog::patient()).expect("metadata");
        let metadata: serde_json::Value = serde_json::from_str(&metadata.stdout).expect("JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        let targets = packages
            .iter()
            .flat_map(|package| package["targets"].as_array().expect("targets"));
        let tests: Vec<_> = targets
            .filter(|target| target["kind"][0] == "test")
            .map(|target| target["name"].as_str().expect("a name"))
            .collect();
        for name in &tests {
            let is_run = run.windows(2).any(|words| {
                words[0].trim_start_matches('"') == "--test"
                    && words[1].split(['"', ';', ',']).next() == Some(*name)
            });
            let is_on_devices = sources.contains(&format!("(\"{name}\", \""));
            assert!(is_run || is_on_devices, "nobody runs {name}");
        }
        let is_test = |path: &Path| {
            path.extension().is_some_and(|extension| extension == "rs")
                || path.join("main.rs").exists()
        };
        for test in entries("../tests").filter(|path| is_test(path)) {
            let name = test.file_stem().and_then(|name| name.to_str());
            let name = name.expect("a name");
            assert!(tests.contains(&name), "tests/Cargo.toml has no {name}");
        }
    }

    #[test]
    fn the_budgets_of_each_list_add_up_to_the_time_of_a_run() {
        for list in STAGES {
            let whole: Duration = list.iter().map(|stage| stage.budget).sum();
            assert!(whole <= LONGEST, "{whole:?}: {:?}", list[0].name);
        }
    }

    #[test]
    fn names_are_words_and_unique() {
        for lists in [STAGES, crate::torture::STAGES, crate::release::STAGES] {
            let mut names: Vec<_> = lists.iter().copied().flatten().map(|s| s.name).collect();
            for name in &names {
                assert!(name.chars().all(|c| c.is_ascii_lowercase()), "{name}");
            }
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{names:?}");
        }
    }
}
