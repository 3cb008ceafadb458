//! Processes of one host that walls are between: another user, another network namespace.
//!
//! Only root makes such processes. In a run without root's rights nothing is tested, and it says so.
#![forbid(unsafe_code)]

mod namespace;

use std::{
    env,
    fs::{self, File},
    io::{BufRead, stdin},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use ibex::{Fabric, Node, NodeBuilder, Peer, Raw, Region, shared_memory::ShareWith};
use ibex_harness::process::{Process, copy_this_program};
use rustix::process::{geteuid, getpid};

/// The test of which this process is the child, if it is one.
const CHILD: &str = "ONE_HOST_CHILD";
/// The address that a child connects to.
const ADDRESS: &str = "ONE_HOST_ADDRESS";
/// Users and groups that need no names.
const USER: &str = "3001";
const GROUP: &str = "4001";

/// A folder that every user may enter, with a copy of this program.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("ibex-one-host-{}-{test}", std::process::id());
        // Sockets are made on tmpfs.
        let folder = Path::new("/dev/shm").join(name);
        fs::create_dir_all(folder.join("sockets")).expect("a folder");
        let entered = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&folder, entered).expect("it is ours");
        copy_this_program(&folder.join("program")).expect("room");
        let shared = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(folder.join("sockets"), shared).expect("it is ours");
        Self(folder)
    }

    /// Returns the command that runs `test` as a child, by `wrapper`.
    fn child(&self, test: &str, wrapper: &[&str]) -> Command {
        let program = self.0.join("program");
        let mut words = wrapper.iter().map(Path::new).chain([program.as_path()]);
        let mut command = Command::new(words.next().expect("a program"));
        command
            .args(words)
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, test)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn sockets(&self) -> PathBuf {
        self.0.join("sockets")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the cleaning of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Words before a program that runs as another user.
const AS_USER: &[&str] = &[
    "setpriv", "--reuid", USER, "--regid", USER, "--groups", GROUP,
];

/// Returns the child of `test` that this process is not, or nothing if it is.
fn is_child(test: &str) -> bool {
    env::var(CHILD).is_ok_and(|child| child == test)
}

fn has_rights() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("only root runs programs as other users, so nothing is tested");
    }
    is_root
}

/// Returns a listening node and its address.
fn listening(builder: NodeBuilder) -> (Node, String) {
    let node = builder.listen("127.0.0.1:0").build().expect("a node");
    let address = node.local_addr().expect("it listens").to_string();
    (node, address)
}

/// Waits for the session of a child, or panics when the child has ended without one.
fn accept(node: &Node, child: &mut Process) -> Peer {
    loop {
        match node.accept_timeout(Duration::from_millis(100)) {
            Ok(peer) => return peer,
            Err(_) => child.check().expect("the child connects"),
        }
    }
}

fn connect(builder: NodeBuilder) -> (Node, Peer) {
    let node = builder.build().expect("a node");
    let address = env::var(ADDRESS).expect("the parent names it");
    let peer = node.connect(address.as_str()).expect("a session");
    (node, peer)
}

/// The bytes of a message.
fn bytes_of(number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(500) {
        3 << 20
    } else {
        number % 5000
    };
    (0..length).map(|at| (at ^ number) as u8).collect()
}

/// Sends messages of many lengths and receives them back.
fn send_and_hear(peer: &Peer) {
    let channel = |name| {
        let channel = peer.channel(name).codec::<Raw>();
        channel.window_bytes(256 << 10).max_message_bytes(4 << 20)
    };
    let mut there = channel("there").sender::<[u8]>().expect("an end");
    let mut back = channel("back").receiver::<[u8]>().expect("the other");
    for number in 1..=MESSAGES {
        let slice = Region::from(bytes_of(number)).slice(..);
        let header = &slice[..slice.len().min(number % 20)];
        there.send_region((header, &slice)).expect("room");
        let message = back.recv().expect("the echo");
        assert_eq!(message[..], bytes_of(number), "message {number}");
        message.ack();
    }
    there.close().expect("the other end is there");
}

