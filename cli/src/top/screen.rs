//! The screen of `ibex top`, renewed until the user leaves it.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};
use ratatui::{DefaultTerminal, Frame};

use super::answer::Answer;
use super::node::Node;
use super::table;
use crate::Failure;
use crate::page::{self, Page, Tone};

/// What is shown, and the part of it that the screen begins with.
struct Screen {
    before: Answer,
    now: Answer,
    /// The first line that is seen.
    top: u16,
}

/// What the user wants.
enum Wish {
    Stay,
    Leave,
}

/// Shows a node, of which an earlier answer is there, until the user leaves or the node ends.
pub(crate) fn run(before: Answer, node: Node, interval: Duration) -> Result<(), Failure> {
    let mut terminal = ratatui::try_init()?;
    let outcome = show(&mut terminal, before, node, interval);
    ratatui::restore();
    outcome
}

fn show(
    terminal: &mut DefaultTerminal,
    before: Answer,
    mut node: Node,
    interval: Duration,
) -> Result<(), Failure> {
    let mut screen = Screen {
        before,
        now: node.answer,
        top: 0,
    };
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            match screen.hear(&event::read()?) {
                Wish::Stay => continue,
                Wish::Leave => return Ok(()),
            }
        }
        let now = node.connection.ask().map_err(Failure::said)?;
        screen.before = std::mem::replace(&mut screen.now, now);
        next = Instant::now() + interval;
    }
}

impl Screen {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let mut page = Page::for_file();
        table::write(&self.before, &self.now, &mut page);
        let mut text: Text<'_> = page.into_lines().into_iter().map(toned).collect();
        let most = text
            .height()
            .saturating_sub(usize::from(frame.area().height).saturating_sub(1));
        self.top = self.top.min(u16::try_from(most).unwrap_or(u16::MAX));
        let help = "q leaves, ↑ ↓ PgUp PgDn move".to_owned();
        text.lines.push(Line::from(help));
        let paragraph = Paragraph::new(text).wrap(Wrap { trim: false });
        frame.render_widget(paragraph.scroll((self.top, 0)), frame.area());
    }

    fn hear(&mut self, event: &Event) -> Wish {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press,
            ..
        }) = event
        else {
            // A terminal of another size is drawn anew.
            return Wish::Stay;
        };
        let is_interrupt = *code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            _ if is_interrupt => return Wish::Leave,
            KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::Down => self.top = self.top.saturating_add(1),
            KeyCode::PageUp => self.top = self.top.saturating_sub(PAGE),
            KeyCode::PageDown => self.top = self.top.saturating_add(PAGE),
            KeyCode::Home => self.top = 0,
            KeyCode::End => self.top = u16::MAX,
            _ => {}
        }
        Wish::Stay
    }
}

/// Gives the words of a line their colours.
fn toned(line: page::Line) -> Line<'static> {
    let words = line.into_iter().map(|(tone, text)| match tone {
        Tone::Plain => Span::raw(text),
        Tone::Title => text.bold(),
        Tone::Good => text.green(),
        Tone::Warning => text.yellow(),
        Tone::Bad => text.red(),
    });
    Line::from_iter(words)
}

/// Lines that PgUp and PgDn move by.
const PAGE: u16 = 10;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn a_terminal_may_have_any_size() {
        let answer = r#"{"pid": 1, "driver": "caller", "age_ns": 1, "memory": {"held_bytes": 0,
            "limit_bytes": 1}, "totals": {"sent": 0, "received": 0, "refused_connections": 0,
            "silent_connections": 0, "counters": {}}, "sessions": []}"#;
        let answer: Answer = serde_json::from_str(answer).expect("an answer");
        let mut screen = Screen {
            before: answer.clone(),
            now: answer,
            top: u16::MAX,
        };
        for (columns, rows) in [(80, 0), (0, 24), (0, 0), (1, 1), (80, 2), (200, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
            terminal.draw(|frame| screen.draw(frame)).expect("a screen");
        }
        assert_eq!(screen.top, 0, "all fits into 100 rows");
    }
}
