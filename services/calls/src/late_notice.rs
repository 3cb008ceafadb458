//! Time-outs that calls notice late, because the program does not run what turns their node.

#![forbid(unsafe_code)]

use std::time::Duration;

use ibex_core::{Driver, extend::warn_limited};

/// Warns of a time-out that is noticed this `late`.
///
/// A node that has a thread wakes its calls in time.
pub(super) fn give(driver: Driver, late: Duration) {
    let (driver, what_to_do) = match driver {
        _ if late < NOTICE => return,
        Driver::Tasks => (
            "Driver::Tasks",
            "have a thread run the node's runtime at all times (by block_on, or in a multi-thread \
             runtime), and keep blocking work out of its tasks",
        ),
        Driver::Caller => (
            "Driver::Caller",
            "call Node::poll whenever the node's descriptor is readable",
        ),
        _ => return,
    };
    warn_limited!(
        driver,
        ?late,
        "the time-out of a call was noticed late, because nothing turned its node: under {driver} \
         nothing is transmitted or received meanwhile, and no time-out passes; {what_to_do}, or \
         choose Driver::Threads"
    );
}

/// A delay of this length is more than a task that computes for a moment.
const NOTICE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ibex_harness::events::{Each, line};
    use tracing::{Event, Level, subscriber};

    use super::*;

    /// Returns the warnings of a time-out that is noticed so late.
    fn notified(driver: Driver, late: Duration) -> Vec<String> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        let log = Each(move |event: &Event<'_>| {
            if *event.metadata().level() == Level::WARN {
                let mut kept = kept.lock().expect("nobody panics with it");
                kept.push(line(event));
            }
        });
        subscriber::with_default(log, || give(driver, late));
        lines.lock().expect("nobody panics with it").clone()
    }

    #[test]
    fn a_late_time_out_is_warned_of_unless_the_node_has_a_thread() {
        let early = NOTICE - Duration::from_millis(1);
        for (driver, help) in [
            (Driver::Tasks, "block_on"),
            (Driver::Caller, "call Node::poll"),
        ] {
            assert_eq!(notified(driver, early), [""; 0]);
            let notified = notified(driver, NOTICE);
            assert_eq!(notified.len(), 1, "{notified:?}");
            for words in ["late=5s", &format!("under Driver::{driver:?}"), help] {
                assert!(
                    notified[0].contains(words),
                    "{notified:?} does not say {words:?}"
                );
            }
        }
        assert_eq!(notified(Driver::Threads, NOTICE), [""; 0]);
    }
}
