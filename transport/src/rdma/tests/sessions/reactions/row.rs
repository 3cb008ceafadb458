//! A row of the table: a session to which a fact happens.

use std::fmt::Write;
use std::time::Instant;

use ibex_verbs::{
    Mtu, PortState, QueuePairState,
    abi::Wc,
    provider::{RawEvent, fake::Modification},
};

use super::{
    super::resuming::{PATIENCE, Resuming, Stream, TICK, VERBS_FIRST, posted_receives, trusting},
    Changed, Fact, Situation, State,
    words::{cause_of, nameless},
    *,
};
use crate::{
    channel::ChannelError,
    node::What,
    session::{EndCause, Fabric, FailoverPolicy},
};

/// A session of the first node in a given state, with a stream of messages in each direction. The
/// same RDMA port has another session, whose peer has an older version.
pub(super) struct Row {
    test: Resuming,
    situation: Situation,
    older: [Arc<SessionShared>; 2],
    /// The queue pair to which the fact happens.
    pair: u32,
    /// The identifiers of a receive and a send that the queue pair had when it was destroyed.
    late: [u64; 2],
    /// Number of shared receives that the first node has posted while nothing happens.
    receives: usize,
}

impl Row {
    pub(super) fn new(situation: Situation, fact: Fact) -> Self {
        let Situation { is_older, state } = situation;
        // A resuming session has another queue pair, and gets a third when the device is back.
        let ways = match state {
            State::OverTcp => FailoverPolicy::Only(Fabric::Tcp),
            State::Resuming => VERBS_FIRST,
            _ if fact.takes_device() => FailoverPolicy::Only(Fabric::Tcp),
            _ => VERBS_FIRST,
        };
        let ways = (!is_older).then_some(ways);
        let test = Resuming::between(ways, one_device(), trusting());
        let older = test.stage.another_session();
        let mut row = Self {
            pair: test.stage.queue_pairs()[0],
            receives: posted_receives(&test.stage),
            test,
            situation,
            older,
            late: [0; 2],
        };
        if state != State::Idle {
            row.fill();
        }
        row.reach(state, fact);
        row.test.block_way(true);
        row
    }

    /// Posts sends of both nodes, which stay in flight.
    fn fill(&mut self) {
        let Self { test, .. } = self;
        test.stage.fake.hold_sends(true);
        let [forth, back] = &mut test.channels;
        for _ in 0..2 {
            forth.send(1);
            back.send(1);
            test.stage.nodes[0].runtime.poll_ready();
            test.stage.nodes[1].runtime.poll_ready();
        }
        forth.send(2);
        let sent = test.stage.fake.posted();
        let ours = sent.iter().rfind(|send| send.queue_pair == self.pair);
        self.late[1] = ours.expect("it is sending").wr_id;
    }

    fn reach(&mut self, state: State, fact: Fact) {
        let stage = &self.test.stage;
        let fake = &stage.fake;
        match state {
            State::Idle | State::Sending => {}
            State::Closing => {
                stage.nodes[0].runtime.begin_close();
                stage.settle_first();
            }
            State::PeerClosed => {
                let theirs = stage.queue_pairs()[1];
                stage.nodes[1].runtime.begin_close();
                stage.settle_second();
                fake.release(theirs, 100);
                stage.settle_first();
            }
            State::Leaving => {
                // In this state, a failing send follows one that has killed the queue pair, and
                // both are found together.
                fake.lose_last_events(true);
                if !matches!(fact, Fact::SendFails(_)) {
                    fake.fail_send(self.pair, FIRST_CAUSE, 0);
                    stage.settle_first();
                    fake.lose_last_events(false);
                }
            }
            State::Suspended => {
                self.test.block_way(true);
                self.break_off(fact);
            }
            State::Resuming => {
                self.break_off(fact);
                self.pair = self.test.newest_pairs()[0];
            }
            State::OverTcp => {
                self.break_off(fact);
                self.test.stage.fake.hold_sends(false);
                self.test.settle_over(Fabric::Tcp);
                self.test.stage.settle();
            }
            State::Gone => {
                self.test.forget_session();
                self.break_off(fact);
            }
        }
    }

