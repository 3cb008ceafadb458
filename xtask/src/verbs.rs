//! The verbs layer: built with its bindings, tested over the fake device, and tested and
//! measured on the guest's real one.

use std::env;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::instructions;
use crate::options::BenchOptions;
use crate::soak;
use crate::step::{Step, side_by_side};
use crate::tool::{self, CLIPPY, CMAKE, DEBIAN_KEYRING, KMOD, LIBCLANG, QEMU, Tool, XZ};
use crate::watchdog::Watchdog;

/// What checking the bindings needs.
pub(crate) const BINDING_TOOLS: &[Tool] = &[CLIPPY, CMAKE, LIBCLANG];

/// What the stage needs.
pub(crate) const TOOLS: &[Tool] = &[CMAKE, LIBCLANG, QEMU, KMOD, XZ, DEBIAN_KEYRING];

/// The stage `verbs` of `cargo xtask test`.
///
/// `IBEX_TEST_DEVICE` names a device of this machine to test on; without it the guest's
/// is used.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    // The stage of one process has the others.
    Step::of_line(ON_ANY_MACHINE).run(watchdog)?;
    let mut proofs = Vec::new();
    for (line, arguments) in PROOFS {
        let program = Step::of_line(line).build_program(watchdog)?;
        proofs.push(format!("{program} {arguments}").trim_end().to_string());
    }
    let conformance = Step::of_line(CONFORMANCE).build_program(watchdog)?;
    let suite = WHOLE_SUITE.map(|(variable, cells)| format!("{variable} {conformance} {cells}"));
    let [threads, caller] = suite;
    let mut uses = vec![threads];
    for variable in USED_IN_ANOTHER_WAY {
        uses.push(format!(
            "IBEX_TEST_SHORT=1 {variable} {conformance} /verbs/caller"
        ));
    }
    uses.push(what_readers_are_shown(watchdog)?);
    proofs.push(caller);
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
    second.extend(what_goes_wrong("2| ", watchdog)?);
    // One guest leaves half of this machine idle, as its processors wait for each other.
    side_by_side([&first, &second], watchdog)
}

/// Which device a node would take, and every fabric's figures side by side: the command for
/// both, as documentation has them.
fn what_readers_are_shown(watchdog: &Watchdog) -> Result<String, Failure> {
    let example = |name: &str| {
        let build = format!("cargo rustc -p ibex --release --features verbs --example {name}");
        Step::of_line(&build).build_with(&[], watchdog)
    };
    let (devices, pingpong) = (example("devices")?, example("pingpong")?);
    let mut shown = devices.clone();
    if env::var_os("IBEX_TEST_DEVICE").is_none() {
        shown += &format!(" && {devices} v0 && {devices} --peer 192.0.2.1");
    }
    let sizes = "--size 64 --size 65536 --iters 100";
    Ok(format!("{shown} && {pingpong} --fabric all {sizes} --json"))
}

/// What nobody wants on a device of his own, in guests of its own: messages find no receive,
/// the device is taken away, the link to another one is cut, and processes are killed, a
/// replicated log's among them. Built, and to be run one after the other.
fn what_goes_wrong(label: &str, watchdog: &Watchdog) -> Result<Vec<Step>, Failure> {
    let faults = "cargo test -p ibex-transport --release --features verbs --test verbs_faults";
    let faults = Step::of_line(faults).build_program(watchdog)?;
    let errors = "cargo test -p ibex --release --features verbs --test rdma_errors";
    let errors = Step::of_line(errors).build_program(watchdog)?;
    let links = "cargo test -p ibex --release --features verbs --test rdma_links";
    let links = Step::of_line(links).build_program(watchdog)? + " --nocapture";
    let fire = "cargo test -p ibex --release --features verbs --test replication";
    let fire = Step::of_line(fire).build_program(watchdog)?
        + " --exact under_fire_over_verbs under_fire_over_tcp";
    // These tests run it.
    Step::of_line("cargo build -p ibex --release --features verbs --example replication")
        .run(watchdog)?;
    let starved = |topology, options: &[&str], programs: &[String]| {
        let step = in_the_guest(options)?
            .args(["--label", label, "--", ON_DEVICE, "--starved"])
            .env("IBEX_TEST_GUEST", topology);
        Ok::<_, Failure>(step.args(programs))
    };
    Ok(vec![
        starved("one", &[], &[faults, errors])?,
        starved("pair", &["--pair"], &[links, fire])?,
        soak::on_verbs(label, watchdog)?,
    ])
}

