//! An idle pair costs nothing: below 1 % of a core in either process, and no wake-up that only time
//! caused. The same holds for a process whose peer takes nothing or has closed its end, and for one
//! that waits for several ends at once, in one thread and without further ones.
//!
//! The kernel supplies both facts: processor time and voluntary context switches of every thread,
//! from /proc/PID/task, except for the thread that reads them. A receiver waits in `recv` on each
//! side, so threads sleep as in a program that waits.

mod processes;

use std::{
    fs, io,
    path::Path,
    process::ExitCode,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Fabric, FanInEvent, Node, Pod, Policy, Raw, Receiver, Select, Sender,
    discovery::{Dns, PeersEvent},
};
use processes::{Party, Proof, Setup, own_pid};
use rustix::process::{Pid, Signal, kill_process};

fn main() -> ExitCode {
    let mut proofs = Vec::new();
    for setup in Setup::with_threads() {
        proofs.push(Proof::new("open", setup, watch, |party| wait(party, false)));
        proofs.push(Proof::new(
            "after_traffic",
            setup,
            watch_after_traffic,
            |party| wait(party, true),
        ));
        proofs.push(Proof::new("peer_stopped", setup, watch_blocked, count));
        proofs.push(Proof::new("peer_closed", setup, watch_unwanted, close));
        proofs.push(Proof::new("quorum", setup, watch_quorum, hold));
        proofs.push(Proof::new("select", setup, watch_select, speak_late));
        proofs.push(Proof::new("fan_in", setup, watch_fan_in, speak_late));
        proofs.push(Proof::new("kept", setup, watch_kept, Party::meet));
        proofs.push(Proof::new("drain", setup, watch_drain, call));
    }
    processes::run(proofs)
}

fn open(party: &Party) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
    let (to, from) = if party.node.local_addr().is_some() {
        ("a", "b")
    } else {
        ("b", "a")
    };
    let sender = party
        .peer
        .channel(to)
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let receiver = party
        .peer
        .channel(from)
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    (sender, receiver)
}

/// Plays the watched process: waits for a message until the watching side ends the channel.
fn wait(party: &mut Party, echoes: bool) {
    let (mut sender, mut receiver) = open(party);
    sender.opened(PATIENCE).unwrap();
    party.meet();
    while let Some(message) = receiver.next().unwrap() {
        if echoes {
            sender.send(&message).unwrap();
        }
    }
}

fn watch(party: &mut Party) {
    let (mut sender, receiver) = open(party);
    sender.opened(PATIENCE).unwrap();
    party.meet();
    watch_both(party, sender, receiver);
}

/// Busy sockets and rings must come to rest again.
fn watch_after_traffic(party: &mut Party) {
    let (mut sender, mut receiver) = open(party);
    sender.opened(PATIENCE).unwrap();
    party.meet();
    for _ in 0..party.setup.count(ECHOES, 50) {
        sender.send(b"and now?").unwrap();
        receiver.recv().unwrap().ack();
    }
    watch_both(party, sender, receiver);
}

/// The watched process is this one. It sends to a stopped peer, until nothing more can be sent and
/// its ring is full.
fn watch_blocked(party: &mut Party) {
    let builder = party.peer.channel("much").codec::<Raw>();
    // The window is more than a session may have in flight.
    let mut sender = builder.window_bytes(4 << 20).sender::<[u8]>().unwrap();
    sender.opened(PATIENCE).unwrap();
    party.meet();
    let peer = Pid::from_raw(party.other.pid() as i32).expect("a process has a number");
    kill_process(peer, Signal::STOP).expect("the peer can be stopped");
    let sending = thread::spawn(move || {
        for _ in 0..MESSAGES {
            sender.send(&[7; 1000]).unwrap();
        }
        sender.close().unwrap();
    });
    watch_rest(&[own_pid()], true);
    assert!(!sending.is_finished(), "all fitted into the window");
    kill_process(peer, Signal::CONT).expect("the peer can go on");
    sending.join().unwrap();
}

