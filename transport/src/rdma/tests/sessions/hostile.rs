//! A hostile peer that sends arbitrary bytes over a queue pair.

use std::net::Shutdown;

use ibex_harness::draw::Draw;
use ibex_protocol::format::frame::{FrameHeader, FrameKind, HEADER_BYTES, TALK};
use ibex_verbs::{Operation, RemoteAddress, ScatterEntry, SendRequest, WorkId, provider::RawEvent};

use super::*;
use crate::session::EndCause;

/// A node with a session to a peer that consists only of a queue pair.
struct Victim {
    fake: FakeProvider,
    runtime: Arc<Runtime>,
    session: Arc<SessionShared>,
    /// The number of the victim's queue pair.
    queue_pair: u32,
    /// The peer's queue pair.
    pair: PreparedPair,
    tcp: TcpStream,
}

impl Victim {
    fn new() -> Self {
        let fake = one_device();
        let rdma_ports = [open_port(&fake, settings()), open_port(&fake, settings())];
        let [pair, ours] = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap();
        let queue_pair = ours.endpoint().pair.queue_pair;
        let runtime = runtime(Driver::Caller);
        let [tcp, stream] = connection();
        let session = runtime.admit(admission(stream, ours)).unwrap();
        Self {
            fake,
            runtime,
            session,
            queue_pair,
            pair,
            tcp,
        }
    }

    /// Sends bytes as one message, and lets the victim receive them.
    fn take(&mut self, bytes: &[u8]) {
        self.send(bytes);
        self.settle();
    }

    fn send(&mut self, bytes: &[u8]) {
        let entries = [ScatterEntry::unregistered(bytes)];
        let id = WorkId::new(Operation::Send, 0, 0);
        let mut batch = self.pair.pair.send_batch();
        batch
            .push(&SendRequest::send(id, &entries).inline().signaled())
            .unwrap();
        batch.post().unwrap();
        self.pair.pair.retire_sends(1);
    }

    fn settle(&self) {
        for _ in 0..10_000 {
            if !self.runtime.poll_ready() {
                return;
            }
        }
        panic!("the victim never comes to rest");
    }

    /// Runs turns until the session is gone, because its connection takes time to end.
    fn settle_until_gone(&self) {
        while !self.session.is_gone() {
            self.runtime.poll_ready();
        }
        self.settle();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.runtime.close(std::time::Duration::ZERO);
    }
}

fn header(kind: FrameKind, channel: u32, length: u32) -> FrameHeader {
    FrameHeader {
        length,
        channel,
        kind,
        extension: false,
        pad: 0,
        sequence: 1,
    }
}

#[test]
fn bytes_that_are_no_frame_end_the_session() {
    let whole = |header: FrameHeader| header.to_bytes().to_vec();
    let mut long = whole(header(FrameKind::Control, 0, 16));
    long.extend([0; 64]);
    let cases = [
        ("nothing at all", vec![]),
        ("half a header", vec![16, 0, 0, 0, 0, 0, 0, 0]),
        ("no kind", vec![0; 64]),
        ("all ones", vec![0xff; 200]),
        (
            "longer than what came",
            whole(header(FrameKind::Control, 0, 17)),
        ),
        (
            "longer than any buffer",
            whole(header(FrameKind::Records, 1, 8000)),
        ),
        ("shorter than what came", long),
        (
            "records of no channel",
            whole(header(FrameKind::Records, 7, 16)),
        ),
        (
            "a chunk of no channel",
            whole(header(FrameKind::Chunk, 7, 16)),
        ),
    ];
    for (what, bytes) in cases {
        let mut victim = Victim::new();
        victim.take(&bytes);
        assert!(victim.session.is_gone(), "{what}");
        victim.settle();
        // Neither the session's buffer nor the queue pair's place is lost.
        assert_eq!(victim.fake.alive()["queue pairs"], 1, "{what}: the peer's");
    }
}

/// Returns the error of a channel of the victim after `attack`.
fn cause(attack: impl FnOnce(&mut Victim)) -> String {
    let mut victim = Victim::new();
    let spec = spec_of_bytes(WINDOW, 1 << 20);
    let timeout = std::time::Duration::from_secs(1);
    let mut receiver = victim
        .runtime
        .open_receiver(&victim.session, "cause", spec, timeout, HALF_WINDOW)
        .unwrap();
    attack(&mut victim);
    victim.settle();
    let Err(error) = receiver.poll() else {
        panic!("the channel is not over");
    };
    let EndCause::PeerGone { why, .. } = &end_cause(&error) else {
        panic!("{error}");
    };
    assert!(victim.session.is_gone());
    why.clone()
}

