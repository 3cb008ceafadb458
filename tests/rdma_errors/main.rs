//! Errors of nodes that are denied RDMA: those that require it, those that prefer it, and those
//! that leave the choice open.
//!
//! Most resources can be taken away only in the guest, by root; elsewhere those tests pass without
//! doing anything. Each starts this program again without some resource (rules in [`told`]), and
//! that process creates the nodes.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]

mod guest;
mod met;
mod moving;
mod removal;

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use guest::{Changed, guest};
use ibex::rdma::{RdmaSettings, discover};
use ibex::{Driver, Fabric, ListenErrorKind, Node, NodeBuilder, Policy};
use ibex_harness::process::Process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A watchdog's time: nothing here takes so long in any guest.
const PATIENCE: Duration = Duration::from_secs(300);

fn builder(verbs: Policy) -> NodeBuilder {
    let settings = match std::env::var_os("IBEX_TEST_LITTLE_MEMORY") {
        // These are the settings that the documentation of `ibex::rdma` proposes.
        Some(_) => RdmaSettings::new()
            .receive_buffers(1024)
            .held_buffers(512)
            .max_sessions(64),
        None => RdmaSettings::new(),
    };
    Node::builder()
        .rdma(settings)
        .fabric(Fabric::Shm, Policy::Forbid)
        .fabric(Fabric::Verbs, verbs)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
}

/// Returns the reason for the fabric of a session between two such nodes.
fn reason(listens: NodeBuilder, dials: NodeBuilder) -> String {
    let server = listens.listen("127.0.0.1:0").build().expect("a node");
    let client = dials.build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let peer = client.connect(address).expect("a session");
    peer.fabric_reason().to_owned()
}

// ---- On any machine ------------------------------------------------------------------

#[test]
fn a_peer_whose_policy_forbids_verbs_is_named_whatever_the_machine_has() {
    assert_eq!(
        reason(builder(Policy::Prefer), builder(Policy::Forbid)),
        without_verbs("the connecting node's policy forbids verbs")
    );
    assert_eq!(
        reason(builder(Policy::Forbid), builder(Policy::Prefer)),
        without_verbs("the listening node's policy forbids verbs")
    );
    // For nodes that require verbs and have a device, see tests/rdma.rs.
}

#[test]
fn a_machine_without_rdma_says_so_whatever_the_policy() {
    let Err(error) = discover() else {
        return;
    };
    assert!(error.is_absence(), "{error}");
    let why = format!("the connecting node has no RDMA device for this connection: {error}");
    for policy in [Policy::Auto, Policy::Prefer] {
        assert_eq!(
            reason(builder(policy), builder(policy)),
            without_verbs(&why)
        );
    }
    // The same holds if the two have another fabric without asking for it.
    let at_ease = || builder(Policy::Prefer).fabric(Fabric::Shm, Policy::Auto);
    assert_eq!(
        reason(at_ease(), at_ease()),
        format!("shm: same host, same user; not verbs: {why}")
    );
    let insists = builder(Policy::Require).build();
    assert_eq!(
        insists.expect_err("there is none").to_string(),
        refused(&error.to_string())
    );
}

// ---- In the guest --------------------------------------------------------------------

/// The output of the process that lacks something.
#[derive(Debug)]
struct Told {
    /// The error of a node that requires verbs.
    required: String,
    /// The fabric of a session between two nodes that prefer verbs.
    preferred: String,
    /// The fabric of a session between two nodes that leave the choice open.
    automatic: String,
    /// The outcome here, in a node that lacks nothing, requires verbs and connects to a node there.
    dialed: String,
}

