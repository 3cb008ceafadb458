//! The socket at which a node is inspected: what it answers, to whom, and what it refuses.

use ibex_harness::wait_until;
use std::{
    env, fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    pin::pin,
    process,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{Fabric, ListenErrorKind, Node, Peer, Policy, Raw, Role, stats::MessageStages};
use rustix::process::{Uid, geteuid};
use serde_json::Value;

/// A client of a node's socket.
struct Client(BufReader<UnixStream>);

impl Client {
    fn of(node: &Node) -> Self {
        Self::at(ibex::inspect::path_of(node).expect("it is inspected"))
    }

    fn at(path: &Path) -> Self {
        Self(BufReader::new(
            UnixStream::connect(path).expect("it listens"),
        ))
    }

    fn say(&mut self, text: &str) {
        let said = self.0.get_mut().write_all(text.as_bytes());
        said.expect("it reads");
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Returns the bytes up to the end of the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            // What this end said was not read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            read => drop(read.expect("an end")),
        }
        rest
    }
}

/// Returns a path of the test's own, where nothing is.
fn free_path(name: &str) -> PathBuf {
    env::temp_dir().join(format!("ibex-{}-{name}.sock", process::id()))
}

#[test]
fn a_node_tells_what_its_sessions_do_as_often_as_it_is_asked() {
    let listener = Node::builder()
        .name("near \"end\"")
        .listen("127.0.0.1:0")
        .fabric(Fabric::Tcp, Policy::Require)
        .environment([("IBEX_RDMA_PORT", "1")].map(|(name, value)| (name, value)))
        .inspect()
        .build()
        .expect("a node");
    let address = listener.local_addr().expect("it listens");
    let far = Node::builder().name("far").build().expect("a node");
    let to_near = far.connect(address).expect("a session");
    let to_far = listener.accept().expect("the same");
    let mut numbers = to_far.channel("numbers").codec::<Raw>();
    let mut sender = numbers.sender::<[u8]>().expect("an end");
    numbers = to_near.channel("numbers").codec::<Raw>();
    let mut receiver = numbers.receiver::<[u8]>().expect("the other");
    sender.send(b"one").expect("room");
    receiver.recv().expect("it came").ack();

    let mut client = Client::of(&listener);
    let first = client.answer();
    assert_eq!(first["version"], 1);
    assert_eq!(first["pid"], process::id());
    assert_eq!(first["name"], "near \"end\"");
    assert_eq!(first["address"], address.to_string());
    assert_eq!(first["id"], listener.id().to_string());
    let session = &first["sessions"][0];
    assert_eq!(
        (&session["fabric"], &session["first_fabric"]),
        (&"tcp".into(), &"tcp".into())
    );
    assert_eq!(
        (&session["name"], &session["state"]),
        (&"far".into(), &"up".into())
    );
    assert_eq!(session["fabric_reason"], to_far.fabric_reason());
    let channel = &session["channels"][0];
    assert_eq!(
        (&channel["name"], &channel["end"]),
        (&"numbers".into(), &"sender".into())
    );
    assert_eq!(
        (&channel["sent"], &first["totals"]["sent"]),
        (&1.into(), &1.into())
    );
    for (name, _) in to_far.stats().numbers() {
        assert!(session["counters"][name].is_u64(), "{name}: {session}");
        assert!(
            first["totals"]["counters"][name].is_u64(),
            "{name}: {first}"
        );
    }

    let slow = first["slow"].as_array().expect("a list");
    let of_sender = slow.iter().find(|message| message["end"] == "sender");
    let of_sender = of_sender.expect("the only message");
    assert_eq!(
        (&of_sender["channel"], &of_sender["name"]),
        (&"numbers".into(), &"far".into())
    );
    let stages = of_sender["stages"].as_object().expect("an object");
    let sum: u64 = stages
        .values()
        .map(|time| time.as_u64().expect("a number"))
        .sum();
    assert_eq!(of_sender["total_ns"], sum);

    sender.send(b"two").expect("room");
    client.say("\n");
    let second = client.answer();
    assert_eq!(second["totals"]["sent"], 2);
    let age = |answer: &Value| answer["age_ns"].as_u64().expect("a number");
    assert!(age(&first) < age(&second));
    client.say("stats\n");
    assert_eq!(client.rest(), b"", "only empty lines ask");
}

