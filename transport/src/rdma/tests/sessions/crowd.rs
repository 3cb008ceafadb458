//! Many peers of one node, and the division of its receive buffers between them.

use std::{net::Shutdown, time::Duration};

use super::*;

mod both_ways;

/// A node that several others send to.
struct Crowd {
    // Fields in drop order.
    talkers: Vec<Talker>,
    senders: Vec<(Arc<Runtime>, Arc<RdmaPort>)>,
    runtime: Arc<Runtime>,
    rdma_port: Arc<RdmaPort>,
    fake: FakeProvider,
}

/// A session with a channel, and the messages sent and taken over it.
struct Talker {
    sender: SendHandle,
    receiver: ReceiveHandle,
    /// The sessions of the sending end and of the receiving end.
    sessions: [Arc<SessionShared>; 2],
    /// The sending end's queue pair.
    queue_pair: u32,
    /// A second handle of the sending end's connection, to break it.
    tcp: TcpStream,
    sent: u64,
    taken: u64,
}

/// Length of every message, which fills most of a receive buffer.
const MESSAGE_BYTES: usize = 2400;
/// Window of each channel, independent of the credit.
const MESSAGES_OPEN: ChannelWindow = ChannelWindow {
    messages: 64,
    bytes: 256 << 10,
};

/// Returns the settings of a receiving RDMA port that lends `lendable` buffers to up to `sessions`
/// peers, beside the one that each has for its credit messages, and the one that it is lent while it
/// has no other.
fn lends(lendable: u32, sessions: u32) -> PortSettings {
    PortSettings {
        receive_buffers: lendable + 2 * sessions + KEPT_FOR_REPOSTING,
        held_buffers: 64,
        max_sessions: sessions,
        session_credit: 64,
        ..PortSettings::default()
    }
}

/// Buffers that may wait to be posted again, and are not lent.
const KEPT_FOR_REPOSTING: u32 = 16;

impl Crowd {
    /// Makes a crowd without any session.
    fn new(settings: PortSettings, senders: usize) -> Self {
        Self::on(one_device(), settings, senders)
    }

    fn on(fake: FakeProvider, settings: PortSettings, senders: usize) -> Self {
        let dials = PortSettings {
            // Each session that a sender dials counts as two.
            max_sessions: 400,
            receive_buffers: 1024,
            held_buffers: 0,
            send_requests: 64,
            session_credit: 8,
            ..settings
        };
        Self {
            talkers: Vec::new(),
            senders: (0..senders)
                .map(|_| (runtime(Driver::Caller), open_port(&fake, dials)))
                .collect(),
            runtime: runtime(Driver::Caller),
            rdma_port: open_port(&fake, settings),
            fake,
        }
    }

    /// Opens a session from one of the sending nodes, and a channel over it.
    fn join(&mut self, from: usize) {
        let (dials, rdma_port) = &self.senders[from];
        let pairs = pairs([rdma_port, &self.rdma_port]).unwrap();
        let queue_pair = pairs[0].endpoint().pair.queue_pair;
        let mut ends = pairs.into_iter().zip(connection());
        let mut admit = |runtime: &Arc<Runtime>| {
            let (pair, stream) = ends.next().unwrap();
            let tcp = stream.try_clone().unwrap();
            (runtime.admit(admission(stream, pair)).unwrap(), tcp)
        };
        let (ours, tcp) = admit(dials);
        let (theirs, _) = admit(&self.runtime);
        let spec = spec_of_bytes(MESSAGES_OPEN, MESSAGE_BYTES as u64);
        let timeout = Duration::from_secs(10);
        self.talkers.push(Talker {
            sender: dials
                .open_sender(&ours, "data", spec.clone(), timeout)
                .unwrap(),
            receiver: self
                .runtime
                .open_receiver(&theirs, "data", spec, timeout, HALF_WINDOW)
                .unwrap(),
            sessions: [ours, theirs],
            queue_pair,
            tcp,
            sent: 0,
            taken: 0,
        });
    }

    /// Turns the receiving engine and those of `senders`, until nothing moves.
    fn settle(&self, senders: &[usize]) {
        for _ in 0..100_000 {
            let mut moved = self.runtime.poll_ready();
            for &sender in senders {
                moved |= self.senders[sender].0.poll_ready();
            }
            if !moved {
                return;
            }
        }
        panic!("the nodes never come to rest");
    }