/// `cargo xtask bench`: the benchmark, or its rows of verbs on a device.
///
/// What it prints is all that stands on standard output.
pub(crate) fn bench(options: &BenchOptions) -> Result<ExitCode, Failure> {
    let watchdog = Watchdog::patient();
    let mut build = Step::of_line("cargo bench --bench pingpong").aside();
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

/// `cargo xtask vm` with these options; the command comes behind them.
pub(crate) fn in_the_guest(options: &[&str]) -> Result<Step, Failure> {
    let xtask = env::current_exe()
        .map_err(|error| Failure::new(format!("the path of this program: {error}")))?;
    Ok(Step::new(&xtask.to_string_lossy())
        .args(["vm", "--no-install"])
        .args(options.iter().copied())
        .env("IBEX_TEST_DEVICE", GUEST_DEVICE))
}

/// What is tested on a device, one after the other: how each is built, and its
/// arguments. What stands on others stands behind them. All of it is optimized: the guest
/// is slow, and figures are compared with some of it.
const PROOFS: &[(&str, &str)] = &[
    (
        "cargo test -p ibex-transport --release --features verbs --test verbs_device",
        "",
    ),
    (
        "cargo test -p ibex-harness --release --features verbs --test limits",
        "",
    ),
    (
        "cargo test -p ibex --release --features verbs --test rdma",
        "",
    ),
    (
        "cargo test -p ibex --release --features verbs --test rdma_crowd",
        "--nocapture",
    ),
    (
        "cargo test -p ibex --release --features verbs --test no_copy",
        "/verbs/",
    ),
    (
        "cargo test -p ibex --release --features verbs --test no_allocation",
        "/verbs/",
    ),
    (
        "cargo test -p ibex --release --features verbs --test idle",
        "/verbs/",
    ),
    (
        "cargo test -p ibex --release --features verbs --test memory_flat",
        "/verbs/",
    ),
    (
        "cargo test -p ibex --release --features verbs --test leaves_nothing",
        "/verbs/",
    ),
    (
        "cargo test -p ibex --release --features verbs --test fork",
        "/verbs/",
    ),
];

const CONFORMANCE: &str = "cargo test -p ibex --release --features verbs --test conformance";

/// Every scenario by each of the two kinds of completion queue, and under each driver. What
/// follows has the other two of the four.
const WHOLE_SUITE: [(&str, &str); 2] = [
    ("IBEX_RDMA_COMPLETIONS=plain", "/verbs/threads"),
    ("IBEX_RDMA_COMPLETIONS=extended", "/verbs/caller"),
];

/// How the device is used for a short list of the same promises: polled in another way, and
/// as if it lacked something.
const USED_IN_ANOTHER_WAY: &[&str] = &[
    "IBEX_RDMA_COMPLETIONS=one-by-one",
    "IBEX_TEST_MASK=no-shared-receives",
    "IBEX_TEST_MASK=no-inline",
    "IBEX_TEST_MASK=no-immediate",
    "IBEX_TEST_MASK=one-piece",
    "IBEX_TEST_MASK=tiny-queues",
    "IBEX_TEST_MASK=small-mtu",
];

/// What is there with the bindings only, and needs no device.
const ON_ANY_MACHINE: &str = "cargo test -p ibex-transport -p ibex-harness \
     --features ibex-transport/verbs,ibex-harness/verbs --lib -- \
     verbs::provider verbs::discovery verbs_";
/// Runs commands on a device.
const ON_DEVICE: &str = "vm/on_device";
/// So long a guest may take for all that is tested on its device.
const SECONDS_IN_A_GUEST: &str = "1800";
/// The guest's only device.
const GUEST_DEVICE: &str = "rxe0";
