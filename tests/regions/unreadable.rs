//! A message whose memory the kernel cannot read, as of a mapped file whose medium fails: its channel
//! ends at both ends with the cause, and everything else goes on.

use std::{fs, fs::OpenOptions};

use ibex::prelude::*;
use ibex::{
    CloseReason, EndCause, Event, Integrity, Security, SendErrorKind, SharedSecret,
    calls::{CallErrorKind, Caller, Service},
};

use super::*;

/// Who reads the bytes of a message in a region.
#[derive(Clone, Copy, Debug)]
enum ReadFor {
    /// The kernel alone, which takes them into a socket.
    Socket,
    /// The node too, for their checksum.
    Check,
    /// The node alone, which encrypts them.
    Cipher,
}

impl ReadFor {
    fn builder(self) -> NodeBuilder {
        let none: [(&str, &str); 0] = [];
        let builder = Node::builder().environment(none).driver(Driver::Threads);
        let builder = builder.fabric(Fabric::Tcp, ibex::Policy::Require);
        match self {
            Self::Socket => builder,
            Self::Check => builder.integrity(Integrity::On),
            Self::Cipher => {
                let secret = SharedSecret::from_bytes(std::array::from_fn(|at| at as u8 + 1));
                builder.security(Security::shared_secret(secret.expect("a secret")))
            }
        }
    }
}

/// Maps a file with these bytes, of which the kernel reads only the first `readable` from now on.
fn cut_short(name: &str, readable: u64) -> Region {
    let path = path_of(name);
    fs::write(&path, bytes()).expect("a file");
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.expect("it is there");
    fs::remove_file(&path).expect("it is there");
    // SAFETY: the file is made shorter below, and this test reads none of the bytes that are gone.
    let region = unsafe { Region::map(&file, ..) }.expect("it is mapped");
    file.set_len(readable).expect("it is ours");
    region
}

fn cause_of_end(mut receive: impl FnMut() -> Option<EndCause>) -> EndCause {
    loop {
        if let Some(cause) = receive() {
            return cause;
        }
    }
}

/// `busy` sends over another channel meanwhile, so that every connection carries something.
fn ends_its_channel(read_for: ReadFor, dialer_sends: bool, busy: bool, readable: u64) {
    let there = read_for.builder().listen("127.0.0.1:0").build();
    let there = there.expect("a node");
    let here = read_for.builder().build().expect("a node");
    let address = there.local_addr().expect("it listens");
    let (near, far) = (here.connect(address), there.accept());
    let (near, far) = (near.expect("a session"), far.expect("a peer"));
    let (from, to, node) = match dialer_sends {
        true => (&near, &far, &here),
        false => (&far, &near, &there),
    };
    let mut events = node.events();
    let raw = |peer: &Peer, name: &str| peer.channel(name).codec::<Raw>();
    let mut sender = raw(from, "regions").sender::<[u8]>().expect("an end");
    let mut receiver = raw(to, "regions").receiver::<[u8]>().expect("an end");
    let mut small = raw(from, "small").sender::<[u8]>().expect("an end");
    let mut heard = raw(to, "small").receiver::<[u8]>().expect("an end");
    let whole = mapped("whole");
    sender.send_region(&whole.slice(..)).expect("sent");
    let message = receiver.recv().expect("a message");
    assert!(message[..] == bytes()[..]);
    message.ack();
    sender.wait_acked(1).expect("it is acknowledged");

    let region = cut_short("cut", readable);
    sender.send_region(&region.slice(..)).expect("sent");
    let cause = cause_of_end(|| {
        if busy {
            small.send(b"meanwhile").expect("the session goes on");
            assert_eq!(heard.recv().expect("a message")[..], b"meanwhile"[..]);
        }
        assert!(from.stats().suspensions <= 1, "over one connection more");
        let error = sender.wait_acked_timeout(2, MOMENT).err()?;
        error.cause().cloned()
    });
    let EndCause::Unreadable {
        sequence: 2,
        read,
        length,
        file: Some(file),
    } = cause
    else {
        panic!("another cause: {cause:?}");
    };
    assert_eq!(length, LENGTH as u64);
    // The kernel reads in steps.
    assert!(read <= readable && readable - read < 1 << 18, "{read}");
    let name = path_of("cut");
    assert!(file.starts_with(name.to_str().expect("in ASCII")), "{file}");
    let late = sender.send(b"late").expect_err("the channel has ended");
    assert!(late.to_string().contains("EFAULT"), "{late}");
    assert!(late.to_string().contains(&file), "{late}");
    let error = receiver.recv().expect_err("no whole message");
    assert!(error.to_string().contains("EFAULT"), "{error}");
    let expected = EndCause::PeerClosed(CloseReason::Unreadable);
    assert_eq!(error.cause(), Some(&expected));

    // The other channel and the session go on, over one more connection at most.
    small.send(b"after").expect("the session goes on");
    assert_eq!(heard.recv().expect("a message")[..], b"after"[..]);
    assert!(from.stats().suspensions <= 1);
    while let Some(event) = events.try_next() {
        if let Event::Suspended { cause, .. } = event {
            let said = cause.to_string();
            assert!(matches!(cause, EndCause::Refused { .. }), "{said}");
            assert!(said.contains("EFAULT"), "{said}");
        }
    }
    // A channel of the name can be opened again, and carries regions.
    drop((sender, receiver));
    let mut sender = raw(from, "regions").sender::<[u8]>().expect("an end");
    let mut receiver = raw(to, "regions").receiver::<[u8]>().expect("an end");
    sender.send_region(&whole.slice(..)).expect("sent");
    assert!(receiver.recv().expect("a message")[..] == bytes()[..]);
}