    /// Breaks the queue pair, and lets the first node dial once. If the fact concerns the queue pair again, the pair keeps a receive.
    fn break_off(&mut self, fact: Fact) {
        let stage = &self.test.stage;
        if matches!(fact, Fact::ReceiveFails(_)) && self.situation.state != State::Resuming {
            let (_, receive) = stage.fake.tags();
            self.late[0] = stage.fake.shared_receives(receive[0])[0].wr_id;
            stage.fake.swallow_receives(self.pair, 1);
        }
        stage.fake.fail_send(self.pair, FIRST_CAUSE, 0);
        stage.settle_first();
        self.test.end_attempts();
        stage.settle_first();
    }

    /// Returns the first node's reaction to a fact, and its outcome.
    pub(super) fn outcome(mut self, fact: Fact) -> String {
        let before = Calls::of(&self.test.stage);
        self.apply(fact);
        let mut outcome = self.reaction(&before);
        if self.situation.state == State::Resuming && fact.takes_device() {
            self.repair();
        }
        self.go_on();
        self.notified(fact, &mut outcome);
        self.arrived(&mut outcome);
        outcome
    }

    fn apply(&self, fact: Fact) {
        let fake = &self.test.stage.fake;
        match fact {
            Fact::SendFails(status) => match self.situation.state {
                State::Leaving => {
                    fake.fail_sends(self.pair, &[FIRST_CAUSE, status], 0);
                    self.test.stage.settle_first();
                    fake.lose_last_events(false);
                }
                State::Suspended | State::OverTcp | State::Gone => self.fail_late(1, status),
                _ => fake.fail_send(self.pair, status, 0),
            },
            Fact::ReceiveFails(status) => match self.situation.state {
                State::Suspended | State::OverTcp | State::Gone => self.fail_late(0, status),
                _ => fake.fail_receive(self.pair, status, 0),
            },
            Fact::Event(event) => self.raise(event),
            Fact::Change(changed, event) => {
                self.change(changed);
                self.raise(event);
            }
            Fact::ChangeThenSendFails(changed, event, status) => {
                self.change(changed);
                self.raise(event);
                self.test.stage.settle_first();
                fake.fail_send(self.pair, status, 0);
            }
            Fact::Removed => {
                fake.change(DEVICE, |device| device.is_listed = false);
                let node = &self.test.stage.nodes[0];
                node.runtime.check_for_device(node.rdma_port.clone());
            }
        }
        self.test.stage.settle_first();
    }

    /// Delivers a completion after the end of its queue pair.
    fn fail_late(&self, which: usize, status: u32) {
        let (completion, _) = self.test.stage.fake.tags();
        let failed = Wc {
            wr_id: self.late[which],
            status,
            qp_num: self.pair,
            ..Wc::default()
        };
        self.test.stage.fake.complete(completion[0], failed);
    }

    fn raise(&self, event_type: u32) {
        let fake = &self.test.stage.fake;
        let (completion, receive) = fake.tags();
        let element = match event_type {
            0 => completion[0],
            1..=7 | 16 => self.pair.into(),
            14 | 15 => receive[0],
            _ => 1,
        };
        let event = RawEvent {
            event_type,
            element,
        };
        fake.raise(DEVICE, event);
    }

    fn change(&self, changed: Changed) {
        self.test.stage.fake.change(DEVICE, |device| {
            let port = &mut device.ports[0];
            match changed {
                Changed::Nothing => {}
                Changed::State => port.attributes.state = PortState::Down,
                Changed::Lid => port.attributes.lid = 7,
                Changed::Partition => port.pkeys[0] = 0x8001,
                Changed::Gid => drop(port.gids.remove(1)),
                Changed::GidIndex => port.gids[1].index = 3,
                Changed::Mtu => port.attributes.active_mtu = Mtu::Bytes4096,
                Changed::Device => device.ports.clear(),
            }
        });
    }