/// The watched process is this one. Its ring is full of messages that its peer, whose end is
/// closed, does not take; its handle lives.
fn watch_unwanted(party: &mut Party) {
    let builder = party.peer.channel("much").codec::<Raw>();
    let mut sender = builder.window_bytes(4 << 20).sender::<[u8]>().unwrap();
    sender.opened(PATIENCE).unwrap();
    party.meet();
    let peer = Pid::from_raw(party.other.pid() as i32).expect("a process has a number");
    kill_process(peer, Signal::STOP).expect("the peer can be stopped");
    let sending = thread::spawn(move || {
        while sender.send(&[7; 1000]).is_ok() {}
        sender
    });
    party.other.say("close when you go on");
    watch_rest(&[own_pid()], true);
    assert!(!sending.is_finished(), "the ring is full");
    // The peer closes before it can have taken in all messages.
    kill_process(peer, Signal::CONT).expect("the peer can go on");
    party.meet();
    let sender = sending.join().unwrap();
    watch_rest(&[own_pid()], true);
    party.meet();
    drop(sender);
}

fn close(party: &mut Party) {
    let builder = party.peer.channel("much").codec::<Raw>();
    let mut receiver = builder.window_bytes(4 << 20).receiver::<[u8]>().unwrap();
    receiver.opened(PATIENCE).unwrap();
    party.meet();
    // The process is stopped before the word is sent, and receives it when it continues.
    let _: String = party.other.hear();
    drop(receiver);
    party.meet();
    party.meet();
}

fn count(party: &mut Party) {
    let builder = party.peer.channel("much").codec::<Raw>();
    let mut receiver = builder.window_bytes(4 << 20).receiver::<[u8]>().unwrap();
    receiver.opened(PATIENCE).unwrap();
    party.meet();
    for _ in 0..MESSAGES {
        receiver.recv().unwrap();
    }
    assert!(receiver.next().unwrap().is_none());
}

/// The watched process is this one. It waits for the acknowledgements of two members, which hold
/// their messages.
fn watch_quorum(party: &mut Party) {
    let builder = Node::builder().fabric(party.setup.fabric, Policy::Require);
    let second = builder.listen("127.0.0.1:0").build().unwrap();
    let peer = party.node.connect(second.local_addr().unwrap()).unwrap();
    let group = party.node.channel("much").codec::<Raw>();
    let mut group = group.group::<[u8]>().unwrap();
    for peer in [&party.peer, &peer] {
        group.join(peer).unwrap();
    }
    let here = second.accept().unwrap().channel("much").codec::<Raw>();
    let mut here = here.receiver::<[u8]>().unwrap();
    let sequence = group.send(b"an entry").unwrap();
    let held = here.recv().unwrap();
    party.meet();
    let threads = Usage::of(own_pid()).threads.len();
    let waiting = watch_waiting(threads, move || group.wait_acked(sequence, 2).unwrap());
    held.ack();
    party.meet();
    waiting.join().unwrap();
}

fn hold(party: &mut Party) {
    let builder = party.peer.channel("much").codec::<Raw>();
    let mut receiver = builder.receiver::<[u8]>().unwrap();
    let held = receiver.recv().unwrap();
    party.meet();
    party.meet();
    held.ack();
    assert!(receiver.next().unwrap().is_none());
}

/// The watched process is this one. It waits for the first of two receivers of different types,
/// nodes and, except over tcp, fabrics.
fn watch_select(party: &mut Party) {
    let near = Node::builder().fabric(Fabric::Tcp, Policy::Require);
    let near = near.listen("127.0.0.1:0").build().unwrap();
    let client = Node::builder().fabric(Fabric::Tcp, Policy::Require);
    let client = client.build().unwrap();
    let peer = client.connect(near.local_addr().unwrap()).unwrap();
    let silent = peer.channel("numbers").codec::<Pod>();
    let mut silent = silent.sender::<u64>().unwrap();
    let numbers = near.accept().unwrap().channel("numbers").codec::<Pod>();
    let mut numbers = numbers.receiver::<u64>().unwrap();
    silent.opened(PATIENCE).unwrap();

    let builder = party.peer.channel("late").codec::<Raw>();
    let mut late = builder.receiver::<[u8]>().unwrap();
    late.opened(PATIENCE).unwrap();
    party.meet();
    let threads = Usage::of(own_pid()).threads.len();
    let waiting = watch_waiting(threads, move || {
        let ready = Select::new().ready(&mut [&mut numbers, &mut late]);
        assert_eq!(ready, 1);
        assert_eq!(&late.try_recv().unwrap()[..], b"at last");
    });
    party.meet();
    waiting.join().unwrap();
}

