//! Messages whose value is moved out: copies, and acknowledgements.
#![forbid(unsafe_code)]

mod pair;

use std::{
    io::{BufRead, Cursor, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use ibex::{
    Message, Node, Peer, Pod, Raw, Receiver, Serde, WaitErrorKind,
    serde::{Deserialize, Serialize},
};
use pair::{FABRICS, Pair};

#[ibex::message]
#[derive(Debug, PartialEq, Clone)]
struct Archived {
    offset: u64,
    data: Vec<u8>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ibex::Schema)]
#[serde(crate = "ibex::serde")]
struct Decoded {
    name: String,
}

/// The type cannot be cloned, so the value is the one that was decoded.
#[test]
fn a_value_is_taken_out_of_each_codec() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;

        let mut sender = there.sender::<Archived>("rkyv").expect("a sender");
        let mut receiver = here.receiver::<Archived>("rkyv").expect("a receiver");
        let sent = Archived {
            offset: 7,
            data: vec![1; 1000],
        };
        sender.send(&sent).expect("sent");
        let message = receiver.recv().expect("a message");
        assert_eq!(message.into_value().expect("it was checked"), sent);

        let sender = there.channel("serde").codec::<Serde>();
        let mut sender = sender.sender::<Decoded>().expect("a sender");
        let receiver = here.channel("serde").codec::<Serde>();
        let mut receiver = receiver.receiver::<Decoded>().expect("a receiver");
        let name = "a name".to_owned();
        sender.send(&Decoded { name }).expect("sent");
        let message = receiver.recv().expect("a message");
        let decoded = message.name.as_ptr();
        let value: Decoded = message.into_value();
        assert_eq!(
            (value.name.as_str(), value.name.as_ptr()),
            ("a name", decoded)
        );

        let (mut sender, mut receiver) = pair.channel("pod");
        sender.send(&9).expect("sent");
        let number: u64 = receiver.recv().expect("a message").into_value();
        assert_eq!(number, 9);
    }
}

#[test]
fn bytes_are_read_where_they_lie() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;
        let sender = there.channel("bytes").codec::<Raw>();
        let mut sender = sender.sender::<[u8]>().expect("a sender");
        let receiver = here.channel("bytes").codec::<Raw>();
        let mut receiver = receiver.receiver::<[u8]>().expect("a receiver");
        sender.send(b"one\ntwo\n").expect("sent");
        let message: Message<[u8], Raw> = receiver.recv().expect("a message");
        let place = message.bytes().as_ptr();
        let as_ref: &[u8] = message.as_ref();
        assert_eq!(as_ref.as_ptr(), place);
        let mut cursor = Cursor::new(message);
        let mut first = String::new();
        cursor.read_line(&mut first).expect("text");
        assert_eq!(first, "one\n");
        let mut rest = Vec::new();
        cursor.read_to_end(&mut rest).expect("bytes");
        assert_eq!(rest, b"two\n");
        assert_eq!(cursor.into_inner().bytes().as_ptr(), place);
    }
}

/// Moving a value out releases its message and acknowledges nothing, unless that was requested.
#[test]
fn a_message_set_to_acknowledge_on_drop_does() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = pair.channel("numbers");
        for number in 1..=6 {
            sender.send(&number).expect("sent");
        }
        let mut next = || receiver.recv().expect("a message");
        assert_eq!(next().ack_on_drop().into_value(), 1);
        drop(next().ack_on_drop());
        // A detached message also returns a buffer, before or afterwards.
        drop(next().into_owned().ack_on_drop());
        assert_eq!(*next().ack_on_drop().into_owned(), 4);
        sender.wait_acked(4).expect("acknowledged");
        let message = next().ack_on_drop();
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _message = message;
            panic!("on purpose");
        }));
        panicked.expect_err("it panics");
        let unacknowledged = sender.wait_acked(5);
        let error = unacknowledged.expect_err("it was dropped");
        assert_eq!(error.kind(), WaitErrorKind::Unacknowledged);
        assert_eq!(error.sequence(), Some(5));
    }
    let pair = Pair::over(FABRICS[0]);
    let (mut sender, mut receiver) = pair.channel("numbers");
    sender.send(&1).expect("sent");
    assert_eq!(receiver.recv().expect("a message").into_value(), 1);
    sender.wait_acked(1).expect_err("nobody said so");
}

/// A receiver holds as many owned messages as it can, so what arrived behind them waits for a drop.
/// The drop lets it go on, too, if no engine has the channel any more.
#[test]
fn a_drop_lets_a_channel_that_is_over_go_on() {
    let endings: [Ending; 3] = [
        |receiver, _, _| receiver.close(),
        |_, peer, _| drop(peer.close(WATCHDOG)),
        |_, _, node| drop(node.close(WATCHDOG)),
    ];
    for fabric in FABRICS {
        for end in endings {
            let pair = Pair::over(fabric);
            let [there, here] = &pair.peers;
            let sender = there.channel("held").codec::<Pod>().window_messages(HELD);
            let mut sender = sender.sender::<u64>().expect("a sender");
            let receiver = here.channel("held").codec::<Pod>().window_messages(HELD);
            let mut receiver = receiver.receiver::<u64>().expect("a receiver");
            let mut held = Vec::new();
            for number in 1..=HELD {
                sender.send(&number).expect("sent");
                held.push(receiver.recv().expect("a message").into_owned());
            }
            receiver.try_recv().expect_err("nothing more was sent");
            sender.send(&(HELD + 1)).expect("the window is released");
            sender.flush().expect("it arrives");
            end(&mut receiver, here, &pair.nodes[1]);

            let (bell, woken) = mpsc::channel();
            let waker = Waker::from(Arc::new(Bell(bell)));
            let mut context = Context::from_waker(&waker);
            assert!(receiver.poll_recv(&mut context).is_pending());
            held.remove(0).ack();
            woken.recv_timeout(WATCHDOG).expect("it is woken");
            let Poll::Ready(message) = receiver.poll_recv(&mut context) else {
                panic!("a cell is free");
            };
            assert_eq!(*message.expect("it had arrived"), HELD + 1);
            drop(held);
            receiver.recv().map(drop).expect_err("the channel is over");
        }
    }
}

/// A way in which a channel ends here.
type Ending = fn(&mut Receiver<u64, Pod>, &Peer, &Node);

/// The window, and as many messages as the receiver may hold.
const HELD: u64 = 16;
const WATCHDOG: Duration = Duration::from_secs(120);

/// Tells of its wake-ups.
struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}