/// Sends back what comes, until the channel ends.
fn echo(peer: &Peer) {
    let channel = |name| {
        let channel = peer.channel(name).codec::<Raw>();
        channel.window_bytes(256 << 10).max_message_bytes(4 << 20)
    };
    let mut there = channel("there").receiver::<[u8]>().expect("an end");
    let mut back = channel("back").sender::<[u8]>().expect("the other");
    let mut number = 0;
    while let Ok(message) = there.recv() {
        number += 1;
        assert_eq!(message[..], bytes_of(number), "message {number}");
        let header = &message[..message.len().min(number % 20)];
        assert_eq!(message.header(), header, "message {number}");
        back.send(&message).expect("room");
    }
    assert_eq!(number, MESSAGES);
}

const MESSAGES: usize = 2000;

#[test]
fn users_who_allow_each_other_share_memory() {
    let test = "users_who_allow_each_other_share_memory";
    if is_child(test) {
        let (_node, peer) = connect(Node::builder().share_memory_with(ShareWith::Users(vec![0])));
        assert_eq!(peer.fabric(), Fabric::Shm, "{}", peer.fabric_reason());
        return send_and_hear(&peer);
    }
    if !has_rights() {
        return;
    }
    let folder = Folder::new(test);
    for share_with in [
        ShareWith::Anyone,
        ShareWith::Users(vec![1, 3001]),
        ShareWith::Group(3001),
        ShareWith::Group(4001),
    ] {
        let (node, address) = listening(Node::builder().share_memory_with(share_with));
        let mut child = folder.child(test, AS_USER);
        let mut child = Process::start("the other user", child.env(ADDRESS, address)).unwrap();
        let peer = accept(&node, &mut child);
        assert_eq!(peer.fabric(), Fabric::Shm, "{}", peer.fabric_reason());
        let why = "shm: same host, and both nodes share memory with other users";
        assert_eq!(peer.fabric_reason(), why);
        echo(&peer);
        child.finish().expect("the child's checks hold");
    }
}

/// A process of another user would map all of a region, so a message from there is copied: the
/// region is free at once, and is not mapped by the other end, even while it holds the message.
#[test]
fn another_user_is_not_shown_a_region() {
    let test = "another_user_is_not_shown_a_region";
    const REGION: usize = 8 << 20;
    if is_child(test) {
        let (_node, peer) = connect(Node::builder().share_memory_with(ShareWith::Anyone));
        assert_eq!(peer.fabric(), Fabric::Shm, "{}", peer.fabric_reason());
        let mut receiver = peer
            .channel("region")
            .codec::<Raw>()
            .receiver()
            .expect("an end");
        let message: ibex::Message<[u8], Raw> = receiver.recv().expect("a message");
        assert!(message.len() == 2 << 20 && message.iter().all(|&byte| byte == 7));
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        let segments = maps
            .lines()
            .filter(|line| line.contains("memfd:ibex-message"));
        let length = |line: &str| {
            let (start, rest) = line.split_once('-').expect("a range");
            let end = rest.split(' ').next().expect("its end");
            let address = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
            address(end) - address(start)
        };
        let lengths: Vec<_> = segments.map(length).collect();
        assert!(!lengths.is_empty() && lengths.iter().all(|&length| length < REGION));
        message.ack();
        return;
    }
    if !has_rights() {
        return;
    }
    let folder = Folder::new(test);
    let (node, address) = listening(Node::builder().share_memory_with(ShareWith::Anyone));
    let mut child = folder.child(test, AS_USER);
    let mut child = Process::start("the other user", child.env(ADDRESS, address)).unwrap();
    let peer = accept(&node, &mut child);
    let mut sender = peer
        .channel("region")
        .codec::<Raw>()
        .sender()
        .expect("an end");
    let mut region = Region::zeroed(REGION).expect("memory");
    region.get_mut().expect("nobody else has it")[5..][..2 << 20].fill(7);
    let slice = region.slice(5..5 + (2 << 20));
    sender.send_region(&slice).expect("room");
    drop(slice);
    assert!(region.is_free(), "{region:?}");
    sender.close().expect("delivered");
    child.finish().expect("the child's checks hold");
}

