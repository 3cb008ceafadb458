//! A message whose memory the kernel cannot read, as of a mapped file whose medium fails: its channel
//! ends at both ends with the cause, and everything else goes on.

use std::{fs, fs::OpenOptions};

use ibex::{CloseReason, EndCause, Event};

use super::*;

/// Maps a file with these bytes, of which the kernel reads only the first `readable` from now on.
fn cut_short(name: &str, readable: u64) -> Region {
    let path = env::temp_dir().join(format!("ibex-regions-{name}-{}", process::id()));
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
fn is_told(dialer_sends: bool, busy: bool, readable: u64) {
    let none: [(&str, &str); 0] = [];
    let builder = || {
        let builder = Node::builder().environment(none).driver(Driver::Threads);
        builder.fabric(Fabric::Tcp, ibex::Policy::Require)
    };
    let there = builder().listen("127.0.0.1:0").build().expect("a node");
    let here = builder().build().expect("a node");
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
    } = cause
    else {
        panic!("another cause: {cause:?}");
    };
    assert_eq!(length, LENGTH as u64);
    // The kernel reads in steps.
    assert!(read <= readable && readable - read < 1 << 18, "{read}");
    let late = sender.send(b"late").expect_err("the channel has ended");
    assert!(late.to_string().contains("EFAULT"), "{late}");
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

#[test]
fn the_channel_of_an_unreadable_message_ends_and_the_session_goes_on() {
    for dialer_sends in [true, false] {
        for busy in [true, false] {
            // The last bytes alone are few.
            for readable in [1 << 20, 5 << 20] {
                is_told(dialer_sends, busy, readable);
            }
        }
    }
}