    /// Lets each talker in `busy` send until `messages` of its messages have arrived. Returns how
    /// many each had delivered when the first was done.
    fn run(&mut self, busy: &[usize], messages: u64) -> Vec<u64> {
        let everywhere: Vec<_> = (0..self.senders.len()).collect();
        self.run_beside(busy, messages, &everywhere)
    }

    /// Like [`run`](Self::run), where only the nodes `turning` make turns.
    fn run_beside(&mut self, busy: &[usize], messages: u64, turning: &[usize]) -> Vec<u64> {
        let goal: Vec<_> = busy
            .iter()
            .map(|&at| self.talkers[at].taken + messages)
            .collect();
        let before: Vec<_> = busy.iter().map(|&at| self.talkers[at].taken).collect();
        let mut shares = None;
        for _ in 0..100_000 {
            for (&at, &goal) in busy.iter().zip(&goal) {
                self.talkers[at].fill(goal);
            }
            self.settle(turning);
            let mut done = 0;
            for (&at, &goal) in busy.iter().zip(&goal) {
                self.talkers[at].take();
                done += usize::from(self.talkers[at].taken == goal);
            }
            if done > 0 && shares.is_none() {
                let taken = busy.iter().map(|&at| self.talkers[at].taken);
                shares = Some(taken.zip(&before).map(|(now, then)| now - then).collect());
            }
            if done == busy.len() {
                return shares.unwrap();
            }
            self.fake.forget_posted();
        }
        let taken: Vec<_> = busy.iter().map(|&at| self.talkers[at].taken).collect();
        panic!("not everything arrives: {taken:?}");
    }

    /// Returns the credit that a session's peer is lent.
    fn lent(&self, at: usize) -> u64 {
        self.runtime
            .lent_and_free(self.talkers[at].sessions[1].id)
            .0
    }

    /// Returns the credit that is not lent.
    fn free(&self) -> u64 {
        self.runtime.lent_and_free(0).1
    }
}

