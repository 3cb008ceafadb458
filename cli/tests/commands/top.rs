//! `ibex top`: on a screen, as a table and as JSON, of a node under load.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ibex::prelude::*;
use ibex::{Fabric, Node, Policy, Raw};
use ibex_harness::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::machine::{code, ibex, page};

/// A node that is inspected, and sends to another one over two channels: one flows, and the
/// receiver of the other holds messages.
struct Load {
    near: Node,
    far: Node,
    /// Ends the flow.
    is_over: Arc<AtomicBool>,
    /// Lets the receiver release what it holds, and go on without holding.
    release: mpsc::Sender<()>,
    threads: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

/// Messages that fill the window of the channel whose receiver holds them.
const WINDOW: u64 = 16;

impl Load {
    fn new(name: &str) -> Self {
        let socket = format!("ibex-top-{}-{name}.sock", process::id());
        let socket = std::env::temp_dir().join(socket);
        let builder = || {
            let none: [(&str, &str); 0] = [];
            let builder = Node::builder().environment(none);
            builder.fabric(Fabric::Tcp, Policy::Require)
        };
        let far = builder().name("far").listen("127.0.0.1:0").build();
        let far = far.expect("a node");
        let near = builder().name(name).inspect_at(&socket).build();
        let near = near.expect("a node");
        let to_far = near.connect(far.local_addr().expect("it listens"));
        let to_far = to_far.expect("a session");
        let to_near = far.accept().expect("the same");

        let is_over = Arc::<AtomicBool>::default();
        let (release, released) = mpsc::channel();
        let flow = to_far.channel("flow").codec::<Raw>().sender::<[u8]>();
        let flow_in = to_near.channel("flow").codec::<Raw>().receiver::<[u8]>();
        let held = to_far
            .channel("held")
            .window_messages(WINDOW)
            .codec::<Raw>();
        let held = held.sender::<[u8]>();
        let held_in = to_near.channel("held").codec::<Raw>().receiver::<[u8]>();
        let (mut flow, mut flow_in) = (flow.expect("an end"), flow_in.expect("an end"));
        let (mut held, mut held_in) = (held.expect("an end"), held_in.expect("an end"));
        let over = is_over.clone();
        let threads = vec![
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    flow.send(&[0; 1000]).expect("it goes on");
                    // A hundred in a blink are load enough for a busy machine.
                    thread::sleep(Duration::from_micros(100));
                }
                flow.close().expect("in order");
            }),
            thread::spawn(move || while flow_in.next().expect("in order").is_some() {}),
            thread::spawn(move || {
                for _ in 0..2 * WINDOW {
                    held.send(b"held").expect("room comes");
                }
                held.close().expect("in order");
            }),
            thread::spawn(move || {
                let first: Vec<_> = (0..WINDOW).map(|_| held_in.recv().expect("sent")).collect();
                released.recv().expect("the test goes on");
                drop(first);
                while held_in.next().expect("in order").is_some() {}
            }),
        ];
        Self {
            near,
            far,
            is_over,
            release,
            threads,
            socket,
        }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.release.send(());
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no thread fails"));
        drop((self.near, self.far));
    }

    fn socket(&self) -> &str {
        self.socket.to_str().expect("text")
    }
}

/// The command on a terminal that the test reads.
struct Terminal {
    process: Process,
    controller: File,
    screen: vt100::Parser,
}

impl Terminal {
    fn new(arguments: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let controller = controller.expect("a terminal");
        grantpt(&controller).expect("it is this user's");
        unlockpt(&controller).expect("it may be opened");
        let name = ptsname(&controller, Vec::new()).expect("its name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(name.as_c_str(), flags, Mode::empty()).expect("the other side");
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).expect("a size");
        let stdio = || OwnedFd::try_clone(&terminal).expect("another descriptor");
        // The terminal of whoever runs the test is not the command's.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_ibex"));
        command.args(arguments).env("TERM", "xterm-256color");
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        Self {
            process: Process::start("ibex top", &mut command).expect("the command runs"),
            controller: File::from(controller),
            screen: vt100::Parser::new(at_least_one(ROWS), at_least_one(COLUMNS), 0),
        }
    }

