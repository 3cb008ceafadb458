//! A peer of the same user, or of another one that the node shares memory with, that speaks the
//! protocol of shared memory and passes descriptors that make calls sleep. It holds up no other
//! session, nor the end of the node.
#![forbid(unsafe_code)]

#[path = "common/dialed.rs"]
mod dialed;

use std::{
    fs,
    io::{IoSlice, Write},
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, Sender as Done, channel},
    },
    thread,
    time::Duration,
};

use dialed::dial;
use ibex::{Driver, Fabric, Node, Peer, Policy, Raw, shared_memory::ShareWith};
use ibex_bootstrap::{Established, Local, NodeIdentity, UnixSockets};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg, sockopt},
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};

/// An attack by a peer that has finished its handshake.
struct Attack {
    name: &'static str,
    act: fn(&UnixSockets) -> Aftermath,
    /// Set if the node ends the session; otherwise the session continues.
    is_refused: bool,
}

/// Descriptors that the attacker keeps until the attack is over.
type Aftermath = Vec<OwnedFd>;

const ATTACKS: &[Attack] = &[
    Attack {
        name: "a full eventfd that blocks",
        act: |unix| {
            let bell = eventfd(u32::MAX, EventfdFlags::empty()).unwrap();
            rustix::io::write(&bell, &(u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes()).unwrap();
            pass(&unix.control, &HELLO, &[bell.as_fd()]);
            Vec::new()
        },
        is_refused: true,
    },
    Attack {
        name: "a full pipe that blocks",
        act: |unix| {
            let (reader, writer) = std::io::pipe().unwrap();
            let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
            rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
            while (&writer).write(&[0; 4096]).is_ok() {}
            rustix::fs::fcntl_setfl(&writer, flags).unwrap();
            pass(&unix.control, &HELLO, &[writer.as_fd()]);
            vec![reader.into()]
        },
        is_refused: true,
    },
    Attack {
        name: "everything that it has blocks",
        act: |unix| {
            for socket in [unix.control.as_fd(), unix.bells.as_fd()] {
                let flags = rustix::fs::fcntl_getfl(socket).unwrap();
                rustix::fs::fcntl_setfl(socket, flags - OFlags::NONBLOCK).unwrap();
            }
            send(&unix.control, &HELLO, SendFlags::NOSIGNAL).unwrap();
            ring(unix).unwrap();
            Vec::new()
        },
        is_refused: false,
    },
    Attack {
        name: "a socket that lingers, with its greeting",
        act: |unix| slow(unix, |unix, slow| pass(&unix.control, &HELLO, &[slow])),
        is_refused: true,
    },
    Attack {
        name: "a socket that lingers, as control words",
        act: |unix| {
            slow(unix, |unix, slow| {
                pass(&unix.control, &HELLO, &[]);
                pass(&unix.control, &CONTROL, &[slow]);
            })
        },
        is_refused: true,
    },
    Attack {
        name: "a socket that lingers, behind what ends the session",
        act: |unix| {
            slow(unix, |unix, slow| {
                pass(&unix.control, b"no message", &[]);
                pass(&unix.control, &HELLO, &[slow]);
            })
        },
        is_refused: true,
    },
    Attack {
        name: "a socket that lingers, in an empty packet",
        act: |unix| slow(unix, |unix, slow| pass(&unix.control, b"", &[slow])),
        is_refused: false,
    },
    Attack {
        name: "a socket that lingers, as a ring",
        act: |unix| slow(unix, |unix, slow| pass(&unix.bells, b"\x01", &[slow])),
        is_refused: true,
    },
    Attack {
        name: "253 sockets that linger, at once",
        act: |unix| slow(unix, |unix, slow| pass(&unix.control, &HELLO, &[slow; 253])),
        is_refused: true,
    },
    Attack {
        name: "253 sockets that linger, as a ring",
        act: |unix| slow(unix, |unix, slow| pass(&unix.bells, b"\x01", &[slow; 253])),
        is_refused: true,
    },
    Attack {
        name: "memory for channels that it never opens",
        act: |unix| {
            pass(&unix.control, &HELLO, &[]);
            for end in 1..100_u32 {
                // A ring of a page.
                let mut message = vec![4];
                message.extend(end.to_le_bytes());
                message.extend(4096_u64.to_le_bytes());
                pass(&unix.control, &message, &[sealed(4096).as_fd()]);
            }
            Vec::new()
        },
        is_refused: true,
    },
    Attack {
        name: "more control words than its channels need",
        act: |unix| {
            pass(&unix.control, &HELLO, &[]);
            // As many as 1024 channels need, which is the default, and one.
            for index in 0..=12_u32 {
                let mut message = vec![2];
                message.extend(index.to_le_bytes());
                let memory = sealed(4096 << index.min(4));
                pass(&unix.control, &message, &[memory.as_fd()]);
            }
            Vec::new()
        },
        is_refused: true,
    },
    Attack {
        name: "a flood of rings",
        act: |unix| {
            send(&unix.control, &HELLO, SendFlags::NOSIGNAL).unwrap();
            // Repeats until the socket was full often. By then the node has noticed, and has other
            // things to do.
            let mut full = 0;
            while full < 1000 {
                match ring(unix) {
                    Err(Errno::AGAIN) => {
                        full += 1;
                        thread::yield_now();
                    }
                    sent => assert_eq!(sent, Ok(1)),
                }
            }
            Vec::new()
        },
        is_refused: false,
    },
    Attack {
        name: "no rings, as its end is closed for writing",
        act: |unix| {
            rustix::net::shutdown(&unix.bells, rustix::net::Shutdown::Write).unwrap();
            Vec::new()
        },
        is_refused: false,
    },
];

#[test]
fn with_threads() {
    each_attack(Driver::Threads);
}

#[test]
fn with_the_callers() {
    each_attack(Driver::Caller);
}

/// A peer's messages that nobody reads leave the descriptors of the process to other peers.
#[test]
fn unread_long_messages_take_one_descriptor_of_their_channel() {
    let build = || Node::builder().fabric(Fabric::Shm, Policy::Require);
    let node = build().listen("127.0.0.1:0").build().unwrap();
    let other = build().build().unwrap();
    let (peer, here) = meet(&node, || other.connect(node.local_addr().unwrap()).unwrap());
    let channel = |peer: &Peer| peer.channel("long").codec::<Raw>().window_bytes(64 << 10);
    let mut sender = channel(&peer).sender::<[u8]>().unwrap();
    let mut receiver = channel(&here).receiver::<[u8]>().unwrap();
    let text = |number: u8| vec![number; 100_000];
    sender.send(&text(0)[..]).unwrap();
    drop(receiver.recv().unwrap());
    let mut sent = 0;
    while sent < 60 && sender.try_send(&text(sent + 1)[..]).is_ok() {
        sent += 1;
    }
    assert!(sent > 8, "{sent} messages");
    // What is passed comes in order, so all of it has come.
    exchange(&peer, &here);
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let of_messages = names.filter(|name| name.to_string_lossy().contains("ibex-message"));
    let of_messages = of_messages.count();
    assert!(of_messages <= 1, "{of_messages} of {sent}");
    for number in 0..sent {
        assert_eq!(receiver.recv().unwrap()[..], text(number + 1));
    }
}

fn each_attack(driver: Driver) {
    // Only root can become another user.
    let users = [0, OTHER_USER];
    let users = &users[..if geteuid().is_root() { 2 } else { 1 }];
    for (attack, user) in ATTACKS
        .iter()
        .flat_map(|attack| users.iter().map(move |user| (attack, *user)))
    {
        watched(attack.name, move || run(attack, driver, user));
    }
}

fn run(attack: &Attack, driver: Driver, user: u32) {
    let build = |listens: bool| {
        let builder = Node::builder().driver(driver).session_timeout(SOON);
        let builder = builder.fabric(Fabric::Shm, Policy::Require);
        let builder = builder.share_memory_with(ShareWith::Users(vec![OTHER_USER]));
        match listens {
            true => builder.listen("127.0.0.1:0").build().unwrap(),
            false => builder.build().unwrap(),
        }
    };
    let node = build(true);
    let other = build(false);
    let (peer, here) = meet(&node, || other.connect(node.local_addr().unwrap()).unwrap());
    exchange(&peer, &here);

    let (established, there) = meet(&node, || hostile(&node, user));
    let aftermath = (attack.act)(established.unix.as_ref().unwrap());
    // Channels open, and engines sleep and are woken.
    exchange(&peer, &here);
    if attack.is_refused {
        while !there.is_gone() {
            exchange(&peer, &here);
        }
    }
    let late = build(false);
    let (late_peer, late_here) = meet(&node, || late.connect(node.local_addr().unwrap()).unwrap());
    exchange(&late_peer, &late_here);
    exchange(&peer, &here);
    assert_eq!(there.is_gone(), attack.is_refused, "{}", attack.name);

    drop(established);
    thread::scope(|scope| {
        for node in [&node, &other, &late] {
            scope.spawn(|| node.close(LONG));
        }
    });
    drop(aftermath);
}

/// Runs `dial` against `node`. Returns its result, and the node's end of the session.
fn meet<T: Send>(node: &Node, dial: impl FnOnce() -> T + Send) -> (T, Peer) {
    thread::scope(|scope| {
        let dialing = scope.spawn(dial);
        // Waiting turns the engine, if callers do.
        let here = node.accept().unwrap();
        (dialing.join().unwrap(), here)
    })
}

/// Opens a channel in each direction, and sends a message over each.
fn exchange(one: &Peer, other: &Peer) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    for (from, to) in [(one, other), (other, one)] {
        let name = number.to_string();
        let mut sender = from.sender::<u64>(&name).unwrap();
        let mut receiver = to.receiver::<u64>(&name).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                assert_eq!(*receiver.recv_timeout(LONG).unwrap(), number);
                assert!(receiver.next().unwrap().is_none());
            });
            sender.send(&number).unwrap();
            sender.close().unwrap();
        });
    }
}

