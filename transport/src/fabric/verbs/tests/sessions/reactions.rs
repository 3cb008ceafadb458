//! What each thing that a device can say does to a session, as a table: `reactions.txt`.
//!
//! Each row is driven through the fake provider. `IBEX_REWRITE_TABLES=1` writes the table
//! anew. Statuses are those of ibv_poll_cq(3), events those of ibv_get_async_event(3).

use std::fmt::{self, Write};
use std::path::Path;

use super::*;
use crate::channel::EndCause;
use crate::fabric::verbs::provider::RawEvent;

/// How far a session is when something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Up, with nothing on its way.
    Idle,
    /// Up, with sends on their way.
    Sending,
    /// Closing, with sends on their way and our goodbye behind them.
    Closing,
    /// The peer has said goodbye; ours is on its way.
    PeerClosed,
    /// Its queue pair is dead and not drained.
    Leaving,
    /// Over, and its queue pair destroyed.
    Gone,
}

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum Fact {
    SendFails(u32),
    ReceiveFails(u32),
    Event(u32),
    /// The port changes, and the event tells.
    Change(Changed, u32),
    /// The same, and then a send fails.
    ChangeThenSendFails(Changed, u32, u32),
    /// The device is listed no more, as somebody finds who looks.
    Removed,
}

/// What changes of a port.
#[derive(Clone, Copy, Debug)]
enum Changed {
    Nothing,
    /// It goes down.
    State,
    Lid,
    Partition,
    /// The GID goes.
    Gid,
    /// The GID comes back elsewhere.
    GidIndex,
    Mtu,
    /// All of the device goes: its port cannot be asked any more.
    Device,
}

const UNKNOWN: u32 = 99;
const LAST_STATUS: u32 = 23;
const LAST_EVENT: u32 = 20;

fn facts() -> Vec<(State, Fact)> {
    let statuses = || (1..=LAST_STATUS).chain([UNKNOWN]);
    let events = || (0..=LAST_EVENT).chain([UNKNOWN]).map(Fact::Event);
    let changes = [
        (Changed::State, 10),
        (Changed::Nothing, 9),
        (Changed::Lid, 11),
        (Changed::Lid, 17),
        (Changed::Partition, 12),
        (Changed::Gid, 18),
        (Changed::GidIndex, 18),
        (Changed::Mtu, 18),
        (Changed::Device, 18),
    ];
    let changes = || changes.map(|(changed, event)| Fact::Change(changed, event));
    let mut facts = Vec::new();
    let mut add = |state, some: &mut dyn Iterator<Item = Fact>| {
        facts.extend(some.map(|fact| (state, fact)));
    };
    add(State::Sending, &mut statuses().map(Fact::SendFails));
    add(State::Idle, &mut statuses().map(Fact::ReceiveFails));
    for state in [
        State::Idle,
        State::Sending,
        State::Closing,
        State::PeerClosed,
        State::Leaving,
        State::Gone,
    ] {
        add(state, &mut events());
        add(state, &mut changes().into_iter());
        add(state, &mut [Fact::Removed].into_iter());
    }
    for state in [State::Closing, State::PeerClosed] {
        add(state, &mut statuses().map(Fact::SendFails));
    }
    let doubts = [
        Fact::ChangeThenSendFails(Changed::State, 10, 12),
        Fact::ChangeThenSendFails(Changed::State, 10, 5),
        Fact::ChangeThenSendFails(Changed::Gid, 18, 12),
        Fact::ChangeThenSendFails(Changed::GidIndex, 18, 12),
    ];
    add(State::Sending, &mut doubts.into_iter());
    facts
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Fact::SendFails(status) => write!(f, "send fails with {status}"),
            Fact::ReceiveFails(status) => write!(f, "receive fails with {status}"),
            Fact::Event(event) => write!(f, "event {event}"),
            Fact::Change(changed, event) => write!(f, "event {event} ({changed:?} changed)"),
            Fact::ChangeThenSendFails(changed, event, status) => write!(
                f,
                "event {event} ({changed:?} changed), then send fails with {status}"
            ),
            Fact::Removed => f.write_str("device removed"),
        }
    }
}

/// A session of the first node in a state, and another one of the same site.
struct Row {
    stage: Stage,
    other: [Arc<SessionShared>; 2],
    /// Of the first node.
    receiver: ReceiveHandle,
    _others: (SendHandle, SendHandle, ReceiveHandle),
}