#[test]
fn users_whom_an_end_does_not_allow_get_tcp() {
    let test = "users_whom_an_end_does_not_allow_get_tcp";
    if is_child(test) {
        let (_node, peer) = connect(Node::builder());
        println!("reason: {}", peer.fabric_reason());
        return send_and_hear(&peer);
    }
    if !has_rights() {
        return;
    }
    let folder = Folder::new(test);
    for (ours, theirs, why) in [
        (
            ShareWith::Nobody,
            "anyone",
            "the nodes run as different users, and the listening node",
        ),
        (
            ShareWith::Anyone,
            "nobody",
            "the nodes run as different users, and the connecting node",
        ),
        (
            ShareWith::Users(vec![3002]),
            "anyone",
            "closed its Unix socket before",
        ),
        (
            ShareWith::Group(4002),
            "anyone",
            "closed its Unix socket before",
        ),
        (
            ShareWith::Anyone,
            "users:7",
            "the Unix socket belongs to another user (uid 0, ",
        ),
        (
            ShareWith::Anyone,
            "group:7",
            "the Unix socket belongs to another user (uid 0, ",
        ),
    ] {
        let (node, address) = listening(Node::builder().share_memory_with(ours.clone()));
        let mut child = folder.child(test, AS_USER);
        child.env("IBEX_SHARE_MEMORY_WITH", theirs);
        let mut child = Process::start("the other user", child.env(ADDRESS, address)).unwrap();
        let peer = accept(&node, &mut child);
        assert_eq!(peer.fabric(), Fabric::Tcp, "{}", peer.fabric_reason());
        let reason = child.hear("reason: ").expect("a reason");
        assert!(reason.contains(why), "{ours:?}, {theirs}: {reason}");
        echo(&peer);
        child.finish().expect("the child's checks hold");
    }
}

/// A user cannot change a message of its own after the other end has it. Two processes of one user
/// trust each other in this, which shows that the test reaches the messages.
#[test]
fn what_another_user_rewrites_is_not_read() {
    let test = "what_another_user_rewrites_is_not_read";
    if is_child(test) {
        let (_node, peer) = connect(Node::builder().share_memory_with(ShareWith::Anyone));
        assert_eq!(peer.fabric(), Fabric::Shm, "{}", peer.fabric_reason());
        let log = peer.channel("log").codec::<Raw>();
        let log = log.window_bytes(64 << 10).max_message_bytes(1 << 20);
        let mut log = log.sender::<[u8]>().expect("an end");
        for length in LENGTHS {
            log.send(&vec![WRITTEN; length]).expect("room");
        }
        heard();
        rewrite();
        println!("rewritten: all");
        heard();
        return;
    }
    if !has_rights() {
        return;
    }
    let folder = Folder::new(test);
    for (wrapper, is_changed) in [(AS_USER, false), (&[][..], true)] {
        let (node, address) = listening(Node::builder().share_memory_with(ShareWith::Anyone));
        let mut child = folder.child(test, wrapper);
        let mut child = Process::start("the writer", child.env(ADDRESS, address)).unwrap();
        let peer = accept(&node, &mut child);
        assert_eq!(peer.fabric(), Fabric::Shm, "{}", peer.fabric_reason());
        let log = peer.channel("log").codec::<Raw>();
        let log = log.window_bytes(64 << 10).max_message_bytes(1 << 20);
        let mut log = log.receiver::<[u8]>().expect("an end");
        let messages = LENGTHS.map(|_| log.recv().expect("a message"));
        child.say("go on").expect("it hears");
        child.hear("rewritten: ").expect("it rewrites");
        for (message, length) in messages.iter().zip(LENGTHS) {
            // By a copy through the kernel, since the memory of one user may change under a read.
            let mut bytes = vec![0; length];
            let own = File::open("/proc/self/mem").expect("/proc is mounted");
            own.read_exact_at(&mut bytes, message.as_ptr() as u64)
                .expect("the message is mapped");
            let expected = if is_changed { REWRITTEN } else { WRITTEN };
            assert!(bytes.iter().all(|byte| *byte == expected), "{length} bytes");
        }
        drop(messages);
        child.say("go on").expect("it hears");
        child.finish().expect("the child's checks hold");
    }
}

const LENGTHS: [usize; 3] = [48, 5000, 700 << 10];
const WRITTEN: u8 = 0xa7;
const REWRITTEN: u8 = 0x3c;

