//! Messages that wait for a turn of a node that only its calls turn
//! ([`Driver::Caller`](super::Driver::Caller)).
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::clock;

/// The time since which messages wait for a turn.
///
/// Only the first message that a sender publishes after its ring was armed is noted here. Later
/// ones are published without a mark, and without a reading of the clock.
#[derive(Debug, Default)]
pub(super) struct Unpolled {
    since: Option<Instant>,
    is_notified: bool,
}

impl Unpolled {
    /// Notes that a message waits from now on, unless an earlier one does.
    pub(super) fn message_waits(&mut self) {
        self.since.get_or_insert_with(clock::now);
    }

    /// Notes that a turn takes the messages. Returns what [`take_notice`](Self::take_notice) does.
    pub(super) fn turn_comes(&mut self) -> Option<Duration> {
        let notice = self.take_notice();
        self.since = None;
        notice
    }

    /// Returns for how long a message has waited, once for the engine, if that is worth a warning.
    pub(super) fn take_notice(&mut self) -> Option<Duration> {
        let since = self.since.filter(|_| !self.is_notified)?;
        let waited = clock::now().saturating_duration_since(since);
        self.is_notified = waited >= NOTICE;
        self.is_notified.then_some(waited)
    }
}

/// Warns of messages that have waited this long, if any have.
pub(super) fn warn(waited: Option<Duration>) {
    if let Some(waited) = waited {
        ibex_base::warn_limited!(
            "messages have waited",
            ?waited,
            "sent messages have waited for a call that turns this node: under Driver::Caller \
             nothing is transmitted between calls; call flush after sending, or Node::poll now and \
             then, or choose Driver::Threads (this is logged once)"
        );
    }
}

/// A wait of this length is more than the program's next piece of work.
const NOTICE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::{super::Driver, *};
    use crate::{
        clock::StoppedClock,
        engine::ReadyWires,
        node::Mark,
        runtime::{EventLoop, Runtime, RuntimeConfig},
    };
    use ibex_harness::events::{Each, line};
    use std::sync::{Arc, Mutex};
    use tracing::{Event, Level, subscriber};

    fn node(driver: Driver) -> Arc<Runtime> {
        Runtime::start(RuntimeConfig {
            node_credit_bytes: 1 << 20,
            ..RuntimeConfig::of_test(driver)
        })
        .expect("a runtime")
    }

    /// Calls `act` and returns the warnings that it logs on this thread.
    fn warnings_of(act: impl FnOnce()) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        let log = Each(move |event: &Event<'_>| {
            if *event.metadata().level() == Level::WARN {
                kept.lock()
                    .expect("nobody panics with it")
                    .push(line(event));
            }
        });
        subscriber::with_default(log, act);
        lines.lock().expect("nobody panics with it").clone()
    }

    fn publish(event_loop: &EventLoop, end: u32) {
        event_loop.mark_quietly(Mark::Ready { session: 8, end }, false);
    }

    fn turn(event_loop: &EventLoop) {
        event_loop.turn(event_loop.engine.lock(), &ReadyWires::NOTHING);
    }

    #[test]
    fn a_message_that_no_call_transmits_is_warned_of_once() {
        let clock = StoppedClock::stop();
        let node = node(Driver::Caller);
        let event_loop = node.first();
        let quiet = warnings_of(|| {
            publish(event_loop, 1);
            clock.advance(NOTICE - Duration::from_millis(1));
            turn(event_loop);
            clock.advance(NOTICE);
            turn(event_loop);
            publish(event_loop, 1);
            turn(event_loop);
        });
        assert_eq!(quiet, [""; 0], "a turn came in time, or nothing waited");

        let notified = warnings_of(|| {
            publish(event_loop, 1);
            clock.advance(NOTICE);
            turn(event_loop);
            publish(event_loop, 1);
            clock.advance(NOTICE);
            turn(event_loop);
        });
        assert_eq!(notified.len(), 1, "{notified:?}");
        for words in ["waited=5s", "call flush", "Node::poll", "Driver::Threads"] {
            assert!(
                notified[0].contains(words),
                "{notified:?} does not say {words:?}"
            );
        }
    }

    #[test]
    fn another_channel_or_a_call_on_the_engine_tells_it_before_a_turn_comes() {
        let clock = StoppedClock::stop();
        let checks: [fn(&EventLoop); 2] = [
            |event_loop| publish(event_loop, 2),
            |event_loop| event_loop.with_engine(|_, _| ()),
        ];
        for check in checks {
            let node = node(Driver::Caller);
            let notified = warnings_of(|| {
                publish(node.first(), 1);
                clock.advance(NOTICE);
                check(node.first());
            });
            assert_eq!(notified.len(), 1, "{notified:?}");
        }
    }

    #[test]
    fn a_node_that_turns_by_itself_is_not_warned_of() {
        let clock = StoppedClock::stop();
        let node = node(Driver::Tasks);
        let notified = warnings_of(|| {
            publish(node.first(), 1);
            clock.advance(2 * NOTICE);
            turn(node.first());
        });
        assert_eq!(notified, [""; 0]);
    }
}
