//! Histories of the clients' requests and answers, and their check.
//!
//! A key is a register. Registers are linearizable each by itself if and only if all of them
//! together are, so each has a history of its own, which stays short enough for the search.

use std::collections::{BTreeMap, BTreeSet};

use stateright::semantics::{
    ConsistencyTester, LinearizabilityTester,
    register::{Register, RegisterOp, RegisterRet},
};

/// The value of a register: `None` before the first write.
pub type Value = Option<u64>;

/// The operations of clients on all keys.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: BTreeMap<String, Vec<Event>>,
    next_process: u64,
}

/// An operation under way: the client's process in the history.
#[derive(Debug)]
pub struct Begun {
    key: String,
    process: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Invoke(u64, RegisterOp<Value>),
    Return(u64, RegisterRet<Value>),
}

impl History {
    /// Notes that a client begins to write.
    pub fn begin_write(&mut self, key: &str, value: u64) -> Begun {
        self.begin(key, RegisterOp::Write(Some(value)))
    }

    /// Notes that a client begins to read.
    pub fn begin_read(&mut self, key: &str) -> Begun {
        self.begin(key, RegisterOp::Read)
    }

    /// Begins an operation as a process of its own: an operation of unknown outcome stays under way
    /// forever, while its client continues.
    fn begin(&mut self, key: &str, operation: RegisterOp<Value>) -> Begun {
        let process = self.next_process;
        self.next_process += 1;
        let events = self.keys.entry(key.to_owned()).or_default();
        events.push(Event::Invoke(process, operation));
        Begun {
            key: key.to_owned(),
            process,
        }
    }

    /// Notes that the write was acknowledged.
    pub fn written(&mut self, begun: Begun) {
        self.end(begun, RegisterRet::WriteOk);
    }

    /// Notes that the read returned this value.
    pub fn read(&mut self, begun: Begun, value: Value) {
        self.end(begun, RegisterRet::ReadOk(value));
    }

    /// Notes that the operation did nothing, and will not.
    pub fn withdrawn(&mut self, begun: Begun) {
        if let Some(events) = self.keys.get_mut(&begun.key) {
            events.retain(|event| event.process() != begun.process);
        }
    }

    fn end(&mut self, begun: Begun, outcome: RegisterRet<Value>) {
        let events = self.keys.entry(begun.key).or_default();
        events.push(Event::Return(begun.process, outcome));
    }

    /// Checks each key.
    ///
    /// # Errors
    ///
    /// The first key whose history no order of its operations explains, with that history.
    pub fn check(&self) -> Result<(), String> {
        for (key, events) in &self.keys {
            let mut tester = LinearizabilityTester::new(Register(None));
            let unseen = unseen(events);
            for event in events {
                if unseen.contains(&event.process()) {
                    continue;
                }
                let recorded = match event.clone() {
                    Event::Invoke(process, operation) => tester.on_invoke(process, operation),
                    Event::Return(process, outcome) => tester.on_return(process, outcome),
                };
                recorded.map(|_| ())?;
            }
            if !tester.is_consistent() {
                return Err(format!("key {key} is not linearizable: {events:#?}"));
            }
        }
        Ok(())
    }
}

/// Returns the writes of unknown outcome that no read has seen. If an order of the others explains
/// the history, it does so with these or without them, and the search takes twice as long for each.
fn unseen(events: &[Event]) -> BTreeSet<u64> {
    let (mut writes, mut returned, mut seen) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for event in events {
        match event {
            Event::Invoke(process, RegisterOp::Write(value)) => {
                writes.insert(*process, *value);
            }
            Event::Invoke(_, RegisterOp::Read) => {}
            Event::Return(process, outcome) => {
                returned.insert(*process);
                if let RegisterRet::ReadOk(value) = outcome {
                    seen.push(*value);
                }
            }
        }
    }
    writes.retain(|process, value| !returned.contains(process) && !seen.contains(value));
    writes.into_keys().collect()
}

impl Event {
    fn process(&self) -> u64 {
        match self {
            Event::Invoke(process, _) | Event::Return(process, _) => *process,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::History;

    #[test]
    fn overlapping_writes_may_take_effect_in_any_order() {
        let mut history = History::default();
        let first = history.begin_write("a", 1);
        let second = history.begin_write("a", 2);
        let read = history.begin_read("a");
        history.read(read, Some(2));
        history.written(second);
        let read = history.begin_read("a");
        history.read(read, Some(1));
        history.written(first);
        assert_eq!(history.check(), Ok(()));
    }

    #[test]
    fn a_write_of_unknown_outcome_may_be_done_later_or_never() {
        let mut history = History::default();
        let write = history.begin_write("a", 1);
        history.written(write);
        let _unknown = history.begin_write("a", 2);
        for value in [1, 2, 2] {
            let read = history.begin_read("a");
            history.read(read, Some(value));
        }
        assert_eq!(history.check(), Ok(()));
        let read = history.begin_read("a");
        history.read(read, Some(1));
        assert!(history.check().is_err(), "it was done, and is undone again");
    }

    #[test]
    fn many_writes_of_unknown_outcome_do_not_hold_up_the_check() {
        let mut history = History::default();
        for value in 0..40 {
            let _unknown = history.begin_write("a", value);
        }
        for value in [3, 17, 17, 5] {
            let read = history.begin_read("a");
            history.read(read, Some(value));
        }
        assert_eq!(history.check(), Ok(()));
        let read = history.begin_read("a");
        history.read(read, Some(17));
        assert!(history.check().is_err(), "17 was written once");
    }

    #[test]
    fn a_planted_stale_read_is_found() {
        let mut history = History::default();
        for value in 1..=20 {
            let key = format!("{}", value % 3);
            let write = history.begin_write(&key, value);
            history.written(write);
            let read = history.begin_read(&key);
            history.read(read, Some(value));
        }
        assert_eq!(history.check(), Ok(()));
        let mut lost = history.clone();
        let stale = history.begin_read("1");
        history.read(stale, Some(16));
        let error = history.check().expect_err("19 was acknowledged before");
        assert!(error.contains("key 1"), "{error}");
        // A lost write is a violation as well.
        let none = lost.begin_read("2");
        lost.read(none, None);
        assert!(lost.check().is_err());
    }
}