    /// Returns the immediate reaction of the first node.
    fn reaction(&mut self, before: &Calls) -> String {
        let [_, back] = &mut self.test.channels;
        let handle = match back.take_all() {
            Ok(()) => "waits".to_owned(),
            Err(ChannelError::Ended) => "ended".to_owned(),
            Err(error) => error.cause().map_or_else(|| error.to_string(), cause_of),
        };
        let stage = &self.test.stage;
        let session = &stage.nodes[0].session;
        let session = match (session.is_gone(), session.is_suspended()) {
            (true, _) => "over",
            (false, true) => "suspended",
            (false, false) => "up",
        };
        let older = match self.older[0].is_gone() {
            true => "over",
            false => "up",
        };
        let rdma_port = &stage.nodes[0].rdma_port;
        let rdma_port = match (rdma_port.is_lost(), rdma_port.is_closed()) {
            (_, true) => "closed",
            (true, false) => "lost",
            (false, false) => "open",
        };
        let after = Calls::of(stage);
        format!(
            "session {session}, its receiver {handle}; other {older}; port {rdma_port}; moved to ERR \
             {}, limits armed {}; counted {} events, {} ignored, {} strays",
            after.errors - before.errors,
            after.armed - before.armed,
            after.counted.device_events - before.counted.device_events,
            after.counted.ignored_events - before.counted.ignored_events,
            after.counted.stray_completions - before.counted.stray_completions,
        )
    }

    /// Restores the device, and reopens it if necessary.
    fn repair(&mut self) {
        let stage = &self.test.stage;
        stage.settle();
        stage.fake.change(DEVICE, |device| *device = soft_roce());
        let rdma_ports = stage
            .nodes
            .each_ref()
            .map(|node| match node.rdma_port.is_lost() {
                true => open_port(&stage.fake, trusting()),
                false => node.rdma_port.clone(),
            });
        self.test.move_to(rdma_ports);
    }

    /// Makes the peer reachable again, and lets the device report what it has held back.
    fn go_on(&mut self) {
        self.test.stage.fake.hold_sends(false);
        self.test.block_way(false);
        if self.situation.state == State::Leaving {
            self.raise(LAST_REQUEST_REACHED);
        }
        let until = Instant::now() + PATIENCE;
        let mut settled = 0;
        while settled < 3 {
            assert!(
                Instant::now() < until,
                "{:?}: {:?}",
                self.situation,
                self.test.stage.stats()
            );
            self.test.turn(20);
            self.test.stage.settle();
            if !self.says_goodbye() {
                self.test.clock.advance(TICK);
            }
            self.test.pass_time();
            // The handles report channels that have ended, which is checked below.
            let _ = self.test.channels.each_mut().map(Stream::take_all);
            settled = if self.is_settled() { settled + 1 } else { 0 };
        }
        if self.is_up() {
            for stream in &mut self.test.channels {
                stream.send(1);
            }
            self.test.stage.settle();
            for stream in &mut self.test.channels {
                stream.take_all().unwrap();
                assert!(stream.receiver.receive(Patience::None).is_err());
            }
            self.test.stage.settle();
        }
    }

    fn is_up(&self) -> bool {
        let mut nodes = self.test.stage.nodes.iter();
        nodes.all(|node| !node.session.is_gone() && !node.session.is_suspended())
    }

    /// Returns whether the session sends goodbye. The answer may then take a second. That second
    /// passes here only if an end waits to dial again, so no row is too late for it.
    fn says_goodbye(&self) -> bool {
        matches!(self.situation.state, State::Closing | State::PeerClosed)
    }

    fn is_settled(&self) -> bool {
        let [first, second] = self.test.stage.nodes.each_ref().map(|node| &node.session);
        match self.situation.state {
            State::Closing => first.is_gone(),
            // For the first end the session was over when the second had sent its goodbye.
            State::PeerClosed => second.is_gone(),
            _ => first.is_gone() || self.is_up(),
        }
    }

