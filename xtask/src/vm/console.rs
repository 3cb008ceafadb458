//! The last output on a guest's console, for guests that report nothing else.

use std::fmt;
use std::io::Read;

/// The end of a console's output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Console(String);

impl Console {
    /// Reads a console until it is closed.
    pub(crate) fn read(mut from: impl Read) -> Self {
        let mut kept = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            kept.extend_from_slice(&buffer[..length]);
            kept.drain(..kept.len().saturating_sub(KEPT_BYTES));
        }
        Self(String::from_utf8_lossy(&kept).replace('\r', ""))
    }

    /// Returns the line that says why the guest gave up, if it did.
    pub(crate) fn verdict(&self) -> Option<&str> {
        let is_one = |line: &&str| VERDICTS.iter().any(|verdict| line.contains(verdict));
        self.0.lines().find(is_one)
    }

    /// Returns whether the emulator failed rather than the guest: now and then it lets a CPU run
    /// into the breakpoint that guards a patch which another CPU has already finished.
    pub(crate) fn is_emulators_fault(&self) -> bool {
        self.0.contains("Oops: int3")
    }
}

/// Formats the last lines, about as many as a trace takes.
impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.lines().collect();
        if lines.is_empty() {
            return writeln!(f, "(nothing was on the console; is --memory too small?)");
        }
        let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        last.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Words of the kernel and of `vm/init` before they give up, the cause first.
const VERDICTS: &[&str] = &["Oops: ", "BUG: ", "Kernel panic", "init: "];

const KEPT_BYTES: usize = 64 * 1024;
const SHOWN_LINES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_shown_and_the_cause_is_found() {
        let mut text = String::from("early\r\n");
        text += &"line\r\n".repeat(20_000);
        text += "Oops: int3: 0000\r\n";
        for line in 0..100 {
            text += &format!("trace {line}\r\n");
        }
        text += "Kernel panic - not syncing";
        let console = Console::read(text.as_bytes());
        assert!(!console.0.contains("early") && console.0.len() <= KEPT_BYTES);
        assert_eq!(console.verdict(), Some("Oops: int3: 0000"));
        assert!(console.is_emulators_fault());
        let shown = console.to_string();
        assert_eq!(shown.lines().count(), SHOWN_LINES);
        assert!(shown.starts_with("trace 61\n") && shown.ends_with("syncing\n"));
    }

    #[test]
    fn a_console_without_a_word_is_no_verdict() {
        let console = Console::read(&b""[..]);
        assert_eq!(console.verdict(), None);
        assert!(!console.is_emulators_fault());
        assert!(console.to_string().contains("--memory"));
    }
}
