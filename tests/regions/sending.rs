//! Sends of regions that wait, or that are given up.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use ibex::{
    Fabric, Node, Peer, Raw, Region, Role, SendErrorKind,
    log::{LogAnswer, LogErrorKind, LogGroup, LogSender, LogSent, LogSource, LogTurn},
    stats::ChannelStats,
};

use super::{LENGTH, LONG, MOMENT, Over, Pair, bytes};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A send that finds no room sends nothing and keeps nothing, however it gives up.
#[test]
fn a_full_channel_takes_no_region() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 1);
        let (first, region) = (pair.region("first"), pair.region("full"));
        pair.sender.send_region(&first.slice(..)).expect("sent");
        let slice = region.slice(1..);
        let late = pair.sender.try_send_region(&slice).expect_err("no room");
        assert_eq!(late.kind(), SendErrorKind::Full, "{late}");
        let late = pair.sender.send_region_timeout(&slice, MOMENT);
        assert_eq!(late.expect_err("no room").kind(), SendErrorKind::Timeout);
        assert!(poll(pin!(pair.sender.send_region_async(&slice))).is_pending());
        drop(slice);
        assert!(region.is_free(), "a clone is kept over {}", over.fabric);

        // The wait for room ends when the receiver has released the message before.
        let slice = region.slice(1..);
        {
            let Pair {
                sender, receiver, ..
            } = &mut pair;
            let mut sending = pin!(sender.send_region_async(&slice));
            assert!(poll(sending.as_mut()).is_pending());
            let message = receiver.recv_timeout(LONG).expect("a message");
            assert!(message[..] == first[..]);
            drop(message);
            let sent = loop {
                match poll(sending.as_mut()) {
                    Poll::Ready(sent) => break sent,
                    Poll::Pending => assert!(receiver.try_recv().is_err(), "nothing was sent"),
                }
            };
            assert_eq!(sent.expect("there is room"), 3);
        }
        pair.take(&slice);
    }
}

/// Returns the bytes that the sending end of a channel has copied out of regions.
fn copied(node: &Node, channel: &str) -> u64 {
    let stats = node.stats();
    let mut ends = stats.sessions.iter().flat_map(|session| &session.channels);
    let is_it = |end: &&ChannelStats| end.end == Role::Sender && end.name == channel;
    ends.find(is_it).expect("it is open").region_bytes_copied
}

/// The fabrics copy no long message from a region that suits them, and short ones do not count.
#[test]
fn copies_out_of_a_region_are_counted() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let suits = pair.region("counted");
        for slice in [suits.slice(..), suits.slice(..100)] {
            pair.sender.send_region(&slice).expect("sent");
            pair.take(&slice);
        }
        assert_eq!(copied(&pair.here, "bytes"), 0, "over {}", over.fabric);
        let sent = if over.fabric == Fabric::Tcp {
            0
        } else {
            LENGTH as u64
        };
        let heap = [Region::from(bytes()), Region::from_owner(bytes())];
        for (times, region) in (1..).zip(heap) {
            pair.sender.send_region(&region.slice(..)).expect("sent");
            pair.take(&region);
            let counted = copied(&pair.here, "bytes");
            assert_eq!(counted, times * sent, "over {}", over.fabric);
        }
    }
}

/// A peer that maps as many regions as it may keeps most of them, and gets the messages of others in
/// copies.
#[test]
fn of_many_regions_some_are_copied() {
    let pair = Pair::meet(&Over::new(Fabric::Shm), 1);
    let [peer, other] = &pair.peers;
    let many = peer.channel("many").codec::<Raw>();
    let mut sender = many.window_bytes(64 << 10).sender().expect("a sender");
    let many = other.channel("many").codec::<Raw>();
    let mut receiver = many.receiver::<[u8]>().expect("a receiver");
    while let Err(late) = sender.opened(MOMENT) {
        assert!(late.is_transient(), "{late}");
        pair.there.poll();
    }
    let regions = (0..70).map(|number| {
        let mut region = Region::zeroed(LONG_BYTES).expect("memory");
        region.get_mut().expect("no slice").fill(number);
        region
    });
    let regions: Vec<_> = regions.collect();
    for _ in 0..3 {
        for region in &regions {
            sender.send_region(&region.slice(..)).expect("sent");
            let message = receiver.recv_timeout(LONG).expect("a message");
            assert!(message[..] == region[..]);
        }
    }
    let (copied, all) = (copied(&pair.here, "many"), 3 * 70 * LONG_BYTES as u64);
    assert!(0 < copied && copied < all / 4, "{copied} of {all}");
}

