//! Errors of nodes that are denied RDMA: those that require it, those that prefer it, and those
//! that leave the choice open.
//!
//! Most resources can be taken away only in the guest, by root; elsewhere those tests pass without
//! doing anything. Each starts this program again without some resource (rules in [`told`]), and
//! that process creates the nodes.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]

mod guest;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::thread;
use std::time::{Duration, Instant};

use guest::{Changed, guest, place_of_the_address, shell};
use ibex::rdma::{RdmaSettings, discover};
use ibex::{
    Driver, Event, Events, Fabric, ListenErrorKind, Message, Node, NodeBuilder, Peer, Policy, Raw,
    Receiver, Sender,
};
use ibex_harness::proxy::{Harm, Proxy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A watchdog's time: nothing here takes so long in any guest.
const PATIENCE: Duration = Duration::from_secs(300);

fn builder(verbs: Policy) -> NodeBuilder {
    let settings = match std::env::var_os("IBEX_TEST_LITTLE_MEMORY") {
        // The settings that the documentation of `ibex::rdma` proposes.
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
fn a_machine_without_rdma_says_so_to_who_did_not_insist() {
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
    // Holds also if the two have another fabric without asking for it.
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
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-e", "-c"])
        .arg(format!("{takes}\nexec \"$@\""))
        .arg("sh")
        .arg(program)
        .args(["a_node_where_something_is_missing", "--exact"])
        .args(["--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let mut said = BTreeMap::new();
    // Read by reference, since the pipe must stay open while the child writes.
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for line in &mut lines {
        let line = line.expect("text");
        if let Some((topic, text)) = line.split_once("| ") {
            said.insert(topic.to_owned(), text.to_owned());
            if topic == "address" {
                break;
            }
        }
    }
    let mut take = |topic| said.remove(topic).unwrap_or_else(|| panic!("no {topic}"));
    let address = take("address");
    let node = builder(Policy::Require).build();
    let dialed = node.map(|node| match node.connect(&address) {
        Ok(peer) => peer.fabric_reason().to_owned(),
        Err(error) => error.to_string(),
    });
    drop(child.stdin.take());
    assert!(child.wait().expect("it ran").success());
    Told {
        required: take("required"),
        preferred: take("preferred"),
        automatic: take("automatic"),
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
    // Until the reading process is done.
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
                 {why}; use `Prefer` to allow another fabric"
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
    // The default limit of systemd.
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
    // Not for two in one process: the first has its session's memory pinned as well.
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

/// Two nodes that require verbs, and a channel from the second to the first.
struct Met {
    nodes: [Node; 2],
    peers: [Peer; 2],
    sender: Sender<[u8], Raw>,
    receiver: Receiver<[u8], Raw>,
}

impl Met {
    fn new() -> Self {
        let server = builder(Policy::Prefer).listen("127.0.0.1:0").build();
        let client = builder(Policy::Prefer).build();
        Self::of([server.expect("a node"), client.expect("a node")])
    }

    fn of(nodes: [Node; 2]) -> Self {
        let address = nodes[0].local_addr().expect("it listens");
        let dialed = nodes[1].connect(address).expect("a session");
        let accepted = nodes[0].accept().expect("a peer");
        let sender = dialed.channel("said").codec::<Raw>().sender();
        let receiver = accepted.channel("said").codec::<Raw>().receiver();
        let mut met = Self {
            nodes,
            peers: [accepted, dialed],
            sender: sender.expect("an end"),
            receiver: receiver.expect("an end"),
        };
        met.carry();
        met
    }

    fn carry(&mut self) {
        self.sender.send(&[7; 64]).expect("sent");
        assert_eq!(self.receiver.recv().expect("a message")[..], [7; 64]);
    }

    /// Sends until the session moves to tcp, without a loss. Returns the reason for the move.
    fn why_moved(&mut self) -> String {
        let mut events = self.nodes[1].events();
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < PATIENCE {
            self.sender.send(&[7; 64]).expect("sent");
            sent += 1;
            while let Some(event) = events.try_next() {
                if let Event::FabricChanged { to, reason, .. } = event {
                    assert_eq!(to, Fabric::Tcp);
                    for _ in 0..sent {
                        assert_eq!(self.receiver.recv().expect("a message")[..], [7; 64]);
                    }
                    return reason;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the session goes on as before");
    }

    /// Connects the same nodes once more.
    fn meet_again(self) -> Self {
        let Self { nodes, .. } = self;
        Self::of(nodes)
    }
}

#[test]
fn a_port_that_goes_down_under_a_session_is_why_it_goes_over_tcp_and_the_next_one_works() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let changed = Changed::by("ip link set v0 down", "ip link set v0 up");
    let cause = met.why_moved();
    assert!(cause.contains("rxe0"), "{cause}");
    // The error of the port itself, or that of the next attempt to use it.
    assert!(
        cause.contains("port 1: Error") || cause.contains(" is DOWN"),
        "{cause}"
    );
    drop(changed);
    met.carry();
    assert!(met.peers.iter().all(|peer| peer.fabric() == Fabric::Tcp));
    met.meet_again().carry();
}

#[test]
fn an_idle_session_outlives_a_port_that_was_down() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    drop(Changed::by("ip link set v0 down", "ip link set v0 up"));
    // The port becomes active a moment later.
    let state = "/sys/class/infiniband/rxe0/ports/1/state";
    let start = Instant::now();
    while !fs::read_to_string(state).is_ok_and(|state| state.contains("ACTIVE")) {
        assert!(start.elapsed() < PATIENCE, "the port stays down");
        thread::sleep(Duration::from_millis(10));
    }
    met.carry();
}

#[test]
fn an_address_that_goes_and_comes_back_at_another_index() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let before = place_of_the_address().expect("the device has it");
    // Another address takes its place in the table.
    let _changed = Changed::by(
        "ip address del 192.0.2.1/24 dev v0; ip address add 198.51.100.9/24 dev v0; \
         ip address add 192.0.2.1/24 dev v0",
        "ip address del 198.51.100.9/24 dev v0",
    );
    let start = Instant::now();
    let after = loop {
        // The table follows a moment later.
        match place_of_the_address() {
            Some(place) if place != before => break place,
            place => assert!(start.elapsed() < PATIENCE, "{place:?} as {before}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    for _ in 0..10 {
        met.carry();
        thread::sleep(Duration::from_millis(100));
    }
    for peer in &met.peers {
        let stats = peer.stats();
        let (broke, went_on) = (stats.suspensions, stats.resumes);
        assert_eq!(broke, went_on, "from place {before} to {after}");
        assert!(!peer.is_gone());
    }
    met.meet_again().carry();
}

#[test]
fn another_mtu_under_a_session() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let _changed = Changed::by("ip link set v0 mtu 4200", "ip link set v0 mtu 1500");
    met.carry();
    met.meet_again().carry();
}

// ---- A device that goes -------------------------------------------------------------

/// A command that removes a device, and waits until every process has closed it.
struct Removal {
    command: &'static str,
    child: Child,
    begun: Instant,
}

impl Removal {
    fn begin(command: &'static str) -> Self {
        let child = Command::new("sh").args(["-e", "-c", command]).spawn();
        Self {
            command,
            child: child.expect("a shell"),
            begun: Instant::now(),
        }
    }

    /// Returns the time that the removal took. A removal that waits forever cannot be ended, nor
    /// can its waiting parent.
    fn took(mut self) -> Duration {
        loop {
            let status = self.child.try_wait().expect("its status");
            if let Some(status) = status {
                assert!(status.success(), "{}", self.command);
                return self.begun.elapsed();
            }
            let waits = self.begun.elapsed() < PATIENCE;
            assert!(waits, "`{}` waits for us", self.command);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

type Held = VecDeque<Message<[u8], Raw>>;

/// Receives messages until the channel is over, and keeps the last ones. Returns the number
/// received.
fn take_all(mut receiver: Receiver<[u8], Raw>) -> (Held, u64) {
    let (mut held, mut count) = (Held::new(), 0);
    while let Some(message) = receiver.next().expect("nothing fails") {
        count += 1;
        // One message came before, when they met.
        assert_eq!(message.sequence(), count + 1);
        held.push_back(message);
        if held.len() > 100 {
            held.pop_front();
        }
    }
    (held, count)
}

/// Removes the device under two nodes in the middle of a stream, with every kind of handle kept. It
/// is closed at once, the session continues over tcp, so does the next one, and one uses the device
/// again when it is back.
fn removed_in_use(removes: &'static str, brings_back: &'static str) {
    let idle = builder(Policy::Require).listen("127.0.0.1:0").build();
    let idle = idle.expect("a node without sessions");
    let server = builder(Policy::Prefer).listen("127.0.0.1:0").build();
    let client = builder(Policy::Prefer).build();
    let met = Met::of([server.expect("a node"), client.expect("a node")]);
    let (mut sender, receiver) = (met.sender, met.receiver);
    assert!(met.peers.iter().all(|peer| peer.fabric() == Fabric::Verbs));

    let taken = thread::spawn(|| take_all(receiver));
    let is_enough = Arc::new(AtomicBool::new(false));
    let has_enough = is_enough.clone();
    let sends = thread::spawn(move || {
        let mut sent = 0_u64;
        while !has_enough.load(Ordering::Relaxed) {
            sender.send(&[7; 64]).expect("sent");
            sent += 1;
        }
        sender.close().expect("delivered");
        sent
    });
    thread::sleep(Duration::from_millis(200));
    let took = Removal::begin(removes).took();
    // Every kept handle still exists. The time limit is tested elsewhere, over a device made of
    // memory and with a clock that stops when the machine does.
    println!("`{removes}` took {took:?}");
    let start = Instant::now();
    while met.peers.iter().any(|peer| peer.fabric() != Fabric::Tcp) {
        assert!(start.elapsed() < PATIENCE, "the session goes on as before");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(200));
    is_enough.store(true, Ordering::Relaxed);
    let sent = sends.join().expect("all are sent");
    let (held, received) = taken.join().expect("all are there");
    assert_eq!(sent, received);
    assert!(held.iter().all(|message| message[..] == [7; 64]));

    let address = met.nodes[0].local_addr().expect("it listens");
    let without = met.nodes[1].connect(address).expect("a session");
    assert_eq!(without.fabric(), Fabric::Tcp);
    let reason = without.fabric_reason();
    assert!(
        reason.contains("this machine has no RDMA device"),
        "{reason}"
    );
    let idle = idle.local_addr().expect("it listens");
    let refused = met.nodes[1].connect(idle).expect_err("it insists");
    assert!(refused.to_string().contains("no RDMA device"), "{refused}");

    shell(brings_back);
    let _accepted = met.nodes[0].accept().expect("the session without");
    let again = Met::of(met.nodes);
    let is_back = |peer: &Peer| peer.fabric() == Fabric::Verbs;
    assert!(again.peers.iter().all(is_back));
    drop(held);
}

#[test]
fn a_device_that_is_removed_in_use_is_closed_at_once() {
    let Some(_guest) = guest() else { return };
    removed_in_use(
        "rdma link delete rxe0",
        "rdma link add rxe0 type rxe netdev v0",
    );
}

#[test]
fn a_network_interface_that_is_removed_in_use_takes_the_device_with_it() {
    let Some(_guest) = guest() else { return };
    removed_in_use(
        "ip link delete v0",
        "ip link add v0 type veth peer name v1; ip address add 192.0.2.1/24 dev v0; \
         ip link set v0 up; ip link set v1 up; rdma link add rxe0 type rxe netdev v0",
    );
}

/// Returns message `number`, of a length that fits one receive buffer, or several, or none.
fn numbered(number: u64) -> Vec<u8> {
    let length = 8 + match number % 50 {
        0 => 200_000,
        1..10 => 20_000,
        _ => number as usize * 31 % 3000,
    };
    let mut bytes = vec![number as u8; length];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns the changes of fabric that an end of a session reports, up to one to `last`.
fn changes_until(events: &mut Events, last: Fabric) -> Vec<(Fabric, Fabric)> {
    let mut changes = Vec::new();
    let until = Instant::now() + PATIENCE;
    while let Some(event) = events.next_timeout(until.saturating_duration_since(Instant::now())) {
        println!("{event}");
        if let Event::FabricChanged { from, to, .. } = event {
            changes.push((from, to));
            if to == last {
                return changes;
            }
        }
    }
    panic!("the session does not go over {last}: {changes:?}");
}

#[test]
fn a_session_whose_device_was_away_goes_back_to_it_when_its_connection_breaks() {
    let Some(_guest) = guest() else { return };
    let goes_back = || {
        // Few, so that they are registered quickly.
        let settings = RdmaSettings::new().receive_buffers(512).held_buffers(512);
        let builder = builder(Policy::Prefer).rdma(settings.max_sessions(64));
        builder.fail_over_after(Duration::ZERO).fail_back(true)
    };
    let server = goes_back().listen("127.0.0.1:0").build();
    let server = server.expect("a node");
    let client = goes_back().build().expect("a node");
    let mut events = [&server, &client].map(Node::events);
    let proxy = Proxy::start(server.local_addr().expect("it listens")).expect("a proxy");
    let dialed = client.connect(proxy.address()).expect("a session");
    let accepted = server.accept().expect("a peer");
    let peers = [&accepted, &dialed];
    assert!(peers.iter().all(|peer| peer.fabric() == Fabric::Verbs));
    let sender = dialed.channel("said").codec::<Raw>().sender();
    let receiver = accepted.channel("said").codec::<Raw>().receiver();
    let mut sender: Sender<[u8], Raw> = sender.expect("an end");
    let mut receiver: Receiver<[u8], Raw> = receiver.expect("an end");

    let takes = thread::spawn(move || {
        let mut count = 0;
        while let Some(message) = receiver.next().expect("nothing fails") {
            count += 1;
            assert!(message[..] == numbered(count)[..], "message {count}");
        }
        count
    });
    let is_enough = Arc::new(AtomicBool::new(false));
    let has_enough = is_enough.clone();
    let sends = thread::spawn(move || {
        let mut sent = 0;
        while !has_enough.load(Ordering::Relaxed) {
            sender.send(&numbered(sent + 1)).expect("sent");
            sent += 1;
            // The guest's other tasks need time, too.
            thread::sleep(Duration::from_millis(1));
        }
        sender.close().expect("delivered");
        sent
    });
    let a_while = || thread::sleep(Duration::from_millis(200));

    a_while();
    let changed = Changed::by(
        "rdma link delete rxe0",
        "rdma link show rxe0/1 > /dev/null 2>&1 || rdma link add rxe0 type rxe netdev v0",
    );
    for events in &mut events {
        let changes = changes_until(events, Fabric::Tcp);
        assert_eq!(changes, [(Fabric::Verbs, Fabric::Tcp)]);
    }
    drop(changed);
    // The device is back, as a new session shows, and the old session continues as it is.
    let address = server.local_addr().expect("it listens");
    let other = client.connect(address).expect("another session");
    let _accepted = server.accept().expect("the same");
    assert_eq!(other.fabric(), Fabric::Verbs);
    a_while();
    assert!(peers.iter().all(|peer| peer.fabric() == Fabric::Tcp));
    let begun = Instant::now();
    let are_back = || peers.iter().all(|peer| peer.fabric() == Fabric::Verbs);
    while !are_back() {
        assert!(begun.elapsed() < PATIENCE, "it stays over tcp");
        assert!(proxy.harm_one(Harm::Cut, Duration::ZERO));
        // It asks once for each outage, and a busy guest may take longer than it waits.
        let tried = Instant::now();
        while !are_back() && tried.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(10));
        }
    }
    for events in &mut events {
        let changes = changes_until(events, Fabric::Verbs);
        assert_eq!(changes, [(Fabric::Tcp, Fabric::Verbs)]);
    }
    a_while();
    is_enough.store(true, Ordering::Relaxed);
    let sent: u64 = sends.join().expect("all are sent");
    assert_eq!(takes.join().expect("all are there"), sent);
    assert!(are_back());
    println!("{sent} messages");
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