#[test]
fn the_protocol_that_was_broken_is_the_cause() {
    assert_eq!(
        cause(|victim| victim.send(&header(FrameKind::Control, 0, 20).to_bytes())),
        "it broke the protocol: a message of 16 bytes has a frame of 20 in it"
    );
}

#[test]
fn a_message_longer_than_the_receive_is_a_broken_protocol() {
    let why = cause(|victim| {
        let entries = [victim.pair.heads.entry(0..5000)];
        let id = WorkId::new(Operation::Send, 0, 0);
        let mut batch = victim.pair.pair.send_batch();
        batch.push(&SendRequest::send(id, &entries)).unwrap();
        batch.post().unwrap();
    });
    let (_, of_receive) = why.split_once(" failed in receive ").unwrap();
    assert!(
        why.starts_with("the device says that the protocol was broken: queue pair 0x"),
        "{why}"
    );
    assert!(
        of_receive.ends_with(
            ": the queue pair could not do it; for a receive: the message was longer (status 2) \
             (vendor 0x0); the queue pair is dead and everything else on it is flushed"
        ),
        "{why}"
    );
}

#[test]
fn a_request_that_our_device_refuses_is_a_broken_protocol() {
    /// `IBV_EVENT_QP_REQ_ERR`, `IBV_EVENT_QP_ACCESS_ERR`.
    const REFUSED: [(u32, &str); 2] = [
        (2, "an invalid request ({}: InvalidRequest)"),
        (
            3,
            "a request for memory that was not granted ({}: AccessViolation)",
        ),
    ];
    for (event_type, text) in REFUSED {
        let mut number = 0;
        let why = cause(|victim| {
            number = victim.queue_pair;
            let element = number.into();
            let event = RawEvent {
                event_type,
                element,
            };
            victim.fake.raise(DEVICE, event);
        });
        let text = text.replace("{}", &format!("queue pair {number:#x}"));
        assert_eq!(
            why,
            format!("the device says that it broke the protocol: it made {text}")
        );
    }
}

#[test]
fn a_peer_that_sends_beyond_its_credit_is_stopped() {
    let mut victim = Victim::new();
    let talk = FrameHeader {
        sequence: TALK,
        ..header(FrameKind::Control, 0, HEADER_BYTES as u32)
    };
    // One such message is allowed, and answered.
    victim.take(&talk.to_bytes());
    assert!(!victim.session.is_gone());
    // Two at a time are one more than this end has reserved buffers for.
    victim.send(&talk.to_bytes());
    victim.take(&talk.to_bytes());
    assert!(victim.session.is_gone());
}

#[test]
fn a_write_that_takes_a_buffer_and_fills_nothing_is_no_frame() {
    let mut victim = Victim::new();
    let id = WorkId::new(Operation::Write, 0, 0);
    let nowhere = RemoteAddress {
        address: 0,
        rkey: 0,
    };
    let mut batch = victim.pair.pair.send_batch();
    batch
        .push(&SendRequest::write(id, &[], nowhere).with_immediate(7))
        .unwrap();
    batch.post().unwrap();
    victim.settle();
    assert!(victim.session.is_gone());
}

#[test]
fn any_bytes_are_survived() {
    let mut draw = Draw::new(1);
    // Each round attacks a victim as long as its session lives.
    for _ in 0..60 {
        let mut victim = Victim::new();
        for _ in 0..20 {
            let length = draw.index(200);
            let mut bytes = vec![0; length];
            draw.fill(&mut bytes);
            // Most of the bytes look like a frame.
            if length >= HEADER_BYTES && !draw.once_in(4) {
                let kind = [FrameKind::Records, FrameKind::Chunk, FrameKind::Control];
                let channel = draw.below(3) as u32;
                let mut head = header(draw.pick(&kind), channel, length as u32);
                head.extension = draw.once_in(2) && length >= 64;
                bytes[..HEADER_BYTES].copy_from_slice(&head.to_bytes());
            }
            victim.take(&bytes);
            if victim.session.is_gone() {
                break;
            }
        }
        assert_eq!(victim.fake.rnr_naks(), 0);
    }
}

#[test]
fn bytes_over_the_connection_end_the_session_and_so_does_its_end() {
    use std::io::Write;
    let mut victim = Victim::new();
    // As many as the head of a last word has, which is checked when it is whole.
    victim.tcp.write_all(b"hello, hello, hello, hi!").unwrap();
    victim.settle_until_gone();
    let victim = Victim::new();
    victim.tcp.shutdown(Shutdown::Write).unwrap();
    victim.settle_until_gone();
}