/// Longer than half of a window of 64 KiB.
const LONG_BYTES: usize = 40_000;

#[test]
fn an_aborted_channel_gives_its_regions_back() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let region = pair.region("aborted");
        pair.sender.send_region(&region.slice(..)).expect("sent");
        pair.sender.send_region(&region.slice(7..)).expect("sent");
        pair.sender.abort();
        // What of it arrives before the events are the fabric's affair.
        while pair.receiver.next().is_ok_and(|next| next.is_some()) {}
        while !region.wait_free(MOMENT) {
            pair.there.poll();
        }
    }
}

/// A log of bytes in a region, in messages of different lengths.
struct Pages(Region);

impl LogSource<[u8], Raw> for Pages {
    fn end(&self) -> u64 {
        self.0.len() as u64
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        Box::pin(async move {
            let pages = peer.channel("pages").codec::<Raw>();
            Ok((pages.window_messages(2).sender()?, 0))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> Sourced<LogSent> {
        let start = position as usize;
        let end = (2 * start + 1000).min(self.0.len());
        Ok(turn.send_region(&self.0.slice(start..end), end as u64))
    }
}

type Sourced<R> = Result<R, Box<dyn std::error::Error + Send + Sync>>;

/// By each kind of call, in turn.
#[test]
fn a_log_of_regions_is_sent_whole() {
    for over in Over::each() {
        let pair = Pair::meet(&over, 1);
        let [peer, other] = &pair.peers;
        let mut pages = other
            .channel("pages")
            .codec::<Raw>()
            .receiver()
            .expect("a receiver");
        let mut log = Pages(pair.region("log"));
        let mut sender: LogSender<[u8], Raw> = LogSender::new();
        sender.go_on_with(peer.clone());
        let mut arrived: Vec<u8> = Vec::with_capacity(LENGTH);
        for call in 0.. {
            let position = sender.position();
            match call % 3 {
                0 => drop(sender.try_send(&mut log).expect("a session")),
                1 => drop(sender.send_timeout(&mut log, MOMENT)),
                _ => drop(poll(pin!(sender.send_async(&mut log)))),
            }
            assert!(sender.position() >= position);
            if let Ok(message) = pages.try_recv() {
                arrived.extend_from_slice(&message);
                message.ack();
            }
            if arrived.len() == LENGTH {
                break;
            }
        }
        assert!(arrived == bytes());
        assert_eq!(sender.send(&mut log).expect("all is sent"), LENGTH as u64);
    }
}

/// The same log for several members, each of which gets the channel of its turn.
struct Copies {
    pages: Pages,
    resumed: usize,
}

impl LogSource<[u8], Raw> for Copies {
    fn end(&self) -> u64 {
        self.pages.end()
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<[u8], Raw> {
        let name = format!("copy {}", self.resumed);
        self.resumed += 1;
        Box::pin(async move {
            let pages = peer.channel(&name).codec::<Raw>();
            Ok((pages.window_messages(2).sender()?, 0))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, [u8], Raw>) -> Sourced<LogSent> {
        self.pages.send_next(position, turn)
    }
}

#[test]
fn a_log_of_regions_is_sent_whole_to_each_member() {
    for over in Over::each() {
        let pair = Pair::meet(&over, 1);
        let [peer, other] = &pair.peers;
        let mut log = Copies {
            pages: Pages(pair.region("copied log")),
            resumed: 0,
        };
        let mut group = LogGroup::new();
        let mut copies: Vec<_> = (0..2)
            .map(|number| {
                group.join(peer.clone());
                let copy = other.channel(&format!("copy {number}")).codec::<Raw>();
                (copy.receiver().expect("a receiver"), Vec::new())
            })
            .collect();
        let end = LENGTH as u64;
        loop {
            let acked = group.wait_acked_timeout(&mut log, end, 2, MOMENT);
            for (pages, arrived) in &mut copies {
                if let Ok(message) = pages.try_recv() {
                    arrived.extend_from_slice(&message);
                    message.ack();
                }
            }
            match acked {
                Ok(()) => break,
                Err(late) => assert_eq!(late.kind(), LogErrorKind::Timeout, "{late}"),
            }
        }
        assert!(copies.iter().all(|(_, arrived)| *arrived == bytes()));
    }
}