/// Two nodes with a session over a fabric, both inspected or neither.
fn pair(fabric: Fabric, is_inspected: bool) -> ([Node; 2], [Peer; 2]) {
    let none: [(&str, &str); 0] = [];
    let builder = || {
        let builder = Node::builder().environment(none);
        let builder = builder.fabric(fabric, Policy::Require);
        match is_inspected {
            true => builder.inspect(),
            false => builder,
        }
    };
    let far = builder().listen("127.0.0.1:0").build().expect("a node");
    let near = builder().name("near").build().expect("a node");
    let to_far = near.connect(far.local_addr().expect("it listens"));
    let peers = [to_far.expect("a session"), far.accept().expect("the same")];
    ([near, far], peers)
}

/// Sends two messages through a window of one, of which the program holds the first until the sender
/// waits. Returns what each end says of them, by sequence.
fn times_of_two(fabric: Fabric, is_inspected: bool) -> [Vec<MessageStages>; 2] {
    let ([near, far], [to_far, to_near]) = pair(fabric, is_inspected);
    let sender = to_far.channel("wal").window_messages(1).codec::<Raw>();
    let mut sender = sender.sender::<[u8]>().expect("an end");
    let receiver = to_near.channel("wal").codec::<Raw>();
    let mut receiver = receiver.receiver::<[u8]>().expect("an end");
    sender.send(b"first").expect("room");
    let first = receiver.recv().expect("it was sent");
    let sending = thread::spawn(move || {
        sender.send(b"second").expect("room comes");
        sender
    });
    wait_until(|| near.stats().totals.stalls > 0);
    first.ack();
    // The receiver's call finds the first message released.
    let second = receiver.recv().expect("it was sent");
    let mut sender = sending.join().expect("it sent");
    {
        let mut acked = pin!(sender.wait_acked_async(2));
        let mut context = Context::from_waker(Waker::noop());
        assert!(acked.as_mut().poll(&mut context).is_pending());
        second.ack();
        smol::block_on(acked).expect("it was acknowledged");
    }
    receiver.try_recv().expect_err("there is no third");
    [near, far].map(|node| {
        let mut slow = node.slow_messages();
        for message in &slow {
            assert_eq!(message.channel, "wal");
            let known = message.stages.named().into_iter();
            let sum: Duration = known.filter_map(|(_, time)| time).sum();
            assert_eq!(message.stages.total(), sum, "{message}");
        }
        assert!(slow.is_sorted_by(|one, next| one.stages.total() >= next.stages.total()));
        slow.sort_by_key(|message| message.sequence);
        slow.into_iter().map(|message| message.stages).collect()
    })
}

/// Returns the names of the stages that are known.
fn known(stages: &MessageStages) -> Vec<&'static str> {
    let named = stages.named().into_iter();
    named
        .filter_map(|(name, time)| time.map(|_| name))
        .collect()
}

#[test]
fn each_end_tells_where_the_time_of_a_slow_message_went() {
    let [sent, received] = times_of_two(Fabric::Tcp, true);
    assert_eq!(
        sent.iter().map(known).collect::<Vec<_>>(),
        [
            vec!["credit", "frame"],
            vec!["room", "credit", "frame", "answer"]
        ]
    );
    assert_eq!(
        received.iter().map(known).collect::<Vec<_>>(),
        [["queue", "program"], ["queue", "program"]]
    );
    // In shared memory there is neither credit nor a frame, and nobody sees an arrival.
    let [sent, received] = times_of_two(Fabric::Shm, true);
    assert_eq!(
        sent.iter().map(known).collect::<Vec<_>>(),
        [vec![], vec!["room", "answer"]]
    );
    assert_eq!(
        received.iter().map(known).collect::<Vec<_>>(),
        [["program"], ["program"]]
    );
    let nothing = times_of_two(Fabric::Tcp, false);
    assert_eq!(nothing, [vec![], vec![]]);
}

