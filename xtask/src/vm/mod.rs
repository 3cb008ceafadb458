//! `cargo xtask vm`: a command in a guest that has RDMA devices, on a machine that has none.
//!
//! The guest is QEMU with a kernel of Debian's, whose soft-RoCE makes an RDMA device of any network
//! device. `vm/README.md` describes the command's environment. Only the command's own output goes
//! to standard output.

mod checks;
mod clock;
mod console;
mod guest;
mod guest_report;
mod initrd;
mod job;
mod machine;
mod options;
mod packages;
mod release;

use std::env;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::failure::Failure;
use crate::tool::{self, Tool};
use crate::vm::guest::Guest;
use crate::vm::job::Share;
use crate::vm::machine::{Ending, Link, Machine};
use crate::vm::release::Release;
use crate::workspace;

pub(crate) use crate::vm::checks::{test, test_without_status};
pub(crate) use crate::vm::options::{Topology, VmOptions};

/// Runs `cargo xtask vm`. The exit status is the command's, or one of this program's.
pub(crate) fn run(options: &VmOptions) -> ExitCode {
    let status = boot(options).unwrap_or_else(|failure| {
        eprintln!("vm: {failure}");
        NEVER_REPORTED
    });
    ExitCode::from(status)
}

/// Runs the command in a guest, which may have another one to talk to. Returns its exit status.
fn boot(options: &VmOptions) -> Result<u8, Failure> {
    if env::consts::ARCH != "x86_64" {
        return Err(Failure::new(
            "the guest is an x86-64 machine and runs what is built for one",
        ));
    }
    prepare(TOOLS, options)?;
    let guest = choose(options)?;
    let (cpus, memory_mib) = (options.cpus, options.memory_mib);
    eprintln!("vm: {}, {cpus} CPU, {memory_mib} MiB", guest.describe());
    if options.topology != Topology::Two {
        return repeat(&machine(
            &guest,
            options,
            &options.command,
            (1, Vec::new()),
        )?);
    }
    let machines = linked(&guest, options)?;
    thread::scope(|scope| {
        let running = machines
            .each_ref()
            .map(|machine| scope.spawn(|| repeat(machine)));
        let statuses = running.map(|thread| thread.join().expect("a guest's thread ends"));
        let [first, second] = statuses;
        let (first, second) = (first?, second?);
        Ok(if first == 0 { second } else { first })
    })
}

/// Names and installs missing tools, and fails if one is still missing.
fn prepare(tools: &[Tool], options: &VmOptions) -> Result<(), Failure> {
    tool::check(tools).or_else(|_| {
        tool::prepare(&tools.iter().collect::<Vec<_>>(), !options.no_install);
        tool::check(tools)
    })
}

/// Returns a guest of the first release that is available.
fn choose(options: &VmOptions) -> Result<Guest, Failure> {
    let releases = Release::all()?;
    let names: Vec<_> = releases.iter().map(Release::name).collect();
    let names = names.join(", ");
    let wanted = options.release.as_deref();
    let is_wanted = |release: &&Release| wanted.is_none_or(|name| release.name() == name);
    let mut wanted = releases.iter().filter(is_wanted).peekable();
    if wanted.peek().is_none() {
        return Err(Failure::new(format!(
            "vm/releases has no such release; there are {names}"
        )));
    }
    for release in wanted {
        let tools = match release {
            Release::Debian(_) => &[],
            Release::Host => OWN_ROOT_TOOLS,
        };
        let more = options.packages.as_deref();
        match prepare(tools, options).and_then(|()| Guest::of(release, more, options.update)) {
            Ok(guest) => return Ok(guest),
            Err(failure) => eprintln!("vm: not {release}: {failure}"),
        }
    }
    Err(Failure::new(
        "no guest can be had; for each release the reason stands above",
    ))
}

/// Boots until the command was started, but not forever.
fn repeat(machine: &Machine) -> Result<u8, Failure> {
    let mut boots = 0;
    loop {
        boots += 1;
        match machine.run()? {
            Ending::Exit(status) => return Ok(status),
            Ending::TimedOut => {
                let limit = machine.time_out.as_secs();
                eprintln!(
                    "vm: the command had not ended after {limit} s (--time-out); the guest was ended"
                );
                return Ok(TIMED_OUT);
            }
            Ending::Failed(reason) => {
                return Err(Failure::new(format!(
                    "the guest cannot run the command: {reason}"
                )));
            }
            Ending::NoBoot(console) if boots < MAX_BOOTS => {
                let why = console.verdict().unwrap_or("it did not come up");
                eprintln!("vm: boot {boots} of {MAX_BOOTS}: {why}; once more");
            }
            Ending::NoBoot(console) => {
                eprint!("{console}");
                return Err(Failure::new(format!(
                    "the guest did not come up in {MAX_BOOTS} boots; the last one's console stands above"
                )));
            }
            Ending::Died(console) => {
                eprint!("{console}");
                let why = if console.is_emulators_fault() {
                    "; the emulator failed (Oops: int3), not the command: run it again"
                } else {
                    ""
                };
                return Err(Failure::new(format!(
                    "the guest ended before the command; its console stands above{why}"
                )));
            }
        }
    }
}

