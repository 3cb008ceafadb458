//! The log of this process, as lines of text.

use std::{
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use ibex_harness::events::{Each, line};

/// The logged events, one line each.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns the log of this process, which all of its tests share.
    pub(crate) fn of_process() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let take_over = || {
            let log = Log::default();
            let lines = log.0.clone();
            let each = Each(move |event: &tracing::Event<'_>| {
                lines
                    .lock()
                    .expect("nobody panics with it")
                    .push(line(event));
            });
            each.take_over();
            log
        };
        LOG.get_or_init(take_over).clone()
    }

    /// Returns all lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    /// Returns the lines with all of these words.
    pub(crate) fn lines_with(&self, all: &[&str]) -> Vec<String> {
        let is_meant = |line: &String| all.iter().all(|words| line.contains(words));
        self.lines().into_iter().filter(is_meant).collect()
    }

    /// Returns the first line with these words, if there is one.
    pub(crate) fn line_with(&self, words: &str) -> Option<String> {
        self.lines_with(&[words]).into_iter().next()
    }

    /// Returns the first line with these words, which must come.
    pub(crate) fn awaited(&self, words: &str) -> String {
        let began = Instant::now();
        loop {
            match self.line_with(words) {
                Some(line) => return line,
                None => assert!(began.elapsed() < WATCHDOG, "nobody logs {words:?}"),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A watchdog's time: nothing takes so long on any machine.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(300);