    /// Adds what the listener to the first node's events was told about the session.
    fn notified(&self, fact: Fact, outcome: &mut String) {
        let node = &self.test.stage.nodes[0];
        let ours = node.session.peer().address;
        let mut notified = Vec::new();
        while let Some(event) = node.runtime.next_event(Patience::None) {
            if event.address != ours {
                continue;
            }
            match event.what {
                What::Suspended { cause, .. } => {
                    notified.push(format!("suspended by {}", self.told_cause(fact, &cause)));
                }
                What::Resumed { replayed, .. } => {
                    notified.push(format!("resumed, {replayed} again"));
                }
                What::FabricChanged { from, to, .. } => notified.push(format!("{from} to {to}")),
                What::Gone { cause } => {
                    // A report of the break may or may not have come before, depending on timing.
                    notified.retain(|one| !one.starts_with("suspended"));
                    notified.push(format!("over by {}", self.told_cause(fact, &cause)));
                }
                What::Connected { .. } => {}
                other => notified.push(format!("{other:?}")),
            }
        }
        let notified = if notified.is_empty() {
            vec!["nothing".to_owned()]
        } else {
            notified
        };
        write!(outcome, "; told {}", notified.join(", ")).unwrap();
    }

    /// Returns a cause, with its text unless the fact is a status or an event.
    fn told_cause(&self, fact: Fact, cause: &EndCause) -> String {
        let short = cause_of(cause);
        let (EndCause::PeerGone { why, .. } | EndCause::DeviceLost { why }) = cause else {
            return short;
        };
        if !matches!(self.situation.state, State::Idle | State::Sending) {
            return short;
        }
        match fact {
            Fact::SendFails(status) | Fact::ReceiveFails(status) => {
                assert!(why.contains(&format!("status {status}")), "{why}");
                short
            }
            Fact::Event(_) => short,
            _ => format!("{short} ({})", nameless(why)),
        }
    }

    /// Adds the arrivals of the two streams.
    fn arrived(&self, outcome: &mut String) {
        let stage = &self.test.stage;
        let [forth, back] = self.test.channels.each_ref().map(|stream| {
            let Stream { sent, received, .. } = stream;
            match sent == received {
                true => "all".to_owned(),
                false => format!("{received} of {sent}"),
            }
        });
        let session = &stage.nodes[0].session;
        let over = match session.is_gone() {
            true => "over".to_owned(),
            false => format!("goes on over {}", session.fabric()),
        };
        let peer = &stage.nodes[1].session;
        let peer = match (peer.is_gone(), peer.is_suspended()) {
            (true, _) => "over",
            (false, true) => "suspended",
            (false, false) => "up",
        };
        write!(outcome, "; {over}, peer {peer}; arrived {forth} and {back}").unwrap();
        // The shared receives that queue pairs had taken are posted again.
        if !stage.nodes[0].rdma_port.is_lost() {
            let posted = posted_receives(stage);
            assert!(posted + 16 > self.receives, "{posted} {outcome}");
        }
    }
}

/// Status with which a queue pair is killed on purpose.
const FIRST_CAUSE: u32 = 12;
const LAST_REQUEST_REACHED: u32 = 16;

/// Requests to the device, and counts of the first node.
struct Calls {
    errors: usize,
    armed: u64,
    counted: SessionStats,
}

impl Calls {
    fn of(stage: &Stage) -> Self {
        let fake = &stage.fake;
        let to_error = |change: &Modification| change.attributes.state == QueuePairState::Error;
        Self {
            errors: fake
                .modifications()
                .iter()
                .filter(|one| to_error(one))
                .count(),
            armed: fake.limits_armed(),
            counted: stage.nodes[0].session.stats(),
        }
    }
}

impl Stage {
    /// Turns only the first node, so that reactions of the second do not show.
    fn settle_first(&self) {
        self.settle_one(0);
    }

    fn settle_second(&self) {
        self.settle_one(1);
    }

    fn settle_one(&self, node: usize) {
        for _ in 0..10_000 {
            if !self.nodes[node].runtime.poll_ready() {
                return;
            }
        }
        panic!("the node never comes to rest");
    }
}