/// The watched process is this one. It waits for messages of two peers, one of which is in this
/// process, too.
fn watch_fan_in(party: &mut Party) {
    let client = Node::builder().fabric(party.setup.fabric, Policy::Require);
    let client = client.build().unwrap();
    let peer = client.connect(party.node.local_addr().unwrap()).unwrap();
    let silent = peer.channel("late").codec::<Raw>();
    let mut silent = silent.sender::<[u8]>().unwrap();
    let threads = Usage::of(own_pid()).threads.len();
    let fan_in = party.node.channel("late").codec::<Raw>();
    let mut fan_in = fan_in.fan_in::<[u8]>().unwrap();
    for _ in 0..2 {
        let joined = fan_in.next().unwrap();
        assert!(matches!(joined, FanInEvent::Joined(_)), "{joined:?}");
    }
    silent.opened(PATIENCE).unwrap();
    party.meet();
    let waiting = watch_waiting(threads, move || {
        let event = fan_in.next().unwrap();
        let FanInEvent::Message(_, message) = event else {
            panic!("{event:?}")
        };
        assert_eq!(&message[..], b"at last");
    });
    party.meet();
    waiting.join().unwrap();
}

/// The watched process is this one. It keeps a peer of this process connected, and waits for events
/// of it.
fn watch_kept(party: &mut Party) {
    let builder = || Node::builder().fabric(party.setup.fabric, Policy::Require);
    let replica = builder().listen("127.0.0.1:0").build().unwrap();
    let id = replica.id();
    let client = builder().build().unwrap();
    // A sleeping thread resolves the name again after this time.
    let name = Dns::new(
        "127.0.0.1",
        replica.local_addr().unwrap().inet().expect("of TCP").port(),
    );
    let peers = client.keep_connected(name.every(LOOKED_UP)).unwrap();
    let mut events = peers.events();
    let event = events.next().unwrap();
    assert!(matches!(event, PeersEvent::Connected { .. }), "{event}");
    let waiting = thread::spawn(move || events.next().unwrap());
    watch_rest(&[own_pid()], false);
    assert!(!waiting.is_finished(), "nothing has become of it");
    drop(replica);
    let event = waiting.join().unwrap();
    assert!(
        matches!(event, PeersEvent::Lost { peer, .. } if peer == id),
        "{event}"
    );
    party.meet();
}

/// The watched process is this one. It drains while a handler has a call.
fn watch_drain(party: &mut Party) {
    let calls = party.peer.channel("late").codec::<Raw>();
    let mut service = calls.service::<[u8], [u8]>().unwrap();
    let request = service.next().unwrap().unwrap();
    let report = thread::scope(|scope| {
        let draining = scope.spawn(|| party.node.drain(Duration::MAX));
        watch_rest(&[own_pid()], false);
        assert!(!draining.is_finished(), "a handler has a call");
        request.reply(&b"at last"[..]).unwrap();
        draining.join().unwrap()
    });
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.finished, 1);
    party.meet();
}

fn call(party: &mut Party) {
    let calls = party.peer.channel("late").codec::<Raw>();
    let caller = calls.caller::<[u8], [u8]>().unwrap();
    let reply = caller.call(b"and now?").unwrap();
    assert_eq!(&reply[..], b"at last");
    party.meet();
}

fn speak_late(party: &mut Party) {
    let builder = party.peer.channel("late").codec::<Raw>();
    let mut sender = builder.sender::<[u8]>().unwrap();
    sender.opened(PATIENCE).unwrap();
    party.meet();
    party.meet();
    sender.send(b"at last").unwrap();
    sender.close().unwrap();
}

/// Watches this process while a thread of its own runs `wait`, which cannot end yet, and which may
/// be the only thread beyond the `threads` before. One of those may have ended: a thread that made
/// a connection.
fn watch_waiting(threads: usize, wait: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let waiting = thread::spawn(wait);
    let after = &watch_rest(&[own_pid()], false)[0];
    assert!(!waiting.is_finished(), "what it waits for has not come");
    let count = after.threads.len();
    assert!(count <= threads + 1, "{threads} became {:?}", after.threads);
    waiting
}

/// Waits in `recv`, and watches both processes meanwhile.
fn watch_both(party: &Party, sender: Sender<[u8], Raw>, mut receiver: Receiver<[u8], Raw>) {
    let waiting = thread::spawn(move || receiver.next().unwrap().is_none());
    watch_rest(&[own_pid(), party.other.pid()], false);
    drop(sender);
    assert!(
        waiting.join().unwrap(),
        "the peer ends its channel when ours has ended"
    );
}