    /// Reads until the screen's words are as `wanted` says. Returns them with a space between each
    /// two.
    fn await_screen(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let words = words(&self.screen.screen().contents());
            if wanted(&words) {
                return words;
            }
            assert!(self.read(deadline), "the screen is: {words}");
        }
    }

    /// Reads to the command's end. Returns its exit code.
    fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + WATCHDOG;
        while self.read(deadline) {}
        self.process.wait().expect("its end").code()
    }

    /// Returns whether there was anything to read.
    fn read(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("minutes");
        let mut fds = [PollFd::from_borrowed_fd(
            self.controller.as_fd(),
            PollFlags::IN,
        )];
        let ready = poll(&mut fds, Some(&left)).expect("a descriptor");
        assert_ne!(
            ready,
            0,
            "nothing came: {}",
            self.screen.screen().contents()
        );
        let mut bytes = [0; 4096];
        // EIO says that nobody has the other side.
        let length = self.controller.read(&mut bytes).unwrap_or(0);
        self.screen.process(&bytes[..length]);
        length > 0
    }

    fn press(&mut self, key: &str) {
        let pressed = self.controller.write_all(key.as_bytes());
        pressed.expect("the terminal is there");
    }
}

fn at_least_one(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a size")
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_screen_follows_a_node_and_warns_in_words() {
    let load = Load::new("screen");
    let mut terminal = Terminal::new(&["top", load.socket(), "--interval-ms", "100"]);
    let seen = terminal.await_screen(|words| {
        words.contains("Sends on channel held to far wait for room")
            && words.contains("the receiver is the slower end")
            && words.contains("held sender open 0 16 16 2 MiB 100 %")
    });
    assert!(seen.contains("screen (commands-"), "{seen}");
    assert!(seen.contains("over tcp: out"), "{seen}");
    assert!(seen.contains("tcp because: required by"), "{seen}");
    assert!(seen.contains("raise `window_messages`"), "{seen}");
    load.release.send(()).expect("the receiver waits");
    terminal.await_screen(|words| !words.contains("wait for room"));
    terminal.await_screen(|words| {
        words.contains("slowest messages of the last minute")
            && words.contains("message 17 of held to far: ")
            && words.contains("waiting for room in the window")
    });
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    assert!(!terminal.screen.screen().alternate_screen());

    let mut terminal = Terminal::new(&["top", load.socket(), "--interval-ms", "100"]);
    terminal.await_screen(|words| words.contains("flow sender open"));
    load.end();
    assert_eq!(terminal.end(), Some(1));
    let left = words(&terminal.screen.screen().contents());
    assert!(left.contains("ibex: the node has ended"), "{left}");
}

#[test]
fn one_table_and_the_raw_answer_are_for_scripts() {
    let load = Load::new("table");
    let output = ibex(&["top", load.socket(), "--once"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let table = page(&output);
    assert!(table.starts_with("table (commands-"), "{table}");
    assert!(table.contains("up        far at 127.0.0.1:"), "{table}");
    // The first look may be before the sender waits; the figure is exact, the moment is not.
    assert!(words(&table).contains("held sender open"), "{table}");
    // A pipe is no screen.
    let output = ibex(&["top", load.socket()]);
    assert!(page(&output).starts_with("table (commands-"), "{output:?}");
    let output = ibex(&["top", load.socket(), "--json"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&answer["version"], &answer["name"]),
        (&1.into(), &"table".into())
    );
    load.end();
}

#[test]
fn nodes_are_found_by_their_process_and_listed_if_they_are_several() {
    let node = |name: &str| {
        Node::builder()
            .name(name)
            .inspect()
            .build()
            .expect("a node")
    };
    let (one, other) = (node("listed-one"), node("listed-other"));
    let pid = process::id().to_string();
    let output = ibex(&["top", &pid]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = words(&page(&output));
    assert!(text.starts_with("Several nodes can be inspected"), "{text}");
    assert!(
        text.contains("listed-one (") && text.contains("listed-other ("),
        "{text}"
    );
    let output = ibex(&["top", &pid, "--json"]);
    let lines = String::from_utf8(output.stdout).expect("text");
    let names = lines.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        answer["name"].as_str().expect("a name").to_owned()
    });
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["listed-one", "listed-other"]);
    let path = ibex::inspect::path_of(&one).expect("a path").to_owned();
    // The command's environment may have another runtime folder than the nodes'.
    let folder = std::env::temp_dir().join(format!("ibex-top-{pid}-runtime"));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.expect("a folder");
    let elsewhere = Command::new(env!("CARGO_BIN_EXE_ibex"))
        .args(["top", &pid, "--json"])
        .env("XDG_RUNTIME_DIR", &folder)
        .output();
    let elsewhere = elsewhere.expect("the command runs");
    std::fs::remove_dir(&folder).expect("nothing was made there");
    // An unusual runtime folder of this process cannot be known there.
    if ["/run/user/", "/tmp/ibex-"]
        .iter()
        .any(|usual| path.to_string_lossy().starts_with(usual))
    {
        assert_eq!(code(&elsewhere), 0, "{elsewhere:?}");
        let lines = String::from_utf8_lossy(&elsewhere.stdout).lines().count();
        assert_eq!(lines, 2, "{elsewhere:?}");
    }
    drop((one, other));
    let mut dead = Command::new("true").spawn().expect("a process");
    dead.wait().expect("its end");
    let dead = dead.id().to_string();
    let no_socket = env!("CARGO_MANIFEST_DIR");
    for (gone, says, expected) in [
        (path.to_str().expect("text"), "there is no such socket", 4),
        (no_socket, "this is no socket", 4),
        (
            &pid,
            "runs, and no node of it can be inspected: looked in ",
            4,
        ),
        (&dead, "no process ", 4),
        ("word", "`word` is neither the number of a process nor", 2),
    ] {
        let output = ibex(&["top", gone]);
        assert_eq!(code(&output), expected, "{output:?}");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn the_first_screen_of_an_idle_node_has_no_rates() {
    let socket = std::env::temp_dir().join(format!("ibex-top-{}-idle.sock", process::id()));
    let far = Node::listen("127.0.0.1:0").expect("a node");
    let near = Node::builder().inspect_at(&socket).build().expect("a node");
    let to_far = near.connect(far.local_addr().expect("it listens"));
    let to_far = to_far.expect("a session");
    let to_near = far.accept().expect("the same");
    let sender = to_far.channel("past").codec::<Raw>().sender::<[u8]>();
    let receiver = to_near.channel("past").codec::<Raw>().receiver::<[u8]>();
    let (mut sender, mut receiver) = (sender.expect("an end"), receiver.expect("an end"));
    for _ in 0..1000 {
        sender.send(b"past").expect("room comes");
        receiver.recv().expect("sent");
    }
    let socket = socket.to_str().expect("text");
    let mut terminal = Terminal::new(&["top", socket]);
    let seen = terminal.await_screen(|words| words.contains("q leaves"));
    assert!(seen.contains("sent 0/s"), "{seen}");
    assert!(seen.contains("past sender open 0 "), "{seen}");
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn what_answers_otherwise_is_told() -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("ibex-top-{}-other.sock", process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    let at = path.clone();
    let asked = thread::spawn(move || ibex(&["top", at.to_str().expect("text"), "--once"]));
    listener.accept()?.0.write_all(b"{\"version\":2}\n")?;
    let output = asked.join().expect("it ends");
    assert_eq!(code(&output), 1, "{output:?}");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("the node answers in version 2"), "{why}");
    std::fs::remove_file(path)
}

/// Lines of the screen: enough for all that the tests look for.
const ROWS: u16 = 60;
const COLUMNS: u16 = 100;
const WATCHDOG: Duration = Duration::from_secs(600);