fn end_their_channels(read_for: ReadFor) {
    for dialer_sends in [true, false] {
        for busy in [true, false] {
            // The last bytes alone are few.
            for readable in [1 << 20, 5 << 20] {
                ends_its_channel(read_for, dialer_sends, busy, readable);
            }
        }
    }
}

#[test]
fn the_channel_of_an_unreadable_message_ends_and_the_session_goes_on() {
    end_their_channels(ReadFor::Socket);
}

/// The process reads the bytes itself, and would get SIGBUS.
#[test]
fn the_channel_of_an_unreadable_message_with_checks_ends_and_the_session_goes_on() {
    end_their_channels(ReadFor::Check);
}

/// The process reads the bytes itself, and would get SIGBUS.
#[test]
fn the_channel_of_an_unreadable_message_to_encrypt_ends_and_the_session_goes_on() {
    end_their_channels(ReadFor::Cipher);
}

/// Messages that the node would copy: over shared memory all, elsewhere short ones.
#[test]
fn a_message_that_cannot_be_copied_is_an_error_of_its_send_and_the_channel_goes_on() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 4);
        let region = cut_short("copied", 5000);
        let slices = match over.fabric {
            Fabric::Shm => vec![region.slice(..), region.slice(8190..8200)],
            _ => vec![region.slice(8190..8200)],
        };
        // More than a channel has slots for messages at a time.
        for slice in slices.iter().cycle().take(200) {
            let refused = pair.sender.send_region(slice).expect_err("it is cut short");
            assert_eq!(refused.kind(), SendErrorKind::Unreadable, "{refused}");
            assert!(refused.spares_channel() && !refused.is_transient());
            let read = (8192 - (slice.as_ptr().addr() - region.as_ptr().addr())).min(slice.len());
            let said = refused.to_string();
            assert!(
                said.contains(&format!("behind {read} of its {} bytes", slice.len())),
                "{said}"
            );
            assert!(
                said.contains(path_of("copied").to_str().expect("in ASCII")),
                "{said}"
            );
        }
        drop(slices);
        assert!(region.is_free(), "nothing keeps it over {}", over.fabric);
        // What the file still has is sent, and so is any other message, short or long.
        pair.sender
            .send_region(&region.slice(..5000))
            .expect("sent");
        pair.take(&bytes()[..5000]);
        pair.sender
            .send(&bytes()[..100])
            .expect("the channel goes on");
        pair.take(&bytes()[..100]);
        let whole = pair.region("whole");
        pair.sender.send_region(&whole.slice(..)).expect("sent");
        pair.take(&bytes());
    }
}

/// Short requests and replies are copied into their frames.
#[test]
fn a_request_or_reply_that_cannot_be_copied_is_an_error_and_calls_go_on() {
    for over in Over::each() {
        let (there, address) = over.listener(Driver::Threads);
        let here = over.builder(Driver::Threads).build().expect("a node");
        let near = here.connect(address).expect("a session");
        let far = there.accept().expect("a peer");
        let region = cut_short("called", 5000);
        let slice = region.slice(8190..8200);
        thread::scope(|scope| {
            scope.spawn(|| {
                let service = far.channel("blocks").codec::<Raw>().service();
                let mut service: Service<[u8], [u8], Raw> = service.expect("a service");
                while let Some(request) = service.next().expect("an orderly end") {
                    if request.is_empty() {
                        let refused = request.reply_region(&slice).expect_err("it is cut short");
                        assert!(refused.to_string().contains("EFAULT"), "{refused}");
                    } else {
                        request.reply(&b"reply"[..]).expect("sent");
                    }
                }
            });
            let caller = near.channel("blocks").codec::<Raw>().caller();
            let caller: Caller<[u8], [u8], Raw> = caller.expect("a caller");
            for _ in 0..3 {
                let refused = caller.call_region(&slice).expect_err("it is cut short");
                assert_eq!(refused.kind(), CallErrorKind::NotSent, "{refused}");
                assert!(refused.to_string().contains("EFAULT"), "{refused}");
                let refused = caller.call(&[]).expect_err("the reply is cut short");
                assert_eq!(refused.kind(), CallErrorKind::ReplyNotEncoded, "{refused}");
                assert!(refused.to_string().contains("EFAULT"), "{refused}");
                let reply = caller.call(b"request").expect("calls go on");
                assert_eq!(reply[..], b"reply"[..]);
            }
        });
    }
}
