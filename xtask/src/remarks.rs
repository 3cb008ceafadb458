//! A command's lines about failed and long tests and its last lines, kept while its output is passed
//! on: they are repeated at the end of a run, so that nobody has to search for them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A command's output on its way to this process's.
#[derive(Debug)]
pub(crate) struct PassedOn {
    kept: Receiver<Remarks>,
    long: Arc<LongTests>,
}

/// The last lines about failed tests, the long tests that have not ended, and the last lines of all.
#[derive(Debug, Default)]
struct Remarks {
    lines: VecDeque<String>,
    long: Arc<LongTests>,
    last: VecDeque<String>,
    /// The number of following lines that belong to the last one.
    belong: usize,
}

/// The tests that libtest has called long, each with the time of that line, until they end.
#[derive(Debug, Default)]
struct LongTests(Mutex<Vec<(String, Instant)>>);

impl PassedOn {
    /// Passes output on as it comes.
    pub(crate) fn of(mut output: impl Read + Send + 'static) -> Self {
        let (keep, kept) = mpsc::channel();
        let long = Arc::<LongTests>::default();
        let mut remarks = Remarks {
            long: long.clone(),
            ..Remarks::default()
        };
        thread::spawn(move || {
            let mut line = Vec::new();
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                let mut shown = io::stdout().lock();
                // This process's reader may be gone; the command must not hang for that.
                let _ = shown
                    .write_all(&bytes[..length])
                    .and_then(|()| shown.flush());
                for &byte in &bytes[..length] {
                    if byte == b'\n' {
                        remarks.hear(&String::from_utf8_lossy(&line));
                        line.clear();
                    } else {
                        line.push(byte);
                    }
                }
            }
            // The receiver may have stopped waiting.
            let _ = keep.send(remarks);
        });
        Self { kept, long }
    }

    /// Returns the name of a test that has run for so long that it hangs.
    pub(crate) fn hung_test(&self) -> Option<String> {
        self.long.since(HANGS)
    }

    /// Returns the lines about failures and the last lines, each on its own line, after the command
    /// has ended and all its output was shown.
    pub(crate) fn of_failures(self) -> String {
        // A process that outlives the command may keep its output open.
        let remarks = self.kept.recv_timeout(PATIENCE).unwrap_or_default();
        let mut said = String::new();
        for (title, lines) in [
            ("failures", &remarks.lines),
            ("long tests that had not ended", &remarks.long.names()),
            ("last lines", &remarks.last),
        ] {
            if !lines.is_empty() {
                said.push_str(&format!("\n  {title}:"));
            }
            said.extend(lines.iter().map(|line| format!("\n    {line}")));
        }
        said
    }
}

impl Remarks {
    fn hear(&mut self, line: &str) {
        keep(&mut self.last, line);
        let is_panic = line.contains("panicked at ");
        self.long.hear(line);
        if !is_panic && !line.contains("FAILED") && self.belong == 0 {
            return;
        }
        self.belong = match is_panic {
            true => LINES_OF_A_PANIC,
            false => self.belong.saturating_sub(1),
        };
        keep(&mut self.lines, line);
    }
}

impl LongTests {
    /// Notes a long test, or the end of one or of its program.
    fn hear(&self, line: &str) {
        let mut tests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let long = line.split_once(" has been running for ");
        if let Some((_, name)) = long.and_then(|(before, _)| before.split_once("test ")) {
            tests.push((name.to_owned(), Instant::now()));
        } else if line.starts_with("test result: ") {
            tests.clear();
        } else {
            tests.retain(|(name, _)| !line.contains(&format!("test {name} ... ")));
        }
    }

    fn names(&self) -> VecDeque<String> {
        let tests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tests.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the name of a test that was called long at least this time ago.
    fn since(&self, time: Duration) -> Option<String> {
        let tests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hangs = |(_, called): &&(String, Instant)| called.elapsed() >= time;
        tests.iter().find(hangs).map(|(name, _)| name.clone())
    }
}

fn keep(lines: &mut VecDeque<String>, line: &str) {
    if lines.len() == LINES_KEPT {
        lines.pop_front();
    }
    lines.push_back(line.chars().take(LINE_KEPT).collect());
}

/// The time after which a test that libtest has called long hangs: more than the watchdogs of tests,
/// which say what they wait for, and less than that of a stage.
const HANGS: Duration = Duration::from_secs(15 * 60);
const LINES_OF_A_PANIC: usize = 3;
const LINES_KEPT: usize = 24;
/// The characters of a line that are kept.
const LINE_KEPT: usize = 300;
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_keep_failed_and_long_tests_and_panic_messages() {
        let output = "running 2 tests\ntest one ... ok\ntest two ... FAILED\n\nfailures:\n\n\
                      thread 'two' panicked at src/two.rs:2:2:\nassertion `left == right` failed\n  \
                      left: 1\n right: 2\nnote: run with a backtrace\n";
        let mut remarks = Remarks::default();
        output.lines().for_each(|line| remarks.hear(line));
        let kept = [
            "test two ... FAILED",
            "thread 'two' panicked at src/two.rs:2:2:",
            "assertion `left == right` failed",
            "  left: 1",
            " right: 2",
        ];
        assert_eq!(remarks.lines, kept);
        for number in 0..100 {
            remarks.hear(&format!("test {number} ... FAILED"));
        }
        assert_eq!(remarks.lines.len(), LINES_KEPT);
        assert_eq!(remarks.lines.back().unwrap(), "test 99 ... FAILED");
        remarks.hear("process 7: a proof hangs");
        assert_eq!(remarks.last.len(), LINES_KEPT);
        assert_eq!(remarks.last.back().unwrap(), "process 7: a proof hangs");
    }

    #[test]
    fn a_long_test_is_named_until_it_or_its_program_ends() {
        let long = LongTests::default();
        for name in ["calls::three", "calls::four"] {
            long.hear(&format!("test {name} has been running for over 60 seconds"));
        }
        assert_eq!(long.names(), ["calls::three", "calls::four"]);
        assert_eq!(long.since(HANGS), None);
        long.hear("something else");
        long.hear("test calls::three ... ok");
        assert_eq!(long.since(Duration::ZERO).as_deref(), Some("calls::four"));
        long.hear("test result: FAILED. 1 passed; 1 failed");
        assert_eq!(long.since(Duration::ZERO), None);
    }
}