#[test]
fn a_slow_call_is_told_at_both_ends() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let ([near, far], [to_far, to_near]) = pair(fabric, true);
        let handling = Duration::from_millis(50);
        let serving = thread::spawn(move || {
            let service = to_near.channel("slow").codec::<Raw>();
            let mut service = service.service::<[u8], [u8]>().expect("a service");
            let request = service.next().expect("a call").expect("a call");
            thread::sleep(handling);
            request.reply(b"done").expect("it is awaited");
        });
        let caller = to_far.channel("slow").codec::<Raw>();
        let caller = caller.caller::<[u8], [u8]>().expect("a caller");
        caller.call(b"do it").expect("an answer");
        serving.join().expect("it has answered");
        for (node, end) in [(&near, Role::Sender), (&far, Role::Receiver)] {
            let slow = node.slow_messages();
            let call = slow.iter().find(|message| message.sequence == 0);
            let call = call.expect("the call is among the slowest");
            assert_eq!((call.channel.as_str(), call.end), ("slow", end));
            let stages = call.stages;
            let took = [stages.answer, stages.program][usize::from(end == Role::Receiver)];
            assert!(took.is_some_and(|took| took >= handling), "{call}");
        }
    }
}

#[test]
fn a_task_that_waits_for_room_has_its_time_and_one_that_gives_up_has_none() {
    let ([near, _far], [to_far, to_near]) = pair(Fabric::Tcp, true);
    let sender = to_far.channel("wal").window_messages(1).codec::<Raw>();
    let mut sender = sender.sender::<[u8]>().expect("an end");
    let receiver = to_near.channel("wal").codec::<Raw>();
    let mut receiver = receiver.receiver::<[u8]>().expect("an end");
    let mut context = Context::from_waker(Waker::noop());
    let room_of = |sequence| {
        let slow = near.slow_messages();
        let message = slow.iter().find(|message| message.sequence == sequence);
        message.map(|message| message.stages.room.is_some())
    };
    sender.send(b"first").expect("room");
    let first = receiver.recv().expect("it was sent");
    {
        let mut given_up = pin!(sender.send_async(b"never"));
        assert!(given_up.as_mut().poll(&mut context).is_pending());
    }
    drop(first);
    receiver.try_recv().expect_err("nothing more was sent");
    // Only a check of the counters shows the room, and this message does not wait for it.
    sender.flush().expect("it was received");
    while sender.counts().released == 0 {
        near.poll();
    }
    sender.send(b"second").expect("room");
    let second = receiver.recv().expect("it was sent");
    {
        let mut waits = pin!(sender.send_async(b"third"));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(second);
        let releasing = thread::spawn(move || receiver.recv().map(|message| message.len()));
        smol::block_on(waits).expect("room comes");
        assert_eq!(releasing.join().expect("it ends").expect("it was sent"), 5);
    }
    sender.flush().expect("it goes out");
    assert_eq!(
        [1, 2, 3].map(room_of),
        [Some(false), Some(false), Some(true)]
    );
}

#[test]
fn sockets_are_their_users_own_and_go_with_their_nodes() {
    let node = || Node::builder().name("twin").inspect().build();
    let (first, second) = (node().expect("a node"), node().expect("another"));
    let paths =
        [&first, &second].map(|node| ibex::inspect::path_of(node).expect("a path").to_owned());
    let pid = process::id();
    assert!(paths[0].ends_with(format!("{pid}-twin.sock")), "{paths:?}");
    assert!(
        paths[1].ends_with(format!("{pid}-twin-2.sock")),
        "{paths:?}"
    );
    let listed = ibex::inspect::sockets().expect("the folder is there");
    for path in &paths {
        let folder = fs::metadata(path.parent().expect("a folder")).expect("it is there");
        assert_eq!(folder.mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(path).expect("a socket").mode() & 0o7777, 0o600);
        assert!(listed.contains(path), "{listed:?}");
    }
    let mut client = Client::of(&first);
    client.answer();
    drop(first);
    assert_eq!(client.rest(), b"");
    assert!(!paths[0].exists() && paths[1].exists());
    drop(second);
    assert!(!paths[1].exists());
    let silent = Node::client().expect("a node");
    assert_eq!(ibex::inspect::path_of(&silent), None);
}

