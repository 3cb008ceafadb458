//! A node that listens at one address, and claims to be the node that listens at another.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Fabric, FanInEvent, Node, Peer, Raw, Security,
    calls::CallOptions,
    discovery::{Discovery, Found},
    log::{LogAnswer, LogGroup, LogSender, LogSent, LogSource, LogTurn},
};
use ibex_bootstrap::{Acceptor, Incarnation, Local, NodeIdentity, Policy};
use ibex_harness::authority::Request;

use super::{A, B, Folder, address, builder, certificate, dialed::dial, listening, secret};

const WATCHDOG: Duration = Duration::from_secs(300);

/// A node that shakes hands as one of this identity and run would, and holds its sessions.
struct Claiming {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Claiming {
    fn start((identity, run): (NodeIdentity, Incarnation), security: Option<Security>) -> Self {
        let mut local = local(identity, security);
        local.incarnation = run;
        let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), local).unwrap();
        let address = acceptor.local_addr().inet().expect("of TCP");
        let is_over = Arc::<AtomicBool>::default();
        let ends = is_over.clone();
        let thread = thread::spawn(move || {
            let mut sessions = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                acceptor.turn(Instant::now());
                sessions.extend(acceptor.poll_established());
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            address,
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
    }
}

fn local(identity: NodeIdentity, security: Option<Security>) -> Local {
    let mut local = Local::new(identity, 1);
    local.shm = Policy::Forbid;
    local.handshake_timeout = WATCHDOG;
    local.credentials = security.map(|security| Arc::new(security.open().unwrap()) as _);
    local
}

/// The addresses as a test tells them.
struct Told(mpsc::Receiver<Vec<SocketAddr>>);

impl Discovery for Told {
    fn find(&mut self) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Found::new(self.0.recv()?).again_in(Duration::ZERO))
    }
}

/// A log of one message.
struct OneMessage;

impl LogSource<[u8], Raw> for OneMessage {
    fn end(&self) -> u64 {
        1
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        Box::pin(async move { Ok((peer.channel("log").codec::<Raw>().sender()?, 0)) })
    }

    fn send_next(
        &mut self,
        _: u64,
        turn: LogTurn<'_, [u8], Raw>,
    ) -> Result<LogSent, Box<dyn std::error::Error + Send + Sync>> {
        Ok(turn.send(b"a secret of a", 1))
    }
}

/// Serves as the node `a` until it is closed: acknowledges each log, and answers calls.
fn serve(a: &Node) -> [JoinHandle<()>; 2] {
    let mut logs = a.channel("log").codec::<Raw>().fan_in::<[u8]>().unwrap();
    let mut answers = a.service::<u64, u64>("double").unwrap();
    [
        thread::spawn(move || {
            while let Some(event) = logs.next() {
                if let FanInEvent::Message(_, message) = event {
                    assert_eq!(message[..], *b"a secret of a");
                    message.ack();
                }
            }
        }),
        thread::spawn(move || {
            while let Ok(Some(request)) = answers.next() {
                let doubled = request.to_native() * 2;
                let _ = request.reply(&doubled);
            }
        }),
    ]
}

/// The claiming node is listed as well, and answers first. Whoever asks for `a` still gets `a`.
fn assert_each_address_has_its_node(a: &Node, b: Option<Security>, dialer: &Node, dials: &Local) {
    let serving = serve(a);
    let at_a = address(a);
    let seen = dial(&at_a.to_string(), dials, WATCHDOG).expect("it listens");
    let claimed = (seen.peer.identity, seen.peer.incarnation);
    drop(seen);
    let claiming = Claiming::start(claimed, b);

    let (tell, told) = mpsc::channel();
    let peers = dialer.keep_connected(Told(told)).unwrap();
    tell.send(vec![claiming.address]).unwrap();
    let first = peers.wait_for_timeout(claiming.address, WATCHDOG);
    let first = first.expect("it answers");
    assert_eq!(first.id(), a.id(), "as it claims");

    tell.send(vec![claiming.address, at_a]).unwrap();
    let of_a = peers.wait_for_timeout(at_a, WATCHDOG).expect("it answers");
    assert!(!of_a.is_same_session(&first));
    assert_eq!(of_a.address().inet(), Some(at_a));
    if let Some(proven) = of_a.authenticated_as().and_then(|proven| proven.uri()) {
        assert_eq!(proven, A);
    }
    assert_eq!(peers.connected().len(), 2);

    let mut sender = LogSender::at(&peers, at_a);
    let acked = sender.wait_acked_timeout(&mut OneMessage, 1, WATCHDOG);
    acked.expect("a acknowledges");
    drop(sender);
    let mut group = LogGroup::new();
    let member = group.join_at(&peers, at_a);
    let other = group.join_at(&peers, claiming.address);
    let acked = group.wait_acked_timeout(&mut OneMessage, 1, 1, WATCHDOG);
    acked.expect("a acknowledges");
    assert_eq!(group.acked_of(member), Some(1));
    assert_eq!(group.acked_of(other), Some(0), "it does not count as a");
    let caller = peers.caller::<u64, u64>("double").unwrap();
    let caller = caller.with(CallOptions::new().timeout(WATCHDOG));
    let answer = caller.call(&21).expect("a answers");
    assert_eq!(answer.to_native(), 42);

    drop((answer, group, caller, peers, claiming));
    let _ = dialer.close(Duration::ZERO);
    let _ = a.close(Duration::ZERO);
    serving.into_iter().for_each(|one| one.join().unwrap());
}

const STRANGER: NodeIdentity = NodeIdentity([9; 16]);

#[test]
fn a_certificate_of_another_is_not_handed_out_as_the_node_that_it_claims_to_be() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let a = listening(Fabric::Tcp, issue("a", A));
    let at_a = address(&a).to_string();
    let of_dialer = issue("dialer", "spiffe://test/dialer");
    let expecting = of_dialer
        .clone()
        .expect(move |address| Some(if address == at_a { A } else { B }.to_owned()));
    let dialer = builder(Fabric::Tcp).security(expecting).build().unwrap();
    let dials = local(STRANGER, Some(of_dialer));
    assert_each_address_has_its_node(&a, Some(issue("b", B)), &dialer, &dials);
}

#[test]
fn what_a_node_says_of_itself_gives_it_no_other_nodes_address() {
    for security in [None, Some(secret(6))] {
        let node = |listens: bool| {
            let mut builder = builder(Fabric::Tcp);
            if listens {
                builder = builder.listen("127.0.0.1:0");
            }
            if let Some(security) = &security {
                builder = builder.security(security.clone());
            }
            builder.build().unwrap()
        };
        let dials = local(STRANGER, security.clone());
        assert_each_address_has_its_node(&node(true), security.clone(), &node(false), &dials);
    }
}

/// The node is one over TCP, too, where its certificate proves that it is.
#[test]
fn a_node_with_a_certificate_has_one_session_for_both_of_its_addresses() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let builder_of_a = builder(Fabric::Tcp).listen("0.0.0.0:0");
    let a = builder_of_a.security(issue("a", A)).build().unwrap();
    let port = address(&a).port();
    let both = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], port)));
    let dialer = builder(Fabric::Tcp).security(issue("dialer", B)).build();
    let dialer = dialer.unwrap();
    let peers = dialer.keep_connected(both).unwrap();
    let [first, second] = both.map(|at| peers.wait_for_timeout(at, WATCHDOG).expect("a"));
    assert!(first.is_same_session(&second));
    assert_eq!(peers.connected().len(), 1);
}