impl Row {
    fn new(state: State) -> Self {
        let stage = Stage::new();
        let other = stage.another_session();
        let (back, receiver) = stage.open(1, "back", WINDOW);
        let (mut sender, forth) = stage.channel("forth", WINDOW);
        let dies = stage.queue_pairs()[0];
        if state != State::Idle {
            stage.fake.hold_sends(true);
            send(&mut sender, 1, 3000);
            send(&mut sender, 2, 3000);
            stage.nodes[0].runtime.poll_ready();
        }
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
                stage.fake.release(theirs, 100);
                stage.settle_first();
            }
            State::Leaving => {
                stage.fake.lose_last_events();
                stage.fake.fail_send(dies, 12, 0);
                stage.settle_first();
            }
            State::Gone => {
                stage.fake.fail_send(dies, 12, 0);
                stage.settle_first();
            }
        }
        Self {
            stage,
            other,
            receiver,
            _others: (back, sender, forth),
        }
    }

    fn apply(&self, fact: Fact) {
        let fake = &self.stage.fake;
        let dies = self.stage.queue_pairs()[0];
        match fact {
            Fact::SendFails(status) => fake.fail_send(dies, status, 0),
            Fact::ReceiveFails(status) => fake.fail_receive(dies, status, 0),
            Fact::Event(event) => self.raise(event),
            Fact::Change(changed, event) => {
                self.change(changed);
                self.raise(event);
            }
            Fact::ChangeThenSendFails(changed, event, status) => {
                self.change(changed);
                self.raise(event);
                self.stage.settle_first();
                fake.fail_send(dies, status, 0);
            }
            Fact::Removed => {
                fake.change(DEVICE, |device| device.is_listed = false);
                let node = &self.stage.nodes[0];
                node.runtime.look_for_device(node.site.clone());
            }
        }
        self.stage.settle_first();
    }

    fn raise(&self, event_type: u32) {
        let (completion, receive) = self.stage.fake.tags();
        let element = match event_type {
            0 => completion[0],
            1..=7 | 16 => self.stage.queue_pairs()[0].into(),
            14 | 15 => receive[0],
            _ => 1,
        };
        let event = RawEvent {
            event_type,
            element,
        };
        self.stage.fake.raise(DEVICE, event);
    }

    fn change(&self, changed: Changed) {
        use crate::fabric::verbs::PortState;
        self.stage.fake.change(DEVICE, |device| {
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

    /// What became of it.
    fn outcome(&mut self, before: &Calls) -> String {
        let after = Calls::of(&self.stage.fake);
        let session = match self.receiver.poll() {
            Ok(_) => "is not over".to_owned(),
            Err(RecvError::Disconnected(disconnected)) => match &disconnected.cause {
                EndCause::DeviceLost { why } => format!("device lost ({})", nameless(why)),
                EndCause::PeerGone { why, .. } => format!("peer gone ({})", nameless(why)),
                other => format!("{other:?}"),
            },
            Err(RecvError::Ended) => "Ended".to_owned(),
            Err(other) => other.to_string(),
        };
        let session = match self.stage.nodes[0].session.is_gone() {
            true => format!("{session}, over"),
            false => session,
        };
        let other = match self.other[0].is_gone() {
            true => "gone",
            false => "up",
        };
        let site = &self.stage.nodes[0].site;
        let site = match (site.is_lost(), site.is_closed()) {
            (_, true) => "closed",
            (true, false) => "lost",
            (false, false) => "open",
        };
        format!(
            "session {session}; others {other}; site {site}; moved to ERR {}, limits armed {}",
            after.errors - before.errors,
            after.armed - before.armed,
        )
    }
}

impl Stage {
    /// Turns the first node alone, so that what the second does about it is not seen.
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

/// What the device was asked for.
struct Calls {
    errors: usize,
    armed: u64,
}

impl Calls {
    fn of(fake: &FakeProvider) -> Self {
        use crate::fabric::verbs::QueuePairState;
        let to_error = |change: &crate::fabric::verbs::provider::fake::Modification| {
            change.attributes.state == QueuePairState::Error
        };
        Self {
            errors: fake
                .modifications()
                .iter()
                .filter(|one| to_error(one))
                .count(),
            armed: fake.limits_armed(),
        }
    }
}

/// A text with `_` in place of the numbers of objects, which differ from run to run, and
/// without what every failure says.
fn nameless(text: &str) -> String {
    let (text, _) = text.split_once(" (vendor").unwrap_or((text, ""));
    let mut follows_name = false;
    let words = text.split(' ').map(|word| {
        let is_number = word.starts_with(|first: char| first.is_ascii_digit());
        let named = follows_name && is_number;
        follows_name = ["pair", "queue", "send", "receive"].contains(&word);
        match (named, word.find([':', ')'])) {
            (false, _) => word.to_owned(),
            (true, Some(end)) => format!("_{}", &word[end..]),
            (true, None) => "_".to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn whatever_a_device_says_does_what_the_table_says() {
    let mut table = String::new();
    for (state, fact) in facts() {
        let mut row = Row::new(state);
        let before = Calls::of(&row.stage.fake);
        row.apply(fact);
        let outcome = row.outcome(&before);
        writeln!(table, "{state:?} | {fact} | {outcome}").unwrap();
    }
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fabric/verbs/tests/sessions/reactions.txt");
    if std::env::var_os("IBEX_REWRITE_TABLES").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (is, was) in table.lines().zip(committed.lines()) {
        assert_eq!(
            is,
            was,
            "IBEX_REWRITE_TABLES=1 writes {} anew",
            path.display()
        );
    }
    assert_eq!(table, committed);
}
