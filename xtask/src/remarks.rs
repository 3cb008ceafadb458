//! A command's lines about failed and long tests and its last lines, kept while its output is passed
//! on: they are repeated at the end of a run of an hour, so that nobody has to search for them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// A command's output on its way to this process's.
#[derive(Debug)]
pub(crate) struct PassedOn {
    kept: Receiver<Remarks>,
}

/// The last lines about failed tests, about long ones, and the last lines of all.
#[derive(Debug, Default)]
struct Remarks {
    lines: VecDeque<String>,
    long: VecDeque<String>,
    last: VecDeque<String>,
    /// The number of following lines that belong to the last one.
    belong: usize,
}

impl PassedOn {
    /// Passes output on as it comes.
    pub(crate) fn of(mut output: impl Read + Send + 'static) -> Self {
        let (keep, kept) = mpsc::channel();
        thread::spawn(move || {
            let mut remarks = Remarks::default();
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
        Self { kept }
    }

    /// Returns the lines about failures and the last lines, each on its own line, after the command
    /// has ended and all its output was shown.
    pub(crate) fn of_failures(self) -> String {
        // A process that outlives the command may keep its output open.
        let remarks = self.kept.recv_timeout(PATIENCE).unwrap_or_default();
        let mut said = String::new();
        for (title, lines) in [
            ("failures", &remarks.lines),
            ("long tests", &remarks.long),
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
        if line.contains("has been running for") {
            keep(&mut self.long, line);
        }
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

fn keep(lines: &mut VecDeque<String>, line: &str) {
    if lines.len() == LINES_KEPT {
        lines.pop_front();
    }
    lines.push_back(line.chars().take(LINE_KEPT).collect());
}

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
        let long = "test three has been running for over 60 seconds";
        remarks.hear(long);
        assert_eq!(remarks.long.back().unwrap(), long);
    }
}
