//! The socket at which a node is inspected: what it answers, to whom, and what it refuses.

use std::{
    env, fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process, thread,
};

use ibex::{Fabric, ListenErrorKind, Node, Policy, Raw};
use rustix::process::{Uid, geteuid};
use serde_json::Value;

/// A client of a node's socket.
struct Client(BufReader<UnixStream>);

impl Client {
    fn of(node: &Node) -> Self {
        Self::at(node.inspect_path().expect("it is inspected"))
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

    sender.send(b"two").expect("room");
    client.say("\n");
    let second = client.answer();
    assert_eq!(second["totals"]["sent"], 2);
    let age = |answer: &Value| answer["age_ns"].as_u64().expect("a number");
    assert!(age(&first) < age(&second));
    client.say("stats\n");
    assert_eq!(client.rest(), b"", "only empty lines ask");
}

#[test]
fn sockets_are_their_users_own_and_go_with_their_nodes() {
    let node = || Node::builder().name("twin").inspect().build();
    let (first, second) = (node().expect("a node"), node().expect("another"));
    let paths = [&first, &second].map(|node| node.inspect_path().expect("a path").to_owned());
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
    assert_eq!(silent.inspect_path(), None);
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
        assert_eq!(error.kind(), ListenErrorKind::Inspect, "{error}");
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
fn clients_beyond_the_eighth_wait_for_one_to_leave() {
    let node = Node::builder().inspect().build().expect("a node");
    let mut clients: Vec<_> = (0..8).map(|_| Client::of(&node)).collect();
    for client in &mut clients {
        client.answer();
    }
    let mut ninth = Client::of(&node);
    // All others are served while it waits.
    for client in &mut clients {
        client.say("\n");
        client.answer();
    }
    ninth.0.get_ref().set_nonblocking(true).expect("a socket");
    let nothing = ninth.0.read(&mut [0]).expect_err("it waits");
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    ninth.0.get_ref().set_nonblocking(false).expect("a socket");
    clients.pop();
    assert_eq!(ninth.answer()["version"], 1);
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