/// Becomes a peer of `node`, by the handshake alone, as `user` where that is not root. The kernel
/// keeps the user of each thread, and this one ends.
fn hostile(node: &Node, user: u32) -> Established {
    let address = node.local_addr().unwrap().to_string();
    let mut local = Local::new(NodeIdentity([9; 16]), 9);
    local.unix.share_with = Arc::new(ShareWith::Anyone);
    if user == OTHER_USER {
        set_thread_res_uid(None, Some(Uid::from_raw(user)), None).unwrap();
    }
    let established = dial(&address, &local, LONG).unwrap();
    let unix = established.unix.as_ref().unwrap();
    assert_eq!(unix.is_same_user, user != OTHER_USER);
    established
}

/// Passes a descriptor whose last close sleeps. The node closes last if callers turn the engine;
/// otherwise whichever closes later does.
fn slow(unix: &UnixSockets, pass: fn(&UnixSockets, BorrowedFd<'_>)) -> Aftermath {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 64 << 10]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    pass(unix, socket.as_fd());
    thread::spawn(move || drop(socket));
    vec![other.into()]
}

fn pass(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        // An earlier attack has ended the session already.
        Ok(_) | Err(Errno::PIPE) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Returns a memory file as ibex passes it.
fn sealed(bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("ibex-test", flags).unwrap();
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, bytes).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

fn ring(unix: &UnixSockets) -> rustix::io::Result<usize> {
    send(&unix.bells, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Aborts the process if a call sleeps that must not, since a sleeping thread cannot be ended.
fn watched(name: &'static str, act: impl FnOnce()) {
    let (done, waiting): (Done<()>, _) = channel();
    let watch = thread::spawn(move || {
        if waiting.recv_timeout(LONG * 2) == Err(RecvTimeoutError::Timeout) {
            // The text is written past the test's output capture, which an abort would lose.
            let text = format!("everything sleeps behind this: {name}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            process::abort();
        }
    });
    act();
    drop(done);
    watch.join().unwrap();
}

/// A user that is not the one of this process.
const OTHER_USER: u32 = 3001;
/// The first message of an end: it uses membarrier.
const HELLO: [u8; 2] = [1, 1];
/// The first control segment.
const CONTROL: [u8; 5] = [2, 0, 0, 0, 0];

/// The time after which a peer that left without a goodbye counts as gone.
const SOON: Duration = Duration::from_millis(100);
/// A time far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
