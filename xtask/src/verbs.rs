//! The verbs layer: built with its bindings, tested over the fake device, and tested and measured
//! on the guest's real device.

use std::env;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::failure::Failure;
use crate::figures;
use crate::instructions;
use crate::options::BenchOptions;
use crate::soak;
use crate::step::{Step, side_by_side};
use crate::tested::{self, Tests};
use crate::tool::{self, CLIPPY, CMAKE, DEBIAN_KEYRING, KMOD, LIBCLANG, QEMU, Tool, XZ};
use crate::vm;
use crate::watchdog::Watchdog;

/// Tools for checking the bindings.
pub(crate) const BINDING_TOOLS: &[Tool] = &[CLIPPY, CMAKE, LIBCLANG];

/// Tools for the stage.
pub(crate) const TOOLS: &[Tool] = &[CLIPPY, QEMU, KMOD, XZ, DEBIAN_KEYRING];

/// The share of the device tests that is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What is only true on a device: a short list of proofs, the faults, and a part of the scenarios
    /// by each kind of completion queue, drawn in each run.
    Drawn,
    /// Everything.
    Whole,
}

/// Runs the stage `verbs` of `cargo xtask test`.
///
/// `IBEX_TEST_DEVICE` names a device of this machine to test on; without it the guest's is used.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    if env::var_os("IBEX_TEST_DEVICE").is_none() {
        vm::test(watchdog)?;
    }
    play(Extent::Drawn, watchdog)
}

/// Runs the stage `verbs` of `cargo xtask torture`.
pub(crate) fn whole(watchdog: &Watchdog) -> Result<(), Failure> {
    play(Extent::Whole, watchdog)
}

/// Runs the stage `two` of `cargo xtask torture`: the tests of the link, between two guests.
pub(crate) fn two(watchdog: &Watchdog) -> Result<(), Failure> {
    let links = "--test rdma_links";
    let links = tested::build_tests(&[links], watchdog)?.program("rdma_links") + " --nocapture";
    starved("two", &["--two", "--time-out", SECONDS_IN_A_GUEST])?
        .args([links])
        .run(watchdog)
}

/// Returns the step that runs commands in the guests of this topology, which let messages find no
/// receive on purpose.
fn starved(topology: &str, options: &[&str]) -> Result<Step, Failure> {
    let step = in_the_guest(options)?.args(["--", ON_DEVICE, "--starved"]);
    Ok(step.env("IBEX_TEST_GUEST", topology))
}

fn play(extent: Extent, watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    let mut proofs = Vec::new();
    let (more, longer, integrations) = match extent {
        Extent::Drawn => (FEWER, &[][..], &[][..]),
        Extent::Whole => (MORE, LONGER_PROOFS, INTEGRATIONS),
    };
    let listed = PROOFS.iter().chain(longer).map(|(name, _)| name);
    let targets: Vec<_> = listed
        .chain(OTHERS)
        .chain(integrations)
        .map(|name| format!("--test {name}"))
        .collect();
    let tests = tested::build_tests(&[&targets.join(" ")], watchdog)?;
    for (name, arguments) in PROOFS.iter().chain(longer) {
        let program = tests.program(name);
        proofs.push(format!("{more} {program} {arguments}").trim().to_string());
    }
    proofs.extend(
        integrations
            .iter()
            .map(|name| format!("{} /verbs/", tests.program(name))),
    );
    let conformance = tests.program("conformance");
    let seed = seed();
    let suite = |half: usize| {
        let (variable, cells) = WHOLE_SUITE[half];
        let part = match extent {
            Extent::Drawn => format!("IBEX_TEST_PART={half}/{PARTS}/{seed} "),
            Extent::Whole => String::new(),
        };
        format!("{part}{variable} {conformance} {cells}")
    };
    let mut uses = vec![suite(0)];
    match extent {
        Extent::Drawn => println!(
            "drawn by {seed}: one of {PARTS} parts of the scenarios by each of the two kinds of \
             completion queue, and a quarter of those that need two processes by each; `cargo xtask \
             torture` has the rest"
        ),
        Extent::Whole => {
            uses.extend(USED_IN_ANOTHER_WAY.iter().map(|variable| {
                format!("IBEX_TEST_SHORT=1 {variable} {conformance} /verbs/caller")
            }));
        }
    }
    let mut shown = shown_to_readers();
    if env::var_os("IBEX_TEST_DEVICE").is_none() {
        // The guest can reach itself over vsock, which no device carries: it goes before a command
        // during which the device sends.
        let vsock = tests.program("vsock");
        shown = format!("modprobe vsock_loopback && IBEX_TEST_VSOCK=1 {vsock} && {shown}");
    }
    uses.push(shown);
    proofs.push(suite(1));
    if env::var_os("IBEX_TEST_DEVICE").is_none() {
        let messages = match extent {
            Extent::Drawn => 200,
            Extent::Whole => 10_000,
        };
        let examples = tested::binary("examples");
        proofs.push(format!("vm/interoperation {examples} {messages}"));
    }
    if env::var_os("IBEX_TEST_DEVICE").is_some() {
        return Step::new(ON_DEVICE).args(proofs).args(uses).run(watchdog);
    }
    let in_a_guest = |number, commands: Vec<String>| {
        let options = ["--label", number, "--time-out", SECONDS_IN_A_GUEST];
        let step = in_the_guest(&options)?.args(["--", ON_DEVICE]);
        Ok::<_, Failure>(step.args(commands))
    };
    let first = vec![in_a_guest("1| ", proofs)?];
    let mut second = vec![in_a_guest("2| ", uses)?];
    second.extend(faults("2| ", extent, &tests)?);
    // A single guest leaves half of this machine idle, since the guest's processors wait for each
    // other.
    side_by_side(&[&first, &second], watchdog)
}