#[test]
fn a_place_that_cannot_be_had_is_an_error_that_says_what_to_do() {
    let path = free_path("taken");
    let first = Node::builder().inspect_at(&path).build().expect("a node");
    let refused = |path: &Path| {
        let error = Node::builder()
            .inspect_at(path)
            .build()
            .expect_err("no place");
        assert_eq!(error.kind(), ListenErrorKind::Part, "{error}");
        (error.io_kind(), error.to_string())
    };
    let (kind, text) = refused(&path);
    assert_eq!(kind, Some(ErrorKind::AddrInUse));
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(
        text.contains("a node that runs, or a file that is no socket"),
        "{text}"
    );
    let (_, text) = refused(&path.join("below"));
    assert!(text.ends_with(", or leave inspect() out"), "{text}");
    let (_, text) = refused(Path::new(&format!("/tmp/{}", "x".repeat(200))));
    assert!(text.contains("at most 107 bytes"), "{text}");
    let (kind, text) = refused(Path::new("/nowhere/at/all.sock"));
    assert_eq!(kind, Some(ErrorKind::NotFound));
    assert!(text.contains("make the folder"), "{text}");
    assert_eq!(Client::of(&first).answer()["pid"], process::id());
}

#[test]
fn a_ninth_client_is_answered_in_place_of_the_one_that_was_silent_for_longest() {
    let node = Node::builder().inspect().build().expect("a node");
    let mut clients: Vec<_> = (0..8).map(|_| Client::of(&node)).collect();
    for client in &mut clients {
        client.answer();
    }
    // The second has been silent for longest then.
    clients[0].say("\n");
    clients[0].answer();
    let mut ninth = Client::of(&node);
    assert_eq!(ninth.answer()["version"], 1);
    let mut silent = clients.remove(1);
    assert_eq!(silent.rest(), b"");
    for client in clients.iter_mut().chain([&mut ninth]) {
        client.say("\n");
        client.answer();
    }
}

/// Becomes a user for whom another one has made folders of the names that are expected.
#[test]
fn a_node_whose_socket_can_be_nowhere_begins_all_the_same() {
    const STRANGER: u32 = 54321;

    if !geteuid().is_root() {
        println!("not tried: only root may become another user");
        return;
    }
    let taken = ["/tmp", "/dev/shm"].map(|of_all| Path::new(of_all).join("ibex-54321"));
    for folder in &taken {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir(folder).expect("a folder of root");
    }
    let path_of_a_node = || {
        let begins = || {
            let user = Uid::from_raw(STRANGER);
            // This thread alone becomes another user.
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            let node = Node::builder().inspect().build().expect("a node");
            ibex::inspect::path_of(&node).map(Path::to_owned)
        };
        thread::spawn(begins).join().expect("it ends")
    };
    assert_eq!(path_of_a_node(), None);
    let [first, last] = &taken;
    fs::remove_dir(last).expect("it is empty");
    let path = path_of_a_node().expect("the last place is free");
    assert_eq!(path.parent(), Some(last.as_path()));
    fs::remove_dir(last).expect("it is empty again");
    fs::remove_dir(first).expect("it is empty");
}

#[test]
fn who_asks_and_never_reads_is_cut_off() {
    let node = Node::builder().inspect().build().expect("a node");
    let mut greedy = Client::of(&node);
    // The answers fill the socket's buffer; then the node gives it up.
    while greedy.0.get_mut().write_all(b"\n").is_ok() {}
    assert_eq!(Client::of(&node).answer()["version"], 1);
}

#[test]
fn another_user_is_told_nothing() {
    if !geteuid().is_root() {
        println!("not tried: only root may become another user");
        return;
    }
    let path = free_path("others");
    let node = Node::builder().inspect_at(&path).build().expect("a node");
    // The socket's mode keeps others out, too.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("its owner may");
    let at = path.clone();
    let told = thread::spawn(move || {
        let nobody = Uid::from_raw(65534);
        // This thread alone becomes another user.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        Client::at(&at).rest()
    });
    assert_eq!(told.join().expect("it ends"), b"");
    assert_eq!(Client::of(&node).answer()["version"], 1);
}