impl Talker {
    /// Sends until `goal` messages are sent, or until there is no room.
    fn fill(&mut self, goal: u64) {
        while self.sent < goal {
            match try_send(&mut self.sender, &payload(self.sent, MESSAGE_BYTES)) {
                Ok(_) => self.sent += 1,
                Err(ChannelError::WouldBlock | ChannelError::NotOpenYet) => return,
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    fn take(&mut self) {
        while let Some(message) = self.receiver.poll().unwrap() {
            assert_eq!(message.bytes(), payload(self.taken, MESSAGE_BYTES));
            self.taken += 1;
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fake.rnr_naks(), 0);
        }
        for (runtime, _) in &self.senders {
            let _ = runtime.close(Duration::ZERO);
        }
        let _ = self.runtime.close(Duration::ZERO);
    }
}

fn spread(shares: &[u64]) -> f64 {
    let most = shares.iter().max().copied().unwrap_or_default();
    let least = shares.iter().min().copied().unwrap_or_default();
    most as f64 / least.max(1) as f64
}

// ---- Many senders --------------------------------------------------------------------

/// A share is the number of messages that a sender had delivered when the first sender was done.
/// Until then every sender had messages to send, so only the division of credit makes a difference.
/// A session that starves early cannot hide that by catching up later.
#[test]
fn two_hundred_senders_share_40_buffers() {
    for senders in [1, 20] {
        let mut crowd = Crowd::new(lends(40, 200), senders);
        (0..200).for_each(|at| crowd.join(at % senders));
        let everybody: Vec<_> = (0..200).collect();
        let shares = crowd.run(&everybody, 128);
        assert!(spread(&shares) <= 1.5, "{senders} nodes: {shares:?}");
        for talker in &crowd.talkers {
            let stats = talker.sessions[0].stats();
            assert!(stats.credit_stalls > 0, "{stats:?}");
        }
    }
}

/// Checks senders that have more than one buffer each.
#[test]
fn a_few_senders_share_the_credit_evenly() {
    for senders in [2, 3, 7] {
        let mut crowd = Crowd::new(lends(64, 16), senders);
        (0..senders).for_each(|at| crowd.join(at));
        let everybody: Vec<_> = (0..senders).collect();
        let shares = crowd.run(&everybody, 1000);
        assert!(spread(&shares) <= 1.5, "{senders}: {shares:?}");
    }
}

/// A receiver that makes one turn for each round of its application takes 32 completions each time,
/// while frames of all senders wait in the queue.
#[test]
fn whose_frames_still_lie_in_the_queue_is_not_taken_for_idle() {
    for senders in [2, 3, 7] {
        let mut crowd = Crowd::new(lends(64, 16), senders);
        (0..senders).for_each(|at| crowd.join(at));
        let everybody: Vec<_> = (0..senders).collect();
        crowd.run(&everybody, 10);
        for round in 0..300 {
            // Another sender is the first in each round.
            for at in (0..senders).map(|at| (at + round) % senders) {
                crowd.talkers[at].fill(u64::MAX);
                while crowd.senders[at].0.poll_ready() {}
            }
            crowd.runtime.poll_ready();
            crowd.talkers.iter_mut().for_each(Talker::take);
            crowd.fake.forget_posted();
        }
        let lent: Vec<_> = everybody.iter().map(|&at| crowd.lent(at)).collect();
        assert!(spread(&lent) <= 1.5, "{senders} are lent {lent:?}");
        let taken: Vec<_> = crowd.talkers.iter().map(|talker| talker.taken).collect();
        assert!(spread(&taken) <= 1.5, "{senders} got through {taken:?}");
    }
}

/// The cost of a turn depends on the messages that move in it, not on the number of blocked
/// sessions.
#[test]
fn sessions_that_wait_for_credit_are_not_looked_at() {
    let mut crowd = Crowd::new(lends(40, 100), 1);
    (0..100).for_each(|_| crowd.join(0));
    let everybody: Vec<_> = (0..100).collect();
    crowd.run(&everybody, 4);
    crowd.fake.hold_sends(true);
    for talker in &mut crowd.talkers {
        talker.fill(u64::MAX);
    }
    crowd.settle(&[0]);
    let hot = [&crowd.runtime, &crowd.senders[0].0].map(|runtime| runtime.hot_sessions());
    assert_eq!(hot, [0, 0], "receiving and sending");
    crowd.fake.hold_sends(false);
    crowd.run(&everybody, 100);
}

// ---- Silent, idle and gone -----------------------------------------------------------

/// Nodes that make no turns after they connected hold all that is lent. Those that come later have
/// a buffer each, and when some of them fall silent with it, the next have theirs.
#[test]
fn peers_that_say_nothing_keep_no_newcomer_from_sending() {
    let mut crowd = Crowd::new(lends(126, 150), 3);
    (0..140).for_each(|_| crowd.join(0));
    crowd.settle(&[]);
    assert_eq!(crowd.free(), 0);
    (0..4).for_each(|_| crowd.join(1));
    crowd.run_beside(&[140, 141], 200, &[1]);
    // From here on the second node makes no turns either.
    (0..2).for_each(|_| crowd.join(1));
    (0..2).for_each(|_| crowd.join(2));
    crowd.run_beside(&[146, 147], 200, &[2]);
    let silent: Vec<_> = (0..140).chain(144..146).map(|at| crowd.lent(at)).collect();
    assert!(silent[140..].iter().all(|&lent| lent > 0), "{silent:?}");
}

/// Peers that have everything that is lent, and stand still, leave those that come later a buffer
/// each.
#[test]
fn peers_that_fall_silent_keep_no_newcomer_from_sending() {
    let mut crowd = Crowd::new(lends(2 * 64, 32), 2);
    for at in 0..2 {
        crowd.join(0);
        crowd.run(&[at], 1);
    }
    assert_eq!(crowd.free(), 0);
    // From here on the first node makes no turns.
    (0..20).for_each(|_| crowd.join(1));
    let later: Vec<_> = (2..22).collect();
    crowd.run_beside(&later, 200, &[1]);
}

#[test]
fn an_idle_sessions_credit_goes_to_a_sender_and_comes_back() {
    let mut crowd = Crowd::new(lends(90, 2), 2);
    crowd.join(0);
    crowd.run(&[0], 100);
    assert_eq!((crowd.lent(0), crowd.free()), (64, 26), "all it may have");
    crowd.join(1);
    crowd.run(&[1], 2000);
    assert_eq!(crowd.lent(1), 64, "all it may have");
    assert!(crowd.lent(0) <= 26);
    // The first session needs its share again; then both get equal shares.
    let shares = crowd.run(&[0, 1], 1000);
    assert!(spread(&shares) <= 1.5, "{shares:?}");
    let lent = [crowd.lent(0), crowd.lent(1)];
    assert!(spread(&lent) <= 2.0, "{lent:?}");
}

/// A killed sender never answers its recall; its credit is lent again as soon as its session is
/// over.
#[test]
fn a_sender_that_dies_with_a_recall_open_gives_all_back() {
    let mut crowd = Crowd::new(lends(64, 8), 2);
    crowd.join(0);
    crowd.run(&[0], 100);
    assert_eq!(crowd.lent(0), 64);
    // From here on the first node makes no turns.
    crowd.join(1);
    crowd.settle(&[1]);
    // The credit that the first node had used came back without its help.
    assert!(crowd.lent(0) > 48, "{}", crowd.lent(0));
    assert_eq!([crowd.lent(0) + crowd.lent(1), crowd.free()], [64, 0]);
    crowd.talkers[0].tcp.shutdown(Shutdown::Both).unwrap();
    while !crowd.talkers[0].sessions[1].is_gone() {
        crowd.settle(&[1]);
    }
    crowd.settle(&[1]);
    assert_eq!([crowd.lent(0), crowd.lent(1) + crowd.free()], [0, 64]);
    crowd.run(&[1], 500);
    assert_eq!([crowd.lent(1), crowd.free()], [64, 0]);
    // The place of its session is free again, with room for two sessions.
    (0..7).for_each(|_| crowd.join(1));
}

/// Like the test before, but the device never reports that the dead queue pair is drained, so a
/// time-out ends its session. A sender that waits for the credit gets it at that moment, not at a
/// later event.
#[test]
fn a_session_that_a_clock_ends_gives_all_back_in_the_same_turn() {
    let fake = one_device();
    fake.lose_last_events(true);
    let mut crowd = Crowd::on(fake, lends(64, 8), 2);
    crowd.join(0);
    crowd.run(&[0], 100);
    crowd.join(1);
    crowd.talkers[0].tcp.shutdown(Shutdown::Both).unwrap();
    while crowd.lent(0) > 0 {
        crowd.talkers[1].take();
        crowd.talkers[1].fill(u64::MAX);
        crowd.senders[1].0.poll_ready();
        crowd.runtime.poll_ready();
        crowd.fake.forget_posted();
    }
    assert_eq!([crowd.lent(1), crowd.free()], [64, 0]);
}

// ---- Other ways to have credit -------------------------------------------------------

#[test]
fn queue_pairs_with_receives_of_their_own_keep_their_credit() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.attributes.max_shared_receive_queues = 0;
    });
    let settings = PortSettings {
        receive_buffers: 200,
        session_credit: 32,
        ..lends(64, 4)
    };
    let mut crowd = Crowd::on(fake, settings, 1);
    (0..3).for_each(|_| crowd.join(0));
    crowd.settle(&[0]);
    crowd.fake.hold_sends(true);
    for at in 0..3 {
        crowd.fake.forget_posted();
        crowd.talkers[at].fill(64);
        crowd.settle(&[0]);
        let posted = crowd.fake.posted();
        let ours = crowd.talkers[at].queue_pair;
        let posted = posted.iter().filter(|send| send.queue_pair == ours);
        // The receipt of the frame that opened the channel may or may not have been reported yet.
        let posted = posted.count();
        assert!((31..=32).contains(&posted), "session {at}: {posted}");
    }
    crowd.fake.hold_sends(false);
    crowd.run(&[0, 1, 2], 300);
}

