//! Nodes under a kernel or a sandbox that lets a process do less than usual: the session takes
//! another fabric, and says why.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use ibex::{Fabric, ListenErrorKind, Node, Raw};
use ibex_harness::process::{Process, copy_this_program};
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};

/// The variable that is set in a process that a test has started.
const CHILD: &str = "SANDBOXED_CHILD";

/// Returns whether this process is the child of `test`.
fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Starts `test` of this program once more as the child of this process, by `wrapper`.
fn child_of(test: &str, program: &Path, wrapper: &[&str]) {
    let mut child = match wrapper {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut wrapped = Command::new(first);
            wrapped.args(rest).arg(program);
            wrapped
        }
    };
    let child = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
    assert!(child.status().expect("it starts").success(), "{test}");
}

/// A folder with a copy of this program that every user may run.
struct Copy(PathBuf);

impl Copy {
    fn new(test: &str) -> Self {
        let folder = format!("ibex-sandboxed-{}-{test}", std::process::id());
        let folder = env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        copy_this_program(&folder.join("program")).expect("room");
        Self(folder)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the cleaning of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns this program.
fn here() -> PathBuf {
    env::current_exe().expect("this program has a path")
}

/// Meets a node of this process, exchanges a message, and returns the reason for the fabric.
fn meet_oneself() -> (Fabric, String) {
    let listening = Node::builder()
        .listen("127.0.0.1:0")
        .build()
        .expect("a node");
    let client = Node::client().expect("another");
    let there = client.connect(listening.local_addr().expect("it listens"));
    let there = there.expect("a session");
    let here = listening.accept().expect("the same session");
    let raw = there.channel("log").codec::<Raw>();
    let mut sender = raw.sender::<[u8]>().expect("an end");
    let raw = here.channel("log").codec::<Raw>();
    let mut receiver = raw.receiver::<[u8]>().expect("the other");
    sender.send(b"passed").expect("room");
    assert_eq!(&receiver.recv().expect("it came")[..], b"passed");
    (there.fabric(), there.fabric_reason().to_owned())
}

/// Has the kernel answer one system call with an error, in this process, from now on.
fn deny(call: libc::c_long, errno: i32) {
    let statement = |code: u32, k: u32, [jt, jf]: [u8; 2]| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        // The number of the system call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, [0, 0]),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            call as u32,
            [0, 1],
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno as u32,
            [0, 0],
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, [0, 0]),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: prctl(2) reads numbers, and the filter through a pointer that is valid during the
    // call. `TSYNC` has no place here: the test's thread makes all threads that follow.
    let (unprivileged, filtered) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ),
        )
    };
    assert_eq!((unprivileged, filtered), (0, 0), "this kernel has seccomp");
}

#[test]
fn without_memory_files_a_session_takes_tcp() {
    if is_child() {
        deny(libc::SYS_memfd_create, libc::EPERM);
        let (fabric, reason) = meet_oneself();
        assert_eq!(fabric, Fabric::Tcp, "{reason}");
        let why = "not shm: the kernel or sandbox of the connecting node gives it no memory files";
        assert!(reason.contains(why), "{reason}");
    } else {
        child_of("without_memory_files_a_session_takes_tcp", &here(), &[]);
    }
}

#[test]
fn without_fallocate_a_session_takes_tcp() {
    if is_child() {
        deny(libc::SYS_fallocate, libc::EOPNOTSUPP);
        let (fabric, reason) = meet_oneself();
        assert_eq!(fabric, Fabric::Tcp, "{reason}");
    } else {
        child_of("without_fallocate_a_session_takes_tcp", &here(), &[]);
    }
}

#[test]
fn with_a_restricted_proc_the_reason_is_the_file_that_cannot_be_read() {
    if is_child() {
        let (_, reason) = meet_oneself();
        let why = "not shm: the connecting node cannot tell which host it runs on";
        assert!(reason.contains(why), "{reason}");
        assert!(!reason.contains("different hosts"), "{reason}");
    } else if geteuid().is_root() {
        // As systemd's ProcSubset=pid has it.
        let mounted = "mount -t proc -o subset=pid proc /proc && exec \"$0\" \"$@\"";
        let wrapper = ["unshare", "--mount", "sh", "-c", mounted];
        child_of(
            "with_a_restricted_proc_the_reason_is_the_file_that_cannot_be_read",
            &here(),
            &wrapper,
        );
    } else {
        println!("only root mounts /proc anew, so nothing is tested");
    }
}

#[test]
fn a_thread_that_cannot_be_made_is_named() {
    let test = "a_thread_that_cannot_be_made_is_named";
    if is_child() {
        let one = Rlimit {
            current: Some(1),
            maximum: Some(1),
        };
        setrlimit(Resource::Nproc, one).expect("a lower limit");
        let error = Node::client().expect_err("no thread is to be had");
        assert_eq!(error.kind(), ListenErrorKind::Resources);
        let why = "cannot start the node: the thread ibex-io could not be made (Resource";
        assert!(error.to_string().starts_with(why), "{error}");
        assert!(error.to_string().contains("ulimit -u"), "{error}");
    } else if geteuid().is_root() {
        // Root may have any number.
        let copy = Copy::new("threads");
        let as_user = [
            "setpriv",
            "--reuid",
            "3003",
            "--regid",
            "3003",
            "--clear-groups",
        ];
        child_of(test, &copy.0.join("program"), &as_user);
    } else {
        child_of(test, &here(), &[]);
    }
}

/// Two users that no user namespace maps are both shown as the overflow uid, to themselves and to
/// each other.
#[test]
fn two_users_that_nothing_maps_get_no_shared_memory() {
    const ADDRESS: &str = "SANDBOXED_ADDRESS";
    let test = "two_users_that_nothing_maps_get_no_shared_memory";
    if is_child() {
        let node = Node::builder()
            .listen("127.0.0.1:0")
            .build()
            .expect("a node");
        let peer = match env::var(ADDRESS) {
            Ok(address) => node.connect(address.as_str()),
            Err(_) => {
                println!("address: {}", node.local_addr().expect("it listens"));
                node.accept()
            }
        };
        let peer = peer.expect("a session");
        println!("reason: {}", peer.fabric_reason());
        // The other end sees the session before it is closed.
        assert_eq!(node.close(Duration::from_secs(60)).undelivered.len(), 0);
        return;
    }
    if !geteuid().is_root() {
        println!("only root runs programs as other users, so nothing is tested");
        return;
    }
    let copy = Copy::new("users");
    // Each in a user namespace that maps nobody, so that both have the overflow uid.
    let as_user = |user: &str| {
        let mut program = Command::new("setpriv");
        let ids = ["--reuid", user, "--regid", user, "--clear-groups"];
        program
            .args(ids)
            .args(["unshare", "--user"])
            .arg(copy.0.join("program"));
        program
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1");
        program.stdout(Stdio::piped());
        program
    };
    let mut listening = Process::start("the listener", &mut as_user("3001")).expect("it starts");
    let address = listening.hear("address: ").expect("it listens");
    let mut connecting = as_user("3002");
    let connecting = Process::start("the dialer", connecting.env(ADDRESS, address));
    let there = connecting.expect("it starts").hear_out();
    for reason in [listening.hear_out(), there] {
        let reason = reason.expect("it succeeds");
        let why = "tcp: not shm: the connecting node runs as a user that its user namespace";
        assert!(reason.contains(why), "{reason}");
    }
}
