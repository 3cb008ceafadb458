//! A listener on another host that passes for one on the dialer's, as a clone of its virtual machine
//! could, or whoever has read the boot id somewhere.
#![forbid(unsafe_code)]

mod common;
#[path = "../../tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::dialing::dial;
use common::node;
use ibex_bootstrap::handshake::{AcceptorEntropy, Handshake, HandshakeEvent};
use ibex_bootstrap::message::ShmEndpoint;
use ibex_bootstrap::{Fabric, HostHint, Secret};
use ibex_harness::draw::Draw;
use ibex_harness::network::{self, Medium, Network};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};

const TEST: &str = "a_listener_on_another_host_sends_a_dialer_to_no_socket_and_learns_nothing";
const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_listener_on_another_host_sends_a_dialer_to_no_socket_and_learns_nothing() {
    if !namespace::is_inside(TEST) {
        return;
    }
    let network = Network::of(Medium::Packets, &mut Draw::new(1)).unwrap();
    let far = network.far_namespace.clone().unwrap();
    let address = network.address;
    // Every address can be bound then, which must not make it one of this host.
    fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
    // The two ends of a connection within the dialer's host tell the rogue everything.
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let stays = TcpStream::connect(here.local_addr().unwrap()).unwrap();
    let facts = HostHint::read(&stays).unwrap();
    assert_ne!(facts.network_namespace, 0);

    let token = Secret::new([3; 32]);
    let name = ShmEndpoint::name(&token);
    let flags = SocketFlags::NONBLOCK;
    let victim = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&victim, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
    listen(&victim, 1).unwrap();

    let listener = thread::spawn(move || {
        network::enter(&far).unwrap();
        TcpListener::bind(address).unwrap()
    });
    let listener = listener.join().unwrap();
    let rogue = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let entropy = AcceptorEntropy {
            nonce: [1; 16],
            token,
            session_id: [4; 16],
            resume_secret: Secret::new([5; 32]),
        };
        let now = Instant::now();
        let mut machine = Handshake::accept(&node(2), facts, entropy, now, now + LONG);
        let mut heard = Vec::<u8>::new();
        loop {
            while let Some(bytes) = machine.poll_transmit() {
                stream.write_all(&bytes).unwrap();
            }
            match machine.poll_event() {
                // The victim has the name already.
                Some(HandshakeEvent::ListenUnix { .. }) => machine.handle_unix(Ok(())),
                Some(HandshakeEvent::Agreed(_)) => break,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            while let Some(bytes) = machine.poll_transmit() {
                stream.write_all(&bytes).unwrap();
            }
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap();
            assert_ne!(length, 0, "the dialer stays");
            heard.extend(&buffer[..length]);
            machine.handle_bytes(&buffer[..length]);
        }
        while let Some(bytes) = machine.poll_transmit() {
            stream.write_all(&bytes).unwrap();
        }
        (heard, stream)
    });
    let dialed = dial(&address.to_string(), &node(1), LONG).unwrap();
    assert_eq!(dialed.fabric, Fabric::Tcp);
    let why = "tcp: not shm: the connection has an address that is not of the network namespace of \
               the connecting node, and the connecting node has no shared_memory_directory; ";
    assert!(dialed.reason.starts_with(why), "{}", dialed.reason);
    let (heard, _stream) = rogue.join().unwrap();
    let contains = |part: &[u8]| heard.windows(part.len()).any(|window| window == part);
    assert!(!contains(&facts.boot_id));
    assert!(!contains(&facts.network_namespace.to_le_bytes()));
    assert!(!contains(&facts.pid_namespace.to_le_bytes()));
    let nobody = accept(&victim).unwrap_err();
    assert_eq!(nobody, Errno::AGAIN, "the dialer has connected");
    drop(stays);
}
