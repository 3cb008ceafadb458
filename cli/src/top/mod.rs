//! `ibex top`: what a running node does, and why it is slow, as the node tells at its socket.

mod answer;
mod findings;
mod node;
mod screen;
mod slow;
mod table;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use crate::options::TopOptions;
use crate::page::{Page, Tone};
use crate::{Failure, print};

use self::answer::Answer;
use self::node::Node;

/// Runs the subcommand.
pub(crate) fn run(options: &TopOptions) -> Result<u8, Failure> {
    let nodes = node::find(options.node.as_deref())?;
    if options.json {
        nodes.iter().try_for_each(|node| print(&node.line))?;
        return Ok(0);
    }
    let Ok([mut node]) = <[Node; 1]>::try_from(nodes).map_err(|nodes| list(&nodes)) else {
        return Ok(0);
    };
    // Rates need two answers.
    thread::sleep(Duration::from_millis(options.interval_ms.min(FIRST_LOOK)));
    let now = node.connection.ask().map_err(Failure::said)?;
    let before = std::mem::replace(&mut node.answer, now);
    if options.once || !io::stdout().is_terminal() {
        let mut page = Page::for_output();
        table::write(&before, &node.answer, &mut page);
        page.print()?;
        return Ok(0);
    }
    screen::run(before, node, Duration::from_millis(options.interval_ms))?;
    Ok(0)
}

/// Prints which nodes there are.
fn list(nodes: &[Node]) {
    let mut page = Page::for_output();
    page.text(
        0,
        "Several nodes can be inspected; `ibex top PID` or `ibex top SOCKET` shows one:",
    );
    for Node { answer, path, .. } in nodes {
        let text = format!("{}: {}", title(answer), path.display());
        page.row(2, &answer.pid.to_string(), 10, Tone::Good, &text);
    }
    // Who reads no further wants no complaint.
    let _ = page.print();
}

/// Names a node: its name, program, process and address.
fn title(answer: &Answer) -> String {
    let name = answer.name.as_deref().unwrap_or("a node without a name");
    let program = answer.program.as_deref().unwrap_or("unknown program");
    let mut title = format!("{name} ({program}, process {})", answer.pid);
    if let Some(address) = &answer.address {
        title += &format!(", listening on {address}");
    }
    title
}

/// Milliseconds to the second answer at most, so that something is shown within a second.
const FIRST_LOOK: u64 = 500;