/// Runs [`a_node_where_something_is_missing`] behind `takes`: shell commands in a mount namespace
/// of their own, which may put further commands before `"$@"`.
fn told(takes: &str) -> Told {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new("unshare");
    child
        .args(["--mount", "sh", "-e", "-c"])
        .arg(format!("{takes}\nexec \"$@\""))
        .arg("sh")
        .arg(program)
        .args(["a_node_where_something_is_missing", "--exact"])
        .args(["--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = Process::start("the node", &mut child).expect("unshare runs");
    let [required, preferred, automatic, address] =
        ["required| ", "preferred| ", "automatic| ", "address| "]
            .map(|topic| child.hear(topic).expect("it says so"));
    let node = builder(Policy::Require).build();
    let dialed = node.map(|node| match node.connect(&address) {
        Ok(peer) => peer.fabric_reason().to_owned(),
        Err(error) => error.to_string(),
    });
    child.finish().expect("it runs");
    Told {
        required,
        preferred,
        automatic,
        dialed: dialed.unwrap_or_else(|error| error.to_string()),
    }
}

#[test]
#[ignore = "run by the other tests, where they have taken something away"]
fn a_node_where_something_is_missing() {
    if std::env::var_os("IBEX_TEST_NO_DESCRIPTORS").is_some() {
        look_without_descriptors();
    }
    if let Some(directory) = std::env::var_os("IBEX_TEST_HIDDEN") {
        look_before_it_is_shown(&directory);
    }
    let required = builder(Policy::Require).driver(Driver::Caller);
    match required.listen("127.0.0.1:0").build() {
        Ok(_) => println!("required| nothing is missing"),
        Err(error) => {
            assert!(error.kind() == ListenErrorKind::Rdma, "{error:?}");
            println!("required| {error}");
        }
    }
    for (name, policy) in [("preferred", Policy::Prefer), ("automatic", Policy::Auto)] {
        println!("{name}| {}", reason(builder(policy), builder(policy)));
    }
    let server = builder(Policy::Auto).listen("127.0.0.1:0").build();
    let server = server.expect("a node");
    println!("address| {}", server.local_addr().expect("it listens"));
    // Waits until the reading process is done.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Lets a node look for devices with no descriptor to spare, then with one, and so on until there
/// are enough. Along the way, one-time steps of libibverbs fail as well.
fn look_without_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").expect("a list").count() as u64;
    let mut refusals = Vec::new();
    for spare in 0..100 {
        let current = Some(open + spare);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("less may be had");
        match builder(Policy::Require).driver(Driver::Caller).build() {
            Ok(_) => break,
            Err(error) => refusals.push(error.to_string()),
        }
    }
    setrlimit(Resource::Nofile, limit).expect("it was so before");
    println!("refused| {}", refusals.len());
    for refusal in refusals {
        assert!(refusal.contains("Too many open files"), "{refusal}");
        assert!(refusal.contains("ulimit -n"), "{refusal}");
    }
}

/// Lets a node look for devices while something is mounted over `directory`, and unmounts it.
fn look_before_it_is_shown(directory: &OsStr) {
    let refused = builder(Policy::Require).driver(Driver::Caller).build();
    let refusal = refused.expect_err("something is missing").to_string();
    assert!(refusal.contains("no provider library knows"), "{refusal}");
    let shown = Command::new("umount").arg(directory).status();
    assert!(shown.expect("it runs").success());
}

impl Told {
    /// Checks that all three report a known device that the process cannot use.
    fn assert_absence(&self, why: &str) {
        assert_eq!(self.required, refused(why));
        for told in [&self.preferred, &self.automatic] {
            assert_eq!(
                *told,
                without_verbs(&format!(
                    "the connecting node has no RDMA device for this connection: {why}"
                ))
            );
        }
    }

    /// Checks that the dialing node learns that the listening one has no device.
    fn assert_dialer_heard(&self, why: &str) {
        let (_, said) = self.dialed.split_once(": ").expect("an address");
        assert_eq!(
            said,
            format!(
                "the connecting node insists on verbs, which cannot be had: the listening node \
                 {why}; use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
            )
        );
    }

    /// Checks that nothing is missing after all.
    fn assert_verbs(&self) {
        assert_eq!(self.required, "nothing is missing");
        assert_eq!(self.preferred, "verbs: preferred by the connecting node");
        assert_eq!(self.automatic, without_verbs(SOFTWARE));
        assert_eq!(self.dialed, "verbs: required by the connecting node");
    }
}

fn refused(why: &str) -> String {
    format!("verbs is required, and this node cannot have it: {why}")
}

fn without_verbs(why: &str) -> String {
    format!("tcp: not shm: the connecting node's policy forbids shm; not verbs: {why}")
}

const SOFTWARE: &str = "the connecting node's device rxe0 is software, slower than tcp";
const NO_DEVICE: &str = "RDMA cannot be used: this machine has no RDMA device";
/// Sets `$lib` to the path of the library.
const LIBRARY: &str = "lib=$(find /usr/lib -name libibverbs.so.1 | head -n 1)";
/// Runs the command behind this under a user's limits.
const NOBODY: &str = "set -- setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";

#[test]
fn a_user_whose_limit_on_locked_memory_is_too_small() {
    let Some(_guest) = guest() else { return };
    // This is the default limit of systemd.
    let told = told(&format!("ulimit -l 8192\n{NOBODY}"));
    let why = "cannot register 37748736 bytes with RDMA device rxe0: 0 bytes are pinned already \
               and the limit on locked memory is 8388608 bytes, so at least 37748736 are needed \
               (Cannot allocate memory (os error 12)); raise it with `ulimit -l`, \
               LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker) or \
               /etc/security/limits.conf, or lower receive_buffers or held_buffers";
    assert_eq!(told.required, refused(why));
    let preferred = format!("the listening node cannot make a queue pair: {why}");
    assert_eq!(told.preferred, without_verbs(&preferred));
    assert_eq!(told.automatic, without_verbs(SOFTWARE));
    told.assert_dialer_heard(&format!("cannot make a queue pair: {why}"));
}

#[test]
fn a_user_whose_limit_on_locked_memory_is_enough_for_one_node() {
    let Some(_guest) = guest() else { return };
    let told = told(&format!("ulimit -l 40000\n{NOBODY}"));
    assert_eq!(told.required, "nothing is missing");
    assert_eq!(told.dialed, "verbs: required by the connecting node");
    // Two such nodes in one process fail: the first has its session's memory pinned as well.
    assert_eq!(
        told.preferred,
        without_verbs(
            "the connecting node cannot make a queue pair: cannot register 37748736 bytes with \
             RDMA device rxe0: 37781504 bytes are pinned already and the limit on locked memory \
             is 40960000 bytes, so at least 75530240 are needed (Cannot allocate memory (os \
             error 12)); raise it with `ulimit -l`, LimitMEMLOCK=infinity (systemd), --ulimit \
             memlock=-1 (docker) or /etc/security/limits.conf, or lower receive_buffers or \
             held_buffers"
        )
    );
}

#[test]
fn a_user_who_asks_for_less_memory_needs_no_other_limit() {
    let Some(_guest) = guest() else { return };
    let told = told(&format!(
        "export IBEX_TEST_LITTLE_MEMORY=yes\nulimit -l 8192\n{NOBODY}"
    ));
    assert_eq!(told.required, "nothing is missing");
    assert_eq!(told.dialed, "verbs: required by the connecting node");
}

#[test]
fn no_libibverbs() {
    let Some(_guest) = guest() else { return };
    let told = told(&format!(
        "{LIBRARY}\nmount --bind /dev/null \"$(readlink -f \"$lib\")\""
    ));
    let start = refused("RDMA cannot be used: libibverbs.so.1 cannot be loaded (");
    let end = "); install rdma-core's libraries (Debian: libibverbs1 ibverbs-providers; Fedora: \
               libibverbs) and start again";
    assert!(told.required.starts_with(&start), "{}", told.required);
    assert!(told.required.ends_with(end), "{}", told.required);
    let (_, why) = told.required.split_once("have it: ").expect("a cause");
    told.assert_absence(why);
    told.assert_dialer_heard("has no RDMA device");
}

#[test]
fn no_provider_library() {
    let Some(_guest) = guest() else { return };
    let told = told(&format!(
        "{LIBRARY}\nmount -t tmpfs none \"${{lib%/*}}/libibverbs\""
    ));
    told.assert_absence(&format!(
        "{NO_DEVICE}; the kernel has rxe0, but no provider library knows them: install \
         ibverbs-providers"
    ));
}

#[test]
fn no_descriptor_when_devices_are_first_listed() {
    let Some(_guest) = guest() else { return };
    told("export IBEX_TEST_NO_DESCRIPTORS=yes").assert_verbs();
}

#[test]
fn drivers_that_are_installed_while_the_program_runs() {
    let Some(_guest) = guest() else { return };
    let hidden = "/etc/libibverbs.d";
    let takes = format!("mount -t tmpfs none {hidden}\nexport IBEX_TEST_HIDDEN={hidden}");
    told(&takes).assert_verbs();
}

#[test]
fn device_files_that_a_sandbox_hides() {
    let Some(_guest) = guest() else { return };
    let told = told("mount -t tmpfs none /dev/infiniband");
    told.assert_absence(&format!(
        "{NO_DEVICE}; the kernel has rxe0, but its files in /dev/infiniband are not here: give a \
         container --device=/dev/infiniband, or a systemd service PrivateDevices=no"
    ));
    told.assert_dialer_heard("has no RDMA device");
}

#[test]
fn device_files_of_another_user() {
    let Some(_guest) = guest() else { return };
    let told = told(&format!(
        "mount -t tmpfs none /dev/infiniband\nmknod -m 600 /dev/infiniband/uverbs0 c 231 192\n\
         {NOBODY}"
    ));
    // The library does not report that the file may not be opened.
    told.assert_absence(
        "RDMA device rxe0 cannot be opened: No such file or directory (os error 2); its file in \
         /dev/infiniband is missing, or not this user's to read and write: give the container \
         --device=/dev/infiniband, the service PrivateDevices=no, the user the file's group (rdma)",
    );
}

#[test]
fn without_sys_a_device_is_found_all_the_same() {
    let Some(_guest) = guest() else { return };
    told("mount -t tmpfs none /sys").assert_verbs();
}

#[test]
fn a_port_that_is_down() {
    let Some(_guest) = guest() else { return };
    let _changed = Changed::by("ip link set v0 down", "ip link set v0 up");
    told("").assert_absence(
        "RDMA device rxe0 port 1 is DOWN, not ACTIVE; check the cable and `ip link set <netdev> \
         up`; `rdma link` shows the state",
    );
}

#[test]
fn no_device() {
    let Some(_guest) = guest() else { return };
    let _changed = Changed::by(
        "rdma link delete rxe0",
        "rdma link add rxe0 type rxe netdev v0",
    );
    told("").assert_absence(&format!(
        "{NO_DEVICE}; `rdma link` lists them; without hardware, `rdma link add rxe0 type rxe \
         netdev <netdev>` makes a software device"
    ));
}

#[test]
fn a_kernel_whose_verbs_are_not_loaded() {
    let Some(_guest) = guest() else { return };
    let _changed = Changed::by(
        "rdma link delete rxe0; modprobe -r rdma_rxe rdma_ucm ib_uverbs",
        "modprobe -a ib_uverbs rdma_ucm rdma_rxe; rdma link add rxe0 type rxe netdev v0",
    );
    told("").assert_absence(&format!(
        "{NO_DEVICE}; ib_uverbs is not loaded: if there is hardware, `modprobe ib_uverbs` and its \
         driver (inside a container, have the host do so)"
    ));
}

#[test]
fn more_than_the_device_has() {
    let Some(_guest) = guest() else { return };
    let settings = RdmaSettings::new().receive_buffers(40_000);
    let required = builder(Policy::Require).rdma(settings);
    assert_eq!(
        required.build().expect_err("too many").to_string(),
        refused(
            "RDMA device rxe0 cannot make a completion queue for the receive buffers and one \
             session: 40130 were asked for and its limit is 32767; lower receive_buffers or \
             send_requests"
        )
    );
}