/// Watches processes until they are at rest for the whole time of one watch, however long that
/// takes on a busy machine; with `may_wake` they may wake up, but do no work. Returns their usage
/// by then.
fn watch_rest(pids: &[u32], may_wake: bool) -> Vec<Usage> {
    let usages = || -> Vec<_> { pids.iter().map(|&pid| Usage::of(pid)).collect() };
    let began = Instant::now();
    loop {
        let before = usages();
        // This is not one long sleep: a machine that is suspended during it would show nothing.
        for _ in 0..WATCHES {
            thread::sleep(WATCHED / WATCHES);
        }
        let after = usages();
        let busy = before.iter().zip(&after).find_map(|(before, after)| {
            let woken = || after.woken_since(before).filter(|_| !may_wake);
            after.busy_since(before).or_else(woken)
        });
        match busy {
            None => return after,
            Some(busy) => assert!(began.elapsed() < PATIENCE, "{busy}"),
        }
    }
}

/// The usage of a process so far.
struct Usage {
    pid: u32,
    /// All threads except the one that reads these files.
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    id: u32,
    name: String,
    /// Exact time on a processor. Ticks are sampled, and two of 10 ms are already 1 % of the
    /// watched time.
    ran: Duration,
    /// Voluntary context switches.
    switches: u64,
}

impl Usage {
    /// Describes the share of a core that the process used since `before`, [`WATCHED`] ago, if it
    /// is significant.
    fn busy_since(&self, before: &Self) -> Option<String> {
        let sum = |usage: &Self| {
            usage
                .threads
                .iter()
                .map(|thread| thread.ran)
                .sum::<Duration>()
        };
        // A thread may have ended.
        let ran = sum(self).saturating_sub(sum(before));
        let share = ran.as_secs_f64() / WATCHED.as_secs_f64();
        (share >= 0.01).then(|| {
            format!(
                "process {} used {:.1} % of a core: {:?} became {:?}",
                self.pid,
                share * 100.0,
                before.threads,
                self.threads
            )
        })
    }

    /// Names a thread that was woken or started since `before`.
    fn woken_since(&self, before: &Self) -> Option<String> {
        self.threads.iter().find_map(|thread| {
            let earlier = before.threads.iter().find(|other| other.id == thread.id);
            let switches = earlier.map_or(0, |earlier| earlier.switches);
            let woken = thread.switches - switches;
            let (name, pid) = (&thread.name, self.pid);
            (woken > 2).then(|| format!("{name} of process {pid} woke {woken} times"))
        })
    }

    fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
        let threads = tasks
            .filter_map(|task| Thread::of(&task.expect("a thread").path()))
            .filter(|thread| thread.id != own_pid())
            .collect();
        Self { pid, threads }
    }
}

impl Thread {
    /// Reads a folder of `/proc/PID/task`. Returns `None` if the thread has ended between its
    /// listing and this read.
    fn of(folder: &Path) -> Option<Self> {
        let read = |name| match fs::read_to_string(folder.join(name)) {
            Ok(text) => Some(text),
            Err(error) if has_ended(&error) => None,
            Err(error) => panic!("{}: {error}", folder.join(name).display()),
        };
        // The fields are nanoseconds on a processor, nanoseconds waiting for one, and time slices
        // (Documentation/scheduler/sched-stats.rst).
        let schedstat = read("schedstat")?;
        let ran = schedstat.split_ascii_whitespace().next();
        let ran = ran.expect("three fields").parse().expect("a number");
        let status = read("status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("the kernel knows it").trim().to_owned()
        };
        Some(Self {
            id: field("Pid:").parse().expect("a number"),
            name: field("Name:"),
            ran: Duration::from_nanos(ran),
            switches: field("voluntary_ctxt_switches:").parse().expect("a number"),
        })
    }
}

/// Returns whether a file of `/proc` could not be read because its thread has ended: then the open
/// fails with `ENOENT`, or a read of an open file with `ESRCH`.
fn has_ended(error: &io::Error) -> bool {
    let ends = [libc::ENOENT, libc::ESRCH];
    error
        .raw_os_error()
        .is_some_and(|code| ends.contains(&code))
}

/// The number of messages that fill the window twice, with their headers.
const MESSAGES: u64 = 8000;
const ECHOES: u64 = 10_000;
/// A time longer than an idle channel keeps its memory.
const WATCHED: Duration = Duration::from_secs(3);
const WATCHES: u32 = 300;
/// A time longer than any watch.
const LOOKED_UP: Duration = Duration::from_secs(3600);
/// A watchdog's time: every process comes to rest sooner, on any machine.
const PATIENCE: Duration = Duration::from_secs(200);