/// Returns a new seed for each run, small enough to be typed.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs() % 1000)
}

/// Returns the commands that the documentation shows: the device that a node would choose, and the
/// figures of every fabric.
fn shown_to_readers() -> String {
    let (devices, ibex) = (tested::example("devices"), tested::binary("ibex"));
    let mut shown = devices.clone();
    if env::var_os("IBEX_TEST_DEVICE").is_none() {
        shown += &format!(" && {devices} v0 && {devices} --peer 192.0.2.1");
    }
    format!("{shown} && {ibex} perf --fabric all --size 65536 --iters 20 --json")
}

/// Returns the steps that would disturb a real device, or need two, so they run in guests of their
/// own: messages find no receive, the device is removed, a group is reached over the link to another
/// one, and the link is cut; in the whole extent, processes are killed, too, including a replicated
/// log's. They are built already, and must run one after the other.
fn faults(label: &str, extent: Extent, tests: &Tests) -> Result<Vec<Step>, Failure> {
    let program = |name| tests.program(name);
    let alone = vec![program("verbs_faults"), program("rdma_errors")];
    let groups =
        program("verbs_datagrams") + " --exact attach_mcast_brings_a_group_from_another_device";
    let mut pair = vec![groups, program("rdma_links") + " --nocapture"];
    let mut killed = None;
    if extent == Extent::Whole {
        let fire = " --exact under_fire_over_verbs under_fire_over_tcp";
        pair.push(program("replication") + fire);
        killed = Some(soak::on_verbs(label)?);
    }
    let alone = starved("one", &["--label", label])?.args(alone);
    let pair = starved("pair", &["--pair", "--label", label])?.args(pair);
    Ok([alone, pair].into_iter().chain(killed).collect())
}