/// Waits for the parent's word.
fn heard() {
    let mut line = String::new();
    stdin()
        .lock()
        .read_line(&mut line)
        .expect("the parent speaks");
}

/// Writes over each long enough run of [`WRITTEN`] in memory that this process shares.
fn rewrite() {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem");
    let memory = memory.expect("/proc is mounted");
    let shared = |line: &&str| line.contains(" rw-s ") && line.contains("/memfd:ibex-");
    for line in maps.lines().filter(shared) {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut bytes = vec![0; (to - from) as usize];
        if memory.read_exact_at(&mut bytes, from).is_err() {
            continue;
        }
        for run in bytes.chunk_by_mut(|one, next| one == next) {
            if run[0] == WRITTEN && run.len() >= LENGTHS[0] {
                run.fill(REWRITTEN);
            }
        }
        memory.write_all_at(&bytes, from).expect("it is writable");
    }
}

#[test]
fn nodes_of_two_network_namespaces_meet_in_a_directory() {
    let test = "nodes_of_two_network_namespaces_meet_in_a_directory";
    if is_child(test) {
        // A namespace of its own, to which the parent makes a link.
        println!("child: {}", getpid().as_raw_nonzero());
        heard();
        let builder = Node::builder()
            .share_memory_with(ShareWith::Anyone)
            .listen("192.0.2.2:4100")
            .insecure_network();
        let node = builder.build().expect("a node");
        println!("listens: there");
        for _ in 0..3 {
            let peer = node.accept().expect("a session");
            echo(&peer);
        }
        return;
    }
    if !has_rights() || !namespace::is_inside(test) {
        return;
    }
    let folder = Folder::new(test);
    let in_namespace = ["unshare", "--net", "--"];
    let wrapper: Vec<_> = in_namespace.iter().chain(AS_USER).copied().collect();
    let mut child = folder.child(test, &wrapper);
    child.env("IBEX_SHARED_MEMORY_DIRECTORY", folder.sockets());
    let mut child = Process::start("the other namespace", &mut child).unwrap();
    let pid = child.hear("child: ").expect("it starts");
    link_to(pid.trim());
    child.say("go on").expect("it hears");
    child.hear("listens: ").expect("it listens");

    let elsewhere = folder.0.join("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a folder");
    for (directory, fabric, why) in [
        (
            Some(folder.sockets()),
            Fabric::Shm,
            "shm: same host, and both nodes share memory",
        ),
        (
            Some(elsewhere),
            Fabric::Tcp,
            "is not in this node's shared_memory_directory",
        ),
        (
            None,
            Fabric::Tcp,
            "the connecting node has no shared_memory_directory",
        ),
    ] {
        let mut builder = Node::builder().share_memory_with(ShareWith::Anyone);
        if let Some(directory) = directory {
            builder = builder.shared_memory_directory(directory);
        }
        let node = builder.build().expect("a node");
        let peer = node.connect("192.0.2.2:4100").expect("a session");
        let reason = peer.fabric_reason();
        assert_eq!(peer.fabric(), fabric, "{reason}");
        assert!(reason.contains(why), "{reason}");
        send_and_hear(&peer);
        let left = fs::read_dir(folder.sockets()).expect("it is ours").count();
        assert_eq!(left, 0, "the names of sockets are gone");
        let _ = node.close(Duration::from_secs(60));
    }
    child.finish().expect("the child's checks hold");
}

/// Makes a link from this network namespace to that of process `pid`.
fn link_to(pid: &str) {
    let run = |command: String| {
        let mut words = command.split_whitespace();
        let mut program = Command::new(words.next().expect("a program"));
        let status = program.args(words).status().expect("it starts");
        assert!(status.success(), "{command}");
    };
    run(format!("ip link add v0 type veth peer name v1 netns {pid}"));
    run("ip address add 192.0.2.1/24 dev v0".to_owned());
    run("ip link set v0 up".to_owned());
    let there = format!("nsenter -t {pid} -n");
    run(format!("{there} ip address add 192.0.2.2/24 dev v1"));
    run(format!("{there} ip link set v1 up"));
}
