//! Text for people: 100 columns at most, in colour on a terminal only.

use std::io::{self, IsTerminal, Write as _};

/// The most columns of a line.
const COLUMNS: usize = 100;

/// The colours that a word can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Title,
    Good,
    Warning,
    Bad,
}

/// The words of a line, each with its colour.
pub(crate) type Line = Vec<(Tone, String)>;

/// Lines that are complete, to be printed or written to a file.
pub(crate) struct Page {
    lines: Vec<Line>,
    /// Set once a part was printed, so that the next one keeps its distance.
    is_begun: bool,
    in_colour: bool,
}

impl Page {
    /// Makes a page for the standard output. `NO_COLOR` turns colours off
    /// (<https://no-color.org>).
    pub(crate) fn for_output() -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            lines: Vec::new(),
            is_begun: false,
            in_colour: io::stdout().is_terminal() && !is_plain,
        }
    }

    /// Makes a page without colours, for a file, or for a screen that chooses them itself.
    pub(crate) fn for_file() -> Self {
        Self {
            lines: Vec::new(),
            is_begun: false,
            in_colour: false,
        }
    }

    /// Adds a title.
    pub(crate) fn title(&mut self, text: &str) {
        self.gap();
        let lines = wrap(text, COLUMNS).into_iter();
        self.lines
            .extend(lines.map(|line| vec![(Tone::Title, line)]));
    }

    /// Adds an empty line, unless the page begins here.
    pub(crate) fn gap(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            self.lines.push(Line::new());
        }
    }

    /// Adds a text behind a label of `width` columns. Further lines of the text stand below its
    /// beginning.
    pub(crate) fn row(&mut self, indent: usize, label: &str, width: usize, tone: Tone, text: &str) {
        let width = if label.is_empty() {
            0
        } else {
            width.max(label.chars().count() + 1)
        };
        self.is_begun = true;
        let padding = " ".repeat(width - label.chars().count());
        let plain = |text: String| (Tone::Plain, text);
        let mut head = vec![plain(" ".repeat(indent)), (tone, label.to_owned())];
        let mut before = padding;
        for line in wrap(text, COLUMNS - indent - width) {
            head.push(plain(format!("{before}{line}").trim_end().to_owned()));
            self.lines.push(std::mem::take(&mut head));
            before = " ".repeat(indent + width);
        }
    }

    /// Adds a text.
    pub(crate) fn text(&mut self, indent: usize, text: &str) {
        self.row(indent, "", 0, Tone::Plain, text);
    }

    /// Prints what was added, at once.
    pub(crate) fn print(&mut self) -> io::Result<()> {
        let mut output = io::stdout().lock();
        output.write_all(self.as_text().as_bytes())?;
        output.flush()?;
        self.lines.clear();
        Ok(())
    }

    pub(crate) fn into_text(self) -> String {
        self.as_text()
    }

    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    fn as_text(&self) -> String {
        let mut all = String::new();
        for line in &self.lines {
            for (tone, text) in line {
                all += &self.toned(*tone, text);
            }
            all.push('\n');
        }
        all
    }

    fn toned(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Title => "1",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
        };
        match self.in_colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Returns the lines of a text, each with `columns` at most. A word that is longer is cut. The
/// spaces before the first word of a line of the text stay.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let words = paragraph.trim_start_matches(' ');
        let indent = (paragraph.len() - words.len()).min(columns / 2);
        let mut line = " ".repeat(indent);
        let mut length = indent;
        for word in words.split(' ') {
            let mut word: Vec<char> = word.chars().collect();
            if length > indent && length + 1 + word.len() > columns {
                lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
                length = indent;
            } else if length > indent {
                line.push(' ');
                length += 1;
            }
            while length + word.len() > columns {
                let rest = word.split_off(columns - length);
                line.extend(word);
                lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
                length = indent;
                word = rest;
            }
            length += word.len();
            line.extend(word);
        }
        lines.push(line);
    }
    lines
}

/// Prints a value as JSON, on lines of their own.
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer_pretty(&mut output, value)?;
    output.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_a_hundred_columns() {
        let mut page = Page::for_file();
        let text = format!("{} {} short", "word ".repeat(60), "x".repeat(230));
        page.row(4, "label", 10, Tone::Bad, &text);
        let text = page.into_text();
        assert!(
            text.lines().all(|line| line.chars().count() <= COLUMNS),
            "{text}"
        );
        assert!(text.starts_with("    label     word word"), "{text}");
        let letters = |text: &str| text.chars().filter(|letter| *letter == 'x').count();
        assert_eq!(letters(&text), 230);

        let mut page = Page::for_file();
        page.text(2, "device\n  port");
        assert_eq!(page.into_text(), "  device\n    port\n");
    }
}
