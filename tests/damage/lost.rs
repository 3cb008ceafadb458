//! Whole writes that are lost, with nothing behind them that would show it: a message, the report of
//! its acknowledgement, and the questions and answers by which ends look for them. A call that waits
//! returns, because the ends ask again until an answer shows the gap.

use std::time::Duration;

use ibex::{Raw, Security, SharedSecret};
use ibex_harness::proxy::Proxy;

use crate::session;

/// Loses `reads` writes of the sender, or else of the receiver, except for the first `keep` bytes.
fn comes_through(is_sealed: bool, of_sender: bool, keep: usize, reads: u64) {
    println!("sealed: {is_sealed}, of sender: {of_sender}, {reads} writes but for {keep} bytes");
    let builder = || match is_sealed {
        true => {
            let secret = SharedSecret::from_bytes(std::array::from_fn(|at| at as u8))
                .expect("it is long enough");
            session::builder().security(Security::shared_secret(secret))
        }
        false => session::builder(),
    };
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let peer = here.connect(proxy.address()).unwrap();
    let other = there.accept().unwrap();
    let (to, from) = (peer.channel("lost"), other.channel("lost"));
    let mut sender = to.codec::<Raw>().sender::<[u8]>().unwrap();
    let mut receiver = from.codec::<Raw>().receiver::<[u8]>().unwrap();
    let first = sender.send(&[1; 100][..]).unwrap();
    receiver.recv().unwrap().ack();
    sender.wait_acked_timeout(first, WATCHDOG).unwrap();

    let second = if of_sender {
        proxy.lose(1, false, keep, reads);
        let second = sender.send(&[2; 100][..]).unwrap();
        let message = receiver.recv_timeout(WATCHDOG).unwrap();
        assert_eq!(message[..], [2; 100]);
        message.ack();
        second
    } else {
        let second = sender.send(&[2; 100][..]).unwrap();
        let message = receiver.recv_timeout(WATCHDOG).unwrap();
        proxy.lose(1, true, keep, reads);
        message.ack();
        second
    };
    sender.wait_acked_timeout(second, WATCHDOG).unwrap();
    let third = sender.send(&[3; 100][..]).unwrap();
    let message = receiver.recv_timeout(WATCHDOG).unwrap();
    assert_eq!(message[..], [3; 100]);
    message.ack();
    sender.wait_acked_timeout(third, WATCHDOG).unwrap();
    assert!(peer.stats().resumes >= 1, "the gap was noticed");
}

#[test]
fn news_of_an_acknowledgement_come_although_answers_are_lost() {
    for is_sealed in [false, true] {
        comes_through(is_sealed, false, 0, 4);
        comes_through(is_sealed, false, 20, 4);
    }
}

#[test]
fn a_message_comes_although_it_and_the_questions_after_it_are_lost() {
    for is_sealed in [false, true] {
        comes_through(is_sealed, true, 0, 4);
        comes_through(is_sealed, true, 20, 4);
    }
}

/// A watchdog's time: nothing takes so long on any machine.
const WATCHDOG: Duration = Duration::from_secs(200);