/// Runs `cargo xtask bench`: the benchmark, or its rows of verbs on a device, or the drawing of its
/// figures.
///
/// Standard output has only the benchmark's output.
pub(crate) fn bench(options: &BenchOptions) -> Result<ExitCode, Failure> {
    let watchdog = Watchdog::patient();
    if options.plots {
        return figures::draw(&watchdog).map(|()| ExitCode::SUCCESS);
    }
    if options.write {
        let measured = figures::measure(options.row.as_deref(), &watchdog);
        return measured.map(|()| ExitCode::SUCCESS);
    }
    let mut build = Step::of_line("cargo bench -p ibex-benches --bench pingpong").aside();
    let has_device = options.vm || env::var_os("IBEX_TEST_DEVICE").is_some();
    if has_device {
        tool::prepare(&TOOLS.iter().collect::<Vec<_>>(), true);
        tool::check(TOOLS)?;
        build = build.args(["--features", "verbs"]);
    }
    let program = build.build_program(&watchdog)?;
    let mut words = Vec::new();
    if options.json {
        words.push("--json".to_string());
    }
    if options.instructions {
        tool::prepare(&instructions::TOOLS.iter().collect::<Vec<_>>(), true);
        tool::check(instructions::TOOLS)?;
        let [shared, own] = instructions::count(&watchdog)?;
        words.push(format!("--instructions={shared:.1},{own:.1}"));
    }
    let row = match (&options.row, has_device) {
        (Some(row), _) => Some(row.as_str()),
        (None, true) => Some("verbs"),
        (None, false) => None,
    };
    words.extend(row.map(String::from));
    let step = match options.vm {
        true => in_the_guest(&["--packages", "vm/packages-bench", "--time-out", "1800"])?
            .args(["--", &program]),
        false => Step::new(&program),
    };
    step.args(words).named_aside().run(&watchdog)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns `cargo xtask vm` with these options, to which the command is added.
pub(crate) fn in_the_guest(options: &[&str]) -> Result<Step, Failure> {
    let xtask = env::current_exe()
        .map_err(|error| Failure::new(format!("the path of this program: {error}")))?;
    Ok(Step::new(&xtask.to_string_lossy())
        .args(["vm", "--no-install"])
        .args(options.iter().copied())
        .env("IBEX_TEST_DEVICE", GUEST_DEVICE))
}

/// The tests that run on a device, one after the other, each with its arguments. A test comes
/// behind those on whose subject it builds.
const PROOFS: &[(&str, &str)] = &[
    ("verbs_device", ""),
    ("verbs_operations", ""),
    ("verbs_datagrams", ""),
    ("rdma", ""),
    ("no_copy", "1024/verbs/"),
    ("no_allocation", "/verbs/"),
];

/// The proofs that take minutes in an emulated guest. The stages `proofs` and `unit` play them over
/// the other fabrics and a device made of memory.
const LONGER_PROOFS: &[(&str, &str)] = &[
    ("no_copy", "/verbs/"),
    ("limits", ""),
    ("rdma_crowd", "--nocapture"),
    ("idle", "/verbs/"),
    ("memory_flat", "/verbs/"),
    ("leaves_nothing", "/verbs/"),
    ("fork", "/verbs/"),
];

/// The tests that are run beside them.
const OTHERS: &[&str] = &[
    "conformance",
    "rdma_errors",
    "rdma_links",
    "replication",
    "verbs_faults",
    "vsock",
];

/// The tests of the integrations that run on a device.
const INTEGRATIONS: &[&str] = &["exchanges", "http", "grpc", "carrier"];

/// The environment in which the proofs do less, for a part, and more, for the whole extent.
const FEWER: &str = "IBEX_TEST_SLEEPS=1000";
const MORE: &str = "IBEX_TEST_SLEEPS=50000";

/// The suite by each of the two kinds of completion queue, under each driver.
const WHOLE_SUITE: [(&str, &str); 2] = [
    ("IBEX_RDMA_COMPLETIONS=plain", "/verbs/threads"),
    ("IBEX_RDMA_COMPLETIONS=extended", "/verbs/caller"),
];

/// Other ways to use the device, in which a short list of scenarios is played: with another way of
/// polling, or without some feature.
const USED_IN_ANOTHER_WAY: &[&str] = &[
    "IBEX_TEST_MASK=no-shared-receives",
    "IBEX_TEST_MASK=no-inline",
    "IBEX_TEST_MASK=no-immediate",
    "IBEX_TEST_MASK=one-piece",
    "IBEX_TEST_MASK=tiny-queues",
    "IBEX_TEST_MASK=small-mtu",
];

/// The number of parts of the suite, of which each run plays one by each kind of completion queue,
/// with a quarter of the scenarios that need two processes. The stage `masks` plays all others over
/// a device made of memory.
const PARTS: usize = 72;
/// The program that runs commands on a device.
const ON_DEVICE: &str = "vm/on_device";
/// The longest time that a guest may take for all device tests.
const SECONDS_IN_A_GUEST: &str = "3600";
/// The guest's only device.
const GUEST_DEVICE: &str = "rxe0";