/// Returns two machines with two links between them: one to be tested on, and one for the commands
/// that the first has the second run.
fn linked(guest: &Guest, options: &VmOptions) -> Result<[Machine; 2], Failure> {
    let failed = |error| Failure::new(format!("cannot link two guests: {error}"));
    let mut links = [Vec::new(), Vec::new()];
    for link in 0..2 {
        let (one, other) = UnixStream::pair().map_err(failed)?;
        for (end, socket) in [one, other].into_iter().enumerate() {
            // Both guests inherit both ends; each is given one of them.
            fcntl_setfd(&socket, FdFlags::empty()).map_err(|error| failed(error.into()))?;
            let socket = Arc::new(OwnedFd::from(socket));
            let mac = format!("52:54:00:00:0{link}:0{}", end + 1);
            links[end].push(Link { socket, mac });
        }
    }
    let [one, other] = links;
    let serve = [there(), "--serve".to_owned()];
    Ok([
        machine(guest, options, &options.command, (1, one))?,
        machine(guest, options, &serve, (2, other))?,
    ])
}

/// Returns the program that has the other guest run commands.
fn there() -> String {
    workspace::root().join("vm/there").to_string_lossy().into()
}

fn machine(
    guest: &Guest,
    options: &VmOptions,
    command: &[String],
    (number, links): (u32, Vec<Link>),
) -> Result<Machine, Failure> {
    let label = match number {
        1 => options.label.clone(),
        _ => format!("{}the other guest: ", options.label),
    };
    let shares = shares(guest)?;
    let script = workspace::root().join("vm/guest");
    let script = fs::read_to_string(&script)
        .map_err(|error| Failure::new(format!("{}: {error}", script.display())))?;
    let variables = env::vars().filter(|(name, _)| job::is_passed_on(name));
    let target = (
        "CARGO_TARGET_DIR".to_string(),
        workspace::target().to_string_lossy().into(),
    );
    let peer = (options.topology == Topology::Two).then(|| ("VM_PEER".to_owned(), there()));
    let variables = variables.chain([target]).chain(peer);
    let job = job::script(command, workspace::root(), variables);
    // The root is mounted separately.
    let settings = job::settings(options.topology, number, guest.has_our_root(), &shares[1..]);
    Ok(Machine {
        cpus: options.cpus,
        memory_mib: options.memory_mib,
        links,
        kernel_image: guest.kernel_image()?,
        initrd: guest.initrd()?,
        shares,
        files: vec![("settings", settings), ("guest", script), ("job", job)],
        time_out: options.time_out,
        label,
    })
}

/// Returns the root, then the folders that have the same path in the guest: the repository and
/// cargo's build folder, which is also at `target`, whatever path cargo uses.
fn shares(guest: &Guest) -> Result<Vec<Share>, Failure> {
    let mut shares = Vec::new();
    let mut add = |tag: &str, here: String, there: String| {
        shares.push(Share {
            tag: tag.into(),
            here,
            there,
        });
    };
    let text = |path: PathBuf| {
        let unusable = || Failure::new(format!("{}: not in UTF-8", path.display()));
        path.to_str().map(String::from).ok_or_else(unusable)
    };
    add("root", text(guest.root())?, "/".into());
    if guest.has_our_root() {
        add("modules", text(guest.modules())?, "/lib/modules".into());
    }
    let repository = text(workspace::root().to_path_buf())?;
    add("repository", repository.clone(), repository.clone());
    let target = workspace::target();
    if !target.starts_with(workspace::root()) && target.is_dir() {
        let target = text(target)?;
        add("target", target.clone(), target.clone());
        add("target-too", target, format!("{repository}/target"));
    }
    Ok(shares)
}

/// Tools for making a guest and running it.
pub(crate) const TOOLS: &[Tool] = &[tool::QEMU, tool::KMOD, tool::XZ, tool::DEBIAN_KEYRING];

/// Tools that the guest needs in this machine's own root.
const OWN_ROOT_TOOLS: &[Tool] = &[
    tool::ZSTD,
    tool::IPROUTE,
    tool::RDMA_CORE,
    tool::IBVERBS_PROVIDERS,
    tool::IBVERBS_UTILS,
    tool::PERFTEST,
];

const MAX_BOOTS: u32 = 3;

// The exit statuses are those of timeout(1) and of container runtimes.
const TIMED_OUT: u8 = 124;
const NEVER_REPORTED: u8 = 125;