// ---- Counters ------------------------------------------------------------------------

#[test]
fn a_stall_is_counted_when_a_sender_has_to_wait_and_once() {
    let mut crowd = Crowd::new(lends(64, 2), 1);
    crowd.join(0);
    crowd.settle(&[0]);
    let stalls = |crowd: &Crowd| crowd.talkers[0].sessions[0].stats().credit_stalls;
    let before = stalls(&crowd);
    for goal in 1..500 {
        crowd.talkers[0].fill(goal);
        crowd.settle(&[0]);
        crowd.talkers[0].take();
    }
    assert_eq!(stalls(&crowd), before, "it never waited");
    // Now the sender waits: nothing arrives, and it has more messages than it may send.
    let mut crowd = Crowd::new(lends(8, 2), 1);
    crowd.join(0);
    crowd.settle(&[0]);
    crowd.fake.hold_sends(true);
    crowd.talkers[0].fill(40);
    crowd.settle(&[0]);
    let waiting = stalls(&crowd);
    assert!(waiting > 0);
    for _ in 0..1000 {
        crowd.senders[0].0.poll_ready();
    }
    assert_eq!(stalls(&crowd), waiting, "waiting longer is no other stall");
    crowd.fake.hold_sends(false);
    crowd.run(&[0], 500);
}
